"""Local files: free space, errors, durable writes, locks, signatures, checked names."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import shutil
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from offline_data.base.errors import (
    AccessError,
    FormatError,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    OfflineDataError,
    UsageError,
)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MEMORY, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # no room: on a disk, in a quota or a limit
_HELD = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
_HTML = (b"<!doctype", b"<html", b"<?xml")
# A private writable map counts against the memory limit unless it needs no reserve; otherwise a
# file larger than RAM and swap cannot be mapped. Python has the constant since 3.13.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_LONGEST_NAME, _LONGEST_PATH = 255, 1024  # bytes, on every file system, with room for a root


def free_bytes(folder: Path) -> int:
    """Return the bytes available to the user on the disk of `folder`, which need not exist."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free


def require_bytes(folder: Path, needed: int, what: str) -> None:
    """Raise `NoSpaceError` unless `needed` bytes are free on the disk of `folder`."""
    free = free_bytes(folder)
    if needed > free:
        raise NoSpaceError(
            f"{what} needs {human_bytes(needed)} in {folder}, which has {human_bytes(free)} free",
            hint="free some space (`offline-data cache prune`) or use another --root",
        )


def free_memory() -> int | None:
    """Return the bytes of memory that programs can still take here; None: unknown (not on Linux)."""
    try:
        lines = _MEMORY.read_text("ascii").splitlines()
        free = 1024 * int(dict(line.split(":", 1) for line in lines)["MemAvailable"].split()[0])
    except (OSError, ValueError, KeyError):
        return None
    try:  # of a container: pages of files that it has read can be taken back
        used, most = (int((_GROUP / f"memory.{name}").read_text()) for name in ("current", "max"))
        pages = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        return min(free, max(0, most - used + int(pages["inactive_file"])))
    except (OSError, ValueError, KeyError):  # no limit
        return free


def map_privately(path: Path, size: int) -> mmap.mmap:
    """Map `size` bytes of a file, copy-on-write; `NotFoundError` if it has fewer, `AccessError`."""
    try:
        with path.open("rb") as file:
            flags = mmap.MAP_PRIVATE | _NO_RESERVE
            rights = mmap.PROT_READ | mmap.PROT_WRITE
            return mmap.mmap(file.fileno(), size, flags=flags, prot=rights)
    except (FileNotFoundError, ValueError) as error:
        raise NotFoundError(
            f"{path} was deleted or truncated since the dataset was opened: {error}",
            hint="was the dataset deleted? download it again, then open it again",
        ) from error
    except OSError as error:
        raise AccessError(f"{path} cannot be mapped: {error.strerror}") from error


def human_bytes(count: float) -> str:
    """Format a number of bytes in powers of 1024.

    Example:
        >>> human_bytes(0), human_bytes(3_670_016)
        ('0 B', '3.5 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def parse_bytes(text: str, where: str) -> int:
    """Parse a number of bytes with a unit; raises `UsageError`.

    Units: `k M G T` are powers of 1000, `Ki Mi Gi Ti` of 1024, each with or without `B`.

    Example:
        >>> parse_bytes("1.5GB", "--max-size"), parse_bytes("64 KiB", "--max-size")
        (1500000000, 65536)
    """
    found = re.fullmatch(
        r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(?:([kmgt])(i?))?b?", text.strip().lower()
    )
    if found is None:
        raise UsageError(f"{where} is {text[:40]!r}; expected bytes, as in 500M, 1.5GB or 64KiB")
    power = " kmgt".index(found[2]) if found[2] else 0
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)


def check_links(root: Path, *paths: Path) -> None:
    """Raise `AccessError` if a path below a root leads through another user's link, but uid 0's."""
    parts = {part for path in paths for part in (path, *path.parents) if root in part.parents}
    for part in sorted(parts):
        try:
            state = os.lstat(part)
        except OSError:  # nothing is there yet, or the caller finds out
            continue
        # In a root that users share, it could lead what this user writes to any place.
        if stat.S_ISLNK(state.st_mode) and state.st_uid not in {os.geteuid(), 0}:
            raise AccessError(
                f"{part} is a link of another user (number {state.st_uid}): nothing is written "
                "through it",
                hint="delete the link, make it yourself, or choose another root: --root DIR",
            )


_OTHER_ROOT = "choose a folder that you can write to: --root DIR or OFFLINE_DATA_HOME"


@contextmanager
def disk_errors(folder: Path, hint: str = _OTHER_ROOT) -> Iterator[None]:
    """Convert an `OSError` in the block to `NoSpaceError` or `AccessError` naming the folder."""
    try:
        yield
    except OfflineDataError:
        raise
    except OSError as error:
        if error.errno in FULL:
            raise NoSpaceError(
                f"The disk of {folder} became full; partly written files were removed",
                hint="free some space (`offline-data cache prune`) or use another --root",
            ) from error
        raise AccessError(
            f"{error.filename or folder} cannot be used: {error.strerror or error}", hint=hint
        ) from error


def write_durably(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically and durably, even if the machine crashes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        with staged.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_user_file(path: Path, content: bytes) -> None:
    """Write a file that the user has named, creating its folder; raises `AccessError`, `NoSpaceError`.

    Atomically, unless it is a link or no plain file (`/dev/stdout`), which a rename would replace.
    """
    try:
        with disk_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink() or (path.exists() and not is_file(path)):
                path.write_bytes(content)
            else:
                write_durably(path, content)
    except AccessError as error:
        reason = getattr(error.__cause__, "strerror", None) or error.message
        raise AccessError(f"{path} cannot be written: {reason}") from error


def sync_folder(folder: Path) -> None:
    """Make created and deleted names in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def boot_id() -> str | None:
    """Return the id of the current boot; None if the system has none (macOS)."""
    try:
        return _BOOT_ID.read_text("ascii").strip() or None
    except (OSError, ValueError):
        return None


