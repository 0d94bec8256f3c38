"""Earlier name of a part of `offline_data.plugins`."""

import warnings

from offline_data.plugins import (
    UNVERSIONED,
    CatalogEntry,
    CatalogSource,
    Part,
    RandomAccess,
    RawDataset,
    Release,
    RemoteFile,
    Shard,
    Source,
    SourceInfo,
)

__all__ = [
    "UNVERSIONED",
    "CatalogEntry",
    "CatalogSource",
    "Part",
    "RandomAccess",
    "RawDataset",
    "Release",
    "RemoteFile",
    "Shard",
    "Source",
    "SourceInfo",
]
warnings.warn(
    "offline_data.sources.base is now offline_data.plugins", DeprecationWarning, stacklevel=2
)
