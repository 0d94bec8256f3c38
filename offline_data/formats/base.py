"""The contract of a source: the methods of an adapter and the values that they exchange.

An adapter knows its catalogue, files, field names and end-of-episode rule. Fetching, hashing,
writing, auditing, progress and roots are handled elsewhere.

A source whose files are read sequentially, and may together be larger than the disk, lists in its
release the files needed to open it, and has shards, which are fetched, read and freed one by one:

```python
class Lines(Source):
    def resolve(self, name, revision, settings):
        return Release(name, commit, files, opening=("features.json",))

    def open(self, release, raw):
        return LinesDataset(raw, json.loads((raw / "features.json").read_text()))


class LinesDataset(RawDataset):
    def shards(self):
        return [Shard(one["file"], (one["file"],), episodes=one["count"]) for one in self._listed]

    def read(self, shard):
        with (self._raw / shard.files[0]).open() as lines:
            for some in batched(lines, 100):
                yield batch_of(map(json.loads, some))
```

`offline_data.testing.sources` has the tests that every adapter must pass; docs/write-a-source.md is a complete
example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from offline_data.base.config import Settings
from offline_data.base.errors import (
    FormatError,
    NotFoundError,
    OfflineDataError,
    OfflineError,
    UsageError,
)
from offline_data.base.ids import did_you_mean
from offline_data.base.pickles import pickled_by_name
from offline_data.fetch.files import RemoteFile
from offline_data.formats.catalogues import ActionKind, Catalog, CatalogEntry
from offline_data.formats.options import Options, TextOptions

if TYPE_CHECKING:
    from offline_data.episode import Dropped, EpisodeBatch, Skipped
    from offline_data.formats.recognition import ArrayNames

__all__ = [
    "ActionKind",
    "CatalogEntry",
    "CatalogSource",
    "Part",
    "RandomAccess",
    "RawDataset",
    "Release",
    "RemoteFile",
    "Shard",
    "Source",
    "SourceInfo",
]

UNVERSIONED = "unversioned"
"""The only revision of a source that publishes neither versions nor digests."""

PART_BYTES = 32 << 20  # bytes of one part; a conversion holds a few of them at a time


NOT_TAKEN = {
    "only": (
        "Features of {source} cannot be chosen before conversion; only those of lerobot can",
        "leave --only out; load_dataset(…, keys=[…]) loads only some features",
    ),
    "autoreset": (
        "--autoreset is for flat files of agilerl, d4rl, dsrl, neorl; this is {source}",
        "files of your own have a line for it in their mapping: autoreset = …",
    ),
    "skip_bad_features": (
        "--skip-bad-features is for infos of minari; this is {source}",
        "leave it out; --skip-bad-episodes leaves out episodes that cannot be read",
    ),
    "checkpoints": (
        "Datasets of {source} have no checkpoints; only those of atari_dqn have",
        "leave --checkpoints out; --episodes A:B takes a range of episodes",
    ),
    "text": (
        "Datasets of {source} are not text; only those of hf and text are tokenized",
        "leave --tokenizer, and all other options of text, out",
    ),
}
"""Message and hint for an option that a source does not take."""


@pickled_by_name
@dataclass(frozen=True)
class Release:
    """One dataset at one revision: the files to fetch, or their location on this machine."""

    name: str
    """The source's own name."""
    revision: str
    """Commit, version, `local-<fingerprint>[-sampled]`, or `UNVERSIONED` if the source has none."""
    files: tuple[RemoteFile, ...] = ()
    """Files to fetch; empty if `local` is set."""
    opening: tuple[str, ...] | None = None
    """Paths of the `files` that `Source.open` reads, if the others are fetched shard by shard; None:
    all files."""
    local: Path | None = None
    """The raw folder (or file), if it is on this machine. It is never written to."""
    shards: int | None = None
    """Number of shards, if known before opening."""
    card: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the dataset's card on the hub, by which text files are chosen."""
    licence: str | None = None
    """SPDX name, if known before opening."""
    splits: tuple[str, ...] = ()
    """Splits of the local files. If there are two or more, `split` must name one."""
    options: Options = field(default_factory=Options)
    """Options of the call, see `Source.with_options`."""

    def file_in(self, raw: Path) -> Path:
        """Return the only file of the release, given the raw folder or the user's file."""
        return raw / self.files[0].path if self.files and raw.is_dir() else raw


