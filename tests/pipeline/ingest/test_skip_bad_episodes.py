"""Episodes that cannot be read: an error, or left out and listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offline_data.base.config import Settings
from offline_data.pipeline.ingest import Options, convert
from offline_data.store.manifest import read_manifest
from offline_data_cli.main import main
from tests.pipeline.ingest.test_shards import check, get
from tests.toys.servers import FileServer
from tests.toys.sharded import write_toy_shards

SKIP = Options(skip_bad_episodes=True)


@pytest.fixture
def settings(sharded: Settings) -> Settings:
    return sharded


def test_it_is_left_out_and_listed(settings: Settings, tmp_path: Path) -> None:
    raw = write_toy_shards(tmp_path / "raw", "sharded-3x3-bad1")
    stored = convert(raw, "toy", settings, SKIP)
    check(stored, [0, 1, 2, 3, 5, 6, 7, 8])
    [skipped] = stored.manifest.skipped
    assert skipped["where"] == "data-00001-of-00003.jsonl, line 2"
    assert "JSON" in skipped["reason"]
    changed = convert(stored.path, "ted", settings, Options(layout="ted"))
    assert changed.manifest.skipped == stored.manifest.skipped


def test_a_shard_without_a_good_episode_is_listed(settings: Settings, server: FileServer) -> None:
    stored = get("sharded-3x3-allbad1", settings, server, skip_bad_episodes=True)
    check(stored, [0, 1, 2, 6, 7, 8])
    lines = [entry["where"][-6:] for entry in stored.manifest.skipped]
    assert lines == ["line 1", "line 2", "line 3"]


def test_the_command_lists_what_was_left_out(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = write_toy_shards(tmp_path / "raw", "sharded-2x3-bad1")
    arguments = ["convert", str(raw), "toy", "--skip-bad-episodes", "--root", str(settings.root)]
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    [data] = json.loads(captured.out)
    assert data["episodes"] == 5
    assert "skipped data-00001-of-00002.jsonl, line 2" in captured.err
    assert len(read_manifest(Path(data["path"])).skipped) == 1
    assert main(["info", "local:toy", "--root", str(settings.root)]) == 0
    assert "data-00001-of-00002.jsonl, line 2" in " ".join(capsys.readouterr().out.split())


def test_checkpoints_are_only_for_sources_that_have_them(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = write_toy_shards(tmp_path / "raw", "sharded-1x3")
    arguments = ["convert", str(raw), "toy", "--checkpoints", "0:5", "--root", str(settings.root)]
    assert main(arguments) == 2
    assert "have no checkpoints" in capsys.readouterr().err
    assert main([*arguments[:4], "5:0", *arguments[5:]]) == 2
    assert "expected 0 <= A < B" in capsys.readouterr().err
