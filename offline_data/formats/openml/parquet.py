"""OpenML's Parquet files as tables: dictionaries and booleans are nominal columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.episode import Dropped
from offline_data.formats.openml.arff import Attribute, Block
from offline_data.raw.arrow import ArrowLeaf, iter_parquet, table_leaves


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file whose schema has been read."""

    path: Path
    columns: tuple[Attribute, ...]
    dropped: tuple[Dropped, ...]  # columns that are not numbers, words or text

    def blocks(self, *, skip_bad: bool = False) -> Iterator[Block]:  # noqa: ARG002 - blocks are never partial
        for table in iter_parquet(self.path):
            if table.num_rows:
                leaves = {leaf.path[0]: leaf for leaf in table_leaves(table) if len(leaf.path) == 1}
                yield Block([_values(leaves[column.name], column) for column in self.columns])


def open_parquet(path: Path) -> ParquetTable:
    """Read the schema of a Parquet file; raises like `read_table`."""
    columns, dropped = [], []
    for leaf in table_leaves(next(iter_parquet(path))):
        kind = leaf.kind
        values = leaf.values
        if len(leaf.path) > 1 or values is None or values.ndim != 1 or "binary" in kind:
            reason = f"It is a column of {kind}, which is not a number, word or text."
            dropped.append(Dropped("/".join(leaf.path), reason))
        elif kind == "bool":
            columns.append(Attribute(leaf.path[0], "nominal", ("False", "True")))
        elif values.dtype != object:
            columns.append(Attribute(leaf.path[0], "numeric"))
        else:
            nominal = kind.startswith("dictionary")
            columns.append(Attribute(leaf.path[0], "nominal" if nominal else "text"))
    return ParquetTable(path, tuple(columns), tuple(dropped))


def _values(leaf: ArrowLeaf, column: Attribute) -> NDArray[Any]:
    values: NDArray[Any] = np.asarray(leaf.values)
    if column.kind == "numeric":
        numbers = values.astype(np.float64)
        if leaf.nulls is not None:
            numbers[leaf.nulls] = np.nan
        return numbers
    if column.categories is not None:
        codes = values.astype(np.int64)
        if leaf.nulls is not None:
            codes[leaf.nulls] = -1
        return codes
    return values
