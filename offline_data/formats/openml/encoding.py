"""Encoding of a table's columns as `X` and `y`: read once for statistics, then again, by block.

| encoding | a numeric column | a nominal column |
|---|---|---|
| `raw` | unchanged, NaN if missing | the code of its word, in the declared order; NaN if missing |
| `num` | standardised | the rank of its word among those that occur, sorted; standardised |
| `onehot` | standardised, before all others | a column of 0 and 1 for each word that occurs, sorted |

Standardised: minus the mean, divided by the population standard deviation over all rows; a constant
column is 0. Labels in `y` are codes as in `raw`, and ranks with `num` and `onehot`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.json import shown
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, Key, Skipped
from offline_data.formats.catalogues.openml import Encoding, Missing
from offline_data.formats.openml.arff import Attribute, Block
from offline_data.store.statistics import Moments, moments_of

_WORDS = 1 << 20  # distinct words of a column without declared ones
_WIDEST = 1 << 16  # columns of X with one per category


class TableFile(Protocol):
    """A file of rows: `ArffFile` or `ParquetTable`."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def columns(self) -> tuple[Attribute, ...]:
        """Its columns."""

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Columns that cannot be read."""

    def blocks(self, *, skip_bad: bool = False) -> Iterator[Block]:
        """Yield its rows; see `ArffFile.blocks`."""


def weighted_moments(values: NDArray[np.float64], weights: NDArray[np.int64]) -> Moments:
    """Return the moments of values repeated as often as their weights say."""
    count = int(weights.sum())
    if not count:
        return Moments()
    mean = float(weights @ values) / count
    return Moments(count, mean, float(weights @ (values - mean) ** 2))


def scale_of(moments: Moments) -> float:
    """Return the standard deviation; 1 if it is within rounding errors of a constant."""
    if not moments.count:
        return 1.0
    variance, epsilon = float(moments.std) ** 2, float(np.finfo(np.float64).eps)
    rounding = moments.count * epsilon * variance + (moments.count * moments.mean * epsilon) ** 2
    return float(moments.std) if variance > rounding else 1.0


@dataclass
class Words:
    """The words of a nominal or text column, and their codes."""

    declared: tuple[str, ...] | None
    words: tuple[str, ...] = ()
    codes: dict[str | None, int] = field(default_factory=dict)
    lookup: NDArray[np.int64] | None = None
    """`[declared words + 1]` new code of each; the last one is for missing values."""
    counts: Counter[Any] = field(default_factory=Counter)
    """Number of occurrences, by declared code or by word; -1 and None are missing."""

    def add(self, values: NDArray[Any]) -> None:
        """Count the values of a block."""
        if self.declared is not None:
            numbers = np.bincount(values + 1)
            self.counts.update({code - 1: int(n) for code, n in enumerate(numbers) if n})
        else:
            self.counts.update(values.tolist())
            if len(self.counts) > _WORDS:
                raise FormatError(f"it has more than {_WORDS:,} different words: no categories")

    def settle(self, encoding: Encoding, missing: Missing) -> None:
        """Assign codes to the words after all were counted."""
        names = dict(enumerate(self.declared or ()))
        present = sorted(names.get(key, key) for key in self.counts if key not in {-1, None})
        self.words = self.declared if encoding == "raw" and self.declared else tuple(present)
        self.codes = {word: code for code, word in enumerate(self.words)}
        unknown = len(self.words) if missing == "category" else -1
        if self.declared is not None:
            codes = [self.codes.get(word, -1) for word in self.declared]
            self.lookup = np.array([*codes, unknown], np.int64)
        self.codes[None] = unknown

    @property
    def width(self) -> int:
        has_missing = bool(self.counts[-1] or self.counts[None])
        return len(self.words) + (self.codes[None] >= 0 and has_missing)

    @property
    def weights(self) -> NDArray[np.int64]:
        """`[width]` number of rows of each code."""
        numbers = np.zeros(len(self.codes), np.int64)
        for key, number in self.counts.items():
            numbers[self.lookup[key] if self.lookup is not None else self.codes[key]] += number
        return numbers[: self.width]

    def encode(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the code of each value, -1 if it is missing and missing is not a category."""
        if self.lookup is not None:
            return np.asarray(self.lookup[values])
        return np.fromiter(map(self.codes.__getitem__, values), np.int64, len(values))


