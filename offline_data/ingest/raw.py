"""Raw files of a release, laid out in a folder: fetched, or where they already are."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offline_data.disk import disk_errors
from offline_data.errors import AuditError, IntegrityError, ManifestError, NotFoundError
from offline_data.ingest.building import StrictError
from offline_data.store.housekeeping import asked_to_stay

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.fetch.files import FetchedFile
    from offline_data.ingest.options import Options
    from offline_data.progress import Progress
    from offline_data.sources.base import Release


@dataclass(frozen=True)
class RawFolder:
    """Raw files ready to be read."""

    path: Path
    """Folder (or file) the adapter opens."""
    files: tuple[dict[str, Any], ...]
    """What the manifest says of them."""


@contextmanager
def raw_folder(
    release: Release, settings: Settings, staging: Path, progress: Progress, options: Options
) -> Iterator[RawFolder]:
    """Bring the raw files of a release here for the time of a conversion.

    Fetched files stay after a failure, so that the next try does not fetch them again; after
    success they go unless `options.keep_raw`, or somebody asked for them to stay before. Files
    that turn out to be damaged, where their source publishes no digest that says they are not, are
    forgotten: the next try fetches them again and takes what comes.
    """
    if release.local is not None:
        yield RawFolder(release.local, local_files(release.local))
        return
    folder = staging / "raw"
    stay = asked_to_stay(settings)
    fetched = raw_files(release, settings, folder, progress, force=options.force)
    try:
        yield RawFolder(folder, tuple(_describe(file) for file in fetched))
    except IntegrityError as error:
        if isinstance(error, (AuditError, ManifestError, StrictError)):
            raise
        doubtful = [
            (file, published.urls[0])
            for file, published in zip(fetched, release.files, strict=True)
            if published.digest is None
        ]
        if not doubtful:
            raise
        _forget(doubtful, stay, settings)
        hint = (
            "what was downloaded is forgotten; fetch it again, with --force: maybe it was damaged"
        )
        raise type(error)(
            error.message, hint="; ".join(filter(None, (error.hint, hint)))
        ) from error
    if not options.keep_raw:
        from offline_data.fetch.cache import discard

        discard([file for file in fetched if file.sha256 not in stay], settings)


def _forget(
    doubtful: Iterable[tuple[FetchedFile, str]], stay: Container[str], settings: Settings
) -> None:
    """Delete files that were fetched, unless they were asked to stay, and what is known of them."""
    from offline_data.fetch.cache import discard, forget

    for file, url in doubtful:
        with disk_errors(settings.downloads):
            forget(settings, url)
        if file.sha256 not in stay:
            discard([file], settings)


def raw_files(
    release: Release, settings: Settings, folder: Path, progress: Progress, *, force: bool
) -> tuple[FetchedFile, ...]:
    """Fetch the files of a release and lay them out under `folder`."""
    from offline_data.fetch.files import assemble
    from offline_data.fetch.plan import plan_fetch
    from offline_data.fetch.run import run_fetch

    fetched = run_fetch(plan_fetch(release.files, settings, force=force), settings, progress)
    assemble(fetched, folder)
    return fetched


def local_files(path: Path) -> tuple[dict[str, Any], ...]:
    """Describe raw files of the user's for the manifest: names and sizes, no digests."""
    if path.is_file():
        return ({"path": path.name, "url": None, "size": path.stat().st_size, "sha256": None},)
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    if not files:
        raise NotFoundError(f"{path} holds no files")
    return tuple(
        {
            "path": file.relative_to(path).as_posix(),
            "url": None,
            "size": file.stat().st_size,
            "sha256": None,
        }
        for file in files
    )


def _describe(file: FetchedFile) -> dict[str, Any]:
    told = {"path": file.name, "url": file.url, "size": file.size, "sha256": file.sha256}
    return {**told, "failed": list(file.failed)} if file.failed else told
