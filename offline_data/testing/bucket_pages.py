"""What the servers of buckets have in common: names below a prefix, page by page, opaque tokens."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def page_of(
    names: Iterable[str], prefix: str, delimiter: str, token: str | None, size: int
) -> tuple[list[str], str | None]:
    """Return a page of names and of folders, and the token of the next page, None after the last.

    Args:
        names: All names of the bucket.
        prefix: What the names of the page begin with.
        delimiter: What ends a folder; empty: there are none.
        token: Of an earlier page, or None for the first; it has characters that a query must quote.
        size: Names and folders in a page.

    Example:
        >>> page_of(["b", "a/1", "a/2"], "", "/", None, 1)
        (['a/'], 'Pj4+Pz8/MQ==')
        >>> page_of(["b", "a/1", "a/2"], "", "/", "Pj4+Pz8/MQ==", 1)
        (['b'], None)
    """
    below = sorted(name for name in names if name.startswith(prefix))
    rows = list(dict.fromkeys(_until(name, prefix, delimiter) for name in below))
    start = int(base64.b64decode(token).rpartition(b"?")[2]) if token else 0
    stop = start + size
    following = base64.b64encode(f">>>???{stop}".encode()).decode()
    return rows[start:stop], following if stop < len(rows) else None


def _until(name: str, prefix: str, delimiter: str) -> str:
    """Cut a name after the first delimiter behind the prefix, as listings of folders do."""
    head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
    return prefix + head + found if found else name


def md5(content: bytes) -> bytes:
    """Return the 16 bytes that both kinds of host know contents by."""
    return hashlib.md5(content, usedforsecurity=False).digest()
