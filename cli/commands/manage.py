"""`verify`, `rm` and `cache`: check what is on disk, see how big it is, delete it."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from offline_data.config import user_path
from offline_data.disk import human_bytes
from offline_data.errors import IntegrityError, NotFoundError
from offline_data_cli.context import Context
from offline_data_cli.options import Dataset, Datasets, DryRun, argument, option
from offline_data_cli.render import confirm, say
from offline_data_cli.result import Block, Column, Result, Table

if TYPE_CHECKING:
    from offline_data.store.cache import CacheItem, Removal
    from offline_data.store.library import Entry
    from offline_data.store.verify import Problem

Items: TypeAlias = "tuple[CacheItem, ...]"
Kept: TypeAlias = "tuple[tuple[CacheItem, str], ...]"
"""Items that are not deleted, each with the reason."""

MOST_NAMED = 5
"""Names in a warning; `--json` has them all."""

_PROBLEMS = (Column("FILE"), Column("PROBLEM"))
_DATASETS = (Column("ID"), Column("SIZE", "bytes"), Column("PATH"))
_ITEMS = (
    Column("KIND"),
    Column("SIZE", "bytes"),
    Column("DOWNLOADABLE"),
    Column("CONTENT"),
    Column("PATH", keep=True),
)
_NO_CHECKSUM = (
    "the manifest has no checksum of its own (an older version wrote it): changes to it cannot "
    "be detected"
)
_NOTHING_DELETED = Result({"removed": [], "bytes": 0}, (), notes=("nothing was deleted",), code=1)


def verify(context: Context, dataset: Dataset) -> Result:
    """Compare the files of a dataset with the checksums in its manifest."""
    from offline_data.store import verify as integrity
    from offline_data.store.library import locate

    entry = locate(dataset, context.settings)
    return verify_result(entry, integrity.verify(entry.path, context.progress))


def verify_result(entry: "Entry", problems: "tuple[Problem, ...]") -> Result:
    """Lay out the problems that verifying a dataset found."""
    text = str(entry.id)
    has_checksum = entry.manifest.sha256 is not None
    data = {
        "id": text,
        "path": entry.path,
        "ok": not problems,
        "problems": problems,
        "manifest_checksum": has_checksum,
    }
    total = len(entry.manifest.digests)
    if not problems:
        line = f"{text}: OK, {total} files match their checksums"
        return Result(data, (line,), (text,), notes=() if has_checksum else (_NO_CHECKSUM,))
    count = len(problems)
    if entry.id.source == "local":
        command = f"offline-data convert PATH {shlex.quote(entry.id.name)} --force"
    else:
        name = shlex.quote(f"{entry.id.source}:{entry.id.name}")
        command = f"offline-data download {name} --force"
    error = IntegrityError(
        f"{count} of {max(count, total)} files in {entry.path} {'is' if count == 1 else 'are'} "
        "damaged",
        hint=f"to replace it: {command}",
    )
    table = Table(_PROBLEMS, tuple((problem.file, problem.problem) for problem in problems))
    return Result(data, (table,), failures=(error,))


def rm(context: Context, datasets: Datasets, dry_run: DryRun = False) -> Result:
    """Delete datasets. Lists them and asks first."""
    from offline_data.store.cache import refetchable
    from offline_data.store.library import foreign_files, locate, remove

    by_path = {entry.path: entry for entry in (locate(text, context.settings) for text in datasets)}
    entries = list(by_path.values())
    ids = tuple(str(entry.id) for entry in entries)
    lost = [str(entry.id) for entry in entries if not refetchable(entry)]
    total = sum(entry.bytes for entry in entries)
    table = Table(_DATASETS, tuple((str(e.id), e.bytes, e.path) for e in entries))
    kept = [entry.path / name for entry in entries for name in foreign_files(entry.path)]
    data = {
        "removed": [{"id": str(e.id), "path": e.path, "bytes": e.bytes} for e in entries],
        "bytes": total,
        "kept": kept,
        "dry_run": dry_run,
        "cannot_be_fetched_again": lost,
    }
    what = _counted(entries, "dataset")
    if not dry_run:
        if not _confirm(context, (table,), f"{what}, {human_bytes(total)}", lost):
            return _NOTHING_DELETED
        data["bytes"] = total = sum(remove(entry) for entry in entries)
    elif lost:
        say(losses(lost))
    notes = [f"kept, not part of the dataset: {path}" for path in kept[:MOST_NAMED]]
    if len(kept) > MOST_NAMED:
        notes.append(f"kept {len(kept) - MOST_NAMED} more files that are not part of the dataset")
    line = f"{'would delete' if dry_run else 'deleted'} {what}, {human_bytes(total)}"
    return Result(data, (table, line) if dry_run else (line,), ids, tuple(notes))


def dir_(context: Context) -> Result:
    """Print the root, the folder that holds all datasets and downloads."""
    root = str(context.settings.root)
    return Result({"root": root}, (root,), (root,))


def ls(context: Context) -> Result:
    """List datasets, raw files and leftovers under the root, with their sizes."""
    from offline_data.store.cache import cache_usage

    root, usage = context.settings.root, cache_usage(context.settings)
    items = usage.items
    note = (
        f"{human_bytes(usage.bytes)} in {_counted(items)} under {root}; "
        f"{human_bytes(usage.other_bytes)} in download records, locks and other files"
    )
    data = {"root": root, "bytes": usage.bytes, "other_bytes": usage.other_bytes, "items": items}
    return Result(data, _table(items, root), _paths(items), (note,))


def prune(
    context: Context,
    older_than: Annotated[
        int | None,
        option("Only files at least DAYS days old.", "--older-than", metavar="DAYS", min=0),
    ] = None,
    dry_run: DryRun = False,
) -> Result:
    """Delete raw files and leftovers that no dataset needs. Lists them and asks first.

    Keeps raw files that were requested (--keep-raw, --raw-only) or that cannot be
    downloaded again; `cache rm` deletes those too.
    """
    from offline_data.store.cache import plan_prune

    plan = plan_prune(context.settings, older_than)
    result = _remove(context, plan.items, plan.kept, dry_run=dry_run)
    more = any(item.wanted or not item.refetchable for item, _ in plan.kept)
    advice = ("to delete kept files too: offline-data cache rm KIND|PATH",)
    return replace(result, notes=(*result.notes, *advice)) if more else result


def cache_rm(
    context: Context,
    targets: Annotated[list[str], argument("KIND|PATH", "Kind or path, as `cache ls` shows it.")],
    dry_run: DryRun = False,
) -> Result:
    """Delete files by kind or path. Lists them and asks first."""
    from offline_data.store.cache import IN_USE, KINDS, cache_usage

    items, root = cache_usage(context.settings).items, context.settings.root
    selected: dict[Path, CacheItem] = {}
    for target in targets:
        paths = {root / target, user_path(target, "the file")}
        found = [item for item in items if target == item.kind or item.path in paths]
        if not found and target not in KINDS:
            raise NotFoundError(
                f"Nothing under the root is {target!r}; expected a path or one of "
                f"{', '.join(KINDS)}",
                hint="offline-data cache ls",
            )
        selected |= {item.path: item for item in found}
    free = tuple(item for item in selected.values() if not item.in_use)
    busy = tuple((item, IN_USE) for item in selected.values() if item.in_use)
    result = _remove(context, free, busy, dry_run=dry_run)
    return replace(result, code=1) if busy and not dry_run else result


def _remove(context: Context, items: Items, kept: Kept, *, dry_run: bool) -> Result:
    """Delete `items` after asking, and say which are kept."""
    from offline_data.store.cache import bytes_freed, remove_items

    lost = tuple(item for item in items if not item.refetchable)
    names = [item.detail if item.kind == "dataset" else str(item.path) for item in lost]
    table = _table(items, context.settings.root)
    total = bytes_freed(items)
    what = f"{_counted(items)}, {human_bytes(total)}"
    data = {
        "dry_run": dry_run,
        "cannot_be_fetched_again": _paths(lost),
        "kept": [{"path": item.path, "reason": reason} for item, reason in kept],
    }
    if dry_run or not items:
        if lost:
            say(losses(names))
        line = f"{'would delete' if dry_run else 'deleted'} {what}"
        data |= {"removed": items, "bytes": total}
        return Result(data, (*table, line), _paths(items), _kept_notes(kept))
    if not _confirm(context, table, what, names):
        return _NOTHING_DELETED
    return _removed(remove_items(items, context.settings), kept, data)


def _removed(removal: "Removal", kept: Kept, data: dict[str, Any]) -> Result:
    """Lay out which items were deleted, and why others were not."""
    from offline_data.store.cache import IN_USE

    left = (*kept, *((item, IN_USE) for item in removal.in_use))
    data = {
        **data,
        "removed": removal.removed,
        "bytes": removal.freed,
        "kept": [{"path": item.path, "reason": reason} for item, reason in left],
        "gone": _paths(removal.gone),
    }
    notes = list(_kept_notes(left))
    if removal.gone:
        notes.append(f"{_counted(removal.gone)} had already been deleted by another process")
    if any(item.kind == "download" for item in removal.removed):
        notes.append("download records are kept: later downloads are compared with them")
    return Result(
        data,
        (f"deleted {_counted(removal.removed)}, {human_bytes(removal.freed)}",),
        _paths(removal.removed),
        tuple(notes),
        code=1 if removal.failures else 0,  # partly done, whatever the reason
        failures=removal.failures,
    )


def _confirm(context: Context, blocks: Sequence[Block], what: str, lost: list[str]) -> bool:
    """Ask whether to delete; a warning about what no host has is part of the question."""
    warning = losses(lost)
    if warning and context.yes:
        say(warning)
    question = f"{warning} Delete {what}?".lstrip()
    return confirm(blocks, question, yes=context.yes, mode=context.mode)


def losses(names: list[str]) -> str:
    """Return a warning about things that cannot be downloaded again; empty if there are none.

    Example:
        >>> losses(["local:mine@1"])
        'local:mine@1 exists only here and cannot be downloaded again.'
    """
    if not names:
        return ""
    shown = ", ".join(names[:MOST_NAMED])
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    exist = "exists" if len(names) == 1 else "exist"
    return f"{shown}{more} {exist} only here and cannot be downloaded again."


def _kept_notes(kept: Kept) -> tuple[str, ...]:
    by_reason: dict[str, list[CacheItem]] = {}
    for item, reason in kept:
        by_reason.setdefault(reason, []).append(item)
    return tuple(
        f"{_counted(items)} kept, {human_bytes(sum(item.bytes for item in items))}: {reason}"
        for reason, items in by_reason.items()
    )


def _table(items: Items, root: Path) -> tuple[Block, ...]:
    """Lay items out; paths are relative to the root, as `cache rm` accepts them."""
    rows = tuple(
        (
            item.kind,
            item.bytes,
            "yes" if item.refetchable else "no",
            ", ".join(filter(None, (item.detail, item.wanted, "in use" if item.in_use else ""))),
            item.path.relative_to(root),
        )
        for item in items
    )
    return (Table(_ITEMS, rows),) if rows else ()


def _paths(items: Items) -> tuple[str, ...]:
    return tuple(str(item.path) for item in items)


def _counted(items: Sequence[object], noun: str = "item") -> str:
    return f"{len(items)} {noun}" + ("" if len(items) == 1 else "s")
