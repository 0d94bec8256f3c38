"""Paths of tokenizers on this machine, in `ROOT/.tokenizers/SHA256`: manifests have no paths."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from offline_data.base.errors import OfflineDataError
from offline_data.base.files import write_user_file
from offline_data.base.json import read_whole

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_LONGEST = 1 << 14


def remember_tokenizer(root: Path, sha256: str, place: str) -> None:
    """Record where a tokenizer is; without effect if the root cannot be written."""
    if find_tokenizer(root, sha256) != place:
        with suppress(OfflineDataError):
            write_user_file(_file(root, sha256), place.encode())


def find_tokenizer(root: Path, sha256: object) -> str | None:
    """Return the recorded path of a tokenizer, which may have changed or be gone; None: not recorded."""
    if not isinstance(sha256, str) or not _SHA256.match(sha256):
        return None
    with suppress(OfflineDataError, UnicodeDecodeError):
        return read_whole(_file(root, sha256), _LONGEST).decode() or None
    return None


def _file(root: Path, sha256: str) -> Path:
    return root / ".tokenizers" / sha256
