"""Marks of episodes: good, bad or unsure, and a note, which people give while they look at them.

```
<root>/<source>/<dataset>/.views/<revision>/marks.json    next to its saved views
```

Digests and locks of the dataset do not see the file. It says which
dataset it is of, as a view does, and is ignored for another one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

from offline_data.base.decode import Check, Sha256, decode, matching
from offline_data.base.errors import (
    FormatError,
    IntegrityError,
    NewerFormatError,
    NotFoundError,
    OfflineDataError,
    UsageError,
)
from offline_data.base.files import check_links, disk_errors, file_lock, sync_folder, write_durably
from offline_data.base.json import as_unicode, parse_json, read_whole, shown
from offline_data.base.plurals import plural
from offline_data.episode.fields import Key
from offline_data.store.layout import VIEWS
from offline_data.store.library import Entry, has_manifest
from offline_data.store.manifest import Manifest, identity_of

MARKS = "marks.json"
MARKS_VERSION = 1  # that this package writes, and the newest that it reads
MOST_CHARACTERS = 2_000  # of a note
MOST_BYTES = 64 << 20  # of a file: notes of that length for 8,000 episodes

MarkName: TypeAlias = Literal["good", "bad", "unsure"]
MarkKeys: TypeAlias = Mapping[Literal["mark", "note"], Key]
_COLUMNS: tuple[Literal["mark", "note"], ...] = ("mark", "note")
MARK_NAMES: tuple[MarkName, ...] = get_args(MarkName)

_Note = Check(f"at most {MOST_CHARACTERS:,} characters", lambda note: len(note) <= MOST_CHARACTERS)
_Number: TypeAlias = Annotated[
    int, str, matching("0|[1-9][0-9]{0,17}", "the number of an episode"), int
]


@dataclass(frozen=True)
class Mark:
    """Judgement of one episode."""

    mark: MarkName | None = None
    note: Annotated[str, _Note] = ""


@dataclass(frozen=True)
class _MarksFile:
    format_version: int
    dataset: str
    identity: Sha256
    episodes: Mapping[_Number, Mark]


@dataclass(frozen=True)
class Marks:
    """Marks of the episodes of one dataset; those without mark and note are left out."""

    dataset: str
    """Its id, revision included."""
    identity: str
    """See `identity_of`."""
    episodes: Mapping[int, Mark] = field(default_factory=dict)
    """By the number of the episode in the dataset."""
    ignored: str = ""
    """Why a file that is there does not count, a sentence."""

    @staticmethod
    def of(manifest: Manifest) -> Marks:
        """Return no marks of a dataset."""
        return Marks(manifest.id, identity_of(manifest))

    @staticmethod
    def of_download(content: bytes, where: str = "The download") -> Marks:
        """Read what a page saves, which is a `marks.json`, of any dataset.

        Raises `FormatError` if it is none, `NewerFormatError` for a later version's.
        """
        if len(content) > MOST_BYTES:
            raise FormatError(f"{where} is larger than {MOST_BYTES:,} bytes: too large for marks")
        value = parse_json(content, where)
        version = value.get("format_version") if isinstance(value, dict) else None
        if isinstance(version, int) and version > MARKS_VERSION:
            raise NewerFormatError(
                f"{where} has marks of format {shown(version)}; this version of offline-data reads "
                f"up to {MARKS_VERSION}"
            )
        found = decode(_MarksFile, value, where)
        return Marks(found.dataset, found.identity, found.episodes)

    def with_mark(self, number: int, mark: MarkName | None, note: str | None = None) -> Marks:
        """Return these marks with another one for an episode; `note` None: its note stays.

        Raises `UsageError` for a mark that there is not, or a note of more than `MOST_CHARACTERS`.

        Example:
            >>> marks = Marks("local:toy@1", "0" * 64).with_mark(3, "bad", "gripper slips")
            >>> marks.with_mark(3, "good").episodes
            {3: Mark(mark='good', note='gripper slips')}
        """
        if mark is not None and mark not in MARK_NAMES:
            raise UsageError(
                f"A mark is {shown(mark)}; expected {', '.join(map(repr, MARK_NAMES))} or None"
            )
        if note is None:
            note = self.episodes.get(number, Mark()).note
        if not isinstance(note, str) or not _Note.holds(note):
            raise UsageError(f"A note is {shown(note)}; expected text of {_Note.expected}")
        others = {one: said for one, said in self.episodes.items() if one != number}
        said = {number: Mark(mark, as_unicode(note))} if mark or note else {}
        return replace(self, episodes=dict(sorted({**others, **said}.items())))

    def with_all(self, others: Marks) -> Marks:
        """Return these marks with those of a download, which win; `IntegrityError`: of other data."""
        if others.identity != self.identity:
            same = " with other rows or episodes" * (others.dataset == self.dataset)
            raise IntegrityError(
                f"The marks are of {shown(others.dataset)}{same}, and the dataset is {self.dataset}: "
                "their numbers would mean other episodes"
            )
        return replace(self, episodes=dict(sorted({**self.episodes, **others.episodes}.items())))

    def counts(self) -> dict[str, int]:
        """Return the number of episodes with each mark and with a note, of those that there are.

        Example:
            >>> marks = Marks("local:toy@1", "0" * 64).with_mark(3, "bad", "slips")
            >>> marks.with_mark(4, "bad").with_mark(5, "good").counts()
            {'good': 1, 'bad': 2, 'notes': 1}
        """
        said = self.episodes.values()
        counts = {str(name): sum(one.mark == name for one in said) for name in MARK_NAMES}
        counts["notes"] = sum(bool(one.note) for one in said)
        return {name: count for name, count in counts.items() if count}

    def columns(self, keys: MarkKeys, count: int) -> dict[Key, list[str]]:
        """Return the columns of `count` episodes by key, with empty text where nothing was said."""
        columns = {key: [""] * count for key in keys.values()}
        for number, said in self.episodes.items():
            for name, key in keys.items():
                columns[key][number] = getattr(said, name) or ""
        return columns

    def to_json(self) -> bytes:
        """Return the content of the file, which is what a page downloads, too."""
        said = {str(number): asdict(mark) for number, mark in self.episodes.items()}
        about = {"format_version": MARKS_VERSION, "dataset": self.dataset}
        value = {**about, "identity": self.identity, "episodes": said}
        return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()


def mark_keys(stored: Collection[Key]) -> MarkKeys:
    """Return the columns of episodes that marks are: `mark` and `note`.

    Where a dataset has `stored` a column of that name itself, it is `marks/mark` or `marks/note`.

    Example:
        >>> mark_keys([("length",), ("note",)])
        {'mark': ('mark',), 'note': ('marks', 'note')}
    """
    names = {name: ("marks", name) if (name,) in stored else (name,) for name in _COLUMNS}
    return {name: key for name, key in names.items() if key not in stored}


def marks_file(dataset: Path) -> Path:
    """Return where the marks of a dataset directory are, if it has any."""
    return dataset.parent / VIEWS / dataset.name / MARKS


def read_marks(dataset: Path, manifest: Manifest) -> Marks:
    """Read the marks of a dataset directory; none, with `ignored`, of a file that is not its marks."""
    path, none = marks_file(dataset), Marks.of(manifest)
    try:
        if path.is_symlink():
            return replace(none, ignored=f"{path} is ignored: it is a link")
        marks = none.with_all(Marks.of_download(read_whole(path, MOST_BYTES), path.name))
        _check_numbers(marks, manifest)
    except NotFoundError:
        return none
    except (OfflineDataError, OSError) as error:
        why = error.message if isinstance(error, OfflineDataError) else error.strerror
        return replace(none, ignored=f"{path} is ignored: {why}")
    return marks


def write_marks(dataset: Path, manifest: Manifest, change: Callable[[Marks], Marks]) -> Marks:
    """Change the marks of a dataset directory, and return them as they are then.

    ```python
    write_marks(entry.path, entry.manifest, lambda marks: marks.with_mark(3, "bad", "slips"))
    ```

    Another process that writes marks is waited for, and `change` gets what it wrote. The file is
    replaced atomically; one that is ignored is kept next to it, as `marks.json.kept`.

    Raises:
        UsageError: There is no such episode, or the notes are too long for a file; see `change`.
        NotFoundError: The dataset is not there any more.
        AccessError, NoSpaceError: Disk errors.
    """
    path = marks_file(dataset)
    with _locked(dataset):
        if not has_manifest(dataset):
            raise NotFoundError(f"{dataset} has been deleted or renamed; nothing was marked")
        before = read_marks(dataset, manifest)
        marks = change(replace(before, ignored=""))
        _check_numbers(marks, manifest)
        content = marks.to_json()
        if len(content) > MOST_BYTES:
            raise UsageError(f"The notes take more than {MOST_BYTES:,} bytes; shorten some")
        aside = path
        while before.ignored and os.path.lexists(aside):
            aside = aside.with_name(f"{aside.name}.kept")
        if aside != path:
            path.rename(aside)
        write_durably(path, content)
    return marks


@contextmanager
def moved_marks(old: Entry, new: Entry) -> Iterator[None]:
    """Give the marks of a dataset to the one that it becomes; in the block, the old one is deleted."""
    path = marks_file(old.path)
    with _locked(old.path) if os.path.lexists(path) else nullcontext():
        marks = read_marks(old.path, old.manifest)
        if marks.episodes:
            own = Marks.of(new.manifest)
            write_marks(new.path, new.manifest, lambda _: replace(own, episodes=marks.episodes))
        yield
        if marks.episodes:
            path.unlink()
            sync_folder(path.parent)


@contextmanager
def _locked(dataset: Path) -> Iterator[None]:
    path = marks_file(dataset)
    check_links(dataset.parent, path)
    with (
        disk_errors(path.parent, "marks need a folder that you can write to: copy the dataset"),
        file_lock(path.with_suffix(".lock"), lambda: None),
    ):
        yield


def _check_numbers(marks: Marks, manifest: Manifest) -> None:
    last, count = max(marks.episodes, default=-1), int(manifest.counts["episodes"])
    if last >= count or min(marks.episodes, default=0) < 0:
        wrong = last if last >= count else min(marks.episodes)
        raise UsageError(
            f"There is no episode {wrong} to mark: {manifest.id} has {plural(count, 'episode')}, "
            "numbered from 0"
        )
