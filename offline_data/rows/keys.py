"""Feature keys, in the forms that users write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from offline_data.base.errors import UnknownLeafError, UsageError
from offline_data.base.ids import unknown
from offline_data.episode import Key, join_key, split_key

KeyLike: TypeAlias = str | tuple[str, ...]
"""A key as users write it: `"action"`, `("next", "reward")`, `"next/reward"`, `"next.reward"`."""

NestedKey: TypeAlias = str | tuple[str, ...]
"""A tensordict key; a string is a single name, see `path_of`."""


def as_key(key: KeyLike) -> Key:
    """Parse a key in any of its forms.

    Example:
        >>> as_key("next.reward") == as_key("next/reward") == as_key(("next", "reward"))
        True
    """
    return split_key(key) if isinstance(key, str) else tuple(key)


def as_keys(keys: Iterable[KeyLike]) -> tuple[Key, ...]:
    """Parse several keys; a string is one key."""
    return tuple(as_key(key) for key in ([keys] if isinstance(keys, str) else keys))


def path_of(key: NestedKey) -> Key:
    """Return a tensordict key as a tuple, without splitting names."""
    return (key,) if isinstance(key, str) else tuple(key)


def select_keys(known: Sequence[Key], wanted: Iterable[KeyLike]) -> list[Key]:
    """Return the known keys selected by `wanted`, in their original order.

    A key may be a parent, which selects all features below it; a string is one key. Raises
    `UsageError` for a key that is neither a feature nor a parent of features.

    Example:
        >>> select_keys([("action",), ("next", "reward"), ("next", "done")], ["next"])
        [('next', 'reward'), ('next', 'done')]
    """
    heads = as_keys(wanted)
    for head in heads:
        if not any(key[: len(head)] == head for key in known):
            names = [join_key(leaf) for leaf in known]
            raise unknown(UsageError, "There is no feature", join_key(head), names, count=3)
    return [key for key in known if any(key[: len(head)] == head for head in heads)]


def as_index(key: Key) -> str:
    """Return what follows the name of a batch that is indexed: `["next", "reward"]`."""
    return f"[{', '.join(map(json.dumps, key))}]"


def no_feature(key: Key, known: Iterable[Key]) -> UnknownLeafError:
    """Return the error for `buffer[key]`, whose hint is what to write instead."""
    shown = {join_key(one): as_index(one) for one in known}
    problem, every = "There is no feature", f"there are {', '.join(shown.values())}"
    kind, name = UnknownLeafError, "/".join(key)
    return unknown(kind, problem, name, shown, hint=every, shown=shown.__getitem__, listed=False)
