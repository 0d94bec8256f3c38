"""From batches to columns: what leaves a dataset has, learnt once, and every batch held to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes.fields import Key, join_key, next_of
from offline_data.errors import FormatError
from offline_data.store.layout import DTYPES, TEXT_DTYPE
from offline_data.store.packing import Column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from offline_data.episodes import EpisodeBatch

_STORABLE = frozenset(map(np.dtype, DTYPES))


@dataclass(frozen=True)
class Schema:
    """The columns of a dataset, by table."""

    steps: Mapping[Key, Column]
    observations: Mapping[Key, Column]
    episodes: Mapping[Key, Column]
    coded: bool = False
    """Whether text comes as codes, whose words are known, and not as `str`."""

    @property
    def two_copies(self) -> tuple[Key, ...]:
        """Root step leaves that have a `next` of their own; see `Manifest.two_copies`."""
        return tuple(key for key in self.steps if key[0] != "next" and next_of(key) in self.steps)

    def conform(self, batch: EpisodeBatch, first_episode: int) -> None:
        """Raise `FormatError` unless every column of `batch` can be stored as this schema says.

        Args:
            batch: The episodes to look at.
            first_episode: Number of its first episode in the dataset, for the message.
        """
        for what, mine, theirs in (
            ("step", self.steps, batch.steps),
            ("observation", self.observations, batch.observations),
            ("episode", self.episodes, batch.episodes),
        ):
            where = f"episodes {first_episode} to {first_episode + len(batch.lengths) - 1}"
            _same_keys(what, mine, theirs, where)
            for key, column in theirs.items():
                name = f"{what} leaf {join_key(key)!r} of {where}"
                _check_shape(name, mine[key], column, coded=self.coded)


def schema_of(batch: EpisodeBatch) -> Schema:
    """Learn the schema from a first batch.

    Raises:
        FormatError: A dtype that no tensor has, or objects that are not text.
    """
    return Schema(
        {key: _column(key, values) for key, values in batch.steps.items()},
        {key: _column(key, values) for key, values in batch.observations.items()},
        {key: _column(key, values) for key, values in batch.episodes.items()},
    )


def stored(values: NDArray[np.generic], column: Column) -> NDArray[Any]:
    """Cast values to the column's item type; raises `FormatError` where a value would change.

    Example:
        >>> stored(np.array([1, 2]), Column(("a",), np.dtype("float32"), ())).dtype.name
        'float32'
    """
    if values.dtype == column.dtype:
        return values
    cast = values.astype(column.dtype)
    if not np.array_equal(cast.astype(values.dtype), values, equal_nan=values.dtype.kind in "fc"):
        raise FormatError(
            f"Leaf {join_key(column.key)!r} has {values.dtype} values that {column.dtype}, "
            "the type of the first episodes, cannot hold"
        )
    return cast


def _column(key: Key, values: NDArray[np.generic]) -> Column:
    if values.dtype == object:
        return Column(key, np.dtype(TEXT_DTYPE), values.shape[1:], text=True)
    dtype = values.dtype.newbyteorder("<") if values.dtype.byteorder == ">" else values.dtype
    if dtype not in _STORABLE:
        raise FormatError(f"Leaf {join_key(key)!r} has dtype {values.dtype}, which no tensor has")
    return Column(key, np.dtype(dtype), values.shape[1:])


def _same_keys(
    what: str, mine: Mapping[Key, Column], theirs: Mapping[Key, Any], where: str
) -> None:
    missing, surplus = mine.keys() - theirs.keys(), theirs.keys() - mine.keys()
    if missing or surplus:
        names = ", ".join(sorted(join_key(key) for key in missing or surplus))
        verb = "lack" if missing else "have, unlike the first ones,"
        raise FormatError(f"{where} {verb} {what} leaves {names}")


def _check_shape(what: str, column: Column, values: NDArray[np.generic], *, coded: bool) -> None:
    if values.shape[1:] != column.shape:
        raise FormatError(
            f"{what} has rows of shape {list(values.shape[1:])}, expected {list(column.shape)}"
        )
    codes = coded and column.text and values.dtype == column.dtype
    if (values.dtype == object) != column.text and not codes:
        raise FormatError(f"{what} is {values.dtype}, expected {column.dtype}")
