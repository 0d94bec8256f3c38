"""Standard streams that are closed, full, broken or ASCII: a documented end, one line or nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from offline_data.base.errors import AccessError, NoSpaceError
from offline_data_cli.main import exit_code
from tests.cli.conftest import RUN

pytestmark = pytest.mark.slow

FD = {"stdin": 0, "stdout": 1, "stderr": 2}
COMMANDS = {
    "--help": 0,
    "completion bash": 0,
    "list --json": 0,
    "info local:x": 3,
    "info local:x --json": 3,
    "rm local:toy": 2,
}
UNWRITABLE = {
    "stdout full": exit_code(NoSpaceError("no")),
    "stdout for reading": exit_code(AccessError("no")),
    "stdout broken": 0,
}
"""Exit codes of what has something for stdout."""


def run(arguments: tuple[str, ...], streams: str, root: Path) -> subprocess.CompletedProcess[bytes]:
    """Run the program with its streams as said, as a shell's redirections make them."""
    what, _, how = streams.partition(" ")
    taken = list(FD.values()) if what == "all" else [FD[what]] if what in FD else []

    def redirect() -> None:
        for number in taken:
            if how == "closed":
                os.close(number)
                continue
            if how == "broken":
                reading, opened = os.pipe()
                os.close(reading)
            else:
                full = how == "full"
                opened = os.open("/dev/full" if full else "/dev/null", os.O_WRONLY if full else 0)
            os.dup2(opened, number)

    return subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        env={
            **os.environ,
            "OFFLINE_DATA_HOME": str(root),
            "OFFLINE_DATA_OFFLINE": "1",
            "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
            **({"PYTHONIOENCODING": "ascii"} if what == "ASCII" else {}),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        preexec_fn=redirect if taken else None,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("command", "streams"),
    [
        *((c, "stdout full") for c in COMMANDS if c != "rm local:toy"),
        *((c, "all closed") for c in ("info local:x --json", "rm local:toy")),
        *(("list --json", f"stdout {how}") for how in ("closed", "broken", "for reading")),
        *(("info local:x", f"stderr {how}") for how in ("closed", "full", "broken")),
    ],
)
def test_every_command_on_every_stream(command: str, streams: str, toy_root: Path) -> None:
    code = COMMANDS[command]
    ended = run(tuple(command.split()), streams, toy_root)
    for word in (b"Traceback", b"unexpected", b"Exception ignored", b"sys.std"):
        assert word not in ended.stderr + ended.stdout
    if streams in UNWRITABLE and (code == 0 or "--json" in command):
        code = UNWRITABLE[streams]
        if code:
            assert ended.stderr.count(b"\n") <= 2
            assert b"error: The output could not be written: " in ended.stderr
    assert ended.returncode == code, ended.stderr


def test_what_ascii_cannot_have_is_written_plainly(toy_root: Path) -> None:
    folder = toy_root / "caf\u00e9 \u2192 \U0001f600"
    printed = run(("cache", "dir", "--root", str(folder)), "ASCII", toy_root)
    assert printed.stdout.decode("ascii").strip().endswith(r"caf\xe9 -> \U0001f600")
    as_json = run(("cache", "dir", "--json", "--root", str(folder)), "ASCII", toy_root)
    assert json.loads(as_json.stdout) == {"root": str(folder)}


def test_a_name_that_is_no_text_is_printed_as_it_is(toy_root: Path) -> None:
    name = os.fsencode(toy_root) + b"/\xff\xfe"
    printed = run(("cache", "dir", "--root", os.fsdecode(name)), "", toy_root)
    assert (printed.returncode, printed.stdout) == (0, name + b"\n")
