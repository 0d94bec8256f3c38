"""`lock`, `sync` and `diff`: the datasets of a project, and the differences between two."""

from pathlib import Path
from typing import Annotated, Any

from offline_data.base.config import user_path
from offline_data.base.errors import UsageError
from offline_data.document.blocks import table
from offline_data_cli import complete
from offline_data_cli.names import entry_named
from offline_data_cli.options import Context, DryRun, argument, option
from offline_data_cli.result import Result

_MOST_RUNS = 8  # runs of episodes that are named; `--json` has all

File = Annotated[
    Path,
    option("File with the table `datasets`. The lock file is written next to it.", metavar="FILE"),
]
_TOML = Path("datasets.toml")
_WHICH = "Id (or id@revision), path or unique name of a dataset."


def lock(
    context: Context,
    names: Annotated[list[str] | None, argument("NAME...", "Names to upgrade.")] = None,
    file: File = _TOML,
    upgrade: Annotated[
        bool, option("Lock the newest revisions of NAMEs, or of all datasets.")
    ] = False,
    check: Annotated[bool, option("Only report whether the lock file is up to date.")] = False,
) -> Result:
    """Lock the datasets of datasets.toml: revisions and checksums.

    Writes datasets.lock. Revisions that are already locked are kept. Datasets that are not on this
    disk are downloaded and converted, to compute their checksums.
    """
    from offline_data import api

    if names and not upgrade:
        raise UsageError("NAME is for --upgrade", hint="without it, all datasets are locked")
    found = api.lock(
        user_path(file, "--file"),
        upgrade=names or upgrade,
        check=check,
        settings=context.settings,
        progress=context.progress,
    )
    keys = ("name", "transitions", "episodes", "bytes", "content", "converter")
    datasets = [
        {"id": locked.stored_id, **{key: getattr(locked, key) for key in keys}}
        for locked in found.datasets
    ]
    data, ids = {**vars(found), "datasets": datasets}, [str(d["id"]) for d in datasets]
    changes = found.changes or (f"{found.path.name} is up to date",)
    if check:
        return Result(data, changes, ids, code=1 if found.changes else 0)
    listed = table("name id steps=transitions:count episodes:count files=bytes:bytes", datasets)
    return Result(data, (listed,), ids, changes)


def sync(
    context: Context,
    file: File = _TOML,
    locked: Annotated[bool, option("Fail if the lock file is not up to date.")] = False,
    dry_run: DryRun = False,
) -> Result:
    """Download the datasets of datasets.lock.

    Other datasets are not changed. Without --locked, the lock file is updated first if
    datasets.toml has changed.
    """
    from offline_data import api

    found = api.sync(
        user_path(file, "--file"),
        locked=locked,
        dry_run=dry_run,
        settings=context.settings,
        progress=context.progress,
    )
    data = [{**vars(dataset), "dry_run": dry_run} for dataset in found]
    listed = table("name id action files=bytes:bytes", found)
    return Result(data, (listed,), [str(dataset.id) for dataset in found])


def diff(
    context: Context,
    a: Annotated[str, argument("A", _WHICH, autocompletion=complete.ids_here)],
    b: Annotated[str, argument("B", _WHICH, autocompletion=complete.ids_here)],
) -> Result:
    """Compare two datasets: schema, episodes, values and statistics.

    Exits with 0 if they are equal, and with 1 if they differ.
    """
    from offline_data import api

    paths = [entry_named(context, text).path for text in (a, b)]
    found = api.diff(*paths, settings=context.settings, progress=context.progress)
    data: dict[str, Any] = {**vars(found), "equal": found.equal}
    notes = ("the content is the same",) if found.equal else ()
    return Result(data, found.blocks(), (), notes, code=0 if found.equal else 1)
