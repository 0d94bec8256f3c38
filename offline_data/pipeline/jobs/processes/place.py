"""The last place that a process has reported, for the process that forked it."""

from __future__ import annotations

import mmap

_BYTES = 512

_shared: mmap.mmap | None = None


def share_place() -> None:
    """Share what this process and those that it forks report from now on."""
    global _shared
    _shared = mmap.mmap(-1, _BYTES)


def report_place(place: str) -> None:
    """Say what this process begins to do; nothing happens unless that is shared."""
    if _shared is not None:
        _shared[:] = place.encode(errors="replace")[:_BYTES].ljust(_BYTES, b"\0")


def last_place() -> str:
    """Return what was reported last; empty if nothing was."""
    return "" if _shared is None else _shared[:].rstrip(b"\0").decode(errors="replace")
