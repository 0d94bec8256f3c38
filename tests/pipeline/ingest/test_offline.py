"""The command that is named offline is the one that brings what was asked for."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from offline_data.base.config import Settings, resolve_settings
from offline_data.base.errors import NetworkError, OfflineError
from offline_data.base.ids import parse_id
from offline_data.pipeline.ingest import Options, plan_download
from offline_data.pipeline.ingest.resolve import online_command, suggest_command

PEN = parse_id("d4rl:pen-human-v1")


def test_only_what_matters_is_in_the_command(tmp_path: Path) -> None:
    assert online_command(PEN, Settings(tmp_path), Options()) == f"offline-data download {PEN}"
    options = Options(
        layout="ted", episodes=(None, 3), strict=True, audit="all", keep_raw=True, force=True
    )
    told = resolve_settings(root=tmp_path / "a b", environ={})
    asked = replace(options, raw_only=True)
    assert shlex.split(online_command(PEN, told, asked)) == [
        *("offline-data", "download", str(PEN), "--root", str(tmp_path / "a b")),
        *("--layout", "ted", "--episodes", ":3", "--force", "--raw-only", "--keep-raw"),
    ]
    found = resolve_settings(environ={"OFFLINE_DATA_HOME": str(tmp_path)})
    assert "--root" not in online_command(PEN, found, options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(), "d4rl:pen-human-v1 is not on this disk, and offline"),
        (Options(episodes=(2, None)), "Episodes 2: of d4rl:pen-human-v1 are not on this disk"),
        (Options(force=True), "cannot be fetched again from this disk"),
    ],
)
def test_the_message_is_true(options: Options, said: str, tmp_path: Path) -> None:
    with (
        pytest.raises(OfflineError, match=said) as caught,
        suggest_command(PEN, Settings(tmp_path), options),
    ):
        raise OfflineError("no socket")
    # A traceback shows this error alone.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_other_errors_pass(tmp_path: Path) -> None:
    error = NetworkError("down")
    with (
        pytest.raises(NetworkError) as caught,
        suggest_command(PEN, Settings(tmp_path), Options()),
    ):
        raise error
    assert caught.value is error


def test_a_plan_names_it_too(settings: Settings) -> None:
    door = parse_id("minari:D4RL/door/human-v2")
    with pytest.raises(OfflineError, match="not on this disk") as caught:
        plan_download(door, replace(settings, offline=True), Options())
    assert f"online: `offline-data download {door}`" in str(caught.value.shell_hint)
    assert f"online: `offline_data.download('{door}')`" in str(caught.value.hint)
