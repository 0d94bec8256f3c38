"""Roots and dataset directories that are not what they should be: a documented code, never a hang."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING

import pytest

from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli


def put(path: Path, kind: str) -> None:
    """Put something that is no plain file at `path`."""
    if path.exists():
        path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "circle":
        path.symlink_to(path.name)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "circle"])
def test_a_manifest_that_is_no_file_hides_nothing(
    cli: Cli, toy: Path, tmp_path: Path, kind: str
) -> None:
    other = tmp_path / "root" / "local" / "other" / "1"
    write_toy(other, [toy_batch([1])], dataset="local:other@1")
    put(other / "manifest.json", kind)
    ran = cli("list")
    assert ran.code == 0
    assert "local:toy@1" in ran.out
    assert str(other) in ran.err
    for verb in ("info", "verify", "head"):
        ran = cli(verb, str(other))
        assert ran.code == 5, ran.err
        assert "unexpected" not in ran.err


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
@pytest.mark.parametrize("name", ["steps/rows.memmap", "steps/meta.json"])
def test_a_data_file_that_is_no_file_is_found(cli: Cli, toy: Path, kind: str, name: str) -> None:
    put(toy / name, kind)
    assert cli("verify", "local:toy").code == 5
    assert cli("head", "local:toy").code == 5


def test_a_root_that_is_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for verb in (["list"], ["cache", "ls"]):
        ran = cli(*verb, "--root", str(tmp_path / "file"))
        assert ran.code == 2, ran.err
        assert str(tmp_path / "file") in ran.err
    assert cli("info", "local:toy", "--root", str(tmp_path / "file")).code == 2


def test_a_manifest_that_may_not_be_read(
    cli: Cli, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: object, *more: int) -> int:
        if str(path) == str(toy / "manifest.json"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(str(path), *more)

    monkeypatch.setattr(os, "open", refuse)
    ran = cli("list")
    assert ran.code == 0
    assert f"{toy}/manifest.json cannot be read: Permission denied" in ran.err
    assert "damaged" not in ran.err
    ran = cli("info", str(toy), "--json")
    assert (ran.code, ran.json["error"]["code"]) == (2, "access")


def test_rm_keeps_what_is_not_the_datasets(cli: Cli, toy: Path) -> None:
    (toy / "notes.txt").write_text("mine")
    ran = cli("rm", "local:toy", "--yes")
    assert ran.code == 0
    assert f"{toy}/notes.txt" in ran.err
    assert [path.name for path in toy.iterdir()] == ["notes.txt"]
    assert "local:toy" not in cli("list").out


def test_convert_force_keeps_what_is_not_the_datasets(cli: Cli, toy: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_toy(source, [toy_batch([2])])
    assert cli("convert", str(source), "mine").code == 0
    made = next((tmp_path / "root" / "local" / "mine").iterdir())
    (made / "notes.txt").write_text("mine")
    ran = cli("convert", str(source), "mine", "--force")
    assert ran.code == 0
    assert f"{made}/notes.txt" in ran.err
    assert (made / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["x" * 250, "x" * 255, "y" * 140 + "/" + "z" * 150, "my set"])
def test_names_that_are_taken_can_be_used(cli: Cli, toy: Path, name: str) -> None:
    made = cli("convert", str(toy), name, "-q")
    assert made.code == 0
    for verb in ("info", "verify"):
        assert cli(verb, f"local:{name}").code == 0
        assert cli(verb, made.out.strip()).code == 0
    assert f"local:{name}@" in cli("list").out
    assert cli("rm", f"local:{name}", "--yes").code == 0


@pytest.mark.parametrize("name", ["x" * 256, "x" * 100 + "/" + "y" * 200, "a@b"])
def test_names_that_could_not_be_used_are_refused(cli: Cli, toy: Path, name: str) -> None:
    ran = cli("convert", str(toy), name)
    assert ran.code == 2, ran.err
    assert cli("info", f"local:{name}").code in {2, 3}


def test_ids_as_long_as_nobody_has_them(cli: Cli) -> None:
    for text in ("x" * 5000, "/" + "x" * 5000, "local:" + "x" * 5000):
        ran = cli("info", text)
        assert ran.code in {2, 3}, ran.err
        assert "unexpected" not in ran.err


@pytest.mark.parametrize("number", [-(2**63), 7, 2**40])
def test_steps_that_name_another_episode(cli: Cli, toy: Path, number: int) -> None:
    leaf = next(
        leaf
        for leaf in json.loads((toy / "manifest.json").read_text())["schema"]["steps"]["leaves"]
        if leaf["key"] == ["episode"]
    )
    rows = bytearray((toy / leaf["file"]).read_bytes())
    rows[leaf["offset"] : leaf["offset"] + 8] = number.to_bytes(8, "little", signed=True)
    (toy / leaf["file"]).write_bytes(rows)
    for verb in ("head", "sample", "verify"):
        ran = cli(verb, "local:toy", *(["--batch", "500"] if verb == "sample" else []))
        assert ran.code == 5, ran.err
        assert "unexpected" not in ran.err
