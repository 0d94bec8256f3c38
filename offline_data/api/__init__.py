"""The functions of `offline_data` that need no torch; the command line prints what they return.

`root` is the folder of all datasets, None for the user's (`OFFLINE_DATA_HOME`, else the config
file's, else the platform's cache folder); `settings` are settings already resolved, instead.
`progress` is True (a bar on stderr, in a terminal or a notebook, for operations of more than two
seconds), False (no bar), or an `offline_data.base.progress.Progress`. Notes go to the logger
`offline_data`.
"""

from offline_data.api.alignment import align
from offline_data.api.datasets import (
    card,
    convert,
    download,
    info,
    inspect_files,
    list_datasets,
    load_arrays,
    merge,
    plot,
    remove,
    replay,
    search,
    stats,
    verify,
)
from offline_data.api.export import export
from offline_data.api.pages import browse, report, view
from offline_data.api.project import check, diff, lock, provenance, sync
from offline_data.api.share import push

__all__ = [
    "align", "browse", "card", "check", "convert", "diff", "download", "export", "info", "inspect_files",
    "list_datasets", "load_arrays", "lock", "merge", "plot", "provenance", "push", "remove", "replay", "report",
    "search", "stats", "sync", "verify", "view",
]  # fmt: skip
