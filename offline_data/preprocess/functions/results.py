"""What a function returned, as leaves, held to what it returned first."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase

from offline_data.episodes.fields import Key, check_key, join_key
from offline_data.errors import FormatError, OfflineDataError
from offline_data.preprocess.errors import StepError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

Leaves: TypeAlias = "dict[Key, Tensor]"
Place: TypeAlias = Callable[[], str]
"""Says which row, block or episode it is, when a message needs it."""
Schema: TypeAlias = "dict[Key, tuple[str, tuple[int, ...]]]"
"""Name of the dtype and shape of a row of every leaf."""


def called(fn: Callable[[Any], Any], data: Any, place: Place) -> Any:
    """Call a function of the user's.

    Raises:
        StepError: What it raised, with its own traceback.
    """
    try:
        return fn(data)
    except OfflineDataError:
        raise
    except Exception as error:
        below = traceback.format_exception(type(error), error, _below(error))
        raise StepError(
            f"The function failed on {place()}: {type(error).__name__}: {error}\n"
            + "".join(below).rstrip(),
            hint="finished tasks are kept",
        ) from error


def leaves_of(result: Any, place: Place) -> Leaves:
    """Return the leaves of what a function returned.

    Raises:
        StepError: It is no TensorDict, or has something in it that is no tensor.
    """
    if isinstance(result, TensorDictBase):
        return {_key(key): value for key, value in _items(result, place)}
    if isinstance(result, Mapping):
        return dict(_nested(result, (), place))
    what = "None (is a `return` missing?)" if result is None else f"a {type(result).__name__}"
    raise StepError(f"The function returned {what} for {place()}; expected a TensorDict")


def schema_of(leaves: Leaves, rows: int | None = None) -> Schema:
    """Describe rows of leaves.

    Args:
        leaves: One row, or `rows` of them.
        rows: How many rows the first axis has; None: there is no such axis.
    """
    skip = 0 if rows is None else 1
    return {
        key: (str(value.dtype).removeprefix("torch."), tuple(value.shape[skip:]))
        for key, value in leaves.items()
    }


def conform(schema: Schema, found: Schema, place: Place) -> None:
    """Hold a result to the first one.

    Raises:
        StepError: Leaves are missing or new, or have another dtype or shape.
    """
    if schema == found:
        return
    missing, surplus = schema.keys() - found.keys(), found.keys() - schema.keys()
    if missing or surplus:
        names = ", ".join(sorted(map(join_key, missing or surplus)))
        verb = "lacks" if missing else "has, unlike the first one,"
        raise StepError(f"The function's result for {place()} {verb} {names}")
    key = next(key for key in schema if schema[key] != found[key])
    first, here = (f"{dtype} {list(shape)}" for dtype, shape in (schema[key], found[key]))
    raise StepError(
        f"The function returned {join_key(key)!r} as {here} for {place()}, "
        f"and as {first} for the first row",
        hint="a leaf has one dtype and one shape in all rows: pad or cut it",
    )


def to_array(value: Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor as an array of the CPU; raises `StepError` where numpy has no such dtype."""
    try:
        return np.asarray(value.detach().cpu().numpy())
    except TypeError as error:
        raise StepError(
            f"The function returned {value.dtype}, which cannot be stored",
            hint="cast it to float32 or float16",
        ) from error


def _items(result: TensorDictBase, place: Place) -> Sequence[tuple[Any, Tensor]]:
    found = list(result.items(include_nested=True, leaves_only=True))
    for key, value in found:
        if type(value) is not torch.Tensor and not isinstance(value, torch.Tensor):
            raise _not_a_tensor(_key(key), value, place)
    return found


def _nested(value: Mapping[Any, Any], above: Key, place: Place) -> list[tuple[Key, Tensor]]:
    found: list[tuple[Key, Tensor]] = []
    for name, inner in value.items():
        key = (*above, *_key(name))
        if isinstance(inner, TensorDictBase):
            found += [((*key, *_key(k)), v) for k, v in _items(inner, place)]
        elif isinstance(inner, Mapping):
            found += _nested(inner, key, place)
        elif isinstance(inner, (torch.Tensor, np.ndarray, np.generic, bool, int, float)):
            found.append((key, torch.as_tensor(inner)))
        else:
            raise _not_a_tensor(key, inner, place)
    return found


def _key(key: Any) -> Key:
    parts = (key,) if isinstance(key, str) else tuple(key)
    try:
        return check_key(parts)
    except FormatError as error:
        raise StepError(error.message, hint="rename the leaf in the function") from error


def _not_a_tensor(key: Key, value: object, place: Place) -> StepError:
    return StepError(
        f"The function returned {join_key(key)!r} for {place()} as {type(value).__name__}; "
        "expected a tensor",
        hint="text and objects cannot be stored: number them",
    )


def _below(error: BaseException) -> Any:
    """Leave the frame of `called` out of a traceback."""
    trace = error.__traceback__
    return trace.tb_next if trace is not None and trace.tb_next is not None else trace
