"""What a function returned, as leaves, held to what it returned first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase, is_non_tensor, is_tensor_collection

from offline_data.episodes.fields import Key, check_key, join_key
from offline_data.errors import FormatError
from offline_data.preprocess.errors import StepError

if TYPE_CHECKING:
    from torch import Tensor

Place: TypeAlias = Callable[[], str]
"""Says which row, block or episode it is, when a message needs it."""

Leaves: TypeAlias = "dict[Key, Tensor]"
Schema: TypeAlias = "dict[Key, tuple[str, tuple[int, ...]]]"
"""Name of the dtype and shape of a row of every leaf."""

STORABLE = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
    torch.uint32, torch.uint64, torch.float16, torch.float32, torch.float64, torch.complex64,
    torch.complex128,
})  # fmt: skip
"""Types that numpy has too."""

_PLACES = frozenset({"index", "episode", "done", "terminated", "truncated"})
"""Names of leaves at the root that say where a row is: nothing can be below them."""


def leaves_of(result: Any, place: Place) -> Leaves:
    """Return the leaves of what a function returned, by key.

    Args:
        result: A TensorDict, a tensorclass, or a mapping of tensors, arrays, numbers and mappings.
        place: What it was returned for.

    Raises:
        StepError: It is something else, or has something in it that is no tensor.

    Example:
        >>> leaves_of({"next": {"reward": 1.5}}, lambda: "row 0")
        {('next', 'reward'): tensor(1.5000)}
    """
    if not isinstance(result, (TensorDictBase, Mapping)) and not is_tensor_collection(result):
        what = "None (is a `return` missing?)" if result is None else f"a {type(result).__name__}"
        raise StepError(f"The function returned {what} for {place()}; expected a TensorDict")
    found: Leaves = {}
    try:
        _collect(result, (), found, place)
    except RecursionError as error:
        raise StepError(
            f"The function's result for {place()} is nested without end: it holds itself"
        ) from error
    if not found:
        raise StepError(f"The function returned a TensorDict without leaves for {place()}")
    return found


def schema_of(leaves: Leaves, place: Place, rows: int | None = None) -> Schema:
    """Describe rows of leaves that are the first of their kind.

    Args:
        leaves: One row, or `rows` of them.
        place: What they were returned for.
        rows: How many rows the first axis has; None: there is no such axis.

    Raises:
        StepError: A name or a type that no leaf of a dataset can have.
    """
    for key, value in leaves.items():
        _check_name(key, leaves, place)
        if value.dtype not in STORABLE:
            raise StepError(
                f"The function returned {join_key(key)!r} for {place()} as {_named(value.dtype)}, "
                "which cannot be stored",
                hint="cast it, for example to float32 or float16",
            )
    return described(leaves, rows)


def described(leaves: Leaves, rows: int | None = None) -> Schema:
    """Return dtype and shape of rows of leaves; see `schema_of`, which also checks them."""
    skip = 0 if rows is None else 1
    return {key: (_named(v.dtype), tuple(v.shape[skip:])) for key, v in leaves.items()}


def conform(schema: Schema, found: Schema, place: Place) -> None:
    """Hold a result to the first one.

    Raises:
        StepError: Leaves are missing or new, or have another dtype or shape.
    """
    if schema != found:
        raise difference(schema, found, place)


def difference(schema: Schema, found: Schema, place: Place) -> StepError:
    """Return the error for a result that is not as the first one was."""
    missing, surplus = schema.keys() - found.keys(), found.keys() - schema.keys()
    if missing or surplus:
        lacks = [f"lacks {_listed(missing)}"] if missing else []
        has = [f"has, unlike the first one, {_listed(surplus)}"] if surplus else []
        return StepError(f"The function's result for {place()} {' and '.join(lacks + has)}")
    key = next(key for key in schema if schema[key] != found[key])
    was, here = (f"{dtype} {list(shape)}" for dtype, shape in (schema[key], found[key]))
    return StepError(
        f"The function returned {join_key(key)!r} as {here} for {place()}, and as {was} before",
        hint="a leaf has one dtype and one shape in all rows: cast it, pad it or cut it",
    )


def to_array(key: Key, value: Tensor, place: Place) -> np.ndarray[Any, Any]:
    """Return a tensor as an array of the CPU, which may share its memory.

    Raises:
        StepError: It has no values (device `meta`), or is not dense.
    """
    try:
        return np.asarray(value.detach().cpu().resolve_conj().resolve_neg().numpy())
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise not_plain(key, value, place) from error


def not_plain(key: Key, value: Tensor, place: Place) -> StepError:
    """Return the error for a tensor that cannot be copied."""
    layout = _named(value.layout)
    where = f"on device {value.device}" + ("" if layout == "strided" else f", {layout}")
    return StepError(
        f"The function returned {join_key(key)!r} for {place()} {where}: its values cannot be read",
        hint="return a dense tensor of the CPU",
    )


def _collect(result: Any, above: Key, found: Leaves, place: Place) -> None:
    """Add the leaves below `above`."""
    for name, value in result.items():
        key = (*above, name) if type(name) is str else (*above, *_parts(name, place))
        if isinstance(value, torch.Tensor):
            if value.is_nested:
                raise not_plain(key, value, place)
            found[key] = value
        elif isinstance(value, Mapping) or (
            is_tensor_collection(value) and not is_non_tensor(value)
        ):
            _collect(value, key, found, place)
        else:
            found[key] = _number(key, value, place)


def _number(key: Key, value: Any, place: Place) -> Tensor:
    if isinstance(value, (np.ndarray, np.generic, bool, int, float, complex)):
        try:
            return torch.as_tensor(np.array(value) if isinstance(value, np.ndarray) else value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            pass  # text, objects, numbers that are too large
    raise StepError(
        f"The function returned {join_key(key)!r} for {place()} as {type(value).__name__}; "
        "expected a tensor",
        hint="text and objects cannot be stored: number them",
    )


def _parts(name: Any, place: Place) -> Key:
    if isinstance(name, tuple) and name and all(isinstance(part, str) for part in name):
        return name
    raise StepError(f"The function's result for {place()} has a leaf named {name!r}; expected text")


def _check_name(key: Key, leaves: Leaves, place: Place) -> None:
    try:
        check_key(key)
    except FormatError as error:
        raise StepError(
            f"The function returned a leaf {key!r:.80} for {place()}: {error.message}",
            hint="rename the leaf in the function",
        ) from error
    above = next((key[:n] for n in range(1, len(key)) if key[:n] in leaves), None)
    if key == ("next",) or (key[0] in _PLACES and len(key) > 1) or above:
        expected = "leaves below it" if key == ("next",) else f"a leaf {(above or key[:1])[-1]!r}"
        raise StepError(
            f"The function returned a leaf {join_key(key)!r} for {place()}; expected {expected}",
            hint="rename the leaf in the function",
        )


def _listed(keys: set[Key]) -> str:
    return ", ".join(sorted(map(join_key, keys)))


def _named(what: torch.dtype | torch.layout) -> str:
    return str(what).removeprefix("torch.")
