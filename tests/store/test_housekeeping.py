"""`cache_usage`: every file under a root once, sizes that add up, and what is said of each item."""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from offline_data.config import Settings
from offline_data.errors import AccessError
from offline_data.fetch.cache import FetchRecord, key_of, write_record
from offline_data.progress import SILENT
from offline_data.store import housekeeping
from offline_data.store.housekeeping import (
    CacheItem,
    asked_to_stay,
    bytes_freed,
    cache_usage,
    refetchable,
)
from offline_data.store.layout import MANIFEST
from offline_data.store.library import entry_at
from offline_data.store.locks import dataset_lock, lock_name
from offline_data.testing.toy import toy_batch, write_toy
from tests.store.conftest import NOTE, SHAS, edit_manifest


def of_kind(settings: Settings, kind: str) -> list[CacheItem]:
    return [item for item in cache_usage(settings).items if item.kind == kind]


def item_of(settings: Settings, sha256: str) -> CacheItem:
    (found,) = (item for item in cache_usage(settings).items if item.path.name == sha256)
    return found


def on_disk(root: Path) -> int:
    """What `du` adds up: all that is no folder, each file once."""
    states = [Path(at, n).lstat() for at, below, names in os.walk(root) for n in below + names]
    sizes = {(s.st_dev, s.st_ino): s.st_size for s in states if not stat.S_ISDIR(s.st_mode)}
    return sum(sizes.values())


def test_sizes_add_up_to_all_files(full: Settings) -> None:
    usage = cache_usage(full)
    assert [item.kind for item in usage.items] == [
        *("dataset", "damaged", "partial", "download", "download", "download", "staging"),
    ]
    assert usage.bytes == sum(item.bytes for item in usage.items)
    assert usage.bytes + usage.other_bytes == on_disk(full.root)
    dataset, damaged, part, *_, laid_out, staged = usage.items
    assert dataset.bytes == on_disk(dataset.path)
    assert (damaged.bytes, part.bytes, laid_out.bytes, staged.bytes) == (301, 20 + len(NOTE), 0, 3)


def test_a_link_without_its_first_name_counts_where_it_is(full: Settings) -> None:
    item_of(full, SHAS["laid out"]).path.unlink()
    second = full.downloads / "raw" / "d4rl" / "toy" / "w"
    second.mkdir()
    os.link(full.downloads / "raw" / "d4rl" / "toy" / "v" / "toy.hdf5", second / "toy.hdf5")
    (second / "mine").symlink_to(full.root)
    usage = cache_usage(full)
    laid_out = [item.bytes for item in usage.items if "raw files of" in item.detail]
    assert laid_out == [200, len(os.fsencode(full.root))]
    assert usage.bytes + usage.other_bytes == on_disk(full.root)


def test_nothing_is_there(settings: Settings) -> None:
    assert cache_usage(settings) == housekeeping.CacheUsage((), 0)
    assert not settings.root.exists()


def test_what_goes_back_to_the_disk(full: Settings) -> None:
    blob = item_of(full, SHAS["laid out"])
    (folder,) = (item for item in cache_usage(full).items if item.path.name == "v")
    assert [bytes_freed([blob]), bytes_freed([folder]), bytes_freed([blob, folder])] == [0, 0, 200]
    part = of_kind(full, "partial")
    assert bytes_freed(part) == part[0].bytes
    shutil.rmtree(full.downloads)
    assert bytes_freed([blob, folder, *part]) == 0


@pytest.mark.parametrize(
    ("urls", "again"),
    [
        ([], False),
        ([None], False),
        (["http://host.example/x"], True),
        (["hf://datasets/u/n@c/x"], True),
        (["http://host.example/x", None], False),
        (["file:///mnt/x"], False),
    ],
)
def test_which_datasets_can_be_had_again(
    urls: list[str | None], again: bool, full: Settings
) -> None:
    folder = full.root / "local" / "toy" / "1"
    edit_manifest(folder, files=[{"path": "x", "url": url} for url in urls])
    assert refetchable(entry_at(folder)) is again
    (item,) = of_kind(full, "dataset")
    assert item.refetchable is again


@pytest.mark.parametrize(
    ("url", "again"),
    [("https://host.example/x", True), ("file:///mnt/x", False), (None, False)],
)
def test_which_raw_files_can_be_had_again(url: str | None, again: bool, full: Settings) -> None:
    sha256 = "e" * 64
    path = full.downloads / "sha256" / "ee" / sha256
    path.parent.mkdir()
    path.write_bytes(b"raw")
    if url:
        write_record(full, FetchRecord(url, sha256, 3, url, "2024-01-01"))
    item = item_of(full, sha256)
    assert (item.refetchable, item.detail) == (again, url or "unknown origin")


