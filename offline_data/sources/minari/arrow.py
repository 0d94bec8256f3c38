"""The Arrow and Parquet storages: a folder per episode, a table in it, one row more than actions.

```
row of the table                       0    1    2    3
observations, infos                    s0   s1   s2   s3
actions, rewards, flags                a0   a1   a2   (padding, dropped here)
```
"""

from __future__ import annotations

import json
import math
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.errors import AccessError, FormatError
from offline_data.readers.arrow import ArrowLeaf, read_table, table_leaves
from offline_data.readers.images import decode_jpeg, decode_jpegs, is_jpeg
from offline_data.sources.minari.leaves import (
    NOTE_NO_SEED,
    EpisodeFacts,
    FoundLeaf,
    episode_number,
    fill,
    groups_of,
    nothing,
    seed_of,
)
from offline_data.sources.minari.metadata import read_object
from offline_data.strict_json import count_of, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from offline_data.sources.minari.leaves import EpisodeView, PlannedLeaf

_PART = re.compile(r"part-(\d{1,18})\.(arrow|parquet)\Z")
_PADDED = frozenset({"actions", "rewards", "terminations", "truncations"})
_COUNTED = re.compile(r"id|seed|options|total_steps|total_timesteps|rewards_\w+")


class ArrowStorage:
    """A folder with a numbered folder per episode.

    Args:
        folder: The folder.
        shapes: Row shapes that the spaces declare, by section and names: arrays are stored flat.
    """

    def __init__(self, folder: Path, shapes: Mapping[tuple[str, ...], tuple[int, ...]]) -> None:
        self.folder = folder
        self.where = str(folder)
        self._shapes = shapes

    def numbers(self) -> Sequence[int]:
        """List the episodes by the names of their folders, in increasing order."""
        try:
            names = [entry.name for entry in self.folder.iterdir() if entry.is_dir()]
        except OSError as error:
            raise AccessError(f"{self.folder} cannot be read: {error.strerror}") from error
        digits = [name for name in names if name.isdecimal()]
        return sorted(episode_number(name, name, self.where) for name in digits)

    @contextmanager
    def views(self, numbers: Sequence[int]) -> Iterator[Iterator[EpisodeView]]:
        """Read, one after the other, the tables of episodes."""
        yield (self._read(number) for number in numbers)

    def _read(self, number: int) -> ArrowEpisode:
        folder = self.folder / str(number)
        metadata = folder / "metadata.json"
        self._check_inside(metadata)
        values = read_object(metadata) if os.path.lexists(metadata) else {}
        leaves = list(table_leaves(read_table(self._parts(folder))))
        rows = _table_rows(leaves, folder)
        steps = _steps(values, rows, folder)
        cut = (_cut(leaf, steps) for leaf in leaves)
        shaped = {leaf.path: self._shaped(leaf, folder) for leaf in cut}
        return ArrowEpisode(number, str(folder), shaped, values)

    def _parts(self, folder: Path) -> list[Path]:
        """Return the files of an episode's table, in order."""
        try:
            found = [(m, entry) for entry in folder.iterdir() if (m := _PART.match(entry.name))]
        except OSError as error:
            raise AccessError(f"{folder} cannot be read: {error.strerror}") from error
        if not found:
            raise FormatError(f"{folder} has no part-0.arrow or part-0.parquet")
        parts = [entry for _, entry in sorted(found, key=lambda pair: int(pair[0][1]))]
        for part in parts:
            self._check_inside(part)
        return parts

    def _check_inside(self, file: Path) -> None:
        """Refuse a link to another folder: a dataset does not choose which other files are read."""
        if not (file.is_symlink() or file.parent.is_symlink()):
            return
        if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(self.folder)):
            raise FormatError(
                f"{file} is a link to another folder", hint="copy the files themselves: cp -rL"
            )

    def _shaped(self, leaf: ArrowLeaf, folder: Path) -> ArrowLeaf:
        """Give the rows of a flat leaf the shape that its space or its own metadata state."""
        shape = self._shapes.get(_names(leaf.path), leaf.row_shape)
        values = leaf.values
        if shape is None or values is None or values.dtype == object or values.shape[1:] == shape:
            return leaf
        found, where = values.shape[1:], f"{folder} {'/'.join(leaf.path)}"
        if math.prod(shape) != math.prod(found):
            raise FormatError(
                f"{where} has {math.prod(found)} numbers a row; expected {list(shape)}"
            )
        if len(found) != 1 or leaf.row_shape not in {None, shape}:
            stated = found if leaf.row_shape in {None, shape} else leaf.row_shape
            raise FormatError(
                f"{where} has rows of shape {list(stated)}; its space declares {list(shape)}"
            )
        reshaped = values.reshape(len(values), *shape)
        return ArrowLeaf(leaf.path, reshaped, leaf.nulls, leaf.row_shape, leaf.kind)


def _table_rows(leaves: Sequence[ArrowLeaf], folder: Path) -> int:
    for leaf in leaves:
        if leaf.values is not None:
            return len(leaf.values)
    raise FormatError(f"{folder} has a table without any column that can be read")


def _steps(values: Mapping[str, Any], rows: int, folder: Path) -> int:
    """Return the number of actions; the metadata tell whether there is a row of padding."""
    stated = count_of(values.get("total_steps", rows - 1), f"total_steps of {folder}")
    if stated not in {rows - 1, rows}:
        raise FormatError(
            f"{folder} has {rows} rows, but its metadata say total_steps is {stated}; "
            f"expected {rows - 1}"
        )
    return stated


