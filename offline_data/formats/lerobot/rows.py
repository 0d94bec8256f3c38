"""Data files of a dataset: which one has the rows of an episode, and how the rows are numbered.

`meta/episodes` names a file for each episode. In sets that lerobot 0.4 converted from version 2 the first
episode of a file is listed in the file before it
(https://github.com/huggingface/lerobot/issues/2401): the rows tell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.base.errors import FormatError
from offline_data.base.files import is_file
from offline_data.base.json import read_whole, shown
from offline_data.base.plurals import plural
from offline_data.formats.lerobot.metadata import EPISODE, FRAME, INDEX, is_metadata
from offline_data.raw.arrow import iter_parquet, read_schema, read_table, table_leaves

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.formats.lerobot.metadata import Episodes
    from offline_data.raw.arrow import ArrowLeaf

_IMAGE = re.compile(r"images/([^/]+)/episode[-_](\d{1,9})/[^/]+")
_MOST_IMAGE = 1 << 28  # bytes of an image file


class DataFiles:
    """The Parquet files of a dataset, some of which may not have been fetched."""

    def __init__(self, folder: Path, paths: Collection[str], episodes: Episodes) -> None:
        self._folder, self._episodes = folder, episodes
        self._paths = sorted(p for p in paths if p.endswith(".parquet") and not is_metadata(p))
        self.listed: dict[str, list[int]] = {}
        """Numbers of the episodes that are listed in each file."""
        for number, file in zip(episodes.numbers.tolist(), episodes.files, strict=True):
            self.listed.setdefault(file, []).append(number)
        self.shared = len(self.listed) < len(episodes.files)  # whether a file has several episodes
        self._inside: dict[str, frozenset[int]] = {}
        self._columns: dict[str, bool] = {}

    def of(self, place: int) -> str:
        """Return the file with the rows of an episode, by its place in the list."""
        # That is the one that is listed; else the next one after or before it that has rows of the
        # episode; the one that is listed where none has.
        file, number = self._episodes.files[place], int(self._episodes.numbers[place])
        if not self.shared or number in self._numbers(file):
            return file
        return next((other for other in self._others(file) if number in self._numbers(other)), file)

    def lacking(self, first: int, stop: int) -> list[str]:
        """Return the next file that may have rows of some episodes, if those that are here do not."""
        for place in range(first, stop) if self.shared else ():
            file, number = self._episodes.files[place], int(self._episodes.numbers[place])
            if number not in self._numbers(self.of(place)):
                for other in self._paths[self._paths.index(file) + 1 :]:
                    if not is_file(self._folder / other):
                        return [other]
                    if other in self.listed:
                        break
        return []

    def check_others(self, file: str, found: NDArray[np.int64]) -> None:
        """Raise `FormatError` for rows of an episode that is not listed, or is elsewhere."""
        for number in np.setdiff1d(found, self.listed.get(file, [])).tolist():
            place = int(np.searchsorted(self._episodes.numbers, number))
            here = f"{self._folder / file} has rows of episode {number}, which"
            if place == len(self._episodes.files) or self._episodes.numbers[place] != number:
                raise FormatError(f"{here} meta/episodes does not list")
            other = self._episodes.files[place]
            if is_file(self._folder / other) and number in self._numbers(other):
                raise FormatError(f"{here} {other} has, too")

    def has_column(self, name: str) -> bool:
        """Return True if any of the files that are here has a column."""
        if name not in self._columns:
            here = (self._folder / path for path in self._paths)
            self._columns[name] = any(name in read_schema(p).names for p in here if is_file(p))
        return self._columns[name]

    def images(self, files: ArrowLeaf | None, paths: ArrowLeaf | None) -> ArrowLeaf | None:
        """Return a column of image files, those without content read from their paths.

        A path is relative to the dataset, or of the machine that recorded it: then what follows
        `images` counts. Files elsewhere are never read. Raises `FormatError`.
        """
        if files is not None and paths is None and isinstance(_first(files), str):
            files, paths = None, files
        if paths is None or paths.values is None:
            return files
        content = np.full(len(paths.values), None, object)
        if files is not None and files.values is not None:
            content = files.values.copy()
        for row in np.flatnonzero([one is None for one in content]).tolist():
            content[row] = self._image(paths.values[row], paths.path[0])
        return replace(paths, values=content, nulls=None)

    def _image(self, path: Any, name: str) -> bytes:
        parts = PurePosixPath(path.replace("\\", "/") if isinstance(path, str) else "").parts
        likely = [parts, *(parts[n:] for n, part in enumerate(parts) if part == "images")]
        for some in likely:
            if some and not {"/", ".."} & {*some} and is_file(self._folder.joinpath(*some)):
                return read_whole(self._folder.joinpath(*some), _MOST_IMAGE)
        raise FormatError(f"{name} names the image {shown(path)}, which is not in {self._folder}")

    def _others(self, file: str) -> Iterator[str]:
        at = self._paths.index(file)
        others = (*self._paths[at + 1 :], *self._paths[:at][::-1])
        return (other for other in others if is_file(self._folder / other))

    def _numbers(self, file: str) -> frozenset[int]:
        """Return the episodes of which a file has rows; none if it is damaged, as reading it tells."""
        if file not in self._inside:
            try:
                leaves = list(table_leaves(read_table([self._folder / file], [EPISODE])))
                listed = np.array(self.listed.get(file, []), np.int64)
                values = integers(leaves[0], file) if leaves else listed
                self._inside[file] = frozenset(np.unique(values).tolist())
            except FormatError:
                return frozenset()
        return self._inside[file]


@dataclass(frozen=True)
class NumberedRows:
    """The rows of a file, ordered by `episode_index` and `frame_index`."""

    columns: frozenset[str]  # names of the columns of the file
    episodes: NDArray[np.int64]  # `[N]` episode of each row, ascending
    numbers: Mapping[str, NDArray[np.int64]]  # `frame_index` and `index` `[N]`, if there
    order: NDArray[np.intp] | None  # `[N]` the row in the file; None: the same

    def problems(
        self, wanted: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> dict[int, str]:
        """Return why an episode cannot be read, by its number: rows are missing, or there twice."""
        found: dict[int, str] = {}
        step = np.arange(len(self.episodes)) - np.searchsorted(self.episodes, self.episodes)
        for name, values in self.numbers.items():
            first = values - step
            odd = first != (0 if name == FRAME else first[np.arange(len(first)) - step])
            rows = np.flatnonzero(odd)
            for row in rows[np.unique(self.episodes[rows], return_index=True)[1]].tolist():
                before = f" after {values[row - 1]}" if step[row] else ""
                found.setdefault(int(self.episodes[row]), f"its {name} is {values[row]}{before}")
        counts = np.searchsorted(self.episodes, wanted, side="right") - starts
        for place in np.flatnonzero(counts != lengths).tolist():
            found.setdefault(
                int(wanted[place]),
                f"it has {plural(int(counts[place]), 'row')}; meta/episodes says {lengths[place]}",
            )
        return found


def read_rows(path: Path, whole: Any, expected: Sequence[int]) -> NumberedRows:
    """Return how rows are numbered, from the table `whole` if read; `expected`: as listed."""
    names = frozenset((next(iter_parquet(path)) if whole is None else whole).column_names)
    by = next((name for name in (FRAME, INDEX, "timestamp") if name in names), None)
    if by is None:
        raise FormatError(f"{path} has none of {FRAME}, {INDEX} and timestamp: rows have no order")
    wanted = [name for name in (EPISODE, FRAME, INDEX, by) if name in names]
    table = read_table([path], wanted) if whole is None else whole.select(dict.fromkeys(wanted))
    leaves = {leaf.path[0]: leaf for leaf in table_leaves(table)}
    time = leaves[by].values if by == "timestamp" else None
    numbers = {name: integers(leaves[name], str(path)) for name in leaves if name != "timestamp"}
    if EPISODE in numbers:
        episodes = numbers.pop(EPISODE)
    elif len(expected) == 1:  # as its name tells
        episodes = np.full(len(table), expected[0])
    else:
        raise FormatError(f"{path} has no column {EPISODE}, and {plural(len(expected), 'episode')}")
    order = np.lexsort((numbers[by] if time is None else time, episodes))
    if (order == np.arange(len(order))).all():
        return NumberedRows(names, episodes, numbers, None)
    numbers = {name: values[order] for name, values in numbers.items()}
    return NumberedRows(names, episodes[order], numbers, order)


def image_files(paths: Iterable[str], names: Collection[str]) -> dict[int, list[str]]:
    """Return the files below `images` by the number of their episode, for some features."""
    found: dict[int, list[str]] = {}
    for path in paths:
        match = _IMAGE.fullmatch(path)
        if match and match[1] in names:
            found.setdefault(int(match[2]), []).append(path)
    return found


def _first(leaf: ArrowLeaf) -> Any:
    return leaf.values[0] if leaf.values is not None and leaf.values.ndim == 1 else None


def integers(leaf: ArrowLeaf, where: str) -> NDArray[np.int64]:
    """Return a column of integers `[N]`; raises `FormatError`."""
    values = leaf.values
    if (
        values is None
        or values.dtype.kind not in "iu"
        or values.size != len(values)
        or leaf.nulls is not None
    ):
        raise FormatError(
            f"{where}: {leaf.path[0]} is {leaf.kind}; expected an integer in each row"
        )
    return values.reshape(-1).astype(np.int64)
