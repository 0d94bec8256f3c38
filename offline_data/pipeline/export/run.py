"""Running an export: written next to the destination, proved, described by a receipt, and renamed.

```
DEST                    a folder, or a file for some formats
DEST/export.json        the receipt; of a file NAME: NAME.export.json next to it
.DEST.exporting         what is being written; removed by the next run if this one is killed
```
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypedDict

from offline_data.base.config import Settings
from offline_data.base.decode import Check, Count, Sha256, decode
from offline_data.base.errors import AccessError, FormatError, NotFoundError, UsageError
from offline_data.base.files import (
    disk_errors,
    is_file,
    is_folder,
    require_bytes,
    sync_folder,
    write_durably,
)
from offline_data.base.json import as_unicode, read_json
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.base.progress import Progress
from offline_data.base.version import __version__
from offline_data.document.markdown import escape
from offline_data.formats.folders import files_below
from offline_data.formats.writing.base import (
    TARGETS,
    ExportJob,
    ExportOptions,
    ExportTarget,
    Loss,
    get_target,
)
from offline_data.formats.writing.episodes import ExportedEpisodes
from offline_data.formats.writing.plan import plan_export
from offline_data.pipeline.export.proof import prove
from offline_data.pipeline.export.writing import write_files
from offline_data.pipeline.preprocess.plan import digest_of_rows
from offline_data.store.content import digest_of
from offline_data.store.library import Entry, entry_at
from offline_data.store.publish import dataset_lock
from offline_data.store.verify import CARD
from offline_data.store.video import hash_file

CardFiles: TypeAlias = Callable[[Entry, Progress, Mapping[str, Any]], Mapping[str, bytes]]
"""Returns the files of a dataset's card by name, with a header."""

RECEIPT = "export.json"
_PLACE_HINT = "choose a file or folder that you can write to"
_MOST_LISTED = 20  # losses in a message
_REPLACED = "replaced"  # name of an older export while the new one takes its place
_WITHIN = Check(
    "a path inside the export",
    lambda name: not name.startswith("/") and ".." not in name.split("/") and "\0" not in name,
)


class _ReceiptFile(TypedDict):
    size: Count
    sha256: Sha256


@dataclass(frozen=True)
class _Receipt:
    """The fields of a receipt that decide about another export to the same place."""

    to: str
    of: Any
    files: Mapping[Annotated[str, _WITHIN], Annotated[Mapping[str, Any], _ReceiptFile]]
    compared: Count = 0


@pickled_by_name
@dataclass(frozen=True)
class Exported:
    """Result of `export`."""

    id: str
    """Id of the dataset; of a mixture the ids of its members, separated by commas."""
    path: Path
    to: str
    transitions: int
    episodes: int
    losses: tuple[Loss, ...]
    """Features and rows that the files do not have."""
    compared: int = 0
    """Values that were read back and compared."""
    bytes: int = 0
    """Bytes of all files."""
    existed: bool = False
    """Whether it was there already, of the same data; then nothing was written."""
    dry_run: bool = False
    """Whether nothing was done."""


def export_episodes(
    episodes: ExportedEpisodes,
    path: Path,
    to: str,
    settings: Settings,
    progress: Progress,
    *,
    options: ExportOptions,
    card: CardFiles,
    strict: bool = False,
    dry_run: bool = False,
    force: bool = False,
) -> Exported:
    """Write episodes as files of another format, and the `card` of a folder; see `offline_data.export`."""
    target = get_target(to)
    path = _destination(path, target)
    settings.check_outside(path)
    _check_options(options, target)
    if _holds_marks(target):
        episodes = episodes.with_marks()
    job, losses = plan_export(episodes, target, options, path)
    result = Exported(
        ", ".join(member.reader.manifest.id for member in episodes.members),
        path,
        to,
        episodes.transitions,
        len(episodes.lengths),
        losses,
        dry_run=dry_run,
    )
    if strict and losses:
        lost = "; ".join(map(str, losses[:_MOST_LISTED]))
        lost += f"; and {len(losses) - _MOST_LISTED:,} more" * (len(losses) > _MOST_LISTED)
        raise UsageError(
            f"{to} cannot hold all of {result.id}: {lost}",
            hint="without --strict it is written without these",
        )
    if dry_run:
        _check_destination(path, target, force=force)
        return result
    with ExitStack() as held, disk_errors(path, _PLACE_HINT):
        with suppress(AccessError):  # a root that is only read from
            held.enter_context(dataset_lock(settings.staging, f"export{path}", progress))
        _recover(path)
        older = _check_destination(path, target, force=force)
        made_of = _origin(job, target, settings, progress)
        if older is not None and older.of == made_of and not _changed(path, target, older):
            size = sum(file["size"] for file in older.files.values())
            return replace(result, existed=True, bytes=size, compared=older.compared)
        if older is not None and not target.suffix:
            _check_own_files(path, older)
        return _write(job, target, made_of, result, card, progress)


