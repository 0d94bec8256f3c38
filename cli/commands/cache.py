"""`cache`: the files under the root, and what of them can go."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offline_data.disk import human_bytes
from offline_data.errors import NotFoundError
from offline_data_cli.call import Call
from offline_data_cli.options import DryRun
from offline_data_cli.output import confirm
from offline_data_cli.result import Block, Column, Result, Table

if TYPE_CHECKING:
    from offline_data.store.housekeeping import CacheItem

_COLUMNS = (
    Column("KIND"),
    Column("SIZE", "bytes"),
    Column("AGAIN"),
    Column("WHAT"),
    Column("PATH"),
)


def dir_(call: Call) -> Result:
    """Print the root: the folder under which everything lies."""
    root = str(call.settings.root)
    return Result({"root": root}, (root,), (root,))


def ls(call: Call) -> Result:
    """List datasets, raw files and leftovers under the root with their sizes."""
    from offline_data.store.housekeeping import cache_usage

    items = cache_usage(call.settings)
    total = sum(item.bytes for item in items)
    note = f"{human_bytes(total)} in {len(items)} items under {call.settings.root}"
    data = {"root": call.settings.root, "bytes": total, "items": items}
    return Result(data, _table(items), _paths(items), (note,))


def prune(
    call: Call,
    older_than: Annotated[
        int | None,
        typer.Option("--older-than", metavar="DAYS", min=0, help="Only what is as old."),
    ] = None,
    dry_run: DryRun = False,
) -> Result:
    """Delete raw files and leftovers that no dataset needs, after showing them and asking."""
    from offline_data.store.housekeeping import plan_prune

    items = plan_prune(call.settings, older_than)
    return _remove(call, items, dry_run=dry_run)


def rm(
    call: Call,
    targets: Annotated[
        list[str],
        typer.Argument(metavar="KIND|PATH", help="A kind or a path, as `cache ls` shows them."),
    ],
    dry_run: DryRun = False,
) -> Result:
    """Delete whole kinds of files, or single ones, after showing them and asking."""
    from offline_data.store.housekeeping import cache_usage

    usage = cache_usage(call.settings)
    chosen = {item.path: item for target in targets for item in _chosen(usage, target)}
    return _remove(call, tuple(chosen.values()), dry_run=dry_run)


def _chosen(items: "tuple[CacheItem, ...]", target: str) -> "list[CacheItem]":
    path = Path(target).expanduser().absolute()
    found = [item for item in items if target == item.kind or path == item.path]
    kinds = ("dataset", "download", "partial", "staging")
    if not found and target not in kinds:
        raise NotFoundError(
            f"Nothing under the root is {target!r}; expected a path or one of {', '.join(kinds)}",
            hint="offline-data cache ls",
        )
    return found


def _remove(call: Call, items: "tuple[CacheItem, ...]", *, dry_run: bool) -> Result:
    from offline_data.store.housekeeping import remove_items

    total = sum(item.bytes for item in items)
    if dry_run or not items:
        return _result(items, total, "would delete" if dry_run else "deleted", dry_run=dry_run)
    question = f"Delete {_counted(items)}, {human_bytes(total)}?"
    if not confirm(_table(items), question, yes=call.yes, mode=call.mode):
        return Result({"removed": [], "bytes": 0}, (), notes=("nothing was deleted",), code=1)
    return _result(items, remove_items(items, call.settings), "deleted", dry_run=False)


def _result(items: "tuple[CacheItem, ...]", freed: int, verb: str, *, dry_run: bool) -> Result:
    data = {"removed": items, "bytes": freed, "dry_run": dry_run}
    line = f"{verb} {_counted(items)}, {human_bytes(freed)}"
    blocks: tuple[Block, ...] = (*_table(items), line) if dry_run else (line,)
    return Result(data, blocks, _paths(items))


def _table(items: "tuple[CacheItem, ...]") -> tuple[Block, ...]:
    rows = tuple(
        (item.kind, item.bytes, "yes" if item.refetchable else "no", item.detail, item.path)
        for item in items
    )
    return (Table(_COLUMNS, rows),) if rows else ()


def _paths(items: "tuple[CacheItem, ...]") -> tuple[str, ...]:
    return tuple(str(item.path) for item in items)


def _counted(items: "tuple[CacheItem, ...]") -> str:
    return f"{len(items)} item" + ("" if len(items) == 1 else "s")
