"""`cache_usage` counts every file under a root once; `plan_prune` takes only what nobody misses."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import AccessError
from offline_data.base.files import file_lock
from offline_data.base.progress import SILENT
from offline_data.fetch.cache import FetchRecord, read_record, write_record
from offline_data.store import cache
from offline_data.store.cache import (
    IN_USE,
    CacheItem,
    CacheUsage,
    asked_to_stay,
    bytes_freed,
    cache_usage,
    plan_prune,
    remove_items,
)
from offline_data.store.library import entry_at
from offline_data.store.publish import dataset_lock, lock_name
from offline_data.testing.toy import toy_batch, write_toy
from tests.store.conftest import NOTE, SHAS, edit_manifest


def of_kind(settings: Settings, kind: str) -> list[CacheItem]:
    return [item for item in cache_usage(settings).items if item.kind == kind]


def item_of(settings: Settings, name: str) -> CacheItem:
    (found,) = (item for item in cache_usage(settings).items if item.path.name == name)
    return found


def on_disk(root: Path) -> int:
    """What `du` adds up: all that is not a folder, each file once."""
    states = [Path(at, n).lstat() for at, below, names in os.walk(root) for n in below + names]
    sizes = {(s.st_dev, s.st_ino): s.st_size for s in states if not stat.S_ISDIR(s.st_mode)}
    return sum(sizes.values())


def reasons(settings: Settings, days: int | None = None) -> dict[str, str]:
    return {item.path.name[:3]: reason for item, reason in plan_prune(settings, days).kept}


def refuse(*_: object) -> bool:
    raise PermissionError(13, "Permission denied")


def test_sizes_add_up_to_all_files(settings: Settings, full: Settings) -> None:
    usage = cache_usage(full)
    kinds = "dataset damaged partial download download download staging"
    assert " ".join(item.kind for item in usage.items) == kinds
    assert usage.bytes + usage.other_bytes == on_disk(full.root)
    dataset, damaged, part, *_, laid_out, staged = usage.items
    assert dataset.bytes == on_disk(dataset.path)
    assert (damaged.bytes, part.bytes, laid_out.bytes, staged.bytes) == (301, 20 + len(NOTE), 0, 3)
    assert (damaged.path, damaged.refetchable) == (full.root / "local" / "broken" / "1", False)
    assert part.detail == "http://host.example/part"
    # a link without its first name counts where it is
    item_of(full, SHAS["laid out"]).path.unlink()
    second = full.downloads / "raw" / "d4rl" / "toy" / "w"
    second.mkdir()
    os.link(full.downloads / "raw" / "d4rl" / "toy" / "v" / "toy.hdf5", second / "toy.hdf5")
    (second / "mine").symlink_to(full.root)
    usage = cache_usage(full)
    laid_out_bytes = [item.bytes for item in usage.items if "raw files of" in item.detail]
    assert laid_out_bytes == [200, len(os.fsencode(full.root))]
    assert usage.bytes + usage.other_bytes == on_disk(full.root)
    # what goes back to the disk: a file with another name does not
    parts, folders = of_kind(full, "partial"), [item_of(full, "v"), item_of(full, "w")]
    assert [bytes_freed(folders[:1]), bytes_freed(folders)] == [0, 200 + laid_out_bytes[1]]
    assert bytes_freed(parts) == parts[0].bytes
    assert remove_items(folders[:1], full).bytes == 0
    assert remove_items(folders[1:], full).bytes == 200 + laid_out_bytes[1]
    shutil.rmtree(settings.root)
    assert bytes_freed([*folders, *parts]) == 0
    assert cache_usage(settings) == CacheUsage((), 0)
    assert not settings.root.exists()


URL = "http://host.example/x"


@pytest.mark.parametrize(
    ("urls", "again"),
    [
        *(([], False), ([None], False), ([URL], True), (["hf://datasets/u/n@c/x"], True)),
        *(([URL, None], False), (["file:///mnt/x"], False)),
    ],
)
def test_what_can_be_had_again(urls: list[str | None], again: bool, full: Settings) -> None:
    folder = full.root / "local" / "toy" / "1"
    edit_manifest(folder, files=[{"path": "x", "url": url} for url in urls])
    (item,) = of_kind(full, "dataset")
    assert entry_at(folder).refetchable is item.refetchable is again
    path = full.downloads / "sha256" / "ee" / ("e" * 64)
    path.parent.mkdir()
    path.write_bytes(b"raw")
    first = urls[0] if urls else None
    if first:
        write_record(full, FetchRecord(first, path.name, 3, first, "2024-01-01"))
    item = item_of(full, path.name)
    assert item.detail == (first or "unknown origin")
    assert item.refetchable is (first is not None and not first.startswith("file"))


def test_what_was_asked_to_stay(full: Settings) -> None:
    assert asked_to_stay(full) == {SHAS["laid out"]: "--raw-only"}
    folder = full.root / "local" / "toy" / "1"
    files = [{"path": "x", "url": URL, "sha256": SHAS["plain"]}]
    edit_manifest(folder, files=files, converter={"options": {"keep_raw": True}})
    assert asked_to_stay(full)[SHAS["plain"]] == item_of(full, SHAS["plain"]).wanted == "--keep-raw"
    assert reasons(full)["aaa"] == "requested with --keep-raw"
    for converter in ({"options": {"keep_raw": False}}, {}):
        edit_manifest(folder, files=files, converter=converter)
        assert item_of(full, SHAS["plain"]).wanted == ""


def test_what_a_process_works_on_is_left_alone(
    full: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def used() -> set[str]:
        return {item.kind for item in cache_usage(full).items if item.in_use}

    assert used() == set()
    items = cache_usage(full).items
    with dataset_lock(full.staging, "local/x", SILENT):
        # raw files too: what is converted may be about to read them
        assert used() == {"staging", "download"}
        assert of_kind(full, "staging")[0].detail == "a conversion under way"
        assert plan_prune(full).removed == ()
        chosen = tuple(item for item in items if item.kind in {"staging", "download"})
        removal = remove_items(chosen, full)
        in_use = tuple((item, IN_USE) for item in chosen)
        assert (removal.removed, removal.kept, removal.bytes) == ((), in_use, 0)
    (part,) = of_kind(full, "partial")
    with file_lock(full.downloads / "locks" / f"{part.path.stem}.lock", pytest.fail):
        assert used() == {"partial", "download"}
        assert IN_USE in reasons(full, 0).values()
        assert remove_items([part], full).kept == ((part, IN_USE),)
        monkeypatch.setattr(cache, "is_locked", refuse)  # a lock that may not be opened
        assert used() == set()
    part.path.with_suffix(".json").unlink()
    (part,) = of_kind(full, "partial")
    # a part by itself is nothing that could be lost
    assert (part.detail, part.refetchable, part.bytes) == ("unknown origin", True, 20)


@pytest.mark.parametrize("place", ["dataset-replaced", "."])
@pytest.mark.parametrize("made_here", [True, False])
def test_a_dataset_left_in_staging_is_named(place: str, made_here: bool, full: Settings) -> None:
    staged = full.staging / f"{lock_name('local/y')}.dead"
    write_toy(staged / place, [toy_batch([2])])
    if not made_here:
        edit_manifest(staged / place, files=[{"path": "x", "url": URL}])
    item = item_of(full, staged.name)
    assert item.detail.startswith("local:toy@1, left there")
    assert item.refetchable is not made_here
    assert (reasons(full).get(staged.name[:3]) == "cannot be fetched again") is made_here


def test_what_vanishes_meanwhile_is_no_error(
    full: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat_, victims = Path.stat, ("toy.hdf5", SHAS["plain"], "rows.memmap")

    def gone(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if self.name in victims:
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return stat_(self, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "lstat", lambda self: gone(self, follow_symlinks=False))
    monkeypatch.setattr(Path, "stat", gone)
    found = [item.path.name for item in cache_usage(full).items]
    assert SHAS["plain"] not in found
    assert SHAS["laid out"] in found
    monkeypatch.undo()
    items = cache_usage(full).items
    (items[0].path / "manifest.json").unlink()
    assert remove_items(items[:1], full).gone == items[:1]
    shutil.rmtree(full.root)
    removal = remove_items(items, full)
    assert (removal.gone, removal.removed, removal.failures) == (items, (), ())


def test_a_folder_that_may_not_be_read(full: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    iterdir = Path.iterdir
    monkeypatch.setattr(
        Path, "iterdir", lambda self: refuse() if self.name == "steps" else iterdir(self)
    )
    with pytest.raises(AccessError, match="cannot be used: Permission denied"):
        cache_usage(full)


def test_prune_takes_what_nobody_asked_for(full: Settings) -> None:
    plan = plan_prune(full)
    assert [item.path.name[:3] for item in plan.removed] == ["aaa", "x-" + lock_name("local/x")[2]]
    assert reasons(full) == {
        "bbb": "requested with --raw-only",
        "v": "requested with --raw-only",
        plan.kept[0][0].path.name[:3]: "younger than 7 days",
    }
    assert plan_prune(full, 1).removed == ()
    assert reasons(full, 1)["aaa"] == "younger than 1 days"
    removal = remove_items(plan.removed, full)
    assert (removal.removed, removal.bytes) == (plan.removed, 100 + 3)
    assert (removal.kept, removal.gone, removal.failures) == ((), (), ())
    assert plan_prune(full).removed == ()
    left = ["damaged", "dataset", "download", "download", "partial"]
    assert sorted(item.kind for item in cache_usage(full).items) == left


@pytest.mark.parametrize(
    ("age", "days", "goes"), [(6, None, False), (8, None, True), (8, 9, False), (1, 0, True)]
)
def test_parts_go_when_they_are_old(
    age: float, days: int | None, goes: bool, full: Settings
) -> None:
    (part,) = (full.downloads / "partial").glob("*.part")
    os.utime(part, (time.time() - age * 86_400,) * 2)
    found = [item for item in plan_prune(full, days).removed if item.kind == "partial"]
    assert bool(found) is goes
    assert remove_items(found, full).bytes == (20 + len(NOTE)) * goes
    assert bool(list(part.parent.iterdir())) is not goes


def test_all_of_it_can_go_and_records_stay(full: Settings) -> None:
    before = cache_usage(full)
    removal = remove_items(before.items, full)
    assert (removal.removed, removal.bytes) == (before.items, before.bytes)
    after = cache_usage(full)
    assert after.items == ()
    locks = sum(path.stat().st_size for path in full.root.rglob("*.lock"))
    assert after.other_bytes == before.other_bytes + locks
    record = read_record(full, "http://host.example/aa")
    assert record
    assert record.sha256 == SHAS["plain"]
    assert not (full.downloads / "raw").exists()
    assert (full.root / "local" / "notes of the user.txt").exists()


def test_what_cannot_be_deleted_does_not_keep_the_others(
    full: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink, rmtree, tries = Path.unlink, shutil.rmtree, []

    def forbidden(self: Path, missing_ok: bool = False) -> None:
        if self.name == SHAS["plain"]:
            raise PermissionError(13, "Permission denied", str(self))
        unlink(self, missing_ok)

    def late(path: Path) -> None:  # somebody else deletes in there at the same time
        tries.append(path)
        if len(tries) == 1:
            raise FileNotFoundError(2, "No such file or directory", str(path / "rows"))
        rmtree(path)

    monkeypatch.setattr(Path, "unlink", forbidden)
    monkeypatch.setattr(shutil, "rmtree", late)
    staged = of_kind(full, "staging")
    removal = remove_items([*staged, *of_kind(full, "download")], full)
    assert tries[:2] == [staged[0].path] * 2
    assert not staged[0].path.exists()
    (error,) = removal.failures
    assert isinstance(error, AccessError)
    assert f"{SHAS['plain']} cannot be used: Permission denied" in error.message
    assert sorted(item.kind for item in removal.removed) == ["download", "download", "staging"]
