"""HDF5 files: opened for one block of code, and h5py's errors turned into ours."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from offline_data.errors import AccessError, FormatError, OfflineDataError
from offline_data.heads import check_magic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAGIC = b"\x89HDF\r\n\x1a\n"
"""First bytes of an HDF5 file without a user block."""


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open an HDF5 file read-only as an `h5py.File`.

    Raises:
        NotFoundError: No such file.
        AccessError: It may not be read by this user, or too many files are open.
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
        if getattr(error, "errno", None) in {errno.EMFILE, errno.ENFILE}:
            raise AccessError(
                f"{path} cannot be opened: this process has too many open files",
                hint="allow it more: ulimit -n",
            ) from error
        raise FormatError(
            f"{path} is damaged or cut short: {_first_line(error)}",
            hint="download or copy the file again; `h5dump -H FILE` shows what is left of it",
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


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