@dataclass
class InputColumn:
    """A column of the table, and its position in `X`."""

    place: int
    column: Attribute
    moments: Moments = field(default_factory=Moments)
    words: Words | None = None
    first: int = 0  # first column of `X`
    width: int = 1

    def missing(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        if values.dtype == object:
            return np.array([value is None for value in values], bool)
        return np.asarray(np.isnan(values) if values.dtype == np.float64 else values == -1)

    def numbers(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return values, or their codes, as float64; NaN if missing."""
        if self.words is None:
            return np.asarray(values, np.float64)
        codes = self.words.encode(values)
        return np.where(codes < 0, np.nan, codes)

    def describe(self, encoding: Encoding) -> dict[str, Any]:
        described: dict[str, Any] = {"name": self.column.name, "type": self.column.kind}
        if self.words is not None:
            described["categories"] = list(self.words.words)
            if self.words.width > len(self.words.words):
                described["categories"].append(None)
        if encoding == "num" or (encoding == "onehot" and self.words is None):
            described |= {"mean": float(self.moments.mean), "scale": scale_of(self.moments)}
        return described


class Encoder:
    """Encodes the rows of a table as `X`, `y` and texts; reads the table once to prepare.

    Args:
        targets: Names of the columns of `y`.
        inputs: Names of the other columns to use.
        encoding: See above.
        missing: Whether to leave out rows with a missing value, or to treat a missing word as an
            additional last category; `keep` for `raw`.

    Attributes:
        rows: Number of encoded rows.
        dropped: Number of rows left out because of a missing value.

    Raises:
        FormatError: An unreadable row; no rows, or no columns for `X`.
    """

    def __init__(
        self,
        table: TableFile,
        targets: Sequence[str],
        inputs: Sequence[str],
        encoding: Encoding,
        missing: Missing,
        *,
        skip_bad: bool,
    ) -> None:
        self._table, self._encoding = table, encoding
        self._drop, self._skip_bad = missing == "drop", skip_bad
        self.rows = self.dropped = 0
        by_name = {column.name: (n, column) for n, column in enumerate(table.columns)}
        self.targets = [InputColumn(*by_name[name]) for name in targets]
        chosen = [InputColumn(*by_name[name]) for name in inputs]
        self.inputs = [one for one in chosen if one.column.kind != "text"]
        self.texts = [one for one in chosen if one.column.kind == "text"]
        for feature in (*self.inputs, *self.targets):
            if feature.column.kind != "numeric":
                feature.words = Words(feature.column.categories)
        if not self.inputs and (encoding != "raw" or not self.texts):
            raise FormatError(f"{table.path} has no columns besides its target to make X of")
        self._scan()
        for feature in (*self.inputs, *self.targets):
            if feature.words is not None:
                feature.words.settle(encoding, missing)
        self._place()

    def _scan(self) -> None:
        for columns, block in self._blocks():
            rows = len(columns[0]) if columns else 0
            self.rows, self.dropped = self.rows + rows, self.dropped + block.rows - rows
            for feature in (*self.inputs, *self.targets):
                if not rows:
                    break
                values = columns[feature.place]
                if feature.words is None:
                    feature.moments = feature.moments.merge(moments_of(values))
                    continue
                try:
                    feature.words.add(values)
                except FormatError as error:
                    name = shown(feature.column.name)
                    raise FormatError(f"{self._table.path}: of {name}, {error.message}") from None
        if not self.rows:
            why = f"; each of {self.dropped:,} has a missing value" if self.dropped else ""
            raise FormatError(f"{self._table.path} has no rows{why}")

    def _place(self) -> None:
        """Assign columns of `X` to every input."""
        if self._encoding == "onehot":
            self.inputs.sort(key=lambda one: one.words is not None)
        width = 0
        for feature in self.inputs:
            feature.first = width
            if feature.words is not None and self._encoding == "onehot":
                feature.width = feature.words.width
            elif feature.words is not None:
                ranks = np.arange(feature.words.width, dtype=np.float64)
                feature.moments = weighted_moments(ranks, feature.words.weights)
            width += feature.width
        if self._encoding == "onehot" and width > _WIDEST:
            raise FormatError(
                f"{self._table.path} would have {plural(width, 'column')} of categories"
            )
        self.width = width

    def _blocks(self) -> Iterator[tuple[list[NDArray[Any]], Block]]:
        """Yield the columns of kept rows with their block."""
        for block in self._table.blocks(skip_bad=self._skip_bad):
            columns = block.columns
            if block.rows and self._drop:
                used = (*self.inputs, *self.targets)
                gone = np.any([one.missing(columns[one.place]) for one in used], axis=0)
                columns = [column[~gone] for column in columns]
            yield columns, block

    def read(self) -> Iterator[tuple[int, dict[Key, NDArray[Any]], tuple[Skipped, ...]]]:
        """Yield the number of rows, their leaves, and skipped rows, in order.

        The leaves are `("X",)` float64 `[rows, width]`, `("text", name)` objects, and `("y",)`: int64
        codes or float64 `[rows]`, `[rows, targets]` for several targets.
        """
        for columns, block in self._blocks():
            rows = len(columns[0]) if columns else 0
            leaves: dict[Key, NDArray[Any]] = {}
            if rows and self.width:
                leaves["X",] = self._inputs_of(columns, rows)
            if rows:
                leaves |= {("text", one.column.name): columns[one.place] for one in self.texts}
            if rows and self.targets:
                leaves["y",] = self._targets_of(columns)
            if rows or block.skipped:
                yield rows, leaves, block.skipped

    def _inputs_of(self, columns: list[NDArray[Any]], rows: int) -> NDArray[np.float64]:
        matrix = np.zeros((rows, self.width))
        for feature in self.inputs:
            values = columns[feature.place]
            if feature.words is not None and self._encoding == "onehot":
                matrix[np.arange(rows), feature.first + feature.words.encode(values)] = 1
                continue
            numbers = feature.numbers(values)
            if self._encoding != "raw":
                numbers = (numbers - feature.moments.mean) / scale_of(feature.moments)
            matrix[:, feature.first] = numbers
        return matrix

    def _targets_of(self, columns: list[NDArray[Any]]) -> NDArray[Any]:
        created = [
            columns[one.place] if one.words is None else one.words.encode(columns[one.place])
            for one in self.targets
        ]
        return created[0] if len(created) == 1 else np.stack(created, axis=1)