def _holds_marks(target: ExportTarget) -> bool:
    return target.holds.episodes is True and target.holds.text


def _destination(path: Path, target: ExportTarget) -> Path:
    path = Path(os.path.abspath(path))  # noqa: PTH100 - links stay links, and are refused
    if not path.name:
        raise UsageError(f"{path} cannot be replaced by an export", hint="name a new folder in it")
    if target.suffix and path.suffix != target.suffix:
        raise UsageError(
            f"{path} does not end in {target.suffix}, as names of {target.name} files do",
            hint=f"name it {path.with_suffix(target.suffix).name}",
        )
    return path


def _check_options(options: ExportOptions, target: ExportTarget) -> None:
    for option in fields(options):
        if option.name not in target.reads and getattr(options, option.name) != option.default:
            flag = f"--{option.name.replace('_', '-')}"
            others = [name for name in TARGETS if option.name in get_target(name).reads]
            raise UsageError(
                f"{target.name} has no option {flag}", hint=f"it is of {' and '.join(others)}"
            )


def _check_destination(path: Path, target: ExportTarget, *, force: bool) -> _Receipt | None:
    """Return the receipt of an earlier export at the destination; raises `UsageError`."""
    if path.is_symlink():
        raise UsageError(f"{path} is a link", hint="name the file or folder itself")
    if not path.exists():
        return None
    receipt = _receipt_of(path, target)
    kind = is_file(path) if target.suffix else is_folder(path)
    if receipt is not None and kind:
        return receipt
    if kind and not target.suffix and not any(path.iterdir()):
        return None
    if kind and force and target.suffix:
        return None
    raise UsageError(
        f"{path} exists and was not written by `export`; nothing was changed",
        hint="name a new file or folder" + (", or replace it: --force" if target.suffix else ""),
    )


def _check_own_files(path: Path, receipt: _Receipt) -> None:
    """Raise `UsageError` if a folder that will be replaced has files that are not of its export."""
    names = {file.relative_to(path).as_posix() for file in files_below(path)}
    if others := sorted(names - {RECEIPT, *receipt.files}):
        raise UsageError(
            f"{path} has files that are not of its export, such as {others[0]}; nothing was changed",
            hint="move them, or name a new folder",
        )


def _receipt_place(path: Path, target: ExportTarget) -> Path:
    return path.with_name(f"{path.name}.{RECEIPT}") if target.suffix else path / RECEIPT


def _receipt_of(path: Path, target: ExportTarget) -> _Receipt | None:
    place = _receipt_place(path, target)
    try:
        value = read_json(place, max_bytes=1 << 28)
        receipt = decode(_Receipt, value, str(place), lenient=True)
    except (NotFoundError, FormatError):
        return None
    return receipt if receipt.to == target.name else None


def _changed(path: Path, target: ExportTarget, receipt: _Receipt) -> bool:
    folder = path.parent if target.suffix else path
    names = [folder / name for name in receipt.files]
    return not all(map(is_file, names)) or _digests(folder, names) != receipt.files


def _staged_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.exporting")


def _recover(path: Path) -> None:
    """Remove what a killed process left, and put back the export that it was about to replace."""
    staged = _staged_of(path)
    if (staged / _REPLACED).exists() and not path.exists():
        (staged / _REPLACED).rename(path)
    shutil.rmtree(staged, ignore_errors=True)


