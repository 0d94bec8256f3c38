"""V-D4RL with 64 px: an `.npz` file per episode, as written by DreamerV2.

The files of a dataset may have different arrays. Their headers are read first: arrays common to all
files become leaves, the others are listed as dropped, and no value is invented.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from pathlib import Path

import numpy as np

from offline_data.base.errors import FormatError
from offline_data.base.files import check_magic
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, EpisodeBatch, Skipped
from offline_data.episode.cut import runs_within
from offline_data.episode.joining import join_episodes, skip_hint, with_place
from offline_data.formats.base import Part, RandomAccess, SourceInfo
from offline_data.formats.flat.hdf5 import FlatColumn
from offline_data.formats.vd4rl.rows import DISCOUNT, FLAGS, IMAGE, REQUIRED, episode_of
from offline_data.raw.npy import open_npz

MAGIC = b"PK\x03\x04"
LARGEST = 1 << 30
"""Maximum bytes of the arrays of one episode; those of V-D4RL have 6 MB."""

_ANY = 1 << 62  # no limit: a part is one batch


@dataclass(frozen=True)
class Header:
    """A file described by the headers of its arrays."""

    path: Path
    rows: int
    columns: Mapping[str, FlatColumn]
    """Arrays with one value per row."""
    others: Mapping[str, str]
    """Other members by name, and why they are not columns, as the end of a sentence."""

    @classmethod
    def of(cls, path: Path) -> Header:
        """Read the headers of a file; raises `FormatError`."""
        check_magic(path, MAGIC, "an npz file")
        with open_npz(path, budget=LARGEST) as arrays:
            headers = {name: arrays.header(name) for name in arrays}
            others = dict.fromkeys(arrays.others, "is not an array")
        if missing := [name for name in REQUIRED if name not in headers]:
            there = ", ".join(headers) or "none"
            raise FormatError(f"it has no array {' or '.join(map(repr, missing))}; arrays: {there}")
        rows = headers[IMAGE].shape[0] if headers[IMAGE].shape else 0
        columns = {}
        for name, header in headers.items():
            if header.dtype.kind not in "biufc":
                others[name] = f"has dtype {header.dtype}, which is not a number"
            elif header.shape[:1] != (rows,):
                others[name] = (
                    f"has shape {list(header.shape)}, and {IMAGE!r} has {plural(rows, 'row')}"
                )
            else:
                columns[name] = FlatColumn(header.dtype.newbyteorder("="), header.shape[1:])
            if name in others and name in {*REQUIRED, DISCOUNT, *FLAGS}:
                raise FormatError(f"{name!r} {others[name]}")
        return cls(path, rows, columns, others)

    def read(self, columns: Mapping[str, FlatColumn]) -> EpisodeBatch:
        """Read the episode, with these columns and its flags; raises `FormatError`."""
        with open_npz(self.path, budget=LARGEST) as arrays:
            rows = {name: arrays[name] for name in arrays if name in columns or name in FLAGS}
        for name, column in columns.items():
            if rows[name].dtype != column.dtype:  # other byte order, or wider in other files
                rows[name] = rows[name].astype(column.dtype)
        return episode_of(rows, self.path.name)


class NpzEpisodes(RandomAccess):
    """The episodes of some files, one each, in order.

    Args:
        files: The files, in order.
        info: Metadata of the source; dropped leaves and counts are added.
        skip_bad: Whether to skip unreadable files.

    Raises:
        FormatError: A file is damaged or of another format; with `skip_bad`, all of them are.
    """

    def __init__(self, files: Sequence[Path], info: SourceInfo, *, skip_bad: bool) -> None:
        self._skip_bad = skip_bad
        found: list[Header] = []
        skipped: list[Skipped] = []
        for number, path in enumerate(files):
            try:
                header = Header.of(path)
                if found:
                    _check_alike(header, found[0])
                found.append(header)
            except FormatError as error:
                if not skip_bad:
                    others = (partial(Header.of, other) for other in files[number + 1 :])
                    raise with_place(error, path.name, skip_hint(number, others)) from error
                skipped.append(Skipped.of(path, error))
        if not found:
            raise FormatError(
                f"None of the {plural(len(files), 'file')} can be read: {skipped[0].reason}"
            )
        self._files = found
        self._columns, notes, dropped = _common(found)
        self.info = SourceInfo(
            transitions=None if skip_bad else sum(max(0, file.rows - 1) for file in found),
            episodes=None if skip_bad else len(found),
            environment=info.environment,
            about=info.about,
            licence=info.licence,
            citation=info.citation,
            notes=(*info.notes, *notes),
            dropped=dropped,
            skipped=tuple(skipped),
        )

    def parts(self, budget: int) -> Sequence[Part]:
        row = sum(column.nbytes for column in self._columns.values())
        sizes = np.array([file.rows * row for file in self._files], np.int64)
        runs = runs_within(np.maximum(sizes, 1), max(1, budget))
        return list(starmap(Part, runs))

    def read_part(self, part: Part) -> EpisodeBatch:
        readings = (
            (file.path.name, partial(file.read, self._columns))
            for file in self._files[part.first : part.stop]
        )
        return next(join_episodes(readings, skip_bad=self._skip_bad, budget=_ANY))


def _check_alike(file: Header, first: Header) -> None:
    """Raise if a common column has another shape, or another kind of dtype."""
    for name in first.columns.keys() & file.columns.keys() - set(FLAGS):
        expected, found = first.columns[name], file.columns[name]
        same = expected.dtype == found.dtype or expected.dtype.kind == found.dtype.kind == "f"
        if expected.shape != found.shape or not same:
            raise FormatError(
                f"rows of {name!r} are {found.dtype} {list(found.shape)}, and {expected.dtype} "
                f"{list(expected.shape)} in {first.path.name}"
            )


def _common(
    files: Sequence[Header],
) -> tuple[dict[str, FlatColumn], list[str], tuple[Dropped, ...]]:
    """Return the columns common to all files, notes on widened ones, and dropped ones."""
    names = dict.fromkeys(name for file in files for name in (*file.columns, *file.others))
    columns, notes, dropped = {}, [], []
    for name in names:
        having = [file.columns[name] for file in files if name in file.columns]
        if len(having) < len(files):
            reasons = [file.others[name] for file in files if name in file.others]
            if name not in FLAGS:
                some = f"is in {len(having)} of the {plural(len(files), 'file')}; what all have is kept"
                dropped.append(Dropped(name, f"It {reasons[0] if reasons else some}."))
            continue
        dtypes = {column.dtype for column in having}
        if name not in FLAGS:
            columns[name] = FlatColumn(np.result_type(*dtypes), having[0].shape)
        if len(dtypes) > 1 and name not in FLAGS:
            kinds = " or ".join(sorted(map(str, dtypes)))
            notes.append(f"Values of {name} are {kinds}, and all stored as {columns[name].dtype}.")
    return columns, notes, tuple(dropped)