@dataclass(frozen=True)
class SourceInfo:
    """Description of a dataset by its source; copied to the manifest."""

    transitions: int | None = None
    """Number of transitions, if known before reading; the writer then checks the disk space."""
    episodes: int | None = None
    """Number of episodes, if known before reading."""
    spaces: Mapping[str, Any] = field(default_factory=dict)
    """`{"observation": …, "action": …}` as JSON values, in the source's own form."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Environment spec as JSON values, in the source's own form."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Everything else as JSON values: description, author, reference scores, requirements."""
    licence: str | None = None
    """SPDX name, or the source's words."""
    citation: str | None = None
    """Citation."""
    notes: tuple[str, ...] = ()
    """Quirks and rules that apply to the whole dataset, a sentence each."""
    warnings: tuple[str, ...] = ()
    """Notes that are also shown while converting, on what a user would not expect."""
    dropped: tuple[Dropped, ...] = ()
    """Features of the source that no batch will have."""
    skipped: tuple[Skipped, ...] = ()
    """Episodes that were skipped when the raw data were made."""


@pickled_by_name
@dataclass(frozen=True)
class Shard:
    """A part of a dataset that is fetched, read sequentially once, and then freed."""

    name: str
    """Name for messages; never used as a file name."""
    files: tuple[str, ...] = ()
    """`RemoteFile.path` of the files that `read` needs in addition to those of `Release.opening`."""
    bytes: int | None = None
    """Bytes of these files, if known."""
    episodes: int | None = None
    """Exact number of episodes, if known: any other number is an error."""
    transitions: int | None = None
    """Most rows, if known, so that ranks of a stream get equal numbers of batches."""


@dataclass(frozen=True)
class Part:
    """A run of whole episodes that one call reads into memory at once."""

    first: int
    """First episode, counted from 0 in the source's order."""
    stop: int
    """One past the last episode."""
    transitions: int | None = None
    """Rows, if known (for progress)."""


class RawDataset(ABC):
    """Raw files of one dataset, read shard by shard.

    Instances are cheap to create, can be pickled for other processes, and open files only inside
    their methods. The dataset is all shards in order. Reading a shard twice gives the same episodes,
    and does not require the files of others.
    """

    info: SourceInfo
    """Description of the dataset."""
    own_thread: bool = True
    """Whether `read` may run in another thread than the caller's, ahead of it."""
    helper: str = ""
    """Other possible cause of a crash while reading, such as a tokenizer, for messages."""

    @abstractmethod
    def shards(self) -> Sequence[Shard]:
        """List all shards, in the dataset's order; reads no file but those of `Release.opening`."""

    @abstractmethod
    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        """Read a shard in batches of some megabytes; raises `FormatError` naming the place."""

    def lacking(self, shard: Shard) -> Sequence[str]:  # noqa: ARG002
        """Return paths of files that a shard needs besides `Shard.files`, as these files show.

        Asked after these have been fetched, and again after each answer, until nothing is lacking.
        """
        return ()


class RandomAccess(RawDataset):
    """A dataset of files with random access: one shard, of which ranges are read in parallel.

    Reading a part twice gives the same batch, in any order of parts.
    """

    threaded: bool = False
    """Whether `read_part` itself uses several cores; then no worker processes are started."""

    @abstractmethod
    def parts(self, budget: int) -> Sequence[Part]:
        """Cut all episodes into consecutive parts of about `budget` bytes (at least one each)."""

    @abstractmethod
    def read_part(self, part: Part) -> EpisodeBatch:
        """Read one part; raises `FormatError` naming the file and the place."""

    def shards(self) -> Sequence[Shard]:
        return (Shard("all files"),)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:  # noqa: ARG002 - there is only one
        return map(self.read_part, self.parts(PART_BYTES))


