"""`lock`, `sync` and `diff` on the command line: output, exit codes, one story on real files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_data.testing.toy import toy_batch, write_toy
from offline_data_cli.main import main
from tests.cli.conftest import Cli, Terminal


@pytest.fixture
def toys(tmp_path: Path) -> Path:
    """A root with two revisions of `local:toy`, the second with another reward."""
    root = tmp_path / "root"
    batch = toy_batch([3, 2, 4], text=True)
    write_toy(root / "local" / "toy" / "1", [batch], dataset="local:toy@1")
    batch.steps["next", "reward"][4] += 0.25
    write_toy(root / "local" / "toy" / "2", [batch], dataset="local:toy@2")
    return root


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a `datasets.toml`."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "datasets.toml").write_text('[datasets]\nmine = "local:toy@1"\n')
    return folder


def test_a_project(cli: Cli, toys: Path, project: Path) -> None:
    ran = cli("lock", "--check")
    assert (ran.code, ran.out) == (1, "mine is not in the lock file\n")
    stale = cli("sync", "--locked", "--json")
    assert (stale.code, stale.json["error"]["code"]) == (1, "lock")
    ran = cli("lock")
    assert (ran.code, ran.rows[1][:4]) == (0, ["mine", "local:toy@1", "9", "3"])
    assert "added mine: local:toy@1" in ran.err
    text = (project / "datasets.lock").read_bytes()
    assert "up to date" in cli("lock").err
    assert (project / "datasets.lock").read_bytes() == text
    (one,) = cli("lock", "--json").json["datasets"]
    assert one["content"] in text.decode()
    assert cli("freeze", "-q").out == "local:toy@1\n"
    assert cli("lock", "--check").out == "datasets.lock is up to date\n"
    assert cli("sync", "--locked").rows[1:] == [["mine", "local:toy@1", "none", "0"]]
    (done,) = cli("sync", "--dry-run", "--json").json
    assert (done["action"], done["path"]) == ("none", str(toys / "local" / "toy" / "1"))
    (project / "datasets.toml").write_text('[datasets]\nmine = "local:toy"\n')
    assert cli("lock", "--check").code == 1
    assert cli("lock", "mine").code == 2
    assert "updated mine: local:toy@1 -> local:toy@2" in cli("lock", "--upgrade", "mine").err
    shutil.rmtree(toys / "local" / "toy" / "2")
    shutil.copytree(toys / "local" / "toy" / "1", toys / "local" / "toy" / "2")
    renamed = toys / "local" / "toy" / "2" / "manifest.json"
    manifest = json.loads(renamed.read_text()) | {"id": "local:toy@2", "revision": "2"}
    renamed.write_text(json.dumps({k: v for k, v in manifest.items() if k != "sha256"}))
    ran = cli("sync", "--locked")
    assert (ran.code, "its content is sha256:" in ran.err) == (5, True)


def test_bad_files(cli: Cli, project: Path) -> None:
    (project / "datasets.toml").write_text('[datasets]\nmine = "local:../../toy"\n')
    for verb in ("lock", "sync"):
        ran = cli(verb)
        assert ran.code == 2
        assert "datasets.toml: datasets.mine: " in ran.err
    assert cli("lock", "--file", "other.toml").code == 3
    (project / "datasets.toml").write_text('[datasets]\nmine = "local:toy"\n')
    (project / "datasets.lock").write_text("<<<<<<< HEAD\n")
    ran = cli("lock")
    assert (ran.code, "datasets.lock is not TOML" in ran.err) == (2, True)
    (project / "datasets.lock").unlink()
    ran = cli("lock")
    assert (ran.code, "mine: There is no local:toy on this disk" in ran.err) == (3, True)


def test_diff(cli: Cli, toys: Path, terminal: Callable[..., Terminal]) -> None:
    same = cli("diff", "local:toy@1", str(toys / "local" / "toy" / "1"))
    assert same.code == 0
    assert "the content is the same" in same.err
    ran = cli("diff", "local:toy@1", "toy@2", "--json")
    assert (ran.code, ran.json["equal"], ran.json["episodes"]["changed"]) == (1, False, [[1, 1]])
    (value,) = ran.json["values"]
    assert (value["key"], value["rows"], value["max_abs_difference"]) == ("next/reward", 1, 0.25)
    assert cli("diff", "local:toy@1", "local:toy@2", "-q").out == ""
    assert cli("diff", "local:toy@1", "local:toy@9").code == 3
    shown = terminal()
    assert main(["diff", "local:toy@1", "local:toy@2"]) == 1
    text = shown.out.text
    assert "1: 1" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "steps next/reward" in text


def test_real_files(
    cli: Cli, realdata: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(realdata / "minari_door_human_v2"))
    (project / "datasets.toml").write_text('[datasets]\ndoor = "minari:D4RL/door/human-v2"\n')
    assert cli("lock").code == 0
    text = (project / "datasets.lock").read_text()
    ran = cli("sync", "--locked", "--json", "--root", str(project / "other"))
    assert (ran.code, ran.json[0]["action"]) == (0, "download")
    (project / "datasets.toml").write_text(
        '[datasets]\ndoor = { id = "minari:D4RL/door/human-v2", layout = "ted" }\n'
    )
    assert cli("lock", "--root", str(project / "other")).code == 0
    found = (project / "datasets.lock").read_text()
    assert found.replace('options = { layout = "ted" }', "options = {}") == text
    other = project / "other" / "minari" / "D4RL" / "door" / "human-v2"
    assert cli("diff", "minari:D4RL/door/human-v2", *map(str, other.iterdir())).code == 0
