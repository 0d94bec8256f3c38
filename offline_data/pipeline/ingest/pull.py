"""Datasets that were pushed: what was fetched becomes the dataset directory, byte by byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError
from offline_data.base.files import disk_errors, require_bytes, sync_folder, write_durably
from offline_data.base.ids import SHARED
from offline_data.base.progress import Progress
from offline_data.fetch.files import FetchedFile
from offline_data.pipeline.ingest.build import Build, BuildJob
from offline_data.pipeline.ingest.convert import changes_nothing
from offline_data.store.copies import place_file
from offline_data.store.history import extend_history
from offline_data.store.layout import MANIFEST
from offline_data.store.manifest import HistoryStep, Manifest, dump_manifest, read_manifest
from offline_data.store.publish import publish

ORIGIN = "origin"
"""Field of the manifest: what the manifest that was pushed said of the dataset."""


def publish_pulled(
    build: Build,
    fetched: Sequence[FetchedFile],
    raw: Path,
    settings: Settings,
    progress: Progress,
    folder: Path,
) -> bool:
    """Verify and publish a dataset directory that was fetched; returns whether it is to be used as it is.

    Files of the downloads folder are linked, those of the user's are copied. `folder` is for staging.
    Raises `IntegrityError`, `AccessError`, `NoSpaceError`.
    """
    from offline_data.store.verify import verify  # imports numpy

    manifest = read_manifest(raw) if build.job.adapter == SHARED else None
    if manifest is None or not changes_nothing(manifest, build.options):
        return False
    with disk_errors(folder), progress.task(f"place {build.job.id}", manifest.bytes, "B") as bar:
        folder.mkdir()
        own = {file.name: file.path.is_relative_to(settings.downloads) for file in fetched}
        copied = sum(int(one["size"]) for name, one in manifest.digests.items() if not own[name])
        require_bytes(folder, copied, f"A copy of {build.release.name}")
        for name, digest in manifest.digests.items():
            source = (raw / name).resolve()
            place_file(source, folder / name, digest, bar, move=own[name])
        # first as it was pushed, so that its own digest is compared, too
        write_durably(folder / MANIFEST, (raw / MANIFEST).read_bytes())
        if problems := verify(folder, progress):
            first = problems[0]
            raise IntegrityError(
                f"{build.release.name} is not a sound dataset: {first.file} {first.problem}",
                hint="its files are those that were pushed: ask its owner to push it again",
            )
        write_durably(
            folder / MANIFEST, dump_manifest(_rename_manifest(manifest, build.job)).encode()
        )
        for path in {folder, *(path for path in folder.rglob("*") if path.is_dir())}:
            sync_folder(path)
    for kept in publish(folder, build.job.destination):
        progress.note(f"{kept} is not the dataset's, and was kept")
    return True


def _rename_manifest(pushed: Manifest, job: BuildJob) -> Manifest:
    """Return the manifest with the id and the files that the dataset has here, and its origin."""
    about: dict[str, Any] = {name: getattr(pushed, name) for name in ("id", "parents", "files")}
    options = dict(pushed.converter.get("options") or {})
    # a range of its source's episodes: here it is the whole dataset
    ranges = {name: options.pop(name) for name in ("episodes", "checkpoints") if name in options}
    step = HistoryStep("download", str(job.id), (pushed.id,), options=ranges)
    return replace(
        pushed,
        id=str(job.id),
        source=job.id.source,
        name=job.id.name,
        revision=str(job.id.revision),
        files=job.files,
        parents=(pushed.id,),
        history=extend_history([pushed], step),
        converter={**pushed.converter, "options": options} if ranges else pushed.converter,
        extra={**pushed.extra, ORIGIN: {**about, **ranges}},
    )
