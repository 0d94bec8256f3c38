"""Bounds of a feature: declared by the source, or implied by its dtype or vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.json import shown
from offline_data.base.pickles import pickled_by_name
from offline_data.episode.fields import ACTION_ROOTS, REWARD, TERMINATED, TRUNCATED, Key
from offline_data.store.layout import LeafSpec

if TYPE_CHECKING:
    from offline_data.store.reader import DatasetReader

_MOST_LISTED = 8  # features whose bounds are written one by one

_DECLARED = ("observation", "action")
_ROOTS = {*_DECLARED, *ACTION_ROOTS}


@pickled_by_name
@dataclass(frozen=True, eq=False)
class LeafSpace:
    """The values that a row of a feature may have, all bounds included."""

    kind: Literal["Box", "Discrete", "MultiDiscrete", "MultiBinary"]
    """Gymnasium's name of the space; `Discrete` also for flags, text codes and tokens."""
    dtype: str
    """The declared dtype, which may differ from that of the feature."""
    low: NDArray[Any]
    """`[*shape]` of the feature, like `high`; infinite where there is no bound."""
    high: NDArray[Any]
    origin: Literal["declared", "dtype", "data"]
    """Origin of the bounds: the source's space; what dtype, words or tokenizer allow; or the
    smallest and largest value in the data."""

    def __post_init__(self) -> None:
        if (self.low > self.high).any():
            raise ValueError("a lower bound is above its upper one")

    def __str__(self) -> str:
        shape = str(list(self.low.shape)) if self.low.shape else ""
        if (np.isneginf(self.low) & np.isposinf(self.high)).all():
            return f"{self.dtype}{shape}, unbounded"
        return f"{self.dtype}{shape}, {_words(self.low, np.min)} to {_words(self.high, np.max)}"


def _words(bounds: NDArray[Any], extreme: Callable[[NDArray[Any]], Any]) -> str:
    """Return a bound that all dimensions share, each one of a few, or the farthest of many."""
    if (bounds == bounds.flat[0]).all():
        return f"{bounds.flat[0]:g}"
    if bounds.size <= _MOST_LISTED:
        return "[" + ", ".join(f"{bound:g}" for bound in bounds.flat) + "]"
    return f"{extreme(bounds):g} (differs by dimension)"


def leaves_with_space(reader: DatasetReader) -> dict[Key, LeafSpec]:
    """Return the features of observations, actions (or tokens), rewards and flags, by TED key."""
    others = {REWARD, TERMINATED, TRUNCATED, *observed_leaves(reader)}
    return {k: leaf for k, leaf in reader.leaves.items() if k[0] in _ROOTS or k in others}


def observed_leaves(reader: DatasetReader) -> dict[Key, LeafSpec]:
    """Return the features of observations: below `observation`, or by the source's name (`pixels`)."""
    known = {key: leaf for key, leaf in reader.observation_leaves.items() if key[0] != "info"}
    return {key: leaf for key, leaf in known.items() if key[0] == "observation"} or known


def declared_spaces(reader: DatasetReader) -> dict[Key, LeafSpace]:
    """Return the spaces of features of observations and actions that the source declares.

    Not those of text, or of another shape (`mismatched_spaces`). Raises `FormatError`.
    """
    found = {}
    for root in _DECLARED:
        for key, space, leaf in _declared_below(reader, root):
            if space.low.size in {1, prod(leaf.shape)}:
                low, high = (_spread(bound, leaf.shape) for bound in (space.low, space.high))
                found[key] = LeafSpace(space.kind, space.dtype, low, high, "declared")
    return found


def mismatched_spaces(reader: DatasetReader, root: str) -> dict[Key, str]:
    """Return why the declared spaces below a root contain no row; raises `FormatError`."""
    found = {}
    for key, space, leaf in _declared_below(reader, root):
        shape = list(space.low.shape)
        if shape != list(leaf.shape) and (shape or space.kind == "Discrete"):
            found[key] = f"the declared {space.kind} has shape {shape}, rows {list(leaf.shape)}"
        elif space.kind == "Discrete" and leaf.dtype == "bool":  # of floats, RL032 says so
            found[key] = "the declared Discrete is of whole numbers, rows are bool"
    return found