def _cut(leaf: ArrowLeaf, steps: int) -> ArrowLeaf:
    if leaf.path[0] not in _PADDED or leaf.values is None:
        return leaf
    nulls = None if leaf.nulls is None else leaf.nulls[:steps]
    nulls = None if nulls is None or not nulls.any() else nulls
    return ArrowLeaf(leaf.path, leaf.values[:steps], nulls, leaf.row_shape, leaf.kind)


def _names(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part for name in path for part in name.split("/"))


@dataclass(frozen=True)
class ArrowEpisode:
    """The table of one episode, read."""

    number: int
    where: str
    leaves: Mapping[tuple[str, ...], ArrowLeaf]
    values: Mapping[str, Any]
    """Metadata of the episode."""

    def describe(self) -> list[FoundLeaf]:
        """List the leaves of the table, decoding the first image of each leaf of images."""
        found = (_found(leaf, self.where) for leaf in self.leaves.values())
        return [leaf for leaf in found if leaf.section != "episode_id"]

    def members(self, group: tuple[str, ...]) -> int:
        """Count the fields of a struct column; `()`: the columns."""
        return len(self._groups.get(group, ()))

    def groups(self, _: set[tuple[str, ...]]) -> dict[tuple[str, ...], frozenset[str]]:
        """Name the columns, and the fields of each struct column."""
        return self._groups

    @cached_property
    def _groups(self) -> dict[tuple[str, ...], frozenset[str]]:
        return groups_of(path for path in self.leaves if path[0] != "episode_id")

    def stated(self) -> tuple[Any, Any]:
        """Return `id` and `total_steps` as its metadata have them."""
        return self.values.get("id"), self.values.get("total_steps")

    def open(self, leaf: PlannedLeaf) -> ArrowHandle | None:
        """Return the column of a leaf; None where this episode does not have it."""
        column = self.leaves.get(leaf.place)
        if column is None or column.kind == "null":
            return None
        where = f"{self.where} {'/'.join(leaf.place)}"
        if column.values is None or (leaf.form == "text") != ("string" in column.kind):
            raise FormatError(f"{where} is {column.kind}; expected {leaf.form} {leaf.dtype}")
        return ArrowHandle(column.values, column.nulls, leaf, where)

    def facts(self) -> EpisodeFacts:
        """Sort the metadata of the episode."""
        noted = {name: value for name, value in self.values.items() if not _COUNTED.match(name)}
        options, seed = self.values.get("options"), self._seed()
        return EpisodeFacts(
            id=self.number,
            seed=-1 if seed is None else seed,
            options=None if options is None else json.dumps(options, sort_keys=True),
            metadata=json.dumps(noted, sort_keys=True) if noted else None,
            notes=(NOTE_NO_SEED,) if seed is None else (),
        )

    def _seed(self) -> int | None:
        """Return the seed, -1 where there is none; None where it is a number, but no integer."""
        seed = self.values.get("seed")
        if isinstance(seed, bool) or not isinstance(seed, (int, float, type(None))):
            raise FormatError(
                f"{self.where}/metadata.json has a seed that is not a number: {shown(seed)}"
            )
        return -1 if seed is None else seed_of(seed)


def _found(leaf: ArrowLeaf, where: str) -> FoundLeaf:
    names = _names(leaf.path[1:])
    values = leaf.values
    if values is None:
        reason = f"Its Arrow type {leaf.kind} has no array of equal rows."
        return FoundLeaf(leaf.path, names, 0, "array", np.dtype(object), (), reason)
    if values.dtype != object:
        return FoundLeaf(leaf.path, names, len(values), "array", values.dtype, values.shape[1:])
    first = next((value for value in values.flat if value is not None), "")
    if isinstance(first, str):
        return FoundLeaf(leaf.path, names, len(values), "text", values.dtype, values.shape[1:])
    if is_jpeg(first):
        image = decode_jpeg(first, f"{where} {'/'.join(leaf.path)}")
        return FoundLeaf(leaf.path, names, len(values), "jpeg", image.dtype, image.shape)
    reason = "Its rows are bytes that are not JPEG images."
    return FoundLeaf(leaf.path, names, len(values), "array", values.dtype, (), reason)


@dataclass(frozen=True)
class ArrowHandle:
    """One column of one episode."""

    values: NDArray[Any]
    nulls: NDArray[np.bool_] | None
    leaf: PlannedLeaf
    where: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the column."""
        return self.values.shape

    @property
    def has_nulls(self) -> bool:
        """Whether the source has nothing in some rows."""
        return self.nulls is not None

    def read_if_fits(self, out: NDArray[Any]) -> bool:
        """Fill `out` if this has its dtype and shape; return whether it was filled."""
        fits = self.values.dtype == out.dtype and self.values.shape == out.shape
        if fits and self.nulls is None:
            out[...] = self.values
            return True
        return False

    def read(self, out: NDArray[Any]) -> None:
        """Fill `out`, `[rows, *shape]` of the plan."""
        if self.leaf.form == "jpeg" and self.values.dtype == object:
            decode_jpegs(self.values.tolist(), out, self.where)
        else:
            fill(out, self.values, self.where)
        if self.nulls is not None:
            out[self.nulls] = nothing(out.dtype)
