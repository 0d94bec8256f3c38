"""Growing arrays of the steps under way: one for each feature of a space, and the infos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.exact import exact, first_changed, rounded_integer
from offline_data.episode.fields import REWARD, Key, check_key, join_key
from offline_data.formats.minari.leaves import nothing
from offline_data.formats.minari.metadata import DeclaredLeaf
from offline_data.pipeline.record.log import LogLeaf
from offline_data.store.layout import DTYPES

_CAPACITY = 1024
_SCALARS: dict[str, tuple[type, ...]] = {  # a dtype holds them exactly, numpy assigns them fast
    "int64": (int, np.int64),
    "float64": (float, np.float64),
    "float32": (np.float32,),
    "object": (str,),
}

_FINAL = {"final_obs", "final_info"}

Info: TypeAlias = Mapping[Key, Any]  # of one environment, by path


class GrowingLeaf:
    """Rows of one feature of a space, of one environment or of `batch` environments side by side.

    A row is what the environment returned, or an error: until `fixed`, the dtype is promoted where
    that of the space does not hold what the environment returns; then such a value is refused.
    """

    def __init__(self, key: Key, space: DeclaredLeaf, batch: tuple[int, ...]) -> None:
        dtype = "object" if space.text else space.dtype or "int8"  # that of MultiBinary
        self.key, self.declared, self.fixed = key, dtype, False
        self.dtype, self.shape = np.dtype(dtype), space.shape or ()
        self._path = () if key == REWARD else key[1:]
        self._row_shape = (*batch, *self.shape)
        self._scalars: tuple[type, ...] = () if self._row_shape else _SCALARS.get(dtype, ())
        self.rows: NDArray[Any] = np.zeros((_CAPACITY, *self._row_shape), self.dtype)

    def put(self, row: int, value: Any) -> None:
        """Copy the feature of a nested value to a row; raises `FormatError`."""
        if self._path:
            value = self.within(value)
        kind = type(value)
        if kind in self._scalars or (
            kind is np.ndarray and value.dtype == self.dtype and value.shape == self._row_shape
        ):
            self.rows[row] = value
        else:
            self.rows[row] = self.fit(value, self._row_shape)

    def within(self, value: Any) -> Any:
        """Return the feature of a nested value."""
        for name in self._path:
            value = value[int(name) if isinstance(value, tuple) else name]
        return value

    def fit(self, value: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a value in the feature's dtype; raises `FormatError` if that would change it."""
        array = np.asarray(value, object if self.dtype.kind == "O" else None)
        if array.shape != shape or array.dtype.name not in {*DTYPES, "object"}:
            raise FormatError(
                f"{join_key(self.key)} is {array.dtype} {list(array.shape)}; expected {self.dtype} "
                f"{list(shape)}, as its space says"
            )
        if array.dtype.kind == "O":
            if self.dtype.kind != "O" or not all(isinstance(text, str) for text in array.flat):
                raise FormatError(f"{join_key(self.key)} is {value!r}; expected {self.dtype}")
            return array
        if not self.fixed and not np.can_cast(array.dtype, self.dtype):
            self._become(np.promote_types(array.dtype, self.dtype))
        converted = exact(array, self.dtype)
        if converted is None:
            raise FormatError(
                f"{join_key(self.key)} is {array.dtype}, and a value does not fit {self.dtype}, the "
                "dtype of the episodes before",
                hint=f"convert it before: value.astype({self.dtype.name!r})",
            )
        return converted

    def fix(self, dtype: str) -> None:
        """Take the dtype of earlier episodes."""
        self._become(np.dtype(dtype))
        self.fixed = True

    def _become(self, dtype: np.dtype[Any]) -> None:
        rows = self.rows if self.dtype == dtype else exact(self.rows, dtype)
        if rows is None:
            raise FormatError(
                f"{join_key(self.key)} is {self.dtype} in earlier steps and {dtype} with this one, which "
                f"does not hold {first_changed(self.rows, dtype)}",
                hint="let the environment return one dtype",
            )
        self.dtype, self.rows = dtype, rows
        self._scalars = () if self._row_shape else _SCALARS.get(dtype.name, ())

    def to_leaf(self, table: Literal["steps", "observations"]) -> LogLeaf:
        """Describe it for a log."""
        return LogLeaf(self.key, self.dtype.name, self.shape, table)

    def make_room(self, low: int, row: int, capacity: int) -> None:
        """Move rows `low` to `row` to the beginning of an array of `capacity` rows."""
        rows = np.zeros((capacity, *self.rows.shape[1:]), self.dtype)
        rows[: row + 1 - low] = self.rows[low : row + 1]
        self.rows = rows


