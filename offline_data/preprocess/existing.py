"""What is where a new dataset is to go: the same one, another one, or something else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data.disk import disk_errors
from offline_data.errors import ManifestError, UsageError
from offline_data.ids import DatasetId
from offline_data.store.library import Entry, entry_at, find, has_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offline_data.preprocess.options import Options, Target
    from offline_data.store.layout import LayoutName


def is_there(target: Target, fingerprint: str, layout: LayoutName | None) -> bool:
    """Return True if this very dataset is there.

    Args:
        target: Where it goes.
        fingerprint: What it is made of, and how.
        layout: The layout that is wanted; None: any.

    Raises:
        UsageError: Something else is.
    """
    path = target.destination
    if not has_manifest(path):
        return False
    entry = entry_at(path)
    same = entry.manifest.converter.get("options", {}).get("fingerprint") == fingerprint
    if same and layout in {None, entry.manifest.layout}:
        return True
    raise UsageError(
        f"There is another dataset in {path}: {entry.id}",
        hint="choose another place, or replace it with --force",
    )


def older(target: Target, root: Path, *, force: bool) -> Entry | None:
    """Find the dataset of this name that is to be replaced.

    Raises:
        UsageError: There is one, made otherwise, and it was not said to replace it.
    """
    if not target.named:
        return None
    try:
        found = find(root, DatasetId(target.id.source, target.id.name))
    except ManifestError:
        if not force:
            raise
        return None
    if found is None or found.path == target.destination:
        return None
    if not force:
        raise UsageError(
            f"{found.id} already exists and was made by another recipe ({found.path})",
            hint="choose another name, or replace it with --force",
        )
    return found


def refuse_itself(parent: Entry, target: Target) -> None:
    """Raise `UsageError` where a new dataset may not go, whatever is said to replace.

    That is the place of the one it is made of (which a dataset of the same name takes, too), a
    place inside it, and whatever is neither a dataset nor an empty folder.
    """
    own, new = parent.path.resolve(), target.destination
    if own == new.resolve() or (target.named and own.parent == new.resolve().parent):
        raise UsageError(
            f"{parent.id} cannot be replaced by what is made of it", hint="choose another name"
        )
    if own in new.resolve().parents:
        raise UsageError(f"{new} is inside the dataset it is made of", hint="choose another place")
    with disk_errors(new):
        if not has_manifest(new) and new.exists():
            _check_empty(new)


def _check_empty(path: Path) -> None:
    if not path.is_dir() or any(path.iterdir()):
        raise UsageError(f"{path} is there already, and is no dataset", hint="choose another place")
    if path.is_mount() or path == Path.cwd():
        raise UsageError(f"{path} is in use and cannot be replaced", hint="name a folder in it")


def check_same(saved: Mapping[str, Any], options: Options, *, shares_files: bool) -> None:
    """Hold what a stopped run of the same recipe left to what is asked for now.

    Raises:
        UsageError: It writes another layout; or in place, which this executor does not.
    """
    layout = saved["layout"]
    if options.layout not in {None, layout}:
        raise UsageError(
            f"A stopped run of the same recipe writes layout {layout!r}, not {options.layout!r}",
            hint="use --resume without --layout to continue or --force to start over",
        )
    if saved["in_place"] and not shares_files:
        raise UsageError(
            "A stopped run of the same recipe was made on one machine, and cannot go on on several",
            hint="use --resume with the same engine to continue or --force to start over",
        )
