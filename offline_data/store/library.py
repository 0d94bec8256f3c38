"""The datasets under a root: list, find, remove.

Nothing is deleted that a dataset's manifest does not list, and nothing outside its directory: a
user may keep files of their own in there, and the manifest may be a stranger's.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import ClassVar, Generic, Protocol, TypeVar, overload

from offline_data.base.config import Settings, user_path
from offline_data.base.errors import (
    AccessError,
    IntegrityError,
    InvalidIdError,
    ManifestError,
    NotFoundError,
    OfflineDataError,
    UsageError,
)
from offline_data.base.files import check_links, freed_bytes, human_bytes
from offline_data.base.ids import DatasetId, did_you_mean, looks_like_path, offer, parse_id
from offline_data.base.json import read_whole
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.document.blocks import Block, Field, Fields, table
from offline_data.document.html import Document
from offline_data.store.layout import (
    EPISODES,
    FORMAT_VERSION,
    LAYOUTS,
    MANIFEST,
    META,
    OBSERVATIONS,
    STEPS,
    SUFFIX,
    TED,
    TEXT,
    LayoutName,
)
from offline_data.store.manifest import MAX_BYTES, Manifest, read_manifest


class Listed(Protocol):
    """One dataset of a list."""

    COLUMNS: ClassVar[str]
    """Spec of its columns; see `document.blocks`."""


T = TypeVar("T", bound=Listed)

_TABLES = {STEPS, OBSERVATIONS, EPISODES, TED}


@dataclass(frozen=True)
class Entry:
    """One dataset directory."""

    id: DatasetId
    path: Path
    manifest: Manifest

    @property
    def bytes(self) -> int:
        """Bytes of all its files but the manifest."""
        return self.manifest.bytes

    @property
    def partial(self) -> bool:
        """Whether only some of the source was requested (`--episodes`, `--checkpoints`, `--only`)."""
        recorded = self.manifest.converter.get("options", {})
        return any(recorded.get(name) for name in ("episodes", "checkpoints", "only"))

    @property
    def refetchable(self) -> bool:
        """Whether hosts have all of its raw files, and it has some."""
        from offline_data.fetch.mirrors import scheme_of

        urls = [file.get("url") for file in self.manifest.files]
        return bool(urls) and all(url and scheme_of(url) != "file" for url in urls)


@pickled_by_name
@dataclass(frozen=True, repr=False)
class Listing(Sequence[T], Document, Generic[T]):
    """Datasets, as a sequence, with notes on the list."""

    datasets: tuple[T, ...]
    notes: tuple[str, ...] = ()
    """Sentences: on a dataset that is omitted because it is damaged, on a source that did not
    answer, on a query that nothing matches."""

    def __len__(self) -> int:
        return len(self.datasets)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[T, ...]: ...
    def __getitem__(self, place: int | slice) -> T | tuple[T, ...]:
        return self.datasets[place]

    def blocks(self) -> list[Block]:
        listed = [table(self.datasets[0].COLUMNS, self.datasets)] if self.datasets else []
        notes = [Fields(Field("notes", self.notes))] if self.notes else []
        return [*listed, *notes]


@pickled_by_name
@dataclass(frozen=True)
class LocalDataset:
    """One dataset on this disk."""

    COLUMNS: ClassVar[str] = "id steps=transitions:count episodes:count size=bytes:bytes layout"
    id: str
    """Its id, revision included."""
    path: Path
    """Its directory."""
    layout: str
    transitions: int
    episodes: int
    bytes: int
    """Total bytes without the manifest."""

    @staticmethod
    def of(entry: Entry) -> LocalDataset:
        """Describe a dataset directory."""
        counts = entry.manifest.counts
        figures = (int(counts["transitions"]), int(counts["episodes"]), entry.bytes)
        return LocalDataset(str(entry.id), entry.path, entry.manifest.layout, *figures)

    @staticmethod
    def read(folder: Path) -> LocalDataset:
        """Read only this from a manifest: checking all else takes three quarters of the time.

        A manifest that cannot be listed so is read as a whole: raises what `entry_at` raises.
        """
        try:
            value = json.loads(read_whole(folder / MANIFEST, MAX_BYTES))
            counts, sizes = value["counts"], [one["size"] for one in value["digests"].values()]
            figures = (counts["transitions"], counts["episodes"], sum(sizes))
            whole = all(type(one) is int and one >= 0 for one in (*figures, *sizes))
            version = value["format_version"]
            known = type(version) is int and 1 <= version <= FORMAT_VERSION
            if whole and known and 1 <= figures[1] <= figures[0] and value["layout"] in LAYOUTS:
                return LocalDataset(str(parse_id(value["id"])), folder, value["layout"], *figures)
        except (
            OfflineDataError,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            RecursionError,
        ):
            pass
        return LocalDataset.of(entry_at(folder))


Found = TypeVar("Found", bound="Entry | LocalDataset")


def list_local(root: Path, source: str | None = None) -> Listing[LocalDataset]:
    """List the datasets under a root, or those of one source, by id; notes name unreadable ones."""
    found, unreadable = _survey(root, LocalDataset.read)
    notes = [
        f"damaged, not listed: {path}; see `offline-data check --files {path}`"
        if isinstance(error, ManifestError)
        else f"not listed: {error.message}"
        for path, error in unreadable.items()
    ]
    chosen = (one for one in found if source in {None, one.id.partition(":")[0]})
    return Listing(tuple(chosen), tuple(notes))


def list_datasets(root: Path) -> list[Entry]:
    """List every readable dataset under `root`, sorted by id; damaged ones are left out."""
    return survey(root)[0]


def survey(root: Path) -> tuple[list[Entry], dict[Path, OfflineDataError]]:
    """List every dataset under `root`, and why other folders cannot be read; raises `AccessError`."""
    return _survey(root, entry_at)


def _survey(
    root: Path, read: Callable[[Path], Found]
) -> tuple[list[Found], dict[Path, OfflineDataError]]:
    unreadable: dict[Path, OfflineDataError] = {}

    def note(error: OSError) -> None:
        if isinstance(error, FileNotFoundError):  # another process deletes it at this moment
            return
        access = AccessError(
            f"{error.filename} cannot be read: {error.strerror}",
            hint="choose another root: --root DIR or OFFLINE_DATA_HOME",
        )
        if Path(error.filename) == root:
            raise access from error
        unreadable[Path(error.filename)] = access

    def folders() -> Iterator[Path]:
        for folder, names, files in os.walk(root, onerror=note) if root.exists() else ():
            if MANIFEST in [*files, *names]:
                names.clear()
                yield Path(folder)
            names[:] = [name for name in names if not name.startswith(".")]
            for name in names:
                path = Path(folder, name)
                if path.is_symlink() and os.path.lexists(path / MANIFEST):
                    yield path

    found = _read_each(folders(), read, unreadable)
    return sorted(found, key=lambda one: str(one.id)), dict(sorted(unreadable.items()))


def _read_each(
    folders: Iterable[Path],
    read: Callable[[Path], Found],
    unreadable: dict[Path, OfflineDataError],
) -> list[Found]:
    found = []
    for folder in folders:
        try:
            found.append(read(folder))
        except OfflineDataError as error:
            if has_manifest(folder):  # else another process deletes it at this moment
                unreadable[folder] = error
    return found


def has_manifest(folder: Path) -> bool:
    """Return True if `folder` has a manifest, of whatever kind; raises `AccessError`."""
    try:
        (folder / MANIFEST).lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: NUL in the name
        return False
    except OSError as error:
        if error.errno in {errno.ENAMETOOLONG, errno.ELOOP}:
            return False
        raise AccessError(f"{folder} cannot be read: {error.strerror}") from error
    return True


@pickled_by_name
@dataclass(frozen=True)
class Stored:
    """A dataset on this disk, as the result of a command."""

    id: DatasetId
    """Its id, revision included."""
    path: Path
    """Its directory."""
    manifest: Manifest
    """Its manifest."""
    existed: bool
    """Whether it existed before."""
    seconds: float
    """Wall time of the command."""

    @classmethod
    def of(cls, entry: Entry, begin: float, *, existed: bool) -> Stored:
        """Return the result of a command that began at a time of `perf_counter`."""
        return cls(entry.id, entry.path, entry.manifest, existed, perf_counter() - begin)

    def __repr__(self) -> str:
        return (
            f"Stored({self.id}, {plural(self.transitions, 'step')}, "
            f"{plural(self.episodes, 'episode')}, {human_bytes(self.bytes)}, {str(self.path)!r})"
        )

    @property
    def layout(self) -> LayoutName:
        """Its layout."""
        return self.manifest.layout

    @property
    def transitions(self) -> int:
        """Number of its steps."""
        return int(self.manifest.counts["transitions"])

    @property
    def episodes(self) -> int:
        """Number of its episodes."""
        return int(self.manifest.counts["episodes"])

    @property
    def bytes(self) -> int:
        """Bytes of its files but the manifest."""
        return self.manifest.bytes


def entry_at(folder: Path) -> Entry:
    """Read the entry of one dataset directory; raises what `read_manifest` raises."""
    manifest = read_manifest(folder)
    try:
        return Entry(parse_id(manifest.id), folder, manifest)
    except InvalidIdError as error:
        raise ManifestError(f"{folder / MANIFEST} has no id that can be used: {error}") from error


def find(root: Path, dataset: DatasetId, *, parts: bool = False) -> Entry | None:
    """Find a dataset under `root`: at its revision, else the newest whole one, else None.

    Revisions that cannot be read are passed over with a warning if there is another one. With
    `parts`, the only one on this disk may be a part (`Entry.partial`); several, and no whole one,
    are a `NotFoundError`. Raises `ManifestError`, `NewerFormatError`, `AccessError`.
    """
    home = root / dataset.folder
    if dataset.revision:
        folder = home / dataset.revision
        return entry_at(folder) if has_manifest(folder) else None
    found, unreadable = revisions(home)
    whole = newest([entry for entry in found if not entry.partial])
    if whole is None and unreadable:
        raise next(iter(unreadable.values()))
    for folder, error in unreadable.items():
        warnings.warn(f"{folder} is passed over: {error.message}", stacklevel=2)
    if whole is not None or not parts or not found:
        return whole
    if len(found) > 1:
        commands = " or ".join(f"`offline-data info {shlex.quote(str(one.id))}`" for one in found)
        raise NotFoundError(
            f"{dataset} is ambiguous: {len(found)} parts of it are on this disk",
            hint=f"name one by its revision: {commands}",
        )
    return found[0]


def revisions(home: Path, pattern: str = "*") -> tuple[list[Entry], dict[Path, OfflineDataError]]:
    """Read the datasets right below a folder; returns those that cannot be read with the reason."""
    unreadable: dict[Path, OfflineDataError] = {}
    manifests = sorted(home.glob(f"{pattern}/{MANIFEST}")) if home.is_dir() else ()
    return _read_each((path.parent for path in manifests), entry_at, unreadable), unreadable


def newest(entries: Iterable[Entry]) -> Entry | None:
    """Return the dataset that was made last, by its file's time within a second; None if none."""

    def order(entry: Entry) -> tuple[str, int]:
        try:
            written = (entry.path / MANIFEST).stat().st_mtime_ns
        except OSError:  # another process deletes it at this moment
            written = 0
        return entry.manifest.created, written

    return max(entries, key=order, default=None)