class InfoLeaves:
    """Features of infos that are kept, as the first episode decides; see `Recorder`."""

    def __init__(self) -> None:
        self.leaves: tuple[LogLeaf, ...] | None = None
        self.dropped: dict[str, str] = {}  # reasons by path
        self.notes: dict[str, None] = {}

    def decide(self, rows: Sequence[Info]) -> None:
        """Choose the features by the infos of an episode, `T + 1` of them."""
        leaves = []
        for path in dict.fromkeys(path for row in rows for path in row):
            missing = any(path not in row for row in rows[1:])
            values = None if missing else _stack([row[path] for row in rows[1:]])
            reason = "" if values is not None else "Its values are not numbers of one shape."
            reason = "Not all steps of the first episode have it." if missing else reason
            try:
                check_key(("info", *path))
            except FormatError as error:
                reason = error.message
            if values is None or reason:
                self.dropped[join_key(("infos", *path))] = reason
                continue
            whole = _stack([row[path] for row in rows]) if path in rows[0] else None
            if whole is None:
                key: Key = ("next", "info", *path)
                leaves.append(LogLeaf(key, values.dtype.name, values.shape[1:], "steps"))
            else:
                key = ("info", *path)
                leaves.append(LogLeaf(key, whole.dtype.name, whole.shape[1:], "observations"))
        self.leaves = tuple(leaves)

    def columns(self, rows: Sequence[Info]) -> list[NDArray[Any]]:
        """Return the columns of an episode; where a value is missing or of another kind, it is filled."""
        found = []
        for leaf in self.leaves or ():
            path = leaf.key[leaf.key.index("info") + 1 :]
            some = rows if leaf.table == "observations" else rows[1:]
            dtype = np.dtype(leaf.dtype)
            plain = _stack([info.get(path) for info in some])
            if plain is not None and plain.shape[1:] == leaf.shape:
                whole = exact(plain, dtype)
                if whole is not None:
                    found.append(whole)
                    continue
            column = np.full((len(some), *leaf.shape), nothing(dtype), dtype)
            for row, info in enumerate(some):
                value = np.asarray(info.get(path))
                fits = value.shape == leaf.shape and value.dtype.kind in "biufc"
                converted = exact(value, dtype) if fits else None
                if converted is None:
                    self.notes[
                        f"{join_key(leaf.key)} is missing, or of another kind, in some steps; it is "
                        f"{nothing(dtype)} there."
                    ] = None
                else:
                    column[row] = converted
            found.append(column)
        known = {leaf.key[leaf.key.index("info") + 1 :] for leaf in self.leaves or ()}
        for path in set().union(*rows) - known:
            self.dropped.setdefault(
                join_key(("infos", *path)), "The infos of the first episode do not have it."
            )
        return found


def _stack(values: Sequence[Any]) -> NDArray[Any] | None:
    """Return numbers of one shape as rows, in a dtype that holds them all, else None."""
    try:
        array = np.array(values)
    except ValueError:  # of several shapes
        return None
    if array.dtype.name not in DTYPES or rounded_integer(values, array) is not None:
        return None
    return array


def flat_info(info: Mapping[Any, Any], path: Key = ()) -> dict[Key, Any]:
    """Return the features of nested mappings by path, arrays as copies."""
    found: dict[Key, Any] = {}
    for name, value in info.items():
        below = (*path, *str(name).split("/"))
        if isinstance(value, Mapping):
            found |= flat_info(value, below)
        else:
            found[below] = value.copy() if isinstance(value, np.ndarray) else value
    return found


def flat_vector_info(infos: Mapping[str, Any], path: Key = ()) -> dict[Key, Any]:
    """Return infos of a vector by path: values, who has them (None: all); no `final_info`."""
    found: dict[Key, Any] = {}
    for name, value in infos.items():
        if (name[:1] == "_" and name[1:] in infos) or (not path and name in _FINAL):
            continue
        below = (*path, *str(name).split("/"))
        if isinstance(value, Mapping):
            found |= flat_vector_info(value, below)
        else:
            found[below] = np.array(value), infos.get(f"_{name}")
    return found


def info_of(infos: Mapping[Key, Any], number: int) -> dict[Key, Any]:
    """Return the info of one environment of a vector; see `flat_vector_info`."""
    return {
        path: values[number] if values.ndim else values.item()
        for path, (values, have) in infos.items()
        if have is None or have[number]
    }
