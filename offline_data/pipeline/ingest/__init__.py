"""id → source → fetch → episodes → store: the implementation of `download` and `convert`."""

from offline_data.formats.options import ALL_SPLITS, Options, TextOptions
from offline_data.pipeline.ingest.convert import (
    ConvertPlan,
    convert,
    plan_convert,
    plan_convert_for_workers,
)
from offline_data.pipeline.ingest.download import (
    DownloadPlan,
    download,
    ensure,
    fetch_raw,
    plan_download,
    plan_for_workers,
)
from offline_data.pipeline.ingest.inspection import inspect_files, preview_files
from offline_data.pipeline.ingest.resolve import (
    SeveralSplitsError,
    known_names,
    pinned_text,
)
from offline_data.store.library import Stored

__all__ = [
    "ALL_SPLITS",
    "ConvertPlan",
    "DownloadPlan",
    "Options",
    "SeveralSplitsError",
    "Stored",
    "TextOptions",
    "convert",
    "download",
    "ensure",
    "fetch_raw",
    "inspect_files",
    "known_names",
    "pinned_text",
    "plan_convert",
    "plan_convert_for_workers",
    "plan_download",
    "plan_for_workers",
    "preview_files",
]
