"""`file://` URLs: files that are on this machine already."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from offline_data.errors import UsageError


def path_of_url(url: str) -> Path:
    """Return the path of a `file://` URL; raises `UsageError` where it names another machine.

    Example:
        >>> path_of_url("file:///data/a%20b.hdf5").as_posix()
        '/data/a b.hdf5'
    """
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise UsageError(f"{url!r} is not a file of this machine; expected file:///PATH")
    return Path(os.fsdecode(unquote_to_bytes(parts.path)))