def _origin(job: ExportJob, target: ExportTarget, settings: Settings, progress: Progress) -> Any:
    """Return what the result depends on, as JSON: datasets by content, rows, options, format."""
    members = []
    for member in job.episodes.members:
        manifest = member.reader.manifest
        entry = entry_at(member.reader.path)
        found: dict[str, Any] = {
            "id": manifest.id,
            "content": digest_of(entry, settings.root, progress),
        }
        if _holds_marks(target) and member.reader.marks.episodes:
            found["marks"] = hashlib.sha256(member.reader.marks.to_json()).hexdigest()
        if not member.whole:
            chosen = member.chosen
            found |= {"episodes": len(chosen.lengths), "rows": digest_of_rows(chosen)}
        members.append(found)
    options = {name: getattr(job.options, name) for name in target.reads}
    return json.loads(json.dumps({"datasets": members, "options": options, "to": target.name}))


def _write(
    job: ExportJob,
    target: ExportTarget,
    made_of: Any,
    result: Exported,
    card: CardFiles,
    progress: Progress,
) -> Exported:
    path = result.path
    staged = _staged_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        staged.mkdir()
        written = staged / path.name
        size = sum(leaf.nbytes for leaf in job.episodes.leaves if leaf.table != "episodes")
        require_bytes(staged, size * job.episodes.transitions // 4, f"An export to {path}")
        if not target.suffix:
            written.mkdir()
        with progress.task(f"export {path.name}", job.episodes.transitions, "steps") as bar:
            write_files(target, written, job, bar)
        compared, losses = prove(target.read(written, job), job, target, result.losses, progress)
        result = replace(result, losses=losses, compared=compared)
        if not target.suffix:
            for name, content in _card(job, target, result, card, progress).items():
                (written / name).write_bytes(content)
        folder = staged if target.suffix else written
        files = _digests(folder, files_below(folder))
        receipt = {
            "to": target.name,
            "version": __version__,
            "of": made_of,
            "history": [[vars(step) for step in one.history] for one in job.episodes.members],
            "losses": [asdict(loss) for loss in losses],
            "compared": compared,
            "transitions": result.transitions,
            "episodes": result.episodes,
            "files": files,
        }
        text = as_unicode(json.dumps(receipt, ensure_ascii=False, indent=1))
        write_durably(_receipt_place(written, target), text.encode())
        _publish(staged, path, target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return replace(result, bytes=sum(one["size"] for one in files.values()))


def _publish(staged: Path, path: Path, target: ExportTarget) -> None:
    """Rename what was written; a folder replaces an earlier export as a whole, a file comes last."""
    if target.suffix:
        for written in sorted(staged.iterdir(), key=lambda one: one.name == path.name):
            written.replace(path.with_name(written.name))
    else:
        aside = staged / _REPLACED
        if path.exists():
            path.rename(aside)
        try:
            (staged / path.name).rename(path)
        except OSError:
            if aside.exists():
                aside.rename(path)
            raise
    sync_folder(path.parent)


def _digests(folder: Path, paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of files by their names in a folder; all are synced."""
    files = {}
    for path in paths:
        size, sha256 = hash_file(path)
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
        files[path.relative_to(folder).as_posix()] = {"size": size, "sha256": sha256}
    return files


def _card(
    job: ExportJob, target: ExportTarget, result: Exported, card: CardFiles, progress: Progress
) -> dict[str, bytes]:
    first = entry_at(job.episodes.reader.path)
    files = dict(card(first, progress, target.card(job)))
    of = plural(result.transitions, "step") + " in " + plural(result.episodes, "episode")
    part = len(job.episodes.members) > 1 or not job.episodes.members[0].whole
    lines = [
        "## Export",
        f"Schema, statistics and provenance above are those of all of `{first.id}`."
        if part
        else "",
        (
            f"{of} of `{result.id}`, written as {target.title} by offline-data {__version__}. "
            f"`{RECEIPT}` has the digests of the dataset and of all files."
        ),
        "Not in these files:" if result.losses else "These files have all of the dataset.",
        "\n".join(f"- {escape(loss)}" for loss in result.losses),
    ]
    export = "\n" + "\n\n".join(line for line in lines if line) + "\n"
    return {**files, CARD: files[CARD] + export.encode()}