class Source(Catalog):
    """One origin of datasets. Instances have no state.

    A subclass defines `name`, `title`, `catalog`, `resolve` and `open`; all else has defaults for a
    source with a fixed catalogue that does not read local files.
    """

    arrays: ClassVar[Mapping[str, ArrayNames]] = {}
    """Arrays of its flat files by kind, `npz` or `HDF5`, by which a file is called nearly one of its."""
    takes: Collection[str] = ()
    """Those of the options `autoreset`, `checkpoints`, `only`, `skip_bad_features` and `text` that it
    follows."""

    def remote(self, settings: Settings) -> Sequence[CatalogEntry]:
        """List the datasets that the remote has now; default: the catalogue.

        Raises:
            NetworkError: The remote does not answer correctly.
            OfflineError: `settings.offline` is set.
        """
        if settings.offline:
            raise OfflineError(
                f"The host of {self.name} cannot be reached in offline mode",
                hint=f"without --remote, `offline-data list {self.name}` lists the same datasets",
            )
        return self.catalog()

    @abstractmethod
    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """Find a dataset, on this machine or else at the remote.

        Raises:
            NotFoundError: No such dataset, and the hint has the nearest names; or no such revision.
            OfflineError: The remote is needed, and `settings.offline` is set.
            AuthError, NetworkError, FormatError: The remote refuses access, does not answer, or
                not as expected.
        """

    def accepts(self, path: Path) -> int:  # noqa: ARG002
        """Return how many required names show that a local path has this source's format; 0: it has not.

        True counts as one. Where several sources accept a path, the one with most names reads it.
        """
        return 0

    def release_of(self, path: Path, name: str) -> Release:  # noqa: ARG002
        """Return the release of a local file or folder (`convert`).

        Raises:
            FormatError: It is not of this format, or lacks a file.
            NotFoundError, AccessError: It does not exist, or cannot be read.
        """
        raise FormatError(
            f"{path} cannot be read: {self.name} only reads what it downloads",
            hint="leave --from out, or name the format of the files (of text: --from text)",
        )

    def with_options(self, release: Release, options: Options) -> Release:
        """Return the release with the options of a call, and without files that these leave out.

        Raises `UsageError` for an option that is not in `takes`.
        """
        for name, (problem, hint) in NOT_TAKEN.items():
            if getattr(options, name) not in (None, False) and name not in self.takes:
                raise UsageError(problem.format(source=self.name), hint=hint)
        return replace(release, options=options)

    def pin_text(self, options: TextOptions, *, offline: bool) -> TextOptions:  # noqa: ARG002
        """Return the options with the digest of the tokenizer's files, so that it cannot change unnoticed."""
        return options

    @abstractmethod
    def open(self, release: Release, raw: Path) -> RawDataset:
        """Open the raw folder (or file); raises `FormatError` if it is damaged or of another format.

        For a release with `opening`, the other files may be missing.
        """


class CatalogSource(Source):
    """A source with a list of published datasets, which also reads the user's files of their format.

    A subclass defines `has_format` in place of `accepts`.
    """

    def find(self, name: str, revision: str | None = None) -> CatalogEntry:
        """Return the entry of a published dataset without revisions.

        Raises:
            NotFoundError: No such dataset; the hint has the nearest names. Or `revision` is neither
                None nor `UNVERSIONED`.
        """
        known = {entry.name: entry for entry in self.catalog()}
        if name not in known:
            raise self.not_found(name, known)
        self.check_unversioned(name, revision)
        return known[name]

    def not_found(self, name: str, known: Iterable[str], hint: str | None = None) -> NotFoundError:
        """Return the error for a name that is not one of `known`, with the nearest names or `hint`."""
        near = did_you_mean(name, known, count=3, shown=f"{self.name}:{{}}".format)
        hint = near or hint or f"`offline-data list {self.name}` lists all"
        return NotFoundError(f"There is no {self.name}:{name}", hint=hint)

    def check_unversioned(self, name: str, revision: str | None) -> None:
        """Raise `NotFoundError` for a revision of a dataset that has none."""
        if revision not in {None, UNVERSIONED}:
            raise NotFoundError(
                f"There is no {self.name}:{name}@{revision}: its files have no revisions",
                hint=f"ask for {self.name}:{name}",
            )

    def published(self, release: Release) -> CatalogEntry | None:
        """Return the entry of a release; None: the user's files, or not in the list."""
        if release.local is not None:
            return None
        return next((entry for entry in self.catalog() if entry.name == release.name), None)

    def describe(self, release: Release, *notes: str, **facts: Any) -> SourceInfo:
        """Return the description of a release.

        Licence, citation, the notes of the list and `facts`, which are other attributes of
        `SourceInfo`, are only those of a published dataset; `notes` are about any.
        """
        entry = self.published(release)
        if entry is None:
            return SourceInfo(notes=notes)
        notes = (*entry.notes, *notes)
        return SourceInfo(licence=self.licence, citation=self.citation, notes=notes, **facts)

    def accepts(self, path: Path) -> int:
        try:
            return self.has_format(path)
        except OfflineDataError:
            return 0

    @abstractmethod
    def has_format(self, path: Path) -> int:
        """Return what `accepts` does; may raise `OfflineDataError`."""


class UnpublishedSource(CatalogSource):
    """A source of files that users write with a program, whose makers publish none."""

    maker: ClassVar[str]
    example: ClassVar[str]  # what to convert: `a file of yours: …`, for a hint

    def catalog(self) -> Sequence[CatalogEntry]:
        return ()

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:  # noqa: ARG002
        problem = f"There is no {self.name}:{name}: {self.maker} publishes none"
        raise NotFoundError(problem, hint=f"convert {self.example}")
