"""The names a pickle may ask for, each standing for a constructor of ours: never an import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_KEY_PARTS = 64

ONLY = "only arrays, numbers, text, bytes and plain containers are read"
"""What is said of everything else."""

LEAVES: frozenset[type] = frozenset(
    {bool, bytearray, bytes, complex, float, int, str, type(None)}
    | {np.bool_, np.bytes_, np.datetime64, np.str_, np.timedelta64, np.void}
    | {np.dtype(code).type for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"]}
)
"""Types of plain values that hold no others."""


@dataclass(frozen=True, eq=False)
class Name:
    """What a pickle gets for a name that it may ask for."""

    full: str
    """Module and name, as the pickle gives them."""
    make: Callable[..., Any] | None = None
    """Our constructor, or None where the name only stands among the arguments of others."""

    def call(self, args: object) -> Any:
        """Build the value; raises `ValueError` where it cannot be built from these arguments."""
        if self.make is None or type(args) is not tuple:
            raise ValueError(f"it calls {self.full} itself")
        try:
            return self.make(*args)
        except (TypeError, OverflowError) as error:
            raise ValueError(f"it calls {self.full} with arguments not meant for it") from error


class Budget:
    """Bytes that values may be copied into beyond those that the pickle itself spells out.

    A pickle can refer to one long value many times, and let each be copied. What numpy and Python
    write copies each value at most three times.
    """

    def __init__(self, size: int) -> None:
        self._left = 4 * size

    def spend(self, count: int) -> None:
        """Count a copy of so many bytes or items; raises `ValueError` when it is one too many."""
        self._left -= count
        if self._left < 0:
            raise ValueError("its values copied take many times its own bytes")


def plain_names(budget: Budget) -> dict[tuple[str, str], Name]:
    """Return the names of plain values by module and name, as each protocol writes them."""
    makers = _Plain(budget)
    made: dict[str, Callable[..., Any]] = {
        "collections.OrderedDict": makers.ordered_dict,
        "_codecs.encode": makers.encode,
    }
    for builtins in ("builtins", "__builtin__"):
        made[f"{builtins}.bytearray"] = makers.mutable_bytes
        made[f"{builtins}.bytes"] = _no_bytes
        made[f"{builtins}.complex"] = _complex
        made[f"{builtins}.frozenset"] = makers.frozen_set
        made[f"{builtins}.set"] = makers.plain_set
    return {_split(full): Name(full, make) for full, make in made.items()}


def _split(full: str) -> tuple[str, str]:
    module, _, name = full.rpartition(".")
    return module, name


class _Plain:
    """Constructors of the values whose size their arguments decide."""

    def __init__(self, budget: Budget) -> None:
        self._spend = budget.spend

    def ordered_dict(self, pairs: object = ()) -> dict[Any, Any]:
        return fill_dict({}, [part for pair in self._items(pairs) for part in _pair(pair)])

    def plain_set(self, items: object = ()) -> set[Any]:
        return set(check_keys(self._items(items)))

    def frozen_set(self, items: object = ()) -> frozenset[Any]:
        return frozenset(check_keys(self._items(items)))

    def mutable_bytes(self, content: object = b"", encoding: object = None) -> bytearray:
        if encoding is not None:
            content = self.encode(content, encoding)
        if type(content) is not bytes:
            raise TypeError
        self._spend(len(content))
        return bytearray(content)

    def encode(self, text: object, encoding: object) -> bytes:
        """Return the bytes that protocols before 3 spell as text of the first 256 characters."""
        if type(text) is not str or encoding not in ("latin1", "latin-1"):
            raise TypeError
        self._spend(len(text))
        return text.encode("latin-1")

    def _items(self, items: object) -> Sequence[Any]:
        if isinstance(items, (list, tuple)):
            self._spend(len(items))
            return items
        raise TypeError


def _no_bytes() -> bytes:
    """Return `b""`, which protocols before 3 spell as a call."""
    return b""


def _complex(real: object, imaginary: object) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise TypeError
    return complex(real, imaginary)


def fill_dict(target: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    """Add keys and values, which take turns in `items`, and return `target`.

    Raises:
        ValueError: A key without a value, or one that `check_keys` refuses.
    """
    if len(items) % 2:
        raise ValueError("it has a key without a value")
    keys = items[::2]
    check_keys(keys)
    target.update(zip(keys, items[1::2], strict=True))
    return target


def check_keys(keys: Iterable[Any]) -> Iterable[Any]:
    """Return keys of a dict or items of a set, if each can be hashed in a bounded time.

    Tuples may share parts, so that one of 50 parts takes 2 ** 50 steps; and whole numbers that
    collide can be chosen freely where they may be long.

    Raises:
        ValueError: One is neither text, bytes, number nor None, nor a short tuple of those.
    """
    for key in keys:
        if type(key) is not str:
            _check_key(key)
    return keys


def _check_key(key: object) -> None:
    waiting, left = [key], _KEY_PARTS
    while waiting:
        part = waiting.pop()
        left -= len(part) if type(part) is tuple else 1
        if left < 0 or (type(part) is int and part.bit_length() > 64):
            raise ValueError(f"a key has more than {_KEY_PARTS} parts, or 64 bits")
        if type(part) is tuple:
            waiting.extend(part)
        elif type(part) not in LEAVES or type(part) in {bytearray, np.void}:
            raise ValueError(f"a {type(part).__name__} is a key")


def _pair(pair: object) -> Sequence[Any]:
    if isinstance(pair, (list, tuple)) and len(pair) == 2:
        return pair
    raise TypeError