@contextmanager
def file_lock(
    path: Path, waiting: Callable[[], None], pause: Callable[[float], object] = time.sleep
) -> Iterator[None]:
    """Hold the lock at `path`, which the operating system releases when the process dies.

    Nothing is read from the file, and it is never deleted, so that two processes never hold it.
    `waiting` is called once if another process or thread holds the lock, `pause` waits before the
    next attempt; both may raise to give up. Raises `OSError`, and `AccessError` where the file
    system has no locks.
    """
    notified = False
    while (handle := _try_lock(path)) is None:
        if not notified:
            waiting()
        notified = True
        pause(0.05)
    try:
        yield
    finally:
        _unlock(handle)


def unless_locked(path: Path, act: Callable[[], object]) -> bool:
    """Call `act` while holding the lock; False: another process holds it. Raises like `file_lock`."""
    if (handle := _try_lock(path)) is None:
        return False
    try:
        act()
    finally:
        _unlock(handle)
    return True


def _try_lock(path: Path) -> int | None:
    """Lock a file, which is made where it is missing; None if it is locked. See `file_lock`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        handle = os.open(path, flags)
    except FileNotFoundError:  # O_CREAT alone fails on another user's file in a folder like /tmp
        try:
            handle = os.open(path, flags | os.O_CREAT, 0o666)
        except FileNotFoundError:  # another process has deleted the folder since
            return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if error.errno in _HELD:
            return None
        if error.errno in _NO_LOCKS:
            raise AccessError(
                f"The file system of {path.parent} has no locks ({error.strerror}): two programs "
                "could write there at once",
                hint="choose a folder on a local disk (--root DIR or OFFLINE_DATA_HOME), or mount "
                "this one with locks",
            ) from error
        raise
    if os.fstat(handle).st_nlink == 0:  # deleted meanwhile: another process locks a new file
        os.close(handle)
        return None
    return handle


def _unlock(handle: int) -> None:
    """Release a lock, also where a forked process has inherited the open file."""
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def is_locked(path: Path) -> bool:
    """Return True if a process holds the lock at `path`; raises like `file_lock`."""
    return path.exists() and not unless_locked(path, lambda: None)


LFS = b"version https://git-lfs"  # first bytes of a Git LFS pointer
LFS_PULL = "`git lfs pull` in its folder downloads it"

_PICKLES = {bytes([0x80, protocol]) for protocol in range(2, 6)}
_LOAD_PICKLE = "load it yourself and pass the episodes to `offline_data.convert`"


def describe_head(head: bytes) -> str:
    """Describe a file by its first bytes.

    Example:
        >>> describe_head(b"<!DOCTYPE html><title>Not found")
        'it is a web page, probably an error message of a server'
    """
    defect = defect_of(head)
    return defect[0] if defect else f"it begins with {head[:8]!r}"


def advise_on_head(head: bytes) -> str:
    """Return how to get the file whose first bytes are not those of its format."""
    defect = defect_of(head)
    return defect[1] if defect else "fetch it again"


def defect_of(head: bytes) -> tuple[str, str] | None:
    """Return why a file that begins so is not data, and what to do; None: nothing shows that."""
    if not head:
        return "it is empty", "fetch it again"
    if head.lstrip().lower().startswith(_HTML):
        return "it is a web page, probably an error message of a server", "fetch it again"
    if head.startswith(LFS):
        return "it is a Git LFS pointer: the data themselves were not downloaded", LFS_PULL
    if head[:2] in _PICKLES:
        return "it is a pickle: pickles can run code and are not read", _LOAD_PICKLE
    return None


def read_head(path: Path, count: int = 512) -> bytes:
    """Return first bytes; `NotFoundError`, `AccessError`, `FormatError` for no regular file."""

    def open_without_blocking(name: str, flags: int) -> int:
        # O_NONBLOCK: without it, opening a FIFO blocks until a writer opens it.
        return os.open(name, flags | os.O_NONBLOCK)

    try:
        with open(path, "rb", opener=open_without_blocking) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise FormatError(f"{path} is not a plain file")
            return file.read(min(count, found.st_size))  # read allocates that much memory
    except IsADirectoryError:
        raise FormatError(f"{path} is not a plain file") from None
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"There is no file {path}") from None
    except OSError as error:
        if error.errno in {errno.ENXIO, errno.ELOOP}:  # a socket, a link to itself
            raise FormatError(f"{path} is not a plain file") from None
        if error.errno == errno.ENAMETOOLONG:
            raise NotFoundError(f"There is no file {path}: its name is too long") from None
        raise AccessError(f"{path} cannot be read: {error.strerror}") from error


def check_magic(path: Path, magic: bytes, what: str) -> None:
    """Raise unless `path` starts with `magic`; the message mentions web pages and LFS pointers."""
    head = read_head(path)
    if not head.startswith(magic):
        raise FormatError(f"{path} is not {what}: {describe_head(head)}", hint=advise_on_head(head))


def is_unicode(text: str) -> bool:
    """Return False for lone surrogates, which JSON and arguments may contain but names should not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_relative(path: str, what: str = "A raw file") -> str:
    """Return a posix path from a listing or archive if it stays inside its folder.

    Raises:
        IntegrityError: It is absolute, has empty, `.` or `..` parts, characters with a special
            meaning on some system, or more bytes than a file name can have.

    Example:
        >>> check_relative("door/main_data.hdf5")
        'door/main_data.hdf5'
    """
    parts = path.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        expected = "a relative path without empty or `..` parts"
    elif any(c in path for c in "\\\0\n") or not is_unicode(path):
        expected = "UTF-8 without backslashes, line breaks and NUL"
    elif len(path.encode()) > _LONGEST_PATH or any(len(p.encode()) > _LONGEST_NAME for p in parts):
        expected = f"at most {_LONGEST_PATH:,} bytes, and {_LONGEST_NAME} in each part"
    else:
        return path
    raise IntegrityError(
        f"{what} is named {path[:200]!r}: expected {expected}",
        hint="the source's list is damaged or hostile; nothing was written",
    )


def is_file(path: Path) -> bool:
    """Return True for a regular file or a link to one; never raises, as `Path.is_file` may."""
    return os.path.isfile(path)  # noqa: PTH113 -- see above


def is_folder(path: Path) -> bool:
    """Return True for a folder, or a link to one; see `is_file`."""
    return os.path.isdir(path)  # noqa: PTH112 -- see `is_file`


def file_states(paths: Iterable[Path]) -> Iterator[tuple[tuple[int, int], os.stat_result]]:
    """Yield identity and status of files, and of all files below folders; follows no links."""
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        try:
            state = path.lstat()
            below = list(path.iterdir()) if stat.S_ISDIR(state.st_mode) else None
        except (FileNotFoundError, NotADirectoryError):
            continue
        if below is None:
            yield (state.st_dev, state.st_ino), state
        else:
            waiting += below


def freed_bytes(paths: Iterable[Path]) -> int:
    """Return the bytes that deleting these files and folders frees: files with other links stay."""
    states = list(file_states(paths))
    names = Counter(file for file, _ in states)
    return sum(s.st_size for file, s in dict(states).items() if names[file] >= s.st_nlink)
