"""`push`: a dataset directory to the hub or to a folder, from which `download` copies it."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from offline_data.base.config import Settings, user_path
from offline_data.base.errors import IntegrityError, InvalidIdError, UsageError
from offline_data.base.files import disk_errors, is_folder, write_durably
from offline_data.base.ids import SHARED, parse_id
from offline_data.base.json import read_whole
from offline_data.base.pickles import pickled_by_name
from offline_data.base.progress import SILENT, Progress
from offline_data.project.share.hub import HubPush
from offline_data.reports.pages.preview import card_files
from offline_data.store.copies import write_copy
from offline_data.store.layout import MANIFEST
from offline_data.store.library import Entry, entry_at, has_manifest, own_files
from offline_data.store.manifest import MAX_BYTES, check_digest, dump_manifest
from offline_data.store.publish import dataset_lock, publish, recover
from offline_data.store.verify import CARD, PREVIEW, verify_files

_OPEN = re.compile(
    r"0bsd|bsd(-[234]-clause)?|mit(-0)?|isc|zlib|unlicense|wtfpl|cc0-1\.0|cc-by(-nc)?(-sa)?-[1-4]\.[05]"
    r"|apache-2\.0|mpl-2\.0|[al]?gpl(-[23]\.[01](-only|-or-later)?)?|odc-by(-1\.0)?|odbl(-1\.0)?"
    r"|pddl(-1\.0)?|cdla-(permissive|sharing)-[12]\.0"
)
"""Names (SPDX, or the hub's) of licences that allow to pass on data in another form. Those of `-nd` do not."""
_REPOSITORY = re.compile(r"\w[\w.-]*/[\w.-]+")


@pickled_by_name
@dataclass(frozen=True)
class Pushed:
    """Result of `push`."""

    id: str
    to: str  # address or path that `download` takes
    public: bool | None  # whether everybody can read it; None: a folder
    sent: tuple[str, ...]  # files that were sent, or would be
    bytes: int  # of these
    existed: bool  # whether all of it was there already; then nothing was sent
    revision: str | None = None  # commit on the hub
    dry_run: bool = False  # whether nothing was done


def push_dataset(
    entry: Entry,
    to: str,
    settings: Settings,
    progress: Progress = SILENT,
    *,
    public: bool = False,
    licence: str | None = None,
    dry_run: bool = False,
) -> Pushed:
    """Push a dataset; see `offline_data.push`."""
    data = read_whole(entry.path / MANIFEST, MAX_BYTES)
    if problem := check_digest(entry.path, entry.manifest):
        raise IntegrityError(f"{entry.path / MANIFEST} {problem}")
    if licence is not None and licence != entry.manifest.licence:
        if entry.manifest.licence is not None:
            raise UsageError(
                f"{entry.id} has the licence {entry.manifest.licence}, which its source states",
                hint="leave --licence out",
            )
        entry = replace(entry, manifest=replace(entry.manifest, licence=licence))
        data = dump_manifest(entry.manifest).encode()
    if to.startswith("hf://"):
        return _push_to_hub(entry, data, to, settings, progress, public=public, dry_run=dry_run)
    if "://" in to and not to.startswith("file://"):
        raise UsageError(
            f"{to} cannot be written to; expected hf://OWNER/NAME or a folder",
            hint="push to a folder of the machine that serves it",
        )
    if public:
        raise UsageError(
            "--public is for hf://OWNER/NAME; a folder has the permissions of its files"
        )
    if _REPOSITORY.fullmatch(to) and not is_folder(user_path(to, "the folder").parent):
        raise UsageError(
            f"{to} may be a repository of the hub or a new folder",
            hint=f"write hf://{to} or ./{to}",
        )
    path = user_path(to.removeprefix("file://"), "the folder")
    return _push_to_folder(entry, data, path, settings, progress, dry_run=dry_run)


def check_redistributable(entry: Entry, licence: str | None = None) -> str:
    """Return the licence of a dataset that may be passed on to everybody; else raise `UsageError`."""
    stated = entry.manifest.licence or licence
    if not stated:
        raise UsageError(
            f"{entry.id} has no licence, so it is unknown whether it may be redistributed",
            hint="state that of your own data: --licence CC-BY-4.0; private repositories need none",
        )
    if not _OPEN.fullmatch(stated.strip().lower()):
        raise UsageError(
            f"The licence {stated!r} of {entry.id} is not known to allow redistribution",
            hint="push it to a private repository, without --public",
        )
    return stated


def _push_to_hub(
    entry: Entry,
    data: bytes,
    to: str,
    settings: Settings,
    progress: Progress,
    *,
    public: bool,
    dry_run: bool,
) -> Pushed:
    target = parse_id(f"{SHARED}:{to}")
    repository = target.name.removeprefix("hf://")
    if target.revision or repository.count("/") != 1:
        raise InvalidIdError(f"{to} is not a repository; expected hf://OWNER/NAME")
    if public:
        check_redistributable(entry)
    push = HubPush.to(repository, entry, data, settings)
    if push.exists and not push.private and not public:
        raise UsageError(
            f"{to} is public: anyone could read what is pushed there",
            hint="name another repository, or add --public",
        )
    # a name that ends in -v and a number is one of Minari's without the source
    address = to if parse_id(to).source == SHARED else f"{SHARED}:{to}"
    done, revision = push.unchanged, push.parent
    if not done and not dry_run:
        _check_files(entry, progress)
        card = card_files(entry, progress, address=address)
        revision = push.send(card, settings, progress)
    if public and push.private and not dry_run:
        push.make_public(settings)
    return Pushed(
        str(entry.id),
        address,
        public,
        () if done else (*push.changed, CARD),
        push.size,
        done,
        revision,
        dry_run,
    )


def _push_to_folder(
    entry: Entry, data: bytes, path: Path, settings: Settings, progress: Progress, *, dry_run: bool
) -> Pushed:
    """Write next to the folder, compare with the digests, and rename; see `publish`."""
    settings.check_outside(path)
    if path.is_symlink() or (path.exists() and not is_folder(path)):
        raise UsageError(f"{path} is {'a link' if path.is_symlink() else 'a file'}; name a folder")
    there = has_manifest(path)
    with disk_errors(path):
        if not there and path.exists() and any(path.iterdir()):
            raise UsageError(
                f"{path} has other files and no dataset; nothing was written",
                hint="name a new or an empty folder",
            )
    unchanged = False
    if there:
        found = entry_at(path)
        unchanged = read_whole(path / MANIFEST, MAX_BYTES) == data and not verify_files(
            path, found.manifest, digests=False
        )
    names = (*entry.manifest.digests, MANIFEST, CARD)
    result = Pushed(str(entry.id), str(path), None, names, entry.bytes, existed=False)
    if unchanged:
        return replace(result, sent=(), bytes=0, existed=True, dry_run=dry_run)
    if dry_run:
        return replace(result, dry_run=True)
    staged = path.with_name(f".{path.name}.pushing")
    with dataset_lock(settings.staging, f"push{path.resolve()}", progress), disk_errors(path):
        recover(staged, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(staged, ignore_errors=True)  # of a process that was killed
        try:
            write_copy(entry, entry.id, staged, progress)
            write_durably(staged / MANIFEST, data)
            for name, content in card_files(entry, progress, address=str(path)).items():
                write_durably(staged / name, content)
            publish(staged, path, progress, own=lambda folder: [*own_files(folder), CARD, PREVIEW])
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return result


def _check_files(entry: Entry, progress: Progress) -> None:
    """Raise `IntegrityError` if a file differs from its digest, before anything is sent."""
    if problems := verify_files(entry.path, entry.manifest, progress):
        first = problems[0]
        raise IntegrityError(
            f"{entry.path} is damaged, and nothing was pushed: {first.file} {first.problem}",
            hint=f"`offline-data check --files {entry.id}` shows all that is",
        )
