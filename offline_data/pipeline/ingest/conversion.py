"""Converting raw files, or one shard of them, in a child process.

A raw file may come from a stranger and is parsed by C libraries: a damaged or hostile one may crash
the process that parses it, or fill its memory. The child also writes the dataset, so that no rows
are sent between processes; only publishing is left to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import Self

from offline_data.base.errors import FormatError, OfflineDataError
from offline_data.base.progress import Progress
from offline_data.formats.base import PART_BYTES, RandomAccess, RawDataset, Release, Shard
from offline_data.formats.registry import get_source, source_accepting
from offline_data.pipeline.ingest.build import BuildJob, DatasetBuild
from offline_data.pipeline.ingest.reading import (
    ParsedDataset,
    blaming,
    crash_error,
    parsed,
    read_pieces,
)
from offline_data.pipeline.jobs.processes import Child, ChildDiedError
from offline_data.pipeline.jobs.processes.child import limit_memory
from offline_data.pipeline.jobs.processes.protocol import pack_importable
from offline_data.store.publish import publish

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch
    from offline_data.fetch.files import RemoteFile
    from offline_data.formats.files.found import Proposal
    from offline_data.formats.files.mapping import FileMapping
    from offline_data.formats.files.preview import Preview
    from offline_data.formats.files.questions import Answer


@dataclass(frozen=True)
class RawDescription:
    """Description of opened raw data."""

    shards: Sequence[Shard]
    transitions: int | None  # as stated, like the episodes
    episodes: int | None
    warnings: tuple[str, ...]
    helper: str = ""  # see `RawDataset`


class Conversion:
    """The callable that the child process serves: detects the format of a file and converts it."""

    _raw: ParsedDataset  # from `open` on
    _build: DatasetBuild  # from `begin` on
    _pieces: Iterator[tuple[int, int, EpisodeBatch]]  # from `read` on

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, request: tuple[Any, ...]) -> Any:
        """Call the method named by the first item with the others."""
        name, *arguments = request
        return getattr(self, name)(*arguments)

    def describe(self, adapter: str | None, name: str) -> tuple[str, Release]:
        """Find the source whose format it has; returns its name and the release."""
        limit_memory()
        with blaming(self.path):
            source = get_source(adapter) if adapter else source_accepting(self.path)
            return source.name, source.release_of(self.path, name)

    def inspect(self, answers: Mapping[str, Answer]) -> Proposal:
        """List its arrays, and propose a mapping of them."""
        from offline_data.formats.files.proposal import inspect_arrays

        limit_memory()
        with blaming(self.path):
            known, refusal = None, FormatError(f"{self.path} has no arrays")
            try:
                known = source_accepting(self.path, inspecting=True).name
            except OfflineDataError as error:
                refusal = error if isinstance(error, FormatError) else refusal
            found = inspect_arrays(self.path, known, answers)
            if not found.arrays:
                raise refusal
            return found

    def preview(self, mapping: FileMapping, rows: int) -> Preview:
        """Read the first rows of the first episode by a mapping."""
        from offline_data.formats.files.preview import preview

        limit_memory()
        with blaming(self.path):
            return preview(self.path, mapping, rows)

    def open(self, opened: Callable[[Path], RawDataset]) -> RawDescription:
        """Open it."""
        limit_memory()
        self._raw = parsed(self.path, opened)
        info = self._raw.info
        return RawDescription(
            self._raw.shards(), info.transitions, info.episodes, info.warnings, self._raw.helper
        )

    def count(self, shard: Shard) -> int:
        """Count the episodes of a shard, reading it if necessary."""
        if isinstance(self._raw, RandomAccess):
            return max((part.stop for part in self._raw.parts(PART_BYTES)), default=0)
        return sum(len(batch.lengths) for batch in self._raw.read(shard))

    def lacking(self, shard: Shard) -> Sequence[str]:
        """List files that it needs besides its own."""
        return self._raw.lacking(shard)

    def begin(self, job: BuildJob, workers: int, folder: Path, shard: Shard | None) -> int | None:
        """Prepare to write it; returns the number of episodes to come."""
        self._build = DatasetBuild(self._raw, job, workers, folder, shard)
        return self._build.episodes

    def read(self, shards: Sequence[Shard], skip: int) -> None:
        """Prepare to return the episodes of shards, without the first `skip`."""
        self._pieces = read_pieces(self._raw, shards, skip)

    def piece(self) -> tuple[int, int, EpisodeBatch] | None:
        """Return the next episodes; see `read_pieces`."""
        return next(self._pieces, None)

    def step(self) -> tuple[int, tuple[str, ...]]:
        """Convert the next part; returns `DatasetBuild.step()` and `late_warnings`."""
        return self._build.step(), self._build.late_warnings


class ConversionProcess:
    """A child process that converts a raw file or folder, or a shard, into a dataset directory.

    It starts on entering a `with` block and ends with it; in `writing` it is like `DatasetBuild`.
    """

    episodes: int | None = None
    warnings: tuple[str, ...] = ()
    late_warnings: tuple[str, ...] = ()
    _helper: str = ""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._child = Child(pack_importable(Conversion(path)), quiet=True)

    def __enter__(self) -> Self:
        self._child.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._child.close()

    def describe(self, adapter: str | None, name: str) -> tuple[str, Release]:
        """Return the source whose format the path has, and its release called `name`.

        Raises `NotFoundError` if no or several sources accept it; `FormatError`: not of `adapter`.
        """
        return cast("tuple[str, Release]", self._ask("describe", adapter, name))

    def inspect(self, answers: Mapping[str, Answer]) -> Proposal:
        """Return its arrays and a mapping of them; raises `FormatError` if it has none."""
        return cast("Proposal", self._ask("inspect", dict(answers)))

    def preview(self, mapping: FileMapping, rows: int) -> Preview:
        """Return the first rows of the first episode; raises `MappingQuestionError` for an open question."""
        return cast("Preview", self._ask("preview", mapping, rows))

    def open(self, opened: Callable[[Path], RawDataset]) -> RawDescription:
        """Open it by an importable function, `partial(open_release, …)`; raises `FormatError`."""
        found: RawDescription = self._ask("open", opened)
        self.warnings, self._helper = found.warnings, found.helper
        return found

    def count(self, shard: Shard) -> int:
        """Read a shard to count its episodes."""
        return cast("int", self._ask("count", shard))

    def lacking(self, shard: Shard) -> Sequence[str]:
        """List files that a shard needs besides its own; see `RawDataset`."""
        return cast("Sequence[str]", self._ask("lacking", shard))

    def reading(
        self, shards: Sequence[Shard], skip: int = 0
    ) -> Iterator[tuple[int, int, EpisodeBatch]]:
        """Yield episodes, one batch ahead (`read_pieces`); exhaust it, or end the process."""
        self._child.send(("read", tuple(shards), skip))
        self._child.send(("piece",))
        self._receive()
        while True:
            self._child.send(("piece",))
            piece = self._receive()
            if piece is None:
                self._receive()
                return
            yield piece

    def kill(self) -> None:
        """Kill the process; a thread that waits for it gets an error."""
        with suppress(OfflineDataError):  # it has ended
            self._child.kill()

    @contextmanager
    def writing(
        self,
        job: BuildJob,
        workers: int,
        folder: Path,
        shard: Shard | None = None,
    ) -> Iterator[Self]:
        """Write the opened data, or a shard, to a folder within the block; the process ends with it.

        Raises `FormatError` for data that cannot be read, or have no such episodes.
        """
        try:
            self.episodes = self._ask("begin", job, workers, folder, shard)
            self._child.send(("step",))
            yield self
        finally:
            self._child.close()

    def step(self) -> int:
        """See `DatasetBuild`."""
        self._child.send(("step",))  # computed while the last answer is processed
        done, self.late_warnings = self._receive()
        return cast("int", done)

    def _ask(self, *request: Any) -> Any:
        self._child.send(request)
        return self._receive()

    def _receive(self) -> Any:
        try:
            return self._child.receive()
        except ChildDiedError:
            raise crash_error(self.path, self._child.ending, self._helper) from None


def fetch_lacking(
    process: ConversionProcess,
    release: Release,
    shard: Shard,
    fetch: Callable[[Sequence[RemoteFile]], object],
) -> list[str]:
    """Fetch the files that a shard needs besides its own, and return their paths."""
    listed = {file.path: file for file in release.files}
    found: list[str] = []
    while release.local is None:
        new = [path for path in process.lacking(shard) if path in listed and path not in found]
        if not new:
            break
        fetch([listed[path] for path in new])
        found += new
    return found


def finish_and_publish(
    build: DatasetBuild | ConversionProcess, job: BuildJob, progress: Progress, folder: Path
) -> None:
    """Run all steps of a build, and move the directory to its destination."""
    for warning in build.warnings:
        progress.note(warning)
    with progress.task(f"convert {job.id.name}", build.episodes, "episodes") as task:
        while done := build.step():
            task.advance(done)
    for warning in build.late_warnings:
        progress.note(warning)
    publish(folder, job.destination, progress)


def open_release(adapter: str, release: Release, path: Path) -> RawDataset:
    """Open the raw files of a release, with the source called `adapter`."""
    return get_source(adapter).open(release, path)
