"""The revision of files that are the user's own: it changes when they do."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from offline_data.errors import AccessError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def fingerprint(base: Path, files: Iterable[Path], read: Iterable[Path] = ()) -> str:
    """Return `local-<12 hex>` for the present state of some files.

    Args:
        base: What their names are relative to; a file alone is named by its last part.
        files: Files whose name, size and time of change count, but not their content.
        read: Files whose content counts too.

    Raises:
        AccessError: A file cannot be looked at.
    """
    digest = hashlib.sha256()
    try:
        for file in sorted(files):
            state = file.stat()
            name = file.relative_to(base).as_posix() if file != base else file.name
            digest.update(f"{name}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
        for file in read:
            digest.update(file.read_bytes())
    except OSError as error:
        raise AccessError(f"{error.filename or base} cannot be read: {error.strerror}") from error
    return f"local-{digest.hexdigest()[:12]}"