def test_what_was_asked_to_stay(full: Settings) -> None:
    assert asked_to_stay(full) == {SHAS["laid out"]: "--raw-only"}
    folder = full.root / "local" / "toy" / "1"
    files = [{"path": "x", "url": "http://host.example/x", "sha256": SHAS["plain"]}]
    edit_manifest(folder, files=files, converter={"options": {"keep_raw": True}})
    assert asked_to_stay(full)[SHAS["plain"]] == item_of(full, SHAS["plain"]).wanted == "--keep-raw"
    edit_manifest(folder, files=files, converter={"options": {"keep_raw": False}})
    assert item_of(full, SHAS["plain"]).wanted == ""
    edit_manifest(folder, files=files, converter={})
    assert item_of(full, SHAS["plain"]).wanted == ""


def test_what_a_process_works_on(full: Settings) -> None:
    assert not any(item.in_use for item in cache_usage(full).items)
    with dataset_lock(full.staging, "local/x", SILENT):
        used = {item.kind for item in cache_usage(full).items if item.in_use}
        (staged,) = of_kind(full, "staging")
        # raw files too: what is converted may be about to read them
        assert used == {"staging", "download"}
        assert staged.detail == "a conversion under way"
    from filelock import FileLock

    (part,) = of_kind(full, "partial")
    with FileLock(full.downloads / "locks" / f"{part.path.stem}.lock"):
        used = {item.kind for item in cache_usage(full).items if item.in_use}
        assert used == {"partial", "download"}


def test_a_lock_that_may_not_be_opened_is_no_traceback(
    full: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(housekeeping, "is_locked", refuse)
    assert not any(item.in_use for item in cache_usage(full).items)


@pytest.mark.parametrize("place", ["dataset", "dataset-replaced", "."])
@pytest.mark.parametrize("made_here", [True, False])
def test_a_dataset_left_in_staging_is_named(place: str, made_here: bool, full: Settings) -> None:
    staged = full.staging / f"{lock_name('local/y')}.dead"
    write_toy(staged / place, [toy_batch([2])])
    if not made_here:
        edit_manifest(staged / place, files=[{"path": "x", "url": "http://host.example/x"}])
    item = next(item for item in of_kind(full, "staging") if item.path == staged)
    assert item.detail.startswith("local:toy@1, left there")
    assert item.refetchable is not made_here


def test_what_vanishes_meanwhile_is_no_error(
    full: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lstat, stat_, victims = Path.lstat, Path.stat, ("toy.hdf5", SHAS["plain"], "rows.memmap")

    def gone(self: Path) -> os.stat_result:
        if self.name in victims:
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return lstat(self)

    def gone_too(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if self.name in victims:
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return stat_(self, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "lstat", gone)
    monkeypatch.setattr(Path, "stat", gone_too)
    found = [item.path.name for item in cache_usage(full).items]
    assert SHAS["plain"] not in found
    assert SHAS["laid out"] in found


def test_a_folder_that_may_not_be_read(full: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    iterdir = Path.iterdir

    def refuse(self: Path) -> object:
        if self.name == "steps":
            raise PermissionError(13, "Permission denied", str(self))
        return iterdir(self)

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(AccessError, match=r"steps cannot be used: Permission denied"):
        cache_usage(full)


def test_a_damaged_dataset_that_is_gone_is_not_listed(full: Settings) -> None:
    (damaged,) = of_kind(full, "damaged")
    assert damaged.path == full.root / "local" / "broken" / "1"
    assert not damaged.refetchable
    (damaged.path / MANIFEST).unlink()
    assert of_kind(full, "damaged") == []


def test_a_part_says_where_it_is_from(full: Settings) -> None:
    (part,) = of_kind(full, "partial")
    assert part.detail == "http://host.example/part"
    assert part.path.stem == key_of("http://host.example/part")
    note = part.path.with_suffix(".json")
    assert json.loads(note.read_text())["url"] == part.detail
    note.unlink()
    (part,) = of_kind(full, "partial")
    # a part by itself is nothing that could be lost
    assert (part.detail, part.refetchable) == ("unknown origin", True)
    assert part == replace(part, bytes=20)
