"""Text leaves of a mixture: their codes mean something only in one vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.buffers.mixture.leaves import renamed
from offline_data.episodes.fields import Key, join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from offline_data.buffers.mixture.leaves import Rename


def check_texts(differing: Mapping[Key, tuple[int, int]], keys: Container[Key]) -> None:
    """Raise `UsageError` where one code means different texts in different members.

    Args:
        differing: See `differing_texts`.
        keys: Leaves of batches that have rows of all members.
    """
    for key, (first, second) in differing.items():
        if key in keys:
            raise UsageError(
                f"The text leaf {join_key(key)!r} has codes of different vocabularies in "
                f"members {first} and {second}",
                hint="leave it out: keys=[…]",
            )


def differing_texts(
    members: Sequence[Any], renames: Sequence[Rename | None]
) -> dict[Key, tuple[int, int]]:
    """Find text leaves of which members have different vocabularies, with two such members.

    Args:
        members: Datasets know their vocabularies, and mixtures those of their members; what codes
            mean in a buffer that grows is not known.
        renames: New names of a member's leaves, by its number.
    """
    known: dict[Key, tuple[int, list[str]]] = {}
    found: dict[Key, tuple[int, int]] = {}
    for number, (member, rename) in enumerate(zip(members, renames, strict=True)):
        for key, words in _named(texts_of(member), rename, number).items():
            first, before = known.setdefault(key, (number, words))
            if words != before:
                found.setdefault(key, (first, number))
    return found


def texts_of(member: Any) -> dict[Key, list[str]]:
    """Return the vocabularies of a member's text leaves, by the key that its batches have."""
    if not hasattr(member, "members"):
        return dict(getattr(member, "_words", {}))
    found: dict[Key, list[str]] = {}
    for number, inner in enumerate(member.members):
        found |= _named(texts_of(inner), member._renames[number], number)
    return found


def _named(texts: dict[Key, list[str]], rename: Rename | None, member: int) -> dict[Key, list[str]]:
    """Give vocabularies the keys that the mixture has for them."""
    words = list(texts.values())
    return {name: words[number] for name, number in renamed(texts, rename, member).items()}
