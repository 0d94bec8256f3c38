"""The fields of states, checked: a state may come from a damaged or hostile file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase

from offline_data.base.errors import IntegrityError
from offline_data.base.json import MAX_COUNT, shown

if TYPE_CHECKING:
    from typing_extensions import Self

_WORDS = 624  # of the Mersenne Twister, torch's generator on the CPU


@dataclass(frozen=True)
class StateField:
    """A field of a state: what it is, and the attribute that it is saved from and loaded to."""

    expected: str  # what a value is, for messages
    holds: Callable[[Any], object]  # whether a value is that
    attribute: str | None = ""  # "": that of the field's name; None: the class saves and loads it
    optional: bool = False  # whether earlier states lack it; left out if the attribute is None

    def at(self, attribute: str | None) -> Self:
        """Return the field of another attribute."""
        return replace(self, attribute=attribute)

    def get(self, own: Any, name: str) -> Any:
        """Return the value to save."""
        return getattr(own, self.attribute or name)

    def check(self, own: Any, name: str, state: Mapping[str, Any], where: str) -> None:  # noqa: ARG002
        """Raise unless `put` takes a state."""
        if not self.holds(state[name]):
            raise wrong(state, where, name, self.expected)

    def put(self, own: Any, name: str, state: Mapping[str, Any]) -> None:
        """Load the field of a state that was checked."""
        setattr(own, self.attribute or name, state[name])


Rule: TypeAlias = "tuple[str, object, str]"
"""A field, whether its value fits to those of others, and what is expected."""


def check(
    state: Any,
    where: str,
    fields: Mapping[str, StateField],
    rules: Iterable[Rule] = (),
    own: Any = None,
) -> Mapping[str, Any]:
    """Return a state, of `where`, if its fields are right and then the rules hold, or raise.

    It may have other fields. Raises `IntegrityError` for one that is missing or not as expected.
    """
    if not isinstance(state, Mapping):
        raise IntegrityError(f"The state of {where} is {_describe(state)}; expected a dict")
    for name, field in fields.items():
        if name in state:
            field.check(own, name, state, where)
        elif not field.optional:
            raise IntegrityError(f"The state of {where} is damaged: {name} is missing")
    for name, fits, expected in rules:
        if not fits:
            raise wrong(state, where, name, expected)
    return state


def wrong(state: Mapping[str, Any], where: str, name: str, expected: str) -> IntegrityError:
    """Return the error for a field."""
    found = _describe(state.get(name))
    return IntegrityError(
        f"The state of {where} is damaged: {name} is {found}; expected {expected}"
    )


def or_none(field: StateField) -> StateField:
    """Return a field that may be None."""
    return replace(field, holds=lambda value: value is None or field.holds(value))


def optional(field: StateField) -> StateField:
    """Return a field that a state may lack."""
    return replace(field, optional=True)


def integer(low: int = 0, high: int = MAX_COUNT) -> StateField:
    """Return the field of an integer in `[low, high]`."""

    def holds(value: Any) -> bool:
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        return whole and bool(low <= value <= high)

    return StateField(f"an integer from {low} to {high}", holds)


def each(field: StateField) -> StateField:
    """Return the field of a list of values of a field."""

    def holds(values: Any) -> bool:
        return isinstance(values, list | tuple) and all(map(field.holds, values))

    return StateField(f"a list, each {field.expected}", holds)


def tensor(dtype: torch.dtype | tuple[torch.dtype, ...], *shape: int | None) -> StateField:
    """Return the field of a tensor; None in `shape`: any size."""
    dtypes = dtype if isinstance(dtype, tuple) else (dtype,)
    sizes = ["any" if size is None else size for size in shape]

    def holds(value: Any) -> bool:
        fits = isinstance(value, torch.Tensor) and value.dtype in dtypes
        fits = fits and value.ndim == len(shape)
        return fits and all(w in (None, n) for n, w in zip(value.shape, shape, strict=True))

    return StateField(f"a tensor of {' or '.join(map(str, dtypes))} and shape {sizes}", holds)


def row_numbers(count: int) -> StateField:
    """Return the field of row numbers, int64 `[n]` in `[0, count)`."""
    of_rows = tensor(torch.int64, None)

    def holds(value: Any) -> bool:
        fits = bool(of_rows.holds(value))
        return fits and (not len(value) or 0 <= int(value.min()) <= int(value.max()) < count)

    return StateField(f"row numbers below {count}, {of_rows.expected}", holds)


def _is_number(value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool) and value <= 2**53  # exact
    return (whole or isinstance(value, float)) and 0 <= value < math.inf


ANY = StateField("a value", lambda _: True)
COUNT = integer()
NUMBER = StateField("a finite number, 0 or more", _is_number)
FLAG = StateField("True or False", lambda value: isinstance(value, bool))
TABLE = StateField("a dict", lambda value: isinstance(value, Mapping))
LIST = StateField("a list", lambda value: isinstance(value, list | tuple))


def _is_generator(value: Any) -> bool:
    if not (isinstance(value, torch.Tensor) and value.ndim == 1 and value.dtype is torch.uint8):
        return False
    state = value.cpu().clone()
    try:
        torch.Generator().set_state(state)
    except (RuntimeError, TypeError):
        return False
    left, _, following = state[8:20].view(torch.int32).tolist()
    return bool(left + following <= _WORDS + 1)  # torch reads beyond its words otherwise


class _Generator(StateField):
    """The state of `_generator`, or of torch's global one if the object uses that."""

    def get(self, own: Any, name: str) -> Any:
        if name == GLOBAL:
            unseeded = getattr(own, "_unseeded", own._generator is None)
            return torch.get_rng_state() if unseeded else None
        return None if own._generator is None else own._generator.get_state()

    def put(self, own: Any, name: str, state: Mapping[str, Any]) -> None:
        if state[name] is not None:
            if name == OWN and own._generator is None:
                own._generator = torch.Generator()
            # A copy: `set_state` crashes on tensors that start within another tensor's storage.
            (own._generator or torch.default_generator).set_state(state[name].cpu().clone())


OWN, GLOBAL = "generator", "global_generator"
"""Fields of an object's own random state, or of torch's."""

GENERATOR = _Generator("the state of a generator of cpu", _is_generator, optional=True)
RANDOM_STATE: dict[str, StateField] = {OWN: GENERATOR, GLOBAL: GENERATOR}
"""The random state of an object with a `_generator`, which is None if torch's is used, unless it says so
by `_unseeded`. States of earlier versions may lack both."""


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} and shape {list(value.shape)}"
    if isinstance(value, TensorDictBase):
        return f"a TensorDict of {list(value.batch_size)}"
    if value is None or isinstance(value, bool | int | float | str):
        return shown(value)
    return f"a {type(value).__name__}"
