"""Shards of a dataset read as they come: fetched, read in a child process, and freed; nothing is written.

```
thread of fetching      fetch 4 | fetch 7        | fetch 1 …
child process                   | read 4         | read 7 …
raw files on the disk   4       | 4 7            | 7 1 …
```

    .staging/stream-<digits>/
        lock/held.lock     held by the process that reads
        raw/               files of the shard that is read, and of the next one
        .downloads/        the same files under the names of their content
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from offline_data.base.ahead import Ahead
from offline_data.base.config import Settings, user_path
from offline_data.base.errors import OfflineError
from offline_data.base.files import check_links, disk_errors, file_lock, is_file, unless_locked
from offline_data.base.ids import DatasetId, looks_like_path, parse_id
from offline_data.base.pickles import pickled_by_name
from offline_data.base.progress import SILENT, Progress
from offline_data.fetch.files import RemoteFile
from offline_data.formats.base import Release, Shard
from offline_data.formats.names import resolve_name
from offline_data.formats.options import Options
from offline_data.formats.registry import check_plain
from offline_data.pipeline.ingest.conversion import ConversionProcess, fetch_lacking, open_release
from offline_data.pipeline.ingest.raw import (
    describe_file,
    fetch_files,
    files_of,
    free,
    opening_files,
)
from offline_data.pipeline.ingest.resolve import (
    apply_options,
    ask_source,
    offline_advice,
    suggest_command,
)
from offline_data.pipeline.ingest.shards import check_files, naming
from offline_data.store.library import locate

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch

_PREFIX = "stream-"


@pickled_by_name
@dataclass(frozen=True)
class StreamPlan:
    """A dataset that is read shard by shard; the same in every process."""

    id: str  # with the revision, or the path of the raw files
    adapter: str
    release: Release
    shards: tuple[Shard, ...]
    warnings: tuple[str, ...] = ()
    """Facts about the source that a user would not expect."""

    @property
    def whole(self) -> bool:
        """Whether nothing is known before all files are there: they are one shard."""
        return self.release.local is None and self.release.opening is None


@dataclass(frozen=True)
class StreamPiece:
    """Consecutive whole episodes of a shard."""

    shard: int
    episode: int  # of the first one, in its shard
    row: int  # of the first step, in its shard
    batch: EpisodeBatch


def plan_stream(
    text: str,
    settings: Settings,
    options: Options | None = None,
    *,
    source: str | None = None,
    progress: Progress = SILENT,
) -> StreamPlan:
    """Find a dataset and list its shards; fetches what this needs, and keeps none of it.

    `text` is its id or name, or the path of a dataset directory or of raw files as `convert` takes
    them; an existing path comes before a name. Raises what `download` raises.
    """
    options = options or Options()
    if options.video in {None, "keep"}:  # mp4 files are gone when their frames are sampled
        options = replace(options, video="png")
    with ExitStack() as stack:
        dataset, path = _locate(text, settings)
        if path is not None:
            check_plain(path)
            process = stack.enter_context(ConversionProcess(path))
            adapter, release = process.describe(source, path.name)
            release, name = apply_options(options, release, adapter), str(dataset or path)
        elif dataset is not None:
            adapter = dataset.source
            stack.enter_context(_online(str(dataset), settings))
            with suggest_command(dataset, settings, options) as asking:
                build = ask_source(dataset, asking, options)
            release, name = build.release, str(build.job.id)
            whole = StreamPlan(name, adapter, release, (Shard("all files"),))
            if whole.whole:
                return whole
            raw = release.local
            if raw is None:
                files = stack.enter_context(_RawFiles.under(settings, progress))
                with suggest_command(dataset, settings, options):
                    files.fetch(opening_files(release))
                raw = files.raw
            process = stack.enter_context(ConversionProcess(raw))
        opened = process.open(partial(open_release, adapter, release))
    check_files(release, opened.shards)
    return StreamPlan(name, adapter, release, tuple(opened.shards), opened.warnings)


def _locate(text: str, settings: Settings) -> tuple[DatasetId | None, Path | None]:
    """Return the id of a dataset, and the path of one made on this machine or of raw files."""
    if looks_like_path(text) or (":" not in text and os.path.exists(text)):  # noqa: PTH110 - any text
        return None, user_path(text, "the raw data").absolute()
    dataset = parse_id(resolve_name(text, settings))
    if dataset.source != "local":
        return dataset, None
    entry = locate(str(dataset), settings)
    return entry.id, entry.path


@contextmanager
def _online(name: str, settings: Settings) -> Iterator[None]:
    """Raise one `OfflineError` for a stream of this name in place of those of lists and files."""
    try:
        yield
    except OfflineError as error:
        hint = str(error.shell_hint)
        raise OfflineError(
            f"{name} cannot be streamed in offline mode: its files are not on this disk",
            hint=hint if hint.startswith("did you mean") else offline_advice(settings),
        ) from None


class ShardReader:
    """Reads each shard once, in the given order, while the next ones are fetched.

    At most the files of two shards lie on the disk, those that several shards need until the last
    of them; files that were in the downloads folder before are read where they are, and stay.
    """

    def __init__(self, plan: StreamPlan, settings: Settings, progress: Progress = SILENT) -> None:
        self.plan, self._settings, self._progress = plan, settings, progress
        self._stop = Event()
        self._process: ConversionProcess | None = None

    def pieces(self, order: Sequence[int], skip: int = 0) -> Generator[StreamPiece]:
        """Yield episodes, the first shard's without `skip`; raises as `download`, naming shards."""
        plan, release = self.plan, self.plan.release
        with ExitStack() as stack:
            stack.enter_context(_online(plan.id.partition("@")[0], self._settings))
            files: _RawFiles | None = None
            coming: Iterator[int] = iter(order)
            if release.local is None:
                made = _RawFiles.under(self._settings, self._progress, self._stop)
                files = stack.enter_context(made)
                coming = stack.enter_context(closing(Ahead(self._fetch_in_order(order, files))))
                stack.callback(self._stop.set)  # before that thread is waited for
            raw = release.local or (files.raw if files else Path())
            process: ConversionProcess | None = None
            for number in coming:
                shard, listed = plan.shards[number], plan.shards[number : number + 1]
                with naming(shard, raw):
                    if process is None:
                        process = stack.enter_context(ConversionProcess(raw))
                        self._process = process
                        if self._stop.is_set():  # before it could be killed
                            return
                        opened = process.open(partial(open_release, plan.adapter, release))
                        listed = tuple(opened.shards) if plan.whole else listed
                    more = fetch_lacking(process, release, shard, files.lend) if files else ()
                    for episode, row, batch in process.reading(listed, skip):
                        yield StreamPiece(number, episode, row, batch)
                skip = 0
                if files is not None:
                    files.free([*shard.files, *more])

    def close(self) -> None:
        """Cancel; a thread that waits for a piece gets an error."""
        self._stop.set()
        if self._process is not None:
            self._process.kill()

    def _fetch_in_order(self, order: Sequence[int], files: _RawFiles) -> Generator[int]:
        """Fetch shard after shard, and yield the number of each when its files are there."""
        release, shards = self.plan.release, self.plan.shards
        files.uses = Counter(path for number in order for path in set(shards[number].files))
        files.fetch(opening_files(release))
        for number in order:
            with naming(shards[number], files.raw):
                files.fetch(files_of(release, shards[number]))
            yield number


