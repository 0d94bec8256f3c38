"""Errors of parsing raw files, all turned into one that names the file."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from offline_data.base.errors import AccessError, FormatError, OfflineDataError
from offline_data.formats.base import Part, RandomAccess, RawDataset, Shard
from offline_data.pipeline.jobs.processes import Child, ChildDiedError

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch

_CRASHES = {"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGPROF"}
"""Signals of crashes, and that of `limit_resources` to a process that computes too long."""
_NOT_THE_FILE = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE}


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Turn exceptions of the block into a `FormatError`, or `AccessError`, that names the path."""
    try:
        yield
    except (OfflineDataError, ImportError):  # a missing package is not the fault of the file
        raise
    except MemoryError as error:
        raise FormatError(
            f"not enough memory to read {path}: it is damaged, or declares more than it holds",
            hint="free memory, or raise its limit (ulimit -v), if the file is to be trusted",
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NOT_THE_FILE:
            raise AccessError(f"{path} cannot be read: {error.strerror or error}") from error
        said = " ".join(str(error).split())[:300]
        raise FormatError(
            f"{path} cannot be read: {type(error).__name__}: {said}",
            hint="fetch or copy it again; -v shows where reading it failed",
        ) from error


def crash_error(path: Path, ending: str, helper: str = "") -> OfflineDataError:
    """Return the error for a process that crashed while reading a file with `RawDataset.helper`."""
    if ending.rpartition(" ")[2] in _CRASHES:
        files = f"{path}, or {helper}," if helper else str(path)
        return FormatError(
            f"{files} is damaged: the process that read it {ending}",
            hint="fetch or copy the file again",
        )
    return OfflineDataError(
        f"A process that read the raw files {ending}",
        hint="if memory was short, try again with OFFLINE_DATA_WORKERS=1",
    )


class ParsedDataset(RandomAccess):
    """A raw dataset whose errors name the file or folder; `FormatError` if not of the format.

    It is a `RandomAccess` only if `ranged`; else it has `shards` and `read`.
    """

    def __init__(self, path: Path, opened: Callable[[Path], RawDataset]) -> None:
        self.path = path
        with blaming(path):
            self._raw = opened(path)
            self.info = self._raw.info
            self.ranged = isinstance(self._raw, RandomAccess)
            self.threaded = getattr(self._raw, "threaded", False)
            self.helper = self._raw.helper

    def shards(self) -> Sequence[Shard]:
        with blaming(self.path):
            return tuple(self._raw.shards())

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        with blaming(self.path):
            yield from self._raw.read(shard)

    def lacking(self, shard: Shard) -> Sequence[str]:
        with blaming(self.path):
            return tuple(self._raw.lacking(shard))

    def parts(self, budget: int) -> Sequence[Part]:
        with blaming(self.path):
            return cast("RandomAccess", self._raw).parts(budget)

    def read_part(self, part: Part) -> EpisodeBatch:
        with blaming(self.path):
            return cast("RandomAccess", self._raw).read_part(part)

    def read_in_processes(self, parts: Sequence[Part], count: int) -> Iterator[EpisodeBatch]:
        """Yield the batch of every part, in order; process `i` reads every `count`-th part."""
        with ExitStack() as stack:
            readers = [stack.enter_context(Child(self.read_part, quiet=True)) for _ in range(count)]
            for number, part in enumerate(parts):
                readers[number % count].send(part)
            for number in range(len(parts)):
                reader = readers[number % count]
                try:
                    yield reader.receive()
                except ChildDiedError:
                    raise crash_error(self.path, reader.ending) from None
