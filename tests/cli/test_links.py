"""Links inside a root: those of another user are not written through, one's own are followed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offline_data.store.publish import lock_name
from tests.links import link
from tests.toys.d4rl import write_d4rl_hdf5

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

STRANGER = 54321
CASES = {
    ".staging": "convert {}/a.hdf5 new",
    "local": "convert {}/a.hdf5 new",
    "local/new": "convert {}/a.hdf5 new",
    "local/copy": "cp toy copy",
    "local/clipped": "preprocess toy --step clip:action,low=-1 --out clipped",
    "local/toy": "rm local:toy@1 --yes",
    ".downloads/raw": "cache rm download --yes",
}


@pytest.mark.parametrize("theirs", [True, False])
@pytest.mark.parametrize("place", CASES)
def test_links_to_folders(
    place: str, theirs: bool, cli: Cli, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, target = toy.parents[2], tmp_path / "target"
    write_d4rl_hdf5(tmp_path / "a.hdf5")
    (root / ".downloads" / "raw" / "minari" / "x" / "1").mkdir(parents=True)
    (root / ".downloads" / "raw" / "minari" / "x" / "1" / "file").write_text("raw")
    if (root / place).exists():
        shutil.move(root / place, target)
    target.mkdir(exist_ok=True)
    before = sorted(target.rglob("*"))
    link(root / place, target, STRANGER if theirs else os.geteuid(), monkeypatch)
    ran = cli(*CASES[place].format(tmp_path).split())
    after = sorted(target.rglob("*"))
    if theirs:
        assert ran.code == (1 if place == ".downloads/raw" else 2)
        assert f"{root / place} is a link of another user (number {STRANGER})" in ran.err
        assert after == before
    else:
        assert ran.code == 0, ran.err
        assert after != before


def test_a_link_as_a_lock(
    cli: Cli, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("do not truncate")
    write_d4rl_hdf5(tmp_path / "a.hdf5")
    lock = toy.parents[2] / ".staging" / f"{lock_name('local/new')}.lock"
    link(lock, precious, STRANGER, monkeypatch)
    ran = cli("convert", str(tmp_path / "a.hdf5"), "new")
    assert (ran.code, "is a link of another user" in ran.err) == (2, True)
    assert precious.read_text() == "do not truncate"


@pytest.mark.parametrize("theirs", [True, False])
def test_content_digests_are_kept_through_one_s_own_link_only(
    theirs: bool, cli: Cli, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    link(toy.parents[2] / ".content", target, STRANGER if theirs else os.geteuid(), monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "datasets.toml").write_text('[datasets]\nmine = "local:toy"\n')
    assert cli("lock").code == 0
    assert len(list(target.iterdir())) == (0 if theirs else 1)