def locate(text: str, settings: Settings, *, to_get: bool = True) -> Entry:
    """Find a dataset by its id or by the path of its directory.

    A part of a dataset needs no revision if no other is on this disk. The error for a missing one
    names similar ones and, with `to_get`, how to get it. Raises `NotFoundError`, `InvalidIdError`.
    """
    if looks_like_path(text) or has_manifest(Path(text)):
        return entry_at(user_path(text, "the dataset"))
    dataset = parse_id(text)
    entry = find(settings.root, dataset, parts=True)
    if entry is None:
        known = {str(e.id): str(e.id).partition("@")[0] for e in list_datasets(settings.root)}
        name = text.partition("@")[0]
        near = offer([full for full, bare in known.items() if bare == name][:3])
        near = near or did_you_mean(name, known.values(), count=3)
        step = how_to_get(dataset) if to_get else "`offline-data list` shows those on this disk"
        raise NotFoundError(
            f"{text} is not on this disk (looked in {settings.root})",
            hint=f"{near} {step}" if near else step,
        )
    return entry


def locate_folders(text: str, settings: Settings) -> list[Path]:
    """Return the directory of a dataset; if its manifest is damaged, all of that id that are.

    Raises `NotFoundError`, `InvalidIdError`, `AccessError`.
    """
    try:
        return [locate(text, settings).path]
    except IntegrityError:
        if looks_like_path(text) or has_manifest(Path(text)):
            return [user_path(text, "the dataset")]
        dataset = parse_id(text)
        unreadable = revisions(settings.root / dataset.folder, dataset.revision or "*")[1]
        return list(unreadable)


