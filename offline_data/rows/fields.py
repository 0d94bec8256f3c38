"""The fields of a state, checked: a state may come from a damaged or hostile file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from offline_data.base.errors import IntegrityError
from offline_data.base.json import MAX_COUNT, shown

_WORDS = 624  # of the Mersenne Twister, torch's generator on the CPU


class StateFields:
    """Reads the fields of a state; every method raises `IntegrityError` for one that is not as expected.

    Args:
        state: The state, which may be anything.
        where: Whose it is, for messages.

    Example:
        >>> StateFields({"epoch": 3}, "sampler").integer("epoch")
        3
        >>> StateFields({"epoch": -3}, "sampler").integer("epoch")
        Traceback (most recent call last):
        offline_data.errors.IntegrityError: The state of sampler is damaged: epoch is -3; expected ...
    """

    def __init__(self, state: Any, where: str) -> None:
        self._where = where
        if not isinstance(state, Mapping):
            raise IntegrityError(
                f"The state of {where} is {describe_value(state)}; expected a dict"
            )
        self._state = state

    def has(self, name: str) -> bool:
        """Return True if there is a field."""
        return name in self._state

    def get(self, name: str) -> Any:
        """Return a field of any kind."""
        if name not in self._state:
            raise IntegrityError(f"The state of {self._where} is damaged: {name} is missing")
        return self._state[name]

    def wrong(self, name: str, expected: str) -> IntegrityError:
        """Return the error for a field."""
        found = describe_value(self._state.get(name))
        return IntegrityError(
            f"The state of {self._where} is damaged: {name} is {found}; expected {expected}"
        )

    def check(self, name: str, fits: object, expected: str) -> None:
        """Raise unless `fits`."""
        if not fits:
            raise self.wrong(name, expected)

    def only(self, *names: str) -> None:
        """Raise unless there are exactly these fields."""
        for name in self._state.keys() ^ {*names}:
            self.check(name, name in names and name in self._state, f"one of {', '.join(names)}")

    def integer(self, name: str, high: int = MAX_COUNT, *, low: int = 0) -> int:
        """Return an integer in `[low, high]`."""
        value = self.get(name)
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        self.check(name, whole and low <= value <= high, f"an integer from {low} to {high}")
        return int(value)

    def number(self, name: str) -> float:
        """Return a finite number, not negative."""
        value = self.get(name)
        real = isinstance(value, int | float) and not isinstance(value, bool)
        self.check(name, real and 0 <= value < math.inf, "a finite number, 0 or more")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return True or False."""
        value = self.get(name)
        self.check(name, isinstance(value, bool), "True or False")
        return bool(value)

    def items(self, name: str, count: int | None = None) -> list[Any]:
        """Return a list or tuple, of `count` items unless it is None."""
        value = self.get(name)
        fits = isinstance(value, list | tuple) and count in (None, len(value))
        self.check(name, fits, "a list" if count is None else f"a list of {count}")
        return list(value)

    def integers(self, name: str, *, low: int = 0) -> tuple[int, ...]:
        """Return a list of integers of at least `low`, such as a shape."""
        values = self.items(name)
        fits = all(type(value) is int and low <= value <= MAX_COUNT for value in values)
        self.check(name, fits, f"integers of {low} or more")
        return tuple(values)

    def mapping(self, name: str) -> dict[Any, Any]:
        """Return a dict."""
        value = self.get(name)
        self.check(name, isinstance(value, Mapping), "a dict")
        return dict(value)

    def mappings(self) -> list[tuple[Any, Mapping[Any, Any]]]:
        """Return the fields that are dicts, and their names."""
        return [(name, value) for name, value in self._state.items() if isinstance(value, Mapping)]

    def tensor(self, name: str, dtype: torch.dtype, shape: tuple[int | None, ...]) -> Tensor:
        """Return a tensor; None in `shape`: any size."""
        value = self.get(name)
        fits = isinstance(value, torch.Tensor) and value.dtype == dtype
        fits = fits and len(value.shape) == len(shape)
        fits = fits and all(w in (None, n) for n, w in zip(value.shape, shape, strict=True))
        sizes = ["any" if size is None else size for size in shape]
        self.check(name, fits, f"a tensor of {dtype} and shape {sizes}")
        found: Tensor = value
        return found

    def rows(self, name: str, count: int) -> Tensor:
        """Return row numbers, int64 `[n]` in `[0, count)`."""
        rows = self.tensor(name, torch.int64, (None,))
        fits = not len(rows) or (int(rows.min()) >= 0 and int(rows.max()) < count)
        self.check(name, fits, f"row numbers below {count}")
        return rows

    def generator(self, name: str, generator: torch.Generator) -> Tensor:
        """Return a state that `generator.set_state` takes, copied."""
        found = self.get(name)
        kind = f"the state of a generator of {generator.device}"
        self.check(name, isinstance(found, torch.Tensor) and found.ndim == 1, kind)
        self.check(name, found.dtype is torch.uint8, kind)
        # A copy: `set_state` crashes on tensors that start within another tensor's storage.
        state: Tensor = found.cpu().clone()
        try:
            torch.Generator(generator.device).set_state(state)
        except (RuntimeError, TypeError) as error:
            raise self.wrong(name, kind) from error
        if generator.device.type == "cpu":  # torch reads beyond its words if these do not fit
            left, _, following = state[8:20].view(torch.int32).tolist()
            self.check(name, left + following <= _WORDS + 1, kind)
        return state


def check_plain(value: Any, name: str) -> None:
    """Raise `IntegrityError` unless a part of a state consists of plain values, which compare."""
    if isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            check_plain(part, name)
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise IntegrityError(f"The state is damaged: {name} has {describe_value(value)}")


def describe_value(value: Any) -> str:
    """Describe a value in a message, shortly."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} and shape {list(value.shape)}"
    if isinstance(value, TensorDictBase):
        return f"a TensorDict of {list(value.batch_size)}"
    if value is None or isinstance(value, bool | int | float | str):
        return shown(value)
    return f"a {type(value).__name__}"
