"""Revision of the user's own files: it changes when they do."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from pathlib import Path

from offline_data.base.errors import AccessError

WHOLE = 64 << 20  # maximum total size of files that are hashed completely
SAMPLED = "-sampled"  # suffix of the revision of larger files
_BUDGET = 4 << 20  # bytes read of larger files
_BLOCK = 64 << 10
_LEAST = 4 << 10  # minimum size of a block read of a file, of which there are two


def fingerprint(base: Path, files: Iterable[Path]) -> str:
    """Return `local-<12 hex>` for the names and contents of some regular files.

    If they exceed `WHOLE` bytes in total, contents are identified by size, modification time, first
    and last block of each file and further blocks at even distances; `SAMPLED` is then appended. A
    CRC-32 of each block detects changes at half the cost of a cryptographic hash; it does not
    protect against deliberate collisions. Names are relative to `base`.

    Raises `AccessError` if a file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        states = [(file, file.stat()) for file in sorted(files)]
        whole = sum(state.st_size for _, state in states) <= WHOLE
        share = _BUDGET // max(1, len(states))
        for file, state in states:
            name = file.relative_to(base).as_posix() if file != base else file.name
            time = "" if whole else f"\0{state.st_mtime_ns}"
            digest.update(f"{name}\0{state.st_size}{time}\n".encode(errors="surrogateescape"))
            with file.open("rb", buffering=0) as stream:
                for begin, size in _blocks(state.st_size, state.st_size if whole else share):
                    stream.seek(begin)
                    digest.update(zlib.crc32(stream.read(size)).to_bytes(4, "big"))
    except OSError as error:
        raise AccessError(f"{error.filename or base} cannot be read: {error.strerror}") from error
    return f"local-{digest.hexdigest()[:12]}{'' if whole else SAMPLED}"


def _blocks(size: int, budget: int) -> list[tuple[int, int]]:
    """Return the ranges `(begin, bytes)` to read about `budget` bytes of a file of `size`.

    Example:
        >>> _blocks(100, 100), _blocks(1 << 20, 10_000)
        ([(0, 100)], [(0, 5000), (1043576, 5000)])
    """
    if size <= max(budget, 2 * _LEAST):
        return [(begin, min(_BLOCK, size - begin)) for begin in range(0, size, _BLOCK)]
    count = max(2, budget // _BLOCK)
    block = max(_LEAST, min(_BLOCK, budget // count))
    return [((size - block) * number // (count - 1), block) for number in range(count)]