def requested_id(text: str) -> DatasetId:
    """Parse an id, or that of a copy of the dataset at a path; raises `InvalidIdError`."""
    if looks_like_path(text) or has_manifest(Path(text)):
        path = user_path(text, "the dataset").absolute()
        return parse_id(f"file://{os.path.normpath(path)}")
    return parse_id(text)


def text_of(dataset: str | os.PathLike[str] | DatasetId) -> str:
    """Return an id or a path as text; the text of a path object is never an id. Raises `UsageError`."""
    if isinstance(dataset, (str, DatasetId)):
        return str(dataset)
    if not isinstance(dataset, os.PathLike):
        raise UsageError(
            f"A dataset is named by its id or its path; found a {type(dataset).__name__}",
            hint="pass each id or path as an argument of its own; ds.data_path is that of a loaded dataset",
        )
    return os.fspath(user_path(dataset, "the dataset"))


def at_hand(text: str, root: Path) -> Path | None:
    """Return the directory of a dataset that is here and need not be compared with its source.

    None: it is not here, or was made of a source's own files on this machine (`local-…`), which may
    have changed since. A path is that of a dataset directory. Raises what `find` and `entry_at` do.
    """
    if looks_like_path(text) or has_manifest(Path(text)):
        return entry_at(user_path(text, "the dataset")).path
    dataset = parse_id(text)
    entry = find(root, dataset, parts=dataset.source == "local")
    if entry is None:
        return None
    changing = str(entry.id.revision).startswith("local-") and dataset.source != "local"
    return entry.path if dataset.revision or not changing else None


