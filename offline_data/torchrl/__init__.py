"""Buffers that are written to, their storages and writers, and other names of TorchRL's.

Nothing else imports it but the public functions. Start with `buffer`, which adds writing to
`offline_data.buffers.buffer`; `storages` has where rows are written, `experience_replay` the dataset classes.
The names are imported on first use; `from offline_data import …` finds them, too.
"""

from importlib import import_module
from typing import Any

from offline_data import rows as rows  # raises where torch is missing
from offline_data.rows import samplers

_public: Any = import_module("offline_data")
__all__ = [name for name in _public._names if name in _public._TORCHRL or hasattr(samplers, name)]


def __dir__() -> list[str]:
    return __all__.copy()


def __getattr__(name: str) -> Any:
    """Import a name; raises `AttributeError`."""
    if name in __all__:
        return getattr(_public, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
