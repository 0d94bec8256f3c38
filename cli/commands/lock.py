"""`lock`, `sync` and `diff`: the datasets of a project, and what differs between two."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from offline_data.config import user_path
from offline_data.errors import UsageError
from offline_data_cli import complete
from offline_data_cli.names import entry_named
from offline_data_cli.options import Context, DryRun, argument, option
from offline_data_cli.result import Block, Field, Fields, Result, Table, columns

_LOCKED = columns("NAME", "ID", "TRANSITIONS:count", "EPISODES:count", "FILES:bytes")
_SYNCED = columns("NAME", "ID", "ACTION", "FILES:bytes")
_LEAVES = columns("LEAF", "A", "B")
_VALUES = columns("VALUES OF", "EPISODES:count", "ROWS:count", "MAX DIFFERENCE:number")
_FIGURES = columns("STATISTICS OF", "FIGURE", "A:number", "B:number")
_MOST_RUNS = 8
"""Runs of episodes that are named; `--json` has all."""

File = Annotated[
    Path, option("File with the table `datasets`; the lock file is beside it.", metavar="FILE")
]
_TOML = Path("datasets.toml")
_WHICH = "Dataset id, with or without @revision, path of a dataset directory, or name."


def lock(
    context: Context,
    names: Annotated[list[str] | None, argument("NAME...", "Names to upgrade.")] = None,
    file: File = _TOML,
    upgrade: Annotated[bool, option("Lock the newest revisions, of NAMEs or of all.")] = False,
    check: Annotated[bool, option("Only report whether the lock file is up to date.")] = False,
) -> Result:
    """Write datasets.lock: revisions, files and content of the datasets in datasets.toml.

    Locked revisions are kept. A dataset that is not on this disk is downloaded
    and converted, since only that tells its content.
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
    rows = [(d.name, str(d.stored_id), d.transitions, d.episodes, d.bytes) for d in found.datasets]
    named = ("name", "stored_id", "transitions", "episodes", "bytes", "content", "converter")
    datasets = [{name: getattr(one, name) for name in named} for one in found.datasets]
    data = {**vars(found), "datasets": [{"id": str(d.pop("stored_id")), **d} for d in datasets]}
    ids, fresh = [row[1] for row in rows], f"{found.path.name} is up to date"
    if check:
        return Result(data, found.changes or (fresh,), ids, code=1 if found.changes else 0)
    return Result(data, (Table(_LOCKED, rows),), ids, found.changes or (fresh,))


def sync(
    context: Context,
    file: File = _TOML,
    locked: Annotated[
        bool, option("Fail if the lock file is not up to date with datasets.toml.")
    ] = False,
    dry_run: DryRun = False,
) -> Result:
    """Make this disk hold the datasets of datasets.lock; others are left alone.

    Without --locked, the lock file is updated first if datasets.toml has changed.
    """
    from offline_data import api

    found = api.sync(
        user_path(file, "--file"),
        locked=locked,
        dry_run=dry_run,
        settings=context.settings,
        progress=context.progress,
    )
    rows = [(one.name, str(one.id), one.action, one.bytes) for one in found]
    data = [{**vars(one), "id": str(one.id), "dry_run": dry_run} for one in found]
    return Result(data, (Table(_SYNCED, rows),), [row[1] for row in rows])


def diff(
    context: Context,
    a: Annotated[str, argument("A", _WHICH, autocompletion=complete.ids_here)],
    b: Annotated[str, argument("B", _WHICH, autocompletion=complete.ids_here)],
) -> Result:
    """Compare two datasets on this disk: schema, episodes, values and statistics.

    The exit code is 0 if they are equal and 1 if they differ.
    """
    from offline_data import api

    paths = [entry_named(context, text).path for text in (a, b)]
    found = api.diff(*paths, settings=context.settings, progress=context.progress)
    episodes = found.episodes
    blocks: list[Block] = [
        Fields(
            Field("A", found.a),
            Field("B", found.b),
            Field("transitions", "{:,} in A, {:,} in B".format(*found.transitions)),
            Field("same episodes", episodes.same, "count"),
            Field("at another place", episodes.moved or None, "count"),
            Field("only in A", _runs(episodes.removed)),
            Field("only in B", _runs(episodes.added)),
            Field(f"changed, by {episodes.matched_by}", _runs([a for a, _ in episodes.changed])),
        )
    ]
    values = [
        (f"{v.table} {v.key}", v.episodes, v.rows, v.max_abs_difference) for v in found.values
    ]
    for titles, rows in (
        (_LEAVES, [(f"{leaf.table} {leaf.key}", leaf.a, leaf.b) for leaf in found.leaves]),
        (_VALUES, values),
        (_FIGURES, [(one.key, one.figure, one.a, one.b) for one in found.figures]),
    ):
        blocks += [Table(titles, rows)] if rows else []
    data: dict[str, Any] = {**vars(found), "equal": found.equal}
    notes = ("the content is the same",) if found.equal else ()
    return Result(data, blocks, (), notes, code=0 if found.equal else 1)


def _runs(numbers: Sequence[int]) -> str | None:
    """Show ascending numbers as runs, `3: 0, 7-8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:_MOST_RUNS]]
    more = ", …" if len(runs) > _MOST_RUNS else ""
    return f"{len(numbers):,}: {', '.join(shown)}{more}" if numbers else None