def how_to_get(dataset: DatasetId) -> str:
    """Return the hint with the command that downloads or makes a dataset.

    Example:
        >>> how_to_get(DatasetId("local", "mine"))
        'to make it: `offline-data convert PATH mine`'
    """
    if dataset.source == "local":
        return f"to make it: `offline-data convert PATH {shlex.quote(dataset.name)}`"
    return f"to get it: `offline-data download {shlex.quote(str(dataset))}`"


def remove(entry: Entry) -> None:
    """Delete the files of one dataset, but no `foreign_files`.

    Raises `NotFoundError`, `AccessError`.
    """
    read_manifest(entry.path)
    if entry.path.is_symlink():
        raise AccessError(
            f"{entry.path} is a link, and what it leads to may be somebody else's",
            hint=f"delete {entry.path.resolve()} itself",
        )
    expected = (*entry.id.folder.split("/"), entry.path.name)
    in_root = entry.path.parts[-len(expected) :] == expected  # else elsewhere than its id says
    if in_root:
        check_links(entry.path.parents[len(expected) - 1], entry.path)
    try:
        delete_files(entry.path)
    except OSError as error:
        where, why = error.filename or entry.path, error.strerror or error
        raise AccessError(f"{where} cannot be deleted: {why}") from error
    if in_root:
        with suppress(OSError):  # one is not empty
            for parent in list(entry.path.parents)[: len(expected) - 1]:
                parent.rmdir()


