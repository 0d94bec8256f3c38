"""The Arrow and Parquet storages: a folder per episode with a table of one row more than actions.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.json import count_of, shown
from offline_data.base.plurals import plural
from offline_data.formats.folders import entries
from offline_data.formats.minari.leaves import (
    EpisodeFacts,
    FoundLeaf,
    Groups,
    Place,
    PlannedLeaf,
    episode_number,
    groups_of,
    seed_of,
)
from offline_data.formats.minari.metadata import Declared, read_object
from offline_data.raw.arrow import ArrowLeaf, read_table, table_leaves
from offline_data.raw.images import decode_jpeg, decode_jpegs, is_jpeg

_PART = re.compile(r"part-(\d{1,18})\.(arrow|parquet)\Z")
_PADDED = frozenset({"actions", "rewards", "terminations", "truncations"})
_COUNTED = re.compile(r"id|seed|options|total_steps|total_timesteps|rewards_\w+")


class ArrowStorage:
    """A folder with a numbered folder per episode; arrays are flat, with shapes declared by spaces."""

    def __init__(self, folder: Path, declared: Declared) -> None:
        self.folder = folder
        self.where = str(folder)
        self._shapes = {
            (section, *names): leaf.shape
            for section, leaves in declared.items()
            for names, leaf in leaves.items()
            if leaf.shape is not None
        }

    def numbers(self) -> Sequence[int]:
        names = [entry.name for entry in entries(self.folder) if entry.is_dir()]
        digits = [name for name in names if name.isdecimal()]
        return sorted(episode_number(name, name, self.where) for name in digits)

    @contextmanager
    def episodes(self, numbers: Sequence[int]) -> Iterator[Iterator[_ArrowEpisode]]:
        yield (self._read(number) for number in numbers)

    def _read(self, number: int) -> _ArrowEpisode:
        folder = self.folder / str(number)
        metadata = folder / "metadata.json"
        self._check_inside(metadata)
        values = read_object(metadata) if os.path.lexists(metadata) else {}
        leaves = list(table_leaves(read_table(self._parts(folder))))
        rows = next((len(leaf.values) for leaf in leaves if leaf.values is not None), None)
        if rows is None:
            raise FormatError(f"{folder} has a table without any column that can be read")
        # Only the metadata state whether the last row is padding.
        steps = count_of(values.get("total_steps", rows - 1), f"total_steps of {folder}")
        if steps not in {rows - 1, rows}:
            raise FormatError(
                f"{folder} has {plural(rows, 'row')}, but its metadata say total_steps is {steps}; "
                f"expected {rows - 1}"
            )
        shaped = {
            leaf.path: self._reshape_rows(_drop_padding(leaf, steps), folder)
            for leaf in leaves
            if leaf.path[0] != "episode_id"
        }
        return _ArrowEpisode(number, str(folder), shaped, values)

    def _parts(self, folder: Path) -> list[Path]:
        found = [match for entry in entries(folder) if (match := _PART.match(entry.name))]
        if not found:
            raise FormatError(f"{folder} has no part-0.arrow or part-0.parquet")
        parts = [folder / match[0] for match in sorted(found, key=lambda match: int(match[1]))]
        for part in parts:
            self._check_inside(part)
        return parts

    def _check_inside(self, file: Path) -> None:
        """Reject links to other folders: a dataset must not choose which other files are read."""
        if not (file.is_symlink() or file.parent.is_symlink()):
            return
        if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(self.folder)):
            raise FormatError(
                f"{file} is a link to another folder", hint="copy the files themselves: cp -rL"
            )

    def _reshape_rows(self, leaf: ArrowLeaf, folder: Path) -> ArrowLeaf:
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
        return replace(leaf, values=values.reshape(len(values), *shape))


def _drop_padding(leaf: ArrowLeaf, steps: int) -> ArrowLeaf:
    if leaf.path[0] not in _PADDED or leaf.values is None:
        return leaf
    nulls = None if leaf.nulls is None or not leaf.nulls[:steps].any() else leaf.nulls[:steps]
    return replace(leaf, values=leaf.values[:steps], nulls=nulls)


def _names(path: Place) -> tuple[str, ...]:
    return tuple(part for name in path for part in name.split("/"))


class _ArrowEpisode:
    """The table of one episode with its metadata `values`; an `EpisodeReader`."""

    def __init__(
        self, number: int, where: str, leaves: Mapping[Place, ArrowLeaf], values: Mapping[str, Any]
    ) -> None:
        self.where = where
        self._number, self._leaves, self._values = number, leaves, values

    def describe(self) -> list[FoundLeaf]:
        return [self._describe_leaf(leaf) for leaf in self._leaves.values()]

    def _describe_leaf(self, leaf: ArrowLeaf) -> FoundLeaf:
        path, names, values = leaf.path, _names(leaf.path[1:]), leaf.values
        if values is None:
            reason = f"Its Arrow type {leaf.kind} has no array of equal rows."
            return FoundLeaf(path, names, 0, "array", np.dtype(object), (), reason)
        rows, dtype, shape = len(values), values.dtype, values.shape[1:]
        if dtype != object:
            return FoundLeaf(path, names, rows, "array", dtype, shape)
        first = next((value for value in values.flat if value is not None), "")
        if isinstance(first, str):
            return FoundLeaf(path, names, rows, "text", dtype, shape)
        if is_jpeg(first):
            image = decode_jpeg(first, f"{self.where} {'/'.join(path)}")
            return FoundLeaf(path, names, rows, "jpeg", image.dtype, image.shape)
        reason = "Its rows are bytes that are not JPEG images."
        return FoundLeaf(path, names, rows, "array", dtype, (), reason)

    def members(self, group: Place) -> int:
        return len(self._groups.get(group, ()))

    def groups(self, places: set[Place]) -> Groups:  # noqa: ARG002 -- a table has no empty groups
        return self._groups

    @cached_property
    def _groups(self) -> Groups:
        return groups_of(self._leaves)

    def stated_counts(self) -> tuple[Any, Any]:
        return self._values.get("id"), self._values.get("total_steps")

    def read(self, leaf: PlannedLeaf) -> NDArray[Any] | None:
        column = self._leaves.get(leaf.place)
        if column is None or column.kind == "null":
            return None
        where, values = self.locate(leaf), column.values
        if values is None or (leaf.form == "text") != ("string" in column.kind):
            raise FormatError(f"{where} is {column.kind}; expected {leaf.form} {leaf.dtype}")
        if leaf.form == "jpeg" and values.dtype == object:
            return decode_jpegs(values.tolist(), leaf.shape, where)
        return values

    def locate(self, leaf: PlannedLeaf) -> str:
        return f"{self.where} {leaf.name}"

    def nulls(self, leaf: PlannedLeaf) -> NDArray[np.bool_] | None:
        return self._leaves[leaf.place].nulls

    def facts(self) -> EpisodeFacts:
        noted = {name: value for name, value in self._values.items() if not _COUNTED.match(name)}
        options, stated = self._values.get("options"), self._values.get("seed")
        if isinstance(stated, bool) or not isinstance(stated, (int, float, type(None))):
            raise FormatError(
                f"{self.where}/metadata.json has a seed that is not a number: {shown(stated)}"
            )
        seed, notes = (-1, ()) if stated is None else seed_of(stated)
        return EpisodeFacts(
            self._number,
            seed,
            None if options is None else json.dumps(options, sort_keys=True),
            json.dumps(noted, sort_keys=True) if noted else None,
            notes,
        )
