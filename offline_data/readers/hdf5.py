"""HDF5 files: opened for one block of code, and h5py's errors turned into ours."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from offline_data.errors import AccessError, FormatError, NotFoundError, OfflineDataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAGIC = b"\x89HDF\r\n\x1a\n"
"""First bytes of an HDF5 file without a user block."""

_HTML = (b"<!doctype", b"<html", b"<?xml")


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open an HDF5 file read-only as an `h5py.File`.

    Raises:
        NotFoundError: No such file.
        AccessError: It may not be read by this user.
        FormatError: It is not HDF5, or is damaged; also where reading inside the block fails.
    """
    check_magic(path, MAGIC, "an HDF5 file")
    import h5py

    try:
        with h5py.File(path, "r") as file:
            _forget_metadata(file)
            yield file
    except OfflineDataError:
        raise
    except (OSError, RuntimeError) as error:
        raise FormatError(
            f"{path} is damaged or cut short: {_first_line(error)}",
            hint="fetch or copy the file again; `h5dump -H FILE` shows what is left of it",
        ) from error


def _forget_metadata(file: Any) -> None:
    """Keep HDF5's cache of object headers at 2 MiB instead of up to 32.

    Files with many small objects (an episode is ten) are read once, from first to last: with the
    default, 20,000 episodes cost 0.4 GB of memory, and a seventh more time.
    """
    config = file.id.get_mdc_config()
    config.set_initial_size = True
    config.initial_size, config.min_size, config.max_size = 1 << 20, 1 << 20, 2 << 20
    file.id.set_mdc_config(config)


def check_magic(path: Path, magic: bytes, what: str) -> None:
    """Raise unless `path` begins with `magic`; says so where it is a web page or an LFS pointer."""
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {path}") from None
    except OSError as error:
        raise AccessError(f"{path} cannot be read: {error.strerror}") from error
    if not head.startswith(magic):
        raise FormatError(f"{path} is not {what}: {describe_head(head)}", hint="fetch it again")


def describe_head(head: bytes) -> str:
    """Say in words what a file that begins like this probably is.

    Example:
        >>> describe_head(b"<!DOCTYPE html><title>Not found")
        'it is a web page, probably the error message of a server'
    """
    if not head:
        return "it is empty"
    if head.lstrip().lower().startswith(_HTML):
        return "it is a web page, probably the error message of a server"
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer: the data themselves were not fetched"
    return f"it begins with {head[:8]!r}"


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
