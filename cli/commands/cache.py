"""`cache`: the files under the root, and what of them can go."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from offline_data.config import user_path
from offline_data.disk import human_bytes
from offline_data.errors import NotFoundError
from offline_data_cli.call import Call
from offline_data_cli.options import DryRun
from offline_data_cli.output import confirm, say
from offline_data_cli.result import Block, Column, Result, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offline_data.store.cache import CacheItem, Removal

Items: TypeAlias = "tuple[CacheItem, ...]"
Kept: TypeAlias = "tuple[tuple[CacheItem, str], ...]"
"""What stays all the same, each with the reason."""

NAMED = 5
"""Names that a warning has; `--json` has them all."""

_COLUMNS = (
    Column("KIND"),
    Column("SIZE", "bytes"),
    Column("AGAIN"),
    Column("WHAT"),
    Column("PATH", keep=True),
)


def dir_(call: Call) -> Result:
    """Print the root: the folder under which everything lies."""
    root = str(call.settings.root)
    return Result({"root": root}, (root,), (root,))


def ls(call: Call) -> Result:
    """List datasets, raw files and leftovers under the root with their sizes."""
    from offline_data.store.cache import cache_usage

    usage = cache_usage(call.settings)
    items = usage.items
    note = (
        f"{human_bytes(usage.bytes)} in {_counted(items)} under {call.settings.root}; "
        f"{human_bytes(usage.other_bytes)} in records of what was fetched, locks and other files"
    )
    data = {
        "root": call.settings.root,
        "bytes": usage.bytes,
        "other_bytes": usage.other_bytes,
        "items": items,
    }
    return Result(data, _table(items, call.settings.root), _paths(items), (note,))


def prune(
    call: Call,
    older_than: Annotated[
        int | None,
        typer.Option("--older-than", metavar="DAYS", min=0, help="Only what is as old."),
    ] = None,
    dry_run: DryRun = False,
) -> Result:
    """Delete raw files and leftovers that no dataset needs, after showing them and asking.

    Raw files that were asked for (--keep-raw, --raw-only) or that cannot be fetched again stay:
    `cache rm` deletes them.
    """
    from offline_data.store.cache import plan_prune

    plan = plan_prune(call.settings, older_than)
    result = _remove(call, plan.items, plan.kept, dry_run=dry_run)
    more = any(item.wanted or not item.refetchable for item, _ in plan.kept)
    advice = ("`offline-data cache rm` deletes, by kind or path, also what prune keeps",)
    return replace(result, notes=(*result.notes, *advice)) if more else result


def rm(
    call: Call,
    targets: Annotated[
        list[str],
        typer.Argument(metavar="KIND|PATH", help="A kind or a path, as `cache ls` shows them."),
    ],
    dry_run: DryRun = False,
) -> Result:
    """Delete whole kinds of files, or single ones, after showing them and asking."""
    from offline_data.store.cache import IN_USE, cache_usage

    items, root = cache_usage(call.settings).items, call.settings.root
    chosen = {item.path: item for target in targets for item in _chosen(items, target, root)}
    free = tuple(item for item in chosen.values() if not item.in_use)
    busy = tuple((item, IN_USE) for item in chosen.values() if item.in_use)
    result = _remove(call, free, busy, dry_run=dry_run)
    return replace(result, code=1) if busy and not dry_run else result


def _chosen(items: Items, target: str, root: Path) -> "list[CacheItem]":
    from offline_data.store.cache import KINDS

    paths = {root / target, user_path(target, "the file")}
    found = [item for item in items if target == item.kind or item.path in paths]
    if not found and target not in KINDS:
        raise NotFoundError(
            f"Nothing under the root is {target!r}; expected a path or one of {', '.join(KINDS)}",
            hint="offline-data cache ls",
        )
    return found


def _remove(call: Call, items: Items, kept: Kept, *, dry_run: bool) -> Result:
    from offline_data.store.cache import bytes_freed, remove_items

    lost = tuple(item for item in items if not item.refetchable)
    data = {
        "dry_run": dry_run,
        "cannot_be_fetched_again": _paths(lost),
        "kept": [{"path": item.path, "reason": reason} for item, reason in kept],
    }
    warning = losses([_name(item) for item in lost])
    if warning and (dry_run or call.yes):
        say(warning)
    total = bytes_freed(items)
    if dry_run or not items:
        line = f"{'would delete' if dry_run else 'deleted'} {_counted(items)}, {human_bytes(total)}"
        told = {**data, "removed": items, "bytes": total}
        return Result(
            told, (*_table(items, call.settings.root), line), _paths(items), _kept_notes(kept)
        )
    question = f"{warning} Delete {_counted(items)}, {human_bytes(total)}?".lstrip()
    if not confirm(_table(items, call.settings.root), question, yes=call.yes, mode=call.mode):
        return Result({"removed": [], "bytes": 0}, (), notes=("nothing was deleted",), code=1)
    return _removed(remove_items(items, call.settings), kept, data)


def _removed(removal: "Removal", kept: Kept, data: dict[str, Any]) -> Result:
    """Tell what became of the items, and of those that are still there why."""
    from offline_data.store.cache import IN_USE

    left = (*kept, *((item, IN_USE) for item in removal.in_use))
    told = {
        **data,
        "removed": removal.removed,
        "bytes": removal.freed,
        "kept": [{"path": item.path, "reason": reason} for item, reason in left],
        "gone": _paths(removal.gone),
    }
    gone = f"{_counted(removal.gone)} gone already: somebody else deleted at the same time"
    records = "records of what was fetched stay: what is fetched again is compared with them"
    notes = (
        *_kept_notes(left),
        *([gone] if removal.gone else []),
        *([records] if any(item.kind == "download" for item in removal.removed) else []),
    )
    line = f"deleted {_counted(removal.removed)}, {human_bytes(removal.freed)}"
    return Result(
        told,
        (line,),
        _paths(removal.removed),
        notes,
        code=1 if removal.failures else 0,  # partly done, whatever the reason
        failures=removal.failures,
    )


def losses(names: list[str]) -> str:
    """Say which of the things to be deleted no host has; nothing where there are none.

    Example:
        >>> losses(["local:mine@1"])
        '1 of these cannot be fetched again: local:mine@1.'
    """
    shown = ", ".join(names[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{len(names)} of these cannot be fetched again: {shown}{more}." if names else ""


def _name(item: "CacheItem") -> str:
    return item.detail if item.kind == "dataset" else str(item.path)


def _kept_notes(kept: Kept) -> tuple[str, ...]:
    by_reason: dict[str, list[CacheItem]] = {}
    for item, reason in kept:
        by_reason.setdefault(reason, []).append(item)
    return tuple(
        f"{_counted(items)} kept, {human_bytes(sum(item.bytes for item in items))}: {reason}"
        for reason, items in by_reason.items()
    )


def _table(items: Items, root: Path) -> tuple[Block, ...]:
    """Lay items out; paths are below the root, as `cache rm` takes them too."""
    rows = tuple(
        (
            item.kind,
            item.bytes,
            "yes" if item.refetchable else "no",
            _what(item),
            item.path.relative_to(root),
        )
        for item in items
    )
    return (Table(_COLUMNS, rows),) if rows else ()


def _what(item: "CacheItem") -> str:
    more = (item.detail, item.wanted, "in use" if item.in_use else "")
    return ", ".join(filter(None, more))


def _paths(items: Items) -> tuple[str, ...]:
    return tuple(str(item.path) for item in items)


def _counted(items: "Sequence[CacheItem]") -> str:
    return f"{len(items)} item" + ("" if len(items) == 1 else "s")
