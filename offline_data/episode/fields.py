"""Names of features: nested keys, their text form, and the keys every dataset has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from offline_data.base.errors import FormatError
from offline_data.base.files import is_unicode
from offline_data.base.plurals import plural

Key: TypeAlias = tuple[str, ...]
"""A nested key: `("next", "reward")` is `batch["next", "reward"]`."""

REWARD: Key = ("next", "reward")
TERMINATED: Key = ("next", "terminated")
TRUNCATED: Key = ("next", "truncated")
DONE: Key = ("next", "done")

ACTION_ROOTS = frozenset({"action", "input_ids", "chosen_data", "rejected_data"})
"""First parts of keys of what a policy puts out, one of which every dataset has: actions or tokens."""

RESERVED_ROOTS = frozenset({"next", "done", "terminated", "truncated", "index", "episode"})
"""First parts of keys that TED reserves, so that no observation column can have them."""

Autoreset: TypeAlias = Literal["next_step", "same_step"]
"""Mode of a vector environment with automatic resets whose rows need a correction; see `autoreset`."""

EPISODE_COLUMNS = ("start", "length", "return", "terminated", "truncated", "final_observation")
"""Columns of every episode table; no source can give another column of such a name."""


@dataclass(frozen=True, order=True)
class Dropped:
    """A feature that could not be kept."""

    key: str
    """The feature as the source names it, parts joined by `/`."""
    reason: str
    """Why, in a sentence for the user."""


@dataclass(frozen=True)
class Skipped:
    """An episode, or a piece of a file, that could not be read and was left out."""

    where: str
    """The file and the place in it."""
    reason: str
    """The defect, as in the error without `--skip-bad-episodes`."""

    @classmethod
    def of(cls, path: Path, error: FormatError, place: str = "") -> Skipped:
        """Return what an error about a file says, without its folder, which is this machine's."""
        return cls(f"{path.name}{place}", error.message.replace(str(path), path.name))


def next_of(key: Key) -> Key:
    """Return the TED key of the value of a root feature after the action: `("next", *key)`."""
    return ("next", *key)


def join_key(key: Key) -> str:
    """Return the text form of a nested key, which `split_key` reads: `next/reward`.

    Example:
        >>> join_key(("info", "v1.0")), join_key(("v1.0",))
        ('info/v1.0', '/v1.0')
    """
    text = "/".join(key)
    return f"/{text}" if len(key) == 1 and "." in text else text


def split_key(text: str) -> Key:
    """Read a nested key from its text form; `/` separates, or if there is none, `.`.

    Example:
        >>> split_key("next.reward"), split_key("info/v1.0"), split_key("/v1.0")
        (('next', 'reward'), ('info', 'v1.0'), ('v1.0',))
    """
    return tuple(text.removeprefix("/").split("/") if "/" in text else text.split("."))


_LONGEST_NAME = 240  # bytes of a file name, minus `.memmap` and a suffix


def check_key(key: Key) -> Key:
    """Return `key` if its parts can be file names, which they become; else raise `FormatError`."""
    for part in key:
        odd = part in {"", ".", ".."} or not is_unicode(part) or any(c in part for c in "/\\\0\n")
        if odd or len(part.encode()) > _LONGEST_NAME:
            raise FormatError(
                f"A feature is named {part[:40]!r} ({plural(len(part), 'character')}): that cannot be a file name",
                hint="rename it in the source, or open an issue with the dataset's id",
            )
    return key
