"""Raw files are parsed in a child process, and whatever fails there is raised as one error.

A raw file may come from a stranger, and is parsed by libraries in C: a damaged or hostile one may
end the process that parses it, or fill its memory. The child is started at once and imports what it
needs meanwhile; batches come back over a pipe while the next one is read.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import Self

from offline_data.errors import AccessError, FormatError, OfflineDataError
from offline_data.processes import Child, ChildDiedError
from offline_data.processes.wire import dumps
from offline_data.sources.registry import source_accepting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from offline_data.episodes import EpisodeBatch
    from offline_data.sources.base import Part, RawDataset, Release, Source, SourceInfo

MEMORY_SHARE = 0.75
"""Part of this machine's memory that parsing may fill, where the platform allows to say so."""

_CRASHES = {"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"}
_NOT_THE_FILE = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE}


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Turn whatever parsing raises into an error that names the file or folder.

    Our own errors pass, as does an `ImportError`: that a package is missing is not the file's
    fault.

    Raises:
        AccessError: The system does not let this user or process open it.
        FormatError: Anything else, from its cause.
    """
    try:
        yield
    except (OfflineDataError, ImportError):
        raise
    except MemoryError as error:
        raise FormatError(
            f"{path} cannot be read in the memory that there is: it is damaged, or declares more "
            "than it holds",
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


class Parser:
    """The callable that the child process serves: one source, and the raw dataset it opened.

    Args:
        path: Raw file or folder, for messages.
        raw: The dataset, where it was opened before.
    """

    def __init__(self, path: Path, raw: RawDataset | None = None) -> None:
        self.path = path
        self.raw = raw
        self._limited = False

    def __call__(self, request: tuple[Any, ...]) -> Any:
        """Call the method named first with the rest."""
        if not self._limited:
            self._limited = True
            _limit_memory()
        name, *arguments = request
        with blaming(self.path):
            return getattr(self, name)(*arguments)

    def describe(self, source: Source | None, name: str) -> tuple[Source, Release]:
        """Find the source whose format it has, and the release that it is."""
        source = source or source_accepting(self.path)
        return source, source.release_of(self.path, name)

    def open(self, source: Source, release: Release) -> tuple[SourceInfo, bool]:
        """Open it, to be read by later requests."""
        self.raw = source.open(release, self.path)
        return self.raw.info, self.raw.threaded

    def parts(self, budget: int) -> Sequence[Part]:
        """Cut what was opened into parts."""
        return self._opened.parts(budget)

    def read(self, part: Part) -> EpisodeBatch:
        """Read one part of what was opened."""
        return self._opened.read(part)

    def copy(self) -> bytes:
        """Return a parser that has opened the same, to be served by another process."""
        return dumps(Parser(self.path, self._opened))

    @property
    def _opened(self) -> RawDataset:
        return cast("RawDataset", self.raw)


class ParserProcess:
    """A child process that parses one raw file or folder, and itself the dataset opened there.

    Starts on entering a `with` block, and ends with it. As a `RawDataset` it can be used once
    `open` was called.

    Args:
        path: Raw file or folder.
        parser: The bytes of `Parser.copy`, where another process has opened it already.
    """

    def __init__(self, path: Path, parser: bytes | None = None) -> None:
        self.path = path
        self._child = Child(parser or dumps(Parser(path)), quiet=True)

    def __enter__(self) -> Self:
        self._child.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._child.close()

    def describe(self, source: Source | None, name: str) -> tuple[Source, Release]:
        """Find out what the file is.

        Args:
            source: The source whose format it has; None: the only one that takes it.
            name: Name of the release.

        Raises:
            NotFoundError: No source takes it, or several do.
            FormatError: It is not what the source takes.
        """
        described: tuple[Source, Release] = self._ask("describe", source, name)
        return described

    def open(self, source: Source, release: Release) -> Self:
        """Open it; raises `FormatError` where it is not of the source's format."""
        self.info: SourceInfo
        self.threaded: bool
        self.info, self.threaded = self._ask("open", source, release)
        return self

    def parts(self, budget: int) -> Sequence[Part]:
        """See `RawDataset`."""
        parts: Sequence[Part] = self._ask("parts", budget)
        return parts

    def read(self, part: Part) -> EpisodeBatch:
        """See `RawDataset`."""
        self.send(part)
        return self.receive()

    def send(self, part: Part) -> None:
        """Ask for a part, to be received later."""
        self._child.send(("read", part))

    def receive(self) -> EpisodeBatch:
        """Wait for the oldest part that was asked for."""
        return cast("EpisodeBatch", self._receive())

    def another(self) -> ParserProcess:
        """Make a further process that has opened the same; not started yet."""
        return ParserProcess(self.path, self._ask("copy"))

    def _ask(self, *request: object) -> Any:
        self._child.send(request)
        return self._receive()

    def _receive(self) -> Any:
        try:
            with blaming(self.path):
                return self._child.receive()
        except ChildDiedError:
            raise _died(self.path, self._child.ending) from None


def _died(path: Path, ending: str) -> OfflineDataError:
    if ending.rpartition(" ")[2] in _CRASHES:
        return FormatError(
            f"{path} is damaged: the process that read it {ending}",
            hint="fetch or copy the file again",
        )
    return OfflineDataError(
        f"A process that read the raw files {ending}",
        hint="if memory was short, try again with OFFLINE_DATA_WORKERS=1",
    )


def _limit_memory() -> None:
    """Make allocations of this process fail before the machine's memory is full."""
    try:
        import resource

        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limits = [int(MEMORY_SHARE * pages), *(one for one in (soft, hard) if one >= 0)]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    except (ImportError, AttributeError, OSError, ValueError):
        return  # a platform without such limits
