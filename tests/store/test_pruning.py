"""`plan_prune` takes only what nobody misses; `remove_items` leaves alone what is worked on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from offline_data.config import Settings
from offline_data.errors import AccessError
from offline_data.fetch.cache import read_record
from offline_data.store import pruning
from offline_data.store.housekeeping import CacheItem, cache_usage
from offline_data.store.locks import lock_name
from offline_data.store.pruning import plan_prune, remove_items
from offline_data.testing.toy import toy_batch, write_toy
from tests.store.conftest import NOTE, SHAS, edit_manifest


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
        assert {reason for _, reason in plan.kept} >= {pruning.IN_USE}
        chosen = [item for item in items if item.kind in {"staging", "download"}]
        removal = remove_items(chosen, full)
        assert (removal.removed, removal.in_use, removal.freed) == ((), tuple(chosen), 0)
        process.kill()
    assert kinds(plan_prune(full).items) == ["download", "staging"]


def test_a_part_that_is_fetched_is_left_alone(full: Settings) -> None:
    from filelock import FileLock

    (part,) = (item for item in everything(full) if item.kind == "partial")
    with FileLock(full.downloads / "locks" / f"{part.path.stem}.lock"):
        assert pruning.IN_USE in reasons(full, 0).values()
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
