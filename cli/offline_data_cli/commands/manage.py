"""`verify`, `rm` and `cache`: check, measure and delete files on disk."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from offline_data.base.config import user_path
from offline_data.base.errors import (
    IntegrityError,
    InvalidIdError,
    NotFoundError,
    OfflineDataError,
    UsageError,
)
from offline_data.base.files import human_bytes
from offline_data.base.ids import parse_id
from offline_data.base.plurals import plural
from offline_data.document.blocks import non_empty, table
from offline_data_cli import complete
from offline_data_cli.names import entry_named
from offline_data_cli.options import (
    AllDatasets,
    Context,
    Datasets,
    DryRun,
    SomeDatasets,
    argument,
    option,
)
from offline_data_cli.render import confirm, say
from offline_data_cli.result import Block, Result, combine

if TYPE_CHECKING:
    from offline_data.store.cache import CacheItem, Removed
    from offline_data.store.library import Entry

Items: TypeAlias = "Sequence[CacheItem]"
Kept: TypeAlias = "Sequence[tuple[CacheItem, str]]"  # items that are kept, each with the reason

_MOST_NAMED = 5  # maximum number of names in a warning; `--json` has them all

_NO_CHECKSUM = (
    "the manifest has no checksum (an older version wrote it): changes to it cannot be detected"
)
_NOTHING_DELETED = Result({"removed": [], "bytes": 0}, (), notes=("nothing was deleted",), code=1)


def verify(
    context: Context,
    datasets: SomeDatasets = None,
    all_: AllDatasets = False,
) -> Result:
    """Compare the files of datasets with the checksums in their manifests."""
    from offline_data.store.library import survey

    if all_ == bool(datasets):
        raise UsageError("Give dataset ids or --all", hint="offline-data list")
    if datasets and len(datasets) == 1:
        return verify_entry(context, entry_named(context, datasets[0]))
    unreadable: dict[Path, OfflineDataError] = {}
    if datasets:
        entries = [entry_named(context, text) for text in datasets]
    else:
        entries, unreadable = survey(context.settings.root)
    results = [verify_entry(context, entry) for entry in entries]
    failed = [
        Result({"path": path, "ok": False, "problems": [error.message]}, (), failures=(error,))
        for path, error in unreadable.items()
    ]
    return combine([result.data for result in (*results, *failed)], (*results, *failed))


def verify_entry(context: Context, entry: "Entry") -> Result:
    """Compare the files of one dataset with the checksums in its manifest."""
    from offline_data import api

    found = api.verify(entry.path, settings=context.settings, progress=context.progress)
    data = {k: v for k, v in vars(found).items() if k != "files"}
    if found.ok:
        line = (
            f"{found.id}: OK, {plural(found.files, 'file matches', 'files match')} their checksums"
        )
        notes = () if found.manifest_checksum else (_NO_CHECKSUM,)
        return Result(data, (line,), (found.id,), notes=notes)
    dataset, parents = parse_id(found.id), entry.manifest.parents
    if entry.manifest.converter.get("adapter") == "merge":
        members = " ".join(map(shlex.quote, parents))
        command = f"offline-data merge {members} … --out {shlex.quote(dataset.name)} --force"
    elif dataset.source == "local" and parents:
        made_from = shlex.quote(parents[0])
        command = f"offline-data preprocess {made_from} … --out {shlex.quote(dataset.name)} --force"
    elif dataset.source == "local":
        command = f"offline-data convert PATH {shlex.quote(dataset.name)} --force"
    else:
        name = shlex.quote(f"{dataset.source}:{dataset.name}")
        command = f"offline-data download {name} --force"
    count = len(found.problems)
    of = f"{count} of {plural(max(count, found.files), 'file')} in {found.path}"
    error = IntegrityError(
        f"{of} {'is' if count == 1 else 'are'} damaged", hint=f"to replace it: {command}"
    )
    return Result(data, (found.problem_table,), failures=(error,))


def rm(context: Context, datasets: Datasets, dry_run: DryRun = False) -> Result:
    """Delete datasets. Lists them and asks first."""
    from offline_data import api

    # what is shown is what is deleted, also where a newer revision comes meanwhile
    paths = [entry_named(context, text, exact=True).path for text in datasets]
    plan = api.remove(*paths, dry_run=True, settings=context.settings)
    listed = table("id size=bytes:bytes path", plan.removed)
    what = f"{plural(len(plan.removed), 'dataset')}, {human_bytes(plan.bytes)}"
    lost = list(plan.cannot_be_fetched_again)
    if not _confirm(context, (listed,), what, lost, dry_run=dry_run):
        return _NOTHING_DELETED
    done = plan if dry_run else api.remove(*paths, settings=context.settings)
    notes = [f"kept, not part of the dataset: {path}" for path in done.kept[:_MOST_NAMED]]
    if len(done.kept) > _MOST_NAMED:
        more = len(done.kept) - _MOST_NAMED
        notes.append(f"kept {plural(more, 'more file')} outside the dataset")
    if shared := sum(one.bytes for one in plan.removed) - plan.bytes:
        notes.append(f"{human_bytes(shared)} in files that are linked elsewhere stay on the disk")
    line = f"{'would delete' if dry_run else 'deleted'} {what}"
    blocks = (listed, line) if dry_run else (line,)
    return Result(done, blocks, [dataset.id for dataset in done.removed], notes)


def dir_(context: Context) -> Result:
    """Print the root, the folder that holds all datasets and downloads."""
    root = str(context.settings.root)
    return Result({"root": root}, (root,), (root,))


def ls(context: Context) -> Result:
    """List datasets, raw files and leftovers under the root, with their sizes."""
    from offline_data.store.cache import cache_usage

    root, usage = context.settings.root, cache_usage(context.settings)
    note = (
        f"{human_bytes(usage.bytes)} in {plural(len(usage.items), 'item')} under {root}; "
        f"{human_bytes(usage.other_bytes)} in download records, locks and other files"
    )
    data = {"root": root, "bytes": usage.bytes, "other_bytes": usage.other_bytes}
    data["items"] = usage.items
    return Result(data, _table_of_items(usage.items, root), _list_paths(usage.items), (note,))


def prune(
    context: Context,
    older_than: Annotated[
        int | None, option("Only files at least DAYS days old.", metavar="DAYS", min=0)
    ] = None,
    dry_run: DryRun = False,
) -> Result:
    """Delete raw files and leftovers that no dataset needs. Lists them and asks first.

    Keeps raw files that were requested (--keep-raw, --raw-only) or that cannot be
    downloaded again; `cache rm` deletes those too.
    """
    from offline_data.store.cache import plan_prune

    return _remove(context, plan_prune(context.settings, older_than), dry_run=dry_run)


def cache_rm(
    context: Context,
    targets: Annotated[
        list[str],
        argument(
            "KIND|PATH...", "Kind or path, as `cache ls` shows it.", autocompletion=complete.kinds
        ),
    ],
    dry_run: DryRun = False,
) -> Result:
    """Delete files by kind or path. Lists them and asks first."""
    from offline_data.store.cache import IN_USE, KINDS, Removed, bytes_freed, cache_usage

    items, root = cache_usage(context.settings).items, context.settings.root
    selected: dict[Path, CacheItem] = {}
    for target in targets:
        paths = {root / target, user_path(target, "the file")}
        found = [item for item in items if target == item.kind or item.path in paths]
        if not found and target not in KINDS:
            raise NotFoundError(
                f"Nothing under the root is {target!r}; expected a path or one of "
                f"{', '.join(KINDS)}",
                hint=_how_to_name(target),
            )
        selected |= {item.path: item for item in found}
    free = tuple(item for item in selected.values() if not item.in_use)
    busy = tuple((item, IN_USE) for item in selected.values() if item.in_use)
    result = _remove(context, Removed(free, busy, bytes_freed(free)), dry_run=dry_run)
    return replace(result, code=1) if busy and not dry_run else result


def _how_to_name(target: str) -> str:
    """Return the command for targets that `cache rm` does not accept, such as dataset ids."""
    try:
        parse_id(target)
    except InvalidIdError:
        return "offline-data cache ls"
    return f"to delete a dataset: offline-data rm {shlex.quote(target)}"


def _remove(context: Context, plan: "Removed", *, dry_run: bool) -> Result:
    """Delete items after confirmation, and report kept ones."""
    from offline_data.store.cache import remove_items

    lost = [item for item in plan.removed if not item.refetchable]
    names = [item.detail if item.kind == "dataset" else str(item.path) for item in lost]
    listed = _table_of_items(plan.removed, context.settings.root)
    what = f"{plural(len(plan.removed), 'item')}, {human_bytes(plan.bytes)}"
    if plan.removed and not _confirm(context, listed, what, names, dry_run=dry_run):
        return _NOTHING_DELETED
    real = bool(plan.removed) and not dry_run
    done = remove_items(plan.removed, context.settings) if real else plan
    kept = (*plan.kept, *done.kept) if real else plan.kept
    data: dict[str, Any] = {
        "dry_run": dry_run,
        "cannot_be_fetched_again": _list_paths(lost),
        "kept": [{"path": item.path, "reason": reason} for item, reason in kept],
        "removed": done.removed,
        "bytes": done.bytes,
    }
    notes = _kept_notes(kept)
    if not real:
        line = f"would delete {what}" if plan.removed else "nothing to delete"
        return Result(data, (*listed, line), _list_paths(plan.removed), notes)
    if done.gone:
        notes.append(
            f"{plural(len(done.gone), 'item')} had already been deleted by another process"
        )
    if any(item.kind == "download" for item in done.removed):
        notes.append("download records are kept: later downloads are compared with them")
    return Result(
        {**data, "gone": _list_paths(done.gone)},
        (f"deleted {plural(len(done.removed), 'item')}, {human_bytes(done.bytes)}",),
        _list_paths(done.removed),
        notes,
        code=1 if done.failures else 0,  # partial failure, for any reason
        failures=done.failures,
    )


def _confirm(
    context: Context, blocks: Sequence[Block], what: str, lost: list[str], *, dry_run: bool
) -> bool:
    """Ask for confirmation, with a warning about data that cannot be downloaded again."""
    warning = ""
    if lost:
        more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
        exist = "exists" if len(lost) == 1 else "exist"
        shown = ", ".join(lost[:_MOST_NAMED])
        warning = f"{shown}{more} {exist} only here and cannot be downloaded again."
    if warning and (context.yes or dry_run):
        say(warning)
    question = f"{warning} Delete {what}?".lstrip()
    return dry_run or confirm(blocks, question, yes=context.yes, mode=context.mode)


def _kept_notes(kept: Kept) -> list[str]:
    by_reason: dict[str, list[CacheItem]] = {}
    for item, reason in kept:
        by_reason.setdefault(reason, []).append(item)
    return [
        f"{plural(len(items), 'item')} kept, {human_bytes(sum(item.bytes for item in items))}: {reason}"
        for reason, items in by_reason.items()
    ]


def _table_of_items(items: Items, root: Path) -> Sequence[Block]:
    """Return items as a table; paths are relative to the root, as `cache rm` accepts them."""
    found = table(
        "kind size=bytes:bytes downloadable content path:keep",
        items,
        downloadable=lambda item: "yes" if item.refetchable else "no",
        content=lambda item: ", ".join(
            filter(None, (item.detail, item.wanted, "in use" if item.in_use else ""))
        ),
        path=lambda item: item.path.relative_to(root),
    )
    return non_empty(found)


def _list_paths(items: Items) -> list[str]:
    return [str(item.path) for item in items]
