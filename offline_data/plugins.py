"""Names for packages with sources, rules and steps of their own.

All of them are public; `docs/plugins.md` lists them by task. They are imported on first use: importing
the module imports no numpy, no torch and no reader. `plugins.pyi` says the same to type checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "offline_data.analysis.checks.block": "RowBlock",
    "offline_data.analysis.checks.finding": "Finding",
    "offline_data.analysis.checks.rule": "Measured Rule Tally",
    "offline_data.base.config": "Settings",
    "offline_data.episode.batch": "EpisodeBatch",
    "offline_data.episode.cut": "with_final_rows",
    "offline_data.episode.fields": "Dropped Key Skipped join_key split_key",
    "offline_data.episode.joining": "join_episodes",
    "offline_data.errors": (
        "FormatError MissingDependencyError NetworkError NotFoundError "
        "OfflineDataError OfflineError StepError UsageError"
    ),
    "offline_data.fetch.client": "get_json",
    "offline_data.fetch.files": "RemoteFile",
    "offline_data.fetch.gcs": "list_bucket",
    "offline_data.fetch.hub": "list_hub",
    "offline_data.base.files": "check_relative",
    "offline_data.store.chunk": "EpisodeChunk",
    "offline_data.pipeline.preprocess.steps.base": "MeasuredStep Selection Step",
    "offline_data.raw.hdf5": "open_hdf5",
    "offline_data.raw.npy": "open_npz",
    "offline_data.formats.base": (
        "CatalogSource Part RandomAccess RawDataset Release Shard Source SourceInfo UNVERSIONED"
    ),
    "offline_data.formats.catalogues": "CatalogEntry",
    "offline_data.formats.d4rl.source": "FlatSource",
    "offline_data.formats.fingerprint": "fingerprint",
    "offline_data.formats.flat.hdf5": "FlatFormat",
    "offline_data.formats.options": "Options",
    "offline_data.formats.recognition": "ArrayNames",
    "offline_data.store.encoded": "EncodedColumn",
    "offline_data.store.reader": "DatasetReader",
    "offline_data.base.json": "parse_json read_json",
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
    from offline_data.base.ids import did_you_mean

    near = did_you_mean(name, __all__, shown=f"{__name__}.{{}}".format)
    hint = f"; {near}" if near else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
