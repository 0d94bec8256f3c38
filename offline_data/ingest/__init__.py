"""id → source → fetch → episodes → store: the implementation of `download` and `convert`."""

from offline_data.ingest.convert import convert, foresee, plan_conversion
from offline_data.ingest.download import (
    download,
    ensure,
    fetch_raw,
    known_names,
    plan_download,
    plan_for_workers,
)
from offline_data.ingest.options import DownloadPlan, ForeseenConversion, Options, Stored

__all__ = [
    "DownloadPlan",
    "ForeseenConversion",
    "Options",
    "Stored",
    "convert",
    "download",
    "ensure",
    "fetch_raw",
    "foresee",
    "known_names",
    "plan_conversion",
    "plan_download",
    "plan_for_workers",
]