def _declared_below(reader: DatasetReader, root: str) -> list[tuple[Key, LeafSpace, LeafSpec]]:
    leaves = leaves_with_space(reader)
    try:
        declared = spaces_below(reader.manifest.spaces.get(root), (root,))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FormatError(
            f"The {root} space of {reader.manifest.id} cannot be read: {shown(str(error), 120)}"
        ) from error
    return [
        (key, space, leaves[key])
        for key, space in declared.items()
        if key in leaves and not leaves[key].text and "complex" not in leaves[key].dtype
    ]


def known_spaces(reader: DatasetReader) -> dict[Key, LeafSpace]:
    """Return the spaces that are known without reading values: declared ones, or by dtype.

    Flags, 8-bit numbers, text codes (-1: missing) and tokens of a known tokenizer have bounds by
    their dtype or words. Raises `FormatError`, see `declared_spaces`.
    """
    found = declared_spaces(reader)
    for key, leaf in leaves_with_space(reader).items():
        known = key in found and np.isfinite([found[key].low, found[key].high]).any()
        bounds = None if known else _bounds_of_dtype(reader, key, leaf)
        if bounds is not None:
            low, high = (_spread(np.array(bound), leaf.shape) for bound in bounds)
            kind: Literal["Box", "Discrete"] = "Box" if leaf.dtype == "uint8" else "Discrete"
            found[key] = LeafSpace(kind, leaf.dtype, low, high, "dtype")
    return found


def _bounds_of_dtype(reader: DatasetReader, key: Key, leaf: LeafSpec) -> tuple[int, int] | None:
    if leaf.text:
        return -1, len(reader.words(key) or ()) - 1
    if leaf.dtype == "bool":
        return 0, 1
    if leaf.dtype in {"uint8", "int8"}:
        limits = np.iinfo(leaf.dtype)
        return int(limits.min), int(limits.max)
    if key[-1] == "input_ids":
        tokenizer = reader.manifest.about.get("tokenizer")
        size = tokenizer.get("vocabulary") if isinstance(tokenizer, dict) else None
        if type(size) is int and 0 < size <= np.iinfo(leaf.dtype).max:
            return 0, size - 1
    return None


def _spread(bound: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    return np.broadcast_to(bound.reshape(() if bound.size == 1 else shape), shape)


def spaces_below(space: Any, key: Key = ()) -> dict[Key, LeafSpace]:
    """Return the declared spaces of the features below `key`, from one in Minari's form."""
    match space:
        case {"type": "Dict", "subspaces": dict(parts)}:
            below = [spaces_below(part, (*key, str(name))) for name, part in parts.items()]
            return {name: leaf for part in below for name, leaf in part.items()}
        case {"type": "Tuple", "subspaces": list(parts)}:
            return spaces_below({"type": "Dict", "subspaces": dict(enumerate(parts))}, key)
        case {"type": "Box"}:
            low, high = (
                np.asarray(limit if space.get(name) is None else space[name], np.float64)
                for name, limit in (("low", -np.inf), ("high", np.inf))
            )
            dtype = str(space.get("dtype", "float32"))
            return {key: LeafSpace("Box", dtype, low, high, "declared")}
        case {"type": "Discrete", "n": int(n)}:
            start = int(space.get("start") or 0)
            low, high = np.array(start, np.int64), np.array(start + n - 1, np.int64)
            return {key: LeafSpace("Discrete", "int64", low, high, "declared")}
        case {"type": "MultiDiscrete", "nvec": list(numbers)}:
            most = np.asarray(numbers, np.int64) - 1
            least = np.asarray(space.get("start") or np.zeros_like(most), np.int64)
            return {key: LeafSpace("MultiDiscrete", "int64", least, least + most, "declared")}
        case {"type": "MultiBinary"}:
            return {key: LeafSpace("MultiBinary", "int8", np.array(0), np.array(1), "declared")}
    return {}