class _RawFiles:
    """Raw files in a folder that is deleted with them."""

    def __init__(self, folder: Path, settings: Settings, progress: Progress, stop: Event) -> None:
        self.raw = folder / "raw"  # with their own names
        self.raw.mkdir()
        self.uses: Counter[str] = Counter()  # shards that still need a file, by its path
        self._settings, self._progress, self._stop = settings, progress, stop
        self._here = replace(settings, root=folder)
        self._fetched: dict[str, dict[str, Any]] = {}
        self._lock = Lock()  # of the thread that fetches, and the one that reads

    @classmethod
    @contextmanager
    def under(
        cls, settings: Settings, progress: Progress, stop: Event | None = None
    ) -> Iterator[Self]:
        """Make the folder, deleted after the block, or the program; delete those of killed ones."""
        staging = settings.staging
        check_links(settings.root, staging / "streams.lock")
        folder = staging / f"{_PREFIX}{secrets.token_hex(6)}"
        delete = partial(shutil.rmtree, folder, ignore_errors=True)
        with ExitStack() as stack:
            with disk_errors(staging), file_lock(staging / "streams.lock", lambda: None):
                for left in staging.glob(f"{_PREFIX}*/"):
                    unless_locked(_lock(left), partial(shutil.rmtree, left, ignore_errors=True))
                stack.enter_context(file_lock(_lock(folder), lambda: None))
            stack.callback(delete)
            stack.callback(atexit.unregister, delete)
            atexit.register(delete)
            with disk_errors(folder):
                files = cls(folder, settings, progress, stop or Event())
            yield files

    def fetch(self, files: Sequence[RemoteFile]) -> None:
        """Fetch those that are not here; raises what `run_fetch` raises."""
        from offline_data.fetch.plan import plan_fetch

        with self._lock:
            new = [file for file in files if not is_file(self.raw / file.path)]
            known = all(step.path is not None for step in plan_fetch(new, self._settings).steps)
            where = self._settings if known else self._here
            for file in fetch_files(new, where, self.raw, self._progress, cancelled=self._stop):
                if not known:
                    self._fetched[file.name] = describe_file(file)

    def lend(self, files: Sequence[RemoteFile]) -> None:
        """Fetch files that a shard needs besides those that it lists."""
        self.uses.update(file.path for file in files)
        self.fetch(files)

    def free(self, paths: Sequence[str]) -> None:
        """Delete files that a shard was the last to need."""
        self.uses.subtract(set(paths))
        with self._lock:
            for path in set(paths):
                if not self.uses[path]:
                    (self.raw / path).unlink(missing_ok=True)
                    if path in self._fetched:
                        free([self._fetched.pop(path)], self._here)


def _lock(folder: Path) -> Path:
    return folder / "lock" / "held.lock"
