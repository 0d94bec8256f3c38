"""No password of a URL is shown or stored: in no output, and in no file under the root."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from offline_data.base.config import resolve_settings
from offline_data.base.errors import NetworkError
from offline_data.base.urls import redact
from offline_data_cli.main import main
from tests.toys.d4rl import TOYS, write_d4rl_hdf5
from tests.toys.servers import Answer, Fault, FileServer

SHOWN = {
    "http://u:hush@h/x": "http://***@h/x",
    "http://u:hu@sh@h:80/x failed": "http://***@h:80/x failed",
    "http://u:hu/sh@h/x": "http://***@h/x",
    "http://u:hu?sh@h/x": "http://***@h/x",
    "http://a/=http://u:hush@b/; http://u:hush@c": "http://a/=http://***@b/; http://***@c",
    "see 'http://u:hush@h/x'": "see 'http://***@h/x'",
    "http://u:hush": "http://u:***",
    "https://h/x?authorization=hush&auth=hush": "https://h/x?authorization=***&auth=***",
    "https://h/x?a=1&sig=hush&b=2": "https://h/x?a=1&sig=***&b=2",
    "https://h/x?X-Amz-Credential=hush#t": "https://h/x?X-Amz-Credential=***#t",
    "https://h/x?X-Amz-Signature=hush#t": "https://h/x?X-Amz-Signature=***#t",
    "'https://h/x?Access_Token=hush'": "'https://h/x?Access_Token=***'",
    "https://h/x?Key-Pair-Id=hush&Policy=hush": "https://h/x?Key-Pair-Id=***&Policy=***",
}
PLAIN = [
    *("http://[::1]:80/x", "http://h: not received", "'http://h:80'", "file:///mnt/a%20b/x@1"),
    *("hf://datasets/u/n@3f2a/data/x.hdf5", "https://h/pkg@1.0/x?page=2&prefix=door"),
    "a sentence with me@example.org and token=1",
]


@pytest.mark.parametrize(("text", "shown"), [*SHOWN.items(), *zip(PLAIN, PLAIN, strict=True)])
def test_secrets_are_hidden_and_the_rest_stays(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_errors_and_settings_redact_what_they_say() -> None:
    error = NetworkError("http://u:hush@h/ stalled", hint="try http://u:hush@g/")
    assert "hush" not in f"{error} {error!r} {error.message} {error.hint} {error.args}"
    mirrors = {"OFFLINE_DATA_MIRRORS": "http://a/=http://u:hush@b/"}
    hub = {"HF_TOKEN": "hush", "HF_ENDPOINT": "http://u:hush@c/"}
    settings = resolve_settings(environ=mirrors | hub)
    assert "hush" not in repr(settings)
    assert settings.mirrors == (("http://a/", "http://u:hush@b/"),)


PUBLISHED = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
NAME = "d4rl:hopper-medium-v2"
PATH = "/gym_mujoco_v2/hopper_medium-v2.hdf5"


def run(root: Path, mirrors: str, *arguments: str) -> str:
    """Run a command line; returns all that it printed."""
    named = {"OFFLINE_DATA_HOME": str(root), "OFFLINE_DATA_MIRRORS": mirrors}
    said = io.StringIO()
    with (
        patch.dict(os.environ, named | {"NO_PROXY": "127.0.0.1"}),
        redirect_stdout(said),
        redirect_stderr(said),
    ):
        main(arguments)
    return said.getvalue()


def files_with(root: Path, secret: bytes) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and secret in path.read_bytes()]


@pytest.mark.slow
@pytest.mark.usefixtures("no_waits")
def test_nothing_that_a_download_prints_or_writes_has_the_password(tmp_path: Path) -> None:
    root, raw = tmp_path / "root", tmp_path / "raw.hdf5"
    write_d4rl_hdf5(raw, TOYS["mujoco-v2"])
    printed = ""
    with FileServer({f"/second{PATH}": raw.read_bytes()}) as server:
        at = server.url.removeprefix("http://")
        places = (f"http://me:hush@{at}/first/", f"http://me:hush@{at}/second/")
        query = f"http://{at}/third?sig=hush&path="
        mirrors = ";".join(f"{PUBLISHED}={place}" for place in (query, *places))
        server.script(
            f"/second{PATH}", Fault(cut_after=900, stall_after=None), Fault(Answer(b"", 404))
        )
        downloads = ("--dry-run --json", "-v --offline", "-v --keep-raw", "-v --keep-raw --json")
        for line in (
            *("env --json", "env"),
            *(f"download {NAME} {options}" for options in downloads),
            *("cache ls --json", f"info {NAME}", f"info {NAME} --json", "list --json"),
            f"verify {NAME}",
        ):
            said = run(root, mirrors, *line.split())
            printed += said
            assert "unexpected" not in said, said
            assert files_with(root, b"hush") == []
    assert "hush" not in printed
    assert "***@127.0.0.1" in printed
    assert any((root / "d4rl").rglob("manifest.json"))
