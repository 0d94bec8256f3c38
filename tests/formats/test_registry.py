"""The source that accepts a file or folder, and how little is read to find it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from offline_data.base.errors import AccessError, FormatError
from offline_data.formats.d4rl.source import D4RL
from offline_data.formats.folders import entries, files_below, list_once
from offline_data.formats.registry import (
    FolderOfDatasetsError,
    get_catalog,
    iter_catalogs,
    iter_sources,
    source_accepting,
)
from tests.remedy import assert_none
from tests.toys import sharded
from tests.toys.d4rl import write_d4rl_hdf5


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of listings of each folder."""
    count: Counter[str] = Counter()
    for name in ("scandir", "listdir"):
        real = getattr(os, name)

        def counted(path: Any = ".", real: Any = real) -> Any:
            count[os.fspath(path)] += 1
            return real(path)

        monkeypatch.setattr(os, name, counted)
    return count


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths that adapters are asked about."""
    paths: list[Path] = []
    real = D4RL.accepts

    def accepts(self: D4RL, path: Path) -> int:
        paths.append(path)
        return real(self, path)

    monkeypatch.setattr(D4RL, "accepts", accepts)
    return paths


def test_each_source_that_publishes_has_a_catalogue_also_one_of_another_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(sharded.install(tmp_path)))
    listed = {source.name: source for source in iter_sources() if source.catalog()}
    assert_none(
        {catalog.name for catalog in iter_catalogs()} ^ set(listed),
        "a source that lists datasets has a line in `_CATALOGS` of offline_data/formats/registry.py, "
        "and no other has",
    )
    assert [catalog.name for catalog in iter_catalogs()] == list(listed)
    assert "shardtoy" in listed
    for name, source in listed.items():
        assert isinstance(source, type(get_catalog(name)))
    assert get_catalog("agilerl").catalog() == ()


@pytest.mark.parametrize("suffix", [".xyz", None])
def test_a_folder_of_many_files_of_no_known_kind(
    suffix: str | None, tmp_path: Path, listed: Counter[str], examined: list[Path]
) -> None:
    for number in range(400):
        (tmp_path / f"{number:05}{suffix or f'.{number}'}").touch()
    with pytest.raises(FormatError, match="of its 400 names, the first 100 with each suffix"):
        source_accepting(tmp_path)
    assert listed[str(tmp_path)] == 1
    assert len(examined) <= 301


def test_datasets_among_many_other_files_are_found(tmp_path: Path) -> None:
    for number in range(500):
        (tmp_path / f"{number:05}.jpg").touch()
        (tmp_path / "many" / f"{number:05}").mkdir(parents=True)
    write_d4rl_hdf5(tmp_path / "z.hdf5")
    with pytest.raises(FolderOfDatasetsError) as caught:
        source_accepting(tmp_path)
    assert caught.value.found == {tmp_path / "z.hdf5": "d4rl"}


@pytest.mark.parametrize("count", [8, 9, 130])
def test_a_folder_of_many_datasets(tmp_path: Path, count: int) -> None:
    first = write_d4rl_hdf5(tmp_path / "0.hdf5")
    for number in range(1, count):
        (tmp_path / f"{number}.hdf5").hardlink_to(first)
    with pytest.raises(FolderOfDatasetsError, match=f"is a folder of {count} datasets") as caught:
        source_accepting(tmp_path)
    assert caught.value.message.endswith(", …") == (count > 8)


def test_datasets_are_looked_for_in_three_levels(tmp_path: Path) -> None:
    deep = tmp_path / "a/b/c"
    deep.mkdir(parents=True)
    write_d4rl_hdf5(deep / "z.hdf5")
    with pytest.raises(FormatError, match="Cannot tell what"):
        source_accepting(tmp_path)
    with pytest.raises(FolderOfDatasetsError, match=r"folder of 1 dataset: b/c/z\.hdf5"):
        source_accepting(tmp_path / "a")


def test_a_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closer").mkdir()
    write_d4rl_hdf5(tmp_path / "z.hdf5")
    real = os.scandir

    def refuse(path: Any = ".") -> Any:
        if "close" in os.fspath(path):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(FolderOfDatasetsError):
        source_accepting(tmp_path)
    with pytest.raises(AccessError, match="closed cannot be read: Permission denied"):
        source_accepting(tmp_path / "closed")


def test_files_below_are_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b/x", "b.c/x", "b-c", "a/b/c", "a/b.txt", "z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "b")
    (tmp_path / "ring").symlink_to(tmp_path / "ring")
    assert list(files_below(tmp_path)) == sorted(p for p in tmp_path.rglob("*") if p.is_file())


def test_a_listing_is_kept_inside_the_block_only(tmp_path: Path) -> None:
    with list_once():
        assert entries(tmp_path) == ()
        (tmp_path / "x").touch()
        assert entries(tmp_path) == ()
    assert [entry.name for entry in entries(tmp_path)] == ["x"]