@pickled_by_name
@dataclass(frozen=True)
class RemovedDataset:
    """One dataset that was deleted, or would be."""

    id: str
    """Its id, revision included."""
    path: Path
    """Its directory."""
    bytes: int
    """Of its files."""


@pickled_by_name
@dataclass(frozen=True)
class DatasetRemoval:
    """Result of removing datasets."""

    removed: tuple[RemovedDataset, ...]
    """The datasets, each once."""
    bytes: int
    """Freed by deleting their files: what another dataset has, too, is not counted."""
    kept: tuple[Path, ...]
    """Files in their directories that are not theirs, and stay."""
    dry_run: bool
    """Whether nothing was deleted."""
    cannot_be_fetched_again: tuple[str, ...]
    """Ids of those that exist only here."""


def remove_datasets(entries: Iterable[Entry], *, dry_run: bool = False) -> DatasetRemoval:
    """Delete the files of datasets, or with `dry_run` only say what would be deleted.

    Raises `NotFoundError`, `AccessError`; datasets before the one that failed are deleted then.
    """
    chosen = list({entry.path: entry for entry in entries}.values())
    result = DatasetRemoval(
        tuple(RemovedDataset(str(entry.id), entry.path, entry.bytes) for entry in chosen),
        freed_bytes(entry.path / name for entry in chosen for name in entry.manifest.digests),
        tuple(entry.path / name for entry in chosen for name in foreign_files(entry.path)),
        dry_run,
        tuple(str(entry.id) for entry in chosen if not entry.refetchable),
    )
    for entry in chosen if not dry_run else ():
        remove(entry)
    return result


def own_files(folder: Path) -> list[str]:
    """List a dataset's own files in its directory, the manifest first.

    If that cannot be read, they are the files with the names of a table's files.
    """
    there = set(_files(folder))
    try:
        listed = {MANIFEST, *read_manifest(folder).digests}
    except OfflineDataError:
        named = (name for name in there if name.partition("/")[0] in _TABLES)
        listed = {MANIFEST, TEXT, *(one for one in named if one.endswith((SUFFIX, f"/{META}")))}
    return sorted(there & listed, key=lambda name: (name != MANIFEST, name))


def foreign_files(folder: Path, own: Iterable[str] | None = None) -> list[str]:
    """List what is not the dataset's in its directory, links and empty folders too: posix paths."""
    return sorted(set(_files(folder)).difference(own_files(folder) if own is None else own))


def delete_files(folder: Path) -> None:
    """Delete a dataset's own files, the manifest first, and emptied folders; raises `OSError`."""
    names = own_files(folder)
    for name in names:
        (folder / name).unlink(missing_ok=True)
    above = {parent for name in names for parent in Path(name).parents} | {Path()}
    for parent in sorted(above, key=lambda path: -len(path.parts)):
        with suppress(OSError):  # something else is in there
            (folder / parent).rmdir()


def _files(folder: Path) -> Iterator[str]:
    """Walk a directory without following links: files, links, and folders that are empty."""
    for path, folders, files in os.walk(folder):
        linked = [name for name in folders if Path(path, name).is_symlink()]
        for name in (*files, *linked):
            yield Path(path, name).relative_to(folder).as_posix()
        if not files and not folders and Path(path) != folder:
            yield Path(path).relative_to(folder).as_posix()
