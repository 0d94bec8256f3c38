"""Locks of files: of killed processes and dead hosts, inherited, deleted, where there are none."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offline_data.base.errors import AccessError
from offline_data.base.files import file_lock, is_locked, unless_locked
from offline_data.base.progress import SILENT
from offline_data.store.publish import dataset_lock, lock_name

HOLD = """
import sys
from pathlib import Path
from offline_data.base.files import file_lock
with file_lock(Path(sys.argv[1]), sys.exit):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(lock: Path) -> subprocess.Popen[str]:
    """Start a process that holds a lock until its stdin ends."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], **pipes)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    with holder(lock) as process:
        assert is_locked(lock)
        process.kill()
    with file_lock(lock, pytest.fail):
        assert is_locked(lock)
    assert not is_locked(lock)


@pytest.mark.parametrize("content", ["4194303", "4194303\nnode17.example\n", '{"host": "node17"}'])
def test_a_lock_file_of_a_dead_host_is_no_lock(content: str, tmp_path: Path) -> None:
    lock = tmp_path / f"{lock_name('local/a')}.lock"
    lock.write_text(content)
    for future in (1e9, 1e11):  # in the past, and in the future
        os.utime(lock, (future, future))
        assert not is_locked(lock)
        with dataset_lock(tmp_path, "local/a", SILENT):
            assert is_locked(lock)
    assert lock.read_text() == content


def test_a_process_that_was_forked_holds_nothing_after_the_end(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    reader, writer = os.pipe()
    with file_lock(lock, pytest.fail):
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    assert not is_locked(lock)
    os.close(writer)
    os.waitpid(child, 0)
    os.close(reader)


def test_a_deleted_lock_file_is_made_again(tmp_path: Path) -> None:
    lock = tmp_path / "locks" / "x.lock"
    with file_lock(lock, pytest.fail):
        lock.unlink()
        with file_lock(lock, pytest.fail):
            assert is_locked(lock)
        assert not is_locked(lock)


def test_nothing_is_locked_through_a_link(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    lock.symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"), file_lock(lock, pytest.fail):
        pytest.fail("the lock was given")
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_a_file_system_without_locks_is_named(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_handle: int, _how: int) -> None:
        raise OSError(code, os.strerror(code))

    handles = len(list(Path("/dev/fd").iterdir()))
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(AccessError, match="no locks") as caught:
        unless_locked(tmp_path / "x.lock", lambda: pytest.fail("it was held"))
    assert str(tmp_path) in caught.value.message
    assert "--root DIR" in str(caught.value.hint)
    with pytest.raises(AccessError, match="no locks"), dataset_lock(tmp_path, "a", SILENT):
        pytest.fail("the lock was given")
    assert len(list(Path("/dev/fd").iterdir())) == handles
