"""`cache_usage` counts every file under a root once; `plan_prune` takes only what nobody misses."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from offline_data.config import Settings
from offline_data.errors import AccessError
from offline_data.fetch.cache import FetchRecord, key_of, read_record, write_record
from offline_data.progress import SILENT
from offline_data.store import cache
from offline_data.store.cache import (
    CacheItem,
    CacheUsage,
    asked_to_stay,
    bytes_freed,
    cache_usage,
    plan_prune,
    refetchable,
    remove_items,
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
    assert cache_usage(settings) == CacheUsage((), 0)
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

    monkeypatch.setattr(cache, "is_locked", refuse)
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


def made_old(path: Path, days: float) -> None:
    then = time.time() - days * 86_400
    os.utime(path, (then, then))


def kinds(items: tuple[CacheItem, ...]) -> list[str]:
    return sorted(item.kind for item in items)


def reasons(settings: Settings, days: int | None = None) -> dict[str, str]:
    return {item.path.name[:3]: reason for item, reason in plan_prune(settings, days).kept}


def everything(settings: Settings) -> tuple[CacheItem, ...]:
    return cache_usage(settings).items


def test_prune_takes_what_nobody_asked_for(full: Settings) -> None:
    plan = plan_prune(full)
    assert [item.path.name[:3] for item in plan.items] == ["aaa", "x-" + lock_name("local/x")[2]]
    assert reasons(full) == {
        "bbb": "asked for with --raw-only",
        "v": "asked for with --raw-only",
        plan.kept[0][0].path.name[:3]: "younger than 7 days",
    }
    removal = remove_items(plan.items, full)
    assert (removal.removed, removal.freed) == (plan.items, 100 + 3)
    assert (removal.in_use, removal.gone, removal.failures) == ((), (), ())
    assert plan_prune(full).items == ()
    assert kinds(everything(full)) == ["damaged", "dataset", "download", "download", "partial"]


def test_prune_never_takes_what_no_host_has(full: Settings) -> None:
    (full.downloads / "index").rename(full.downloads / "forgotten")
    assert reasons(full)["aaa"] == "cannot be fetched again"
    staged = full.staging / f"{lock_name('local/y')}.dead"
    write_toy(staged / "dataset-replaced", [toy_batch([2])])
    assert reasons(full)[staged.name[:3]] == "cannot be fetched again"
    assert kinds(plan_prune(full).items) == ["staging"]
    assert reasons(full, 0)["aaa"] == "cannot be fetched again"


def test_raw_files_of_a_dataset_stay_where_it_was_asked_for(full: Settings) -> None:
    files = [{"path": "x", "url": "http://host.example/aa", "sha256": SHAS["plain"]}]
    folder = full.root / "local" / "toy" / "1"
    edit_manifest(folder, files=files, converter={"options": {"keep_raw": True}})
    assert reasons(full)["aaa"] == "asked for with --keep-raw"
    shutil.rmtree(folder)
    assert "aaa" not in reasons(full)


@pytest.mark.parametrize(
    ("age", "days", "goes"), [(6, None, False), (8, None, True), (8, 9, False), (1, 0, True)]
)
def test_parts_go_when_they_are_old(
    age: float, days: int | None, goes: bool, full: Settings
) -> None:
    (part,) = (full.downloads / "partial").glob("*.part")
    made_old(part, age)
    plan = plan_prune(full, days)
    assert ("partial" in kinds(plan.items)) is goes
    if goes:
        removal = remove_items([item for item in plan.items if item.kind == "partial"], full)
        assert removal.freed == 20 + len(NOTE)
        assert list(part.parent.iterdir()) == []


def test_days_hold_for_all_kinds(full: Settings) -> None:
    assert plan_prune(full, 1).items == ()
    assert reasons(full, 1)["aaa"] == "younger than 1 days"
    made_old(full.downloads / "sha256" / "aa" / SHAS["plain"], 2)
    assert kinds(plan_prune(full, 1).items) == ["download"]


def test_what_a_living_process_works_on_is_left_alone(full: Settings) -> None:
    items = everything(full)
    code = (
        "from pathlib import Path\n"
        "from offline_data.progress import SILENT\n"
        "from offline_data.store.locks import dataset_lock\n"
        f"with dataset_lock(Path({str(full.staging)!r}), 'local/x', SILENT):\n"
        "    print('held', flush=True); input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        plan = plan_prune(full)
        assert plan.items == ()
        assert {reason for _, reason in plan.kept} >= {cache.IN_USE}
        chosen = [item for item in items if item.kind in {"staging", "download"}]
        removal = remove_items(chosen, full)
        assert (removal.removed, removal.in_use, removal.freed) == ((), tuple(chosen), 0)
        process.kill()
    assert kinds(plan_prune(full).items) == ["download", "staging"]


def test_a_part_that_is_fetched_is_left_alone(full: Settings) -> None:
    from filelock import FileLock

    (part,) = (item for item in everything(full) if item.kind == "partial")
    with FileLock(full.downloads / "locks" / f"{part.path.stem}.lock"):
        assert cache.IN_USE in reasons(full, 0).values()
        assert remove_items([part], full).in_use == (part,)
    assert part.path.exists()
    assert remove_items([part], full).removed == (part,)


def test_all_of_it_can_go_and_records_stay(full: Settings) -> None:
    before = cache_usage(full)
    removal = remove_items(before.items, full)
    assert (removal.removed, removal.freed) == (before.items, before.bytes)
    after = cache_usage(full)
    assert after.items == ()
    locks = sum(path.stat().st_size for path in full.root.rglob("*.lock"))
    assert after.other_bytes == before.other_bytes + locks
    record = read_record(full, "http://host.example/aa")
    assert record is not None
    assert record.sha256 == SHAS["plain"]
    assert not (full.downloads / "raw").exists()
    assert (full.root / "local" / "notes of the user.txt").exists()


def test_only_what_goes_back_to_the_disk_is_counted(full: Settings) -> None:
    items = {item.path.name[:3]: item for item in everything(full)}
    assert remove_items([items["bbb"]], full).freed == 0
    assert remove_items([items["v"]], full).freed == 200


def test_what_somebody_else_deleted_is_gone(full: Settings) -> None:
    items = everything(full)
    shutil.rmtree(full.root)
    removal = remove_items(items, full)
    assert (removal.gone, removal.removed, removal.failures) == (items, (), ())


def test_a_tree_that_vanishes_while_it_is_deleted(
    full: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmtree = shutil.rmtree
    tries = []

    def late(path: Path) -> None:
        tries.append(path)
        if len(tries) == 1:
            raise FileNotFoundError(2, "No such file or directory", str(path / "rows"))
        rmtree(path)

    monkeypatch.setattr(shutil, "rmtree", late)
    (staged,) = (item for item in everything(full) if item.kind == "staging")
    assert remove_items([staged], full).failures == ()
    assert tries == [staged.path] * 2
    assert not staged.path.exists()


def test_one_that_may_not_be_deleted_does_not_keep_the_others(
    full: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def refuse(self: Path, missing_ok: bool = False) -> None:
        if self.name == SHAS["plain"]:
            raise PermissionError(13, "Permission denied", str(self))
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    raw = [item for item in everything(full) if item.kind == "download"]
    removal = remove_items(raw, full)
    (error,) = removal.failures
    assert isinstance(error, AccessError)
    assert f"{SHAS['plain']} cannot be used: Permission denied" in error.message
    assert len(removal.removed) == len(raw) - 1


@pytest.fixture
def read_only(full: Settings, tmp_path: Path) -> Iterator[Settings]:
    """The same root on a disk that may only be read."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this user may not mount a disk")
    try:
        shutil.copytree(full.root, disk / "root")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        yield replace(full, root=disk / "root")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_read_only_root_is_listed_and_refuses_in_words(read_only: Settings) -> None:
    usage = cache_usage(read_only)
    removal = remove_items(usage.items, read_only)
    assert removal.removed == ()
    assert len(removal.failures) == len(usage.items)
    for error in removal.failures:
        assert isinstance(error, AccessError)
        assert "Read-only file system" in error.message
