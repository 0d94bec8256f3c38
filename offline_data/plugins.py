"""Names that packages with sources, rules and steps of their own import, in one module.

All of them are public; `docs/plugins.md` lists them by task. They are imported on first use: importing
the module imports no numpy, no torch and no reader. `plugins.pyi` says the same to type checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "offline_data.checks.block": "RowBlock",
    "offline_data.checks.finding": "Finding",
    "offline_data.checks.rule": "Measured Rule Tally",
    "offline_data.config": "Settings",
    "offline_data.episodes.batch": "EpisodeBatch",
    "offline_data.episodes.cut": "with_final_rows",
    "offline_data.episodes.fields": "Dropped Key Skipped join_key split_key",
    "offline_data.episodes.joining": "join_episodes",
    "offline_data.errors": (
        "FormatError MissingDependencyError NetworkError NotFoundError "
        "OfflineDataError OfflineError StepError UsageError"
    ),
    "offline_data.fetch.client": "get_json",
    "offline_data.fetch.files": "RemoteFile",
    "offline_data.fetch.gcs": "list_bucket",
    "offline_data.fetch.hub": "list_hub",
    "offline_data.files": "check_relative",
    "offline_data.preprocess.chunk": "EpisodeChunk",
    "offline_data.preprocess.steps.base": "MeasuredStep Selection Step",
    "offline_data.readers.hdf5": "open_hdf5",
    "offline_data.readers.npy": "open_npz",
    "offline_data.sources.base": (
        "CatalogSource Part RandomAccess RawDataset Release Shard Source SourceInfo UNVERSIONED"
    ),
    "offline_data.sources.catalogs": "CatalogEntry",
    "offline_data.sources.fingerprint": "fingerprint",
    "offline_data.sources.options": "Options",
    "offline_data.sources.recognition": "ArrayNames",
    "offline_data.store.encoded": "EncodedColumn",
    "offline_data.store.reader": "DatasetReader",
    "offline_data.strict_json": "parse_json read_json",
}
"""Public names by the module that has them."""

_MODULES = dict(
    sorted((name, module) for module, names in _NAMES.items() for name in names.split())
)

__all__ = list(_MODULES)


def __dir__() -> list[str]:
    return __all__.copy()


def __getattr__(name: str) -> Any:
    """Import a public name; raises `AttributeError` with similar names."""
    if name in _MODULES:
        found = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return found
    from offline_data.ids import did_you_mean

    near = did_you_mean(name, __all__, shown=f"{__name__}.{{}}".format)
    hint = f"; {near}" if near else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
