"""Staging, locks and the rename: nothing half-made is ever seen, nothing is lost."""

from __future__ import annotations

import errno
import itertools
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offline_data.base import files
from offline_data.base.errors import AccessError, NoSpaceError
from offline_data.base.files import file_lock, is_locked
from offline_data.base.progress import SILENT
from offline_data.store import writer
from offline_data.store.library import entry_at
from offline_data.store.publish import dataset_lock, lock_name, publish, recover, staging_folder
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch, write_toy
from tests.syncs import Syncs, files_in


def transitions(folder: Path) -> int:
    return entry_at(folder).manifest.counts["transitions"]


class KilledError(BaseException): ...


def publish_and_fail(staged: Path, home: Path, error: BaseException) -> None:
    """Publish a dataset whose last rename fails."""
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self == staged:
            raise error
        return rename(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        publish(staged, home)


def test_versions_of_this_package_name_a_lock_alike() -> None:
    assert lock_name(f"local/{'a' * 60}") == f"{'a' * 40}-5ba03dcc00"


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    name = lock_name("local/a")
    (tmp_path / f"{name}.dead" / "dataset").mkdir(parents=True)
    (tmp_path / f"{lock_name('local/b')}.live").mkdir()
    write_toy(tmp_path / f"{name}.dead-replaced", [toy_batch([2])])
    with staging_folder(tmp_path, "local/a", tmp_path / "home") as folder:
        left = {folder.name, f"{lock_name('local/b')}.live", "home"}
        assert {path.name for path in tmp_path.iterdir()} == left
        assert transitions(tmp_path / "home") == 2  # it had been moved aside
    assert not folder.exists()


@pytest.mark.parametrize("by", ["conversion", "resume"])
def test_a_dataset_moved_aside_by_a_killed_process_is_put_back(by: str, tmp_path: Path) -> None:
    home, staged = tmp_path / "root" / "d", tmp_path / f"{lock_name('local/a')}.dead"
    write_toy(home, [toy_batch([2])])
    write_toy(staged / "dataset", [toy_batch([3])])
    with pytest.raises(KilledError):
        publish_and_fail(staged / "dataset", home, KilledError())
    assert not home.exists()
    if by == "resume":
        recover(staged / "dataset", home)
        assert (staged / "dataset").exists()
    else:
        with staging_folder(tmp_path, "local/a", home):
            assert not staged.exists()
    assert transitions(home) == 2


def test_publishing_replaces_whole_or_not_at_all(tmp_path: Path) -> None:
    home, staged = tmp_path / "root" / "local" / "d", tmp_path / "s" / "dataset"
    write_toy(staged, [toy_batch([2])])
    publish(staged, home)
    write_toy(staged, [toy_batch([3])])
    with pytest.raises(AccessError):
        publish_and_fail(staged, home, OSError(errno.EIO, "broken"))
    assert transitions(home) == 2
    publish(staged, home)
    assert transitions(home) == 3
    assert list(staged.parent.iterdir()) == []


def test_all_is_on_the_disk_before_the_rename_and_the_rename_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs, staged, home = Syncs(monkeypatch), tmp_path / "s" / "one", tmp_path / "root" / "d"
    write_toy(staged, [toy_batch([2, 3], text=True)])
    assert len(files_in(staged)) > 5
    assert syncs.lacks(files_in(staged)) == []
    home.parent.mkdir()
    assert syncs.lacks([home.parent]) == [home.parent]
    publish(staged, home)
    assert syncs.lacks([home.parent]) == []


def test_a_small_disk_is_met_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = toy_batch([100] * 50)
    digests = write_toy(tmp_path / "whole", [batch]).digests
    rows = [name for name in digests if name.endswith("rows.memmap") and "episodes" not in name]
    enough = writer.with_margin(sum(digests[name]["size"] for name in rows))
    monkeypatch.setattr(files, "free_bytes", lambda _: enough - 1)
    with pytest.raises(NoSpaceError, match=r"1\.\d MiB free"):
        write_toy(tmp_path / "d", [batch])
    assert [p for p in (tmp_path / "d").rglob("*") if p.is_file() and p.stat().st_size] == []
    monkeypatch.setattr(files, "free_bytes", lambda _: enough)
    write_toy(tmp_path / "fits", [batch])


def test_files_of_the_users_stay_where_a_dataset_is_replaced(tmp_path: Path) -> None:
    home, staging = tmp_path / "root" / "d", tmp_path / "staging"
    write_toy(home, [toy_batch([3])])
    texts = {
        "notes.txt": "mine",
        "plots/a.png": "mine too",
        "ted/action.memmap": "and this",
        "ted/action.memmap.kept": "of an earlier replacement",
    }
    (home / "plots" / "empty").mkdir(parents=True)
    (home / "ted").mkdir()
    for name, text in texts.items():
        (home / name).write_text(text)
    write_toy(staging / "dataset", [toy_batch([5])], layout="ted")
    kept = publish(staging / "dataset", home)
    assert transitions(home) == 5
    texts["ted/action.memmap.kept.kept"] = texts.pop("ted/action.memmap")
    names = sorted([*texts, "plots/empty"])
    assert [path.relative_to(home).as_posix() for path in kept] == names
    assert {name: (home / name).read_text() for name in texts} == texts
    assert list(staging.iterdir()) == []
    assert [problem.file for problem in verify(home)] == names
    # and where the process was killed before they were moved
    left = staging / f"{lock_name('local/d')}.dead" / "dataset-replaced"
    write_toy(left, [toy_batch([3])])
    (left / "more.txt").write_text("mine")
    with staging_folder(staging, "local/d", home):
        assert (home / "more.txt").read_text() == "mine"
    assert not left.exists()
    assert transitions(home) == 5


def test_a_read_only_root_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(AccessError, match="cannot be written"),
        dataset_lock(tmp_path / "file" / "staging", "local/a", SILENT),
    ):
        pytest.fail("the lock was given")


def test_the_lock_makes_the_second_wait_and_says_so(tmp_path: Path) -> None:
    notes, order = list[str](), list[str]()
    lock = tmp_path / f"{lock_name('local/a')}.lock"
    noting: Any = SimpleNamespace(note=notes.append)

    def second() -> None:
        with dataset_lock(tmp_path, "local/a", noting):
            order.append("second")

    with dataset_lock(tmp_path, "local/a", SILENT):
        assert is_locked(lock)
        thread = threading.Thread(target=second)
        thread.start()
        while not notes:
            time.sleep(0.005)
        time.sleep(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert notes == ["another process is writing local/a; waiting for it"]
    assert not is_locked(lock)


def test_a_clock_that_runs_backwards_does_not_keep_a_lock_from_being_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = itertools.count()
    for name in ("time", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: 1e9 - 10.0 * next(steps))
    lock = tmp_path / "held.lock"
    with file_lock(lock, pytest.fail):
        finished: list[bool] = []
        asker = threading.Thread(target=lambda: finished.append(is_locked(lock)), daemon=True)
        asker.start()
        asker.join(120)
        assert finished == [True]
