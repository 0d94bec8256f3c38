"""`Plan`: what is made out of what, and how the work is cut into tasks; decided before any of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes.cut import runs_within
from offline_data.store.tables import Schema, schema_of, table_specs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.episodes import Key
    from offline_data.preprocess.piece import Piece
    from offline_data.preprocess.reading import Chosen
    from offline_data.preprocess.recipe import Recipe
    from offline_data.store.layout import LayoutName, TableSpec
    from offline_data.store.reader import DatasetReader

GROUP_BYTES = 8 << 20
"""Bytes of rows that are read and mapped at once; an episode that is larger is one group.

Where it may show in a last bit which rows lie side by side, how they are grouped depends on nothing
but the data and the recipe: not on workers, chunks or time.
"""

GROUP_ROWS = 256
"""Rows of a group then, where Python is called for every row."""

TASK_BYTES = 16 << 20
"""Bytes of rows of a task, at least: what is lost when a process is killed."""

TASKS = 256
"""Tasks of a large dataset, about: each leaves a small file until all are finished."""

TASK_SECONDS = 4.0
"""Time of a task where Python is called for every row."""


@dataclass(frozen=True)
class Plan:
    """A dataset that is to be made from another one."""

    parent: Path
    """Directory of the dataset it is made from."""
    identity: str
    """What tells that dataset apart from others; see `identity_of`."""
    recipe: Recipe
    """The steps, with what they learnt from the data."""
    chosen: Chosen
    """Episodes of the parent."""
    groups: NDArray[np.int64]
    """`[G + 1]` seams: group `g` is the chosen episodes `groups[g]` to `groups[g + 1]`."""
    tasks: NDArray[np.int64]
    """`[K + 1]` seams: task `k` is the groups `tasks[k]` to `tasks[k + 1]`."""
    layout: LayoutName
    """Layout to write."""
    schema: Schema
    """Columns of the new dataset."""
    words: Mapping[Key, Sequence[str]]
    """Vocabularies of its text leaves, by the key in steps or observations."""
    in_place: bool
    """Whether tasks write to their places in the files of the new dataset. If not, each writes
    files of its own, which are laid end to end when all are there."""

    @property
    def count(self) -> int:
        """Number of tasks."""
        return len(self.tasks) - 1

    def part(self, group: int) -> Chosen:
        """Return the episodes of a group."""
        return self.chosen[slice(int(self.groups[group]), int(self.groups[group + 1]))]

    def first_of(self, task: int) -> tuple[int, int]:
        """Return the row and the episode that a task begins with, where lengths stay."""
        episode = int(self.groups[self.tasks[task]])
        return int(self._ends[episode]), episode

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.chosen.lengths)])

    def rows_of(self, task: int) -> int:
        """Return how many transitions of the parent a task reads."""
        first, stop = (int(self.groups[group]) for group in self.tasks[task : task + 2])
        return int(self._ends[stop] - self._ends[first])

    def tables(self) -> dict[str, TableSpec]:
        """Return the tables of the new dataset, without rows."""
        return tables_of(self.layout, self.schema)

    def sized_tables(self) -> dict[str, TableSpec]:
        """Return the tables with all rows that there will be, where lengths stay."""
        return {name: table.with_rows(self._rows_in(name)) for name, table in self.tables().items()}

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every file of these tables, by its name."""
        tables = self.sized_tables().values()
        return {name: size for table in tables for name, size in table.files.items()}

    @property
    def bytes(self) -> int:
        """Bytes of all of them."""
        return sum(self.sizes.values())

    def _rows_in(self, table: str) -> int:
        more = len(self.chosen.episodes) if table == "observations" else 0
        return self.chosen.transitions + more


def tables_of(layout: LayoutName, schema: Schema) -> dict[str, TableSpec]:
    """Return the tables of a dataset, without rows; raises `FormatError` where it cannot be stored."""
    return table_specs(layout, schema)


def schema_of_piece(piece: Piece) -> Schema:
    """Learn the columns of a dataset from a piece; text leaves are those that have words."""
    learnt = schema_of(piece.batch)

    def with_text(columns: Any) -> dict[Any, Any]:
        return {key: replace(c, text=key in piece.words) for key, c in columns.items()}

    return replace(
        learnt,
        steps=with_text(learnt.steps),
        observations=with_text(learnt.observations),
        coded=True,
    )


def grouped(reader: DatasetReader, chosen: Chosen, rows: int | None = None) -> NDArray[np.int64]:
    """Return the seams of groups of chosen episodes, `[G + 1]`.

    Args:
        reader: The parent.
        chosen: The episodes.
        rows: Most transitions of a group, where fewer than `GROUP_BYTES` are wanted.
    """
    most = max(1, GROUP_BYTES // max(1, row_bytes(reader)))
    return _seams(runs_within(chosen.lengths, most if rows is None else min(most, max(1, rows))))


def row_bytes(reader: DatasetReader) -> int:
    """Return the bytes of a transition in all tables but the episodes'."""
    leaves = [*reader.step_leaves.values(), *reader.observation_leaves.values()]
    return sum(leaf.nbytes for leaf in leaves)


def task_rows(reader: DatasetReader, chosen: Chosen) -> int:
    """Return the transitions of a task, where nothing else decides that."""
    least = TASK_BYTES // max(1, row_bytes(reader))
    return max(1, least, chosen.transitions // TASKS)


def tasks_of(chosen: Chosen, groups: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Return the seams of tasks of about `rows` transitions, at least one group each, `[K + 1]`."""
    ends = np.concatenate([[0], np.cumsum(chosen.lengths)])
    return _seams(runs_within(np.diff(ends[groups]), rows))


def _seams(runs: list[tuple[int, int]]) -> NDArray[np.int64]:
    return np.array([0, *(stop for _, stop in runs)], np.int64)


def fingerprint(
    reader: DatasetReader, recipe: Recipe, num_frames: int | None, view: Chosen | None = None
) -> str:
    """Return 64 hexadecimal digits that tell what is made of what.

    Of the parent's id and the digests of its files, of what the recipe says of itself, and of
    `num_frames` and `view`: not of workers, chunks or layout, for the result does not depend on them.
    """
    return _digest(
        {
            "parent": identity_of(reader),
            "recipe": recipe.describe(),
            "num_frames": None if num_frames is None else int(num_frames),
            **({"code": recipe.code} if recipe.code else {}),
            **({} if view is None else {"view": digest_of_rows(view)}),
        }
    )


def identity_of(reader: DatasetReader) -> str:
    """Return 64 hexadecimal digits that tell a dataset apart: of its id and of all its files."""
    files = {name: entry["sha256"] for name, entry in reader.manifest.digests.items()}
    return _digest({"id": reader.manifest.id, "digests": files})


def digest_of_rows(chosen: Chosen) -> str:
    """Return 64 hexadecimal digits that tell rows of a dataset from others."""
    arrays = (chosen.episodes, chosen.steps, chosen.lengths)
    return hashlib.sha256(b"".join(one.astype("<i8").tobytes() for one in arrays)).hexdigest()


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
