"""The leaves of members' batches: under one name, of one shape and type, or an error that says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from tensordict import TensorDictBase, is_non_tensor

from offline_data.buffers.keys import KeyLike, as_key, select_keys
from offline_data.episodes.fields import Key, join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

INDEX: Key = ("index",)
SOURCE: Key = ("source",)

Rename: TypeAlias = "Mapping[Any, KeyLike]"
"""`{key in the mixture: key in the member}`, leaves or parents of leaves."""


@dataclass(frozen=True)
class Leaf:
    """One leaf of a mixture's batches."""

    key: Key
    """Its key in the mixture."""
    dtype: torch.dtype
    """Its item type there."""
    shape: torch.Size
    """Shape of one row."""


@dataclass(frozen=True)
class Recipe:
    """Positions of a mixture's leaves among those of one member."""

    keys: tuple[Key, ...]
    """The member's own keys, as its batches have them."""
    positions: tuple[int, ...]
    """Number among them of each leaf of the mixture."""
    own: tuple[Key, ...]
    """The member's key of each leaf of the mixture."""
    dtypes: tuple[torch.dtype, ...]
    """The member's item type of each leaf of the mixture."""
    casts: bool
    """Whether some of them are other types in the mixture."""


def flat(batch: Any, member: int) -> tuple[tuple[Key, ...], list[Tensor]]:
    """Return the leaves of a batch as keys and tensors.

    Raises:
        UsageError: It is no TensorDict, or a leaf of it is no tensor.
    """
    if not isinstance(batch, TensorDictBase):
        raise UsageError(
            f"The batches of member {member} are {type(batch).__name__}s; a mixture takes "
            "TensorDicts",
            hint="give what changes the kind of batches to the mixture: transform=…",
        )
    keys: list[Key] = []
    leaves: list[Tensor] = []
    _flatten(batch, (), keys, leaves, member)
    return tuple(keys), leaves


def _flatten(
    batch: TensorDictBase, above: Key, keys: list[Key], leaves: list[Tensor], member: int
) -> None:
    for name, value in batch.items():
        if isinstance(value, torch.Tensor):
            keys.append((*above, name))
            leaves.append(value)
        elif isinstance(value, TensorDictBase) and not is_non_tensor(value):
            _flatten(value, (*above, name), keys, leaves, member)
        else:
            raise UsageError(
                f"The leaf {join_key((*above, name))!r} of member {member} is not a tensor",
                hint="leave out decode_text, or the leaf: keys=[…] of the member",
            )


def renamed(keys: Iterable[Key], rename: Rename | None, member: int) -> dict[Key, int]:
    """Return the names that a mixture has for a member's leaves, each with its number.

    A renaming of a root leaf holds below `next` too, unless that has one of its own.

    Raises:
        UsageError: Two leaves that get one name.

    Example:
        >>> renamed([("obs",), ("next", "obs")], {"state": "obs"}, 0)
        {('state',): 0, ('next', 'state'): 1}
    """
    heads = _heads(rename or {})
    out: dict[Key, int] = {}
    for number, key in enumerate(keys):
        name = _new_name(key, heads)
        if name in out:
            raise UsageError(f"Two leaves of member {member} are called {join_key(name)!r}")
        out[name] = number
    return out


def check_rename(known: Sequence[Key], rename: Rename | None, member: int) -> None:
    """Raise `UsageError` where a leaf is to be renamed that is not there."""
    _select(known, (rename or {}).values(), member)


def _heads(rename: Rename) -> dict[Key, Key]:
    """Return the mixture's key by the member's, those below `next` included."""
    heads: dict[Key, Key] = {}
    for new, old in rename.items():
        heads.setdefault(("next", *as_key(old)), ("next", *as_key(new)))
    heads.update({as_key(old): as_key(new) for new, old in rename.items()})
    return heads


def _new_name(key: Key, heads: Mapping[Key, Key]) -> Key:
    for length in range(len(key), 0, -1):
        if key[:length] in heads:
            return heads[key[:length]] + key[length:]
    return key


def _select(known: Sequence[Key], wanted: Iterable[KeyLike], member: int) -> list[Key]:
    try:
        return select_keys(known, wanted)
    except UsageError as error:
        raise UsageError(f"Member {member}: {error.message}", hint=error.hint) from error


def chosen(names: Mapping[Key, int], keys: Sequence[Key] | None, member: int) -> list[Key]:
    """Return the names of a member's leaves that a mixture takes."""
    return list(names) if keys is None else _select(list(names), keys, member)


def without_some(names: Mapping[int, list[Key]], keys: Iterable[Key]) -> dict[int, list[Key]]:
    """Leave out those of `keys` that only some members have: views do, where a dataset does not."""
    partly = {key for key in keys if not all(key in own for own in names.values())}
    return {member: [key for key in own if key not in partly] for member, own in names.items()}


def check_common(names: Mapping[int, Sequence[Key]]) -> None:
    """Raise `UsageError` where members do not have the same leaves."""
    everywhere = set.intersection(*(set(keys) for keys in names.values()))
    extra = {
        member: [join_key(key) for key in keys if key not in everywhere]
        for member, keys in names.items()
    }
    if any(extra.values()):
        told = "; ".join(f"member {m} has {', '.join(keys)}" for m, keys in extra.items() if keys)
        raise UsageError(
            f"Some leaves are not in all members: {told}",
            hint="keys=[…] takes those named, rename=[…] gives a member's leaves other names",
        )


def agreed(key: Key, found: Mapping[int, Tensor], *, cast: bool) -> Leaf:
    """Return what a leaf is in the mixture.

    Args:
        key: Its name there.
        found: A batch `[n, …]` of it by member.
        cast: Whether item types may differ: then it is the smallest that holds all.

    Raises:
        UsageError: Shapes that differ, or item types without `cast`.
    """
    shapes = {member: tuple(leaf.shape[1:]) for member, leaf in found.items()}
    if len(set(shapes.values())) > 1:
        raise UsageError(
            f"The leaf {join_key(key)!r} has rows of different shapes: {_told(shapes)}",
            hint="leave it out by keys=[…], or bring it to one shape by a member's transform",
        )
    dtypes = {member: leaf.dtype for member, leaf in found.items()}
    dtype = next(iter(dtypes.values()))
    for other in dtypes.values():
        dtype = torch.promote_types(dtype, other)
    if len(set(dtypes.values())) > 1 and not cast:
        raise UsageError(
            f"The leaf {join_key(key)!r} has different item types: {_told(dtypes)}",
            hint=f"cast=True makes it {dtype}".replace("torch.", ""),
        )
    return Leaf(key, dtype, torch.Size(next(iter(shapes.values()))))


def _told(values: Mapping[int, Any]) -> str:
    return ", ".join(
        f"member {member} {str(value).removeprefix('torch.')}" for member, value in values.items()
    )
