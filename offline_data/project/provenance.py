"""The origin of a dataset as flat values, for experiment trackers."""

from __future__ import annotations

import hashlib
from pathlib import Path

from offline_data.analysis.info import recipe_lines
from offline_data.base.config import Settings
from offline_data.base.files import disk_errors
from offline_data.base.progress import SILENT, Progress
from offline_data.project.lockfile import read_lock
from offline_data.store.content import digest_of
from offline_data.store.history import history_of
from offline_data.store.library import Entry


def provenance_of(
    entry: Entry, lock: Path | None, settings: Settings, progress: Progress = SILENT
) -> dict[str, str | None]:
    """Return what identifies a dataset, in text, None for what it has not; see `Dataset.provenance`.

    Reads the whole dataset for the content digest, unless that is kept. Raises what `digest_of` and
    `read_lock` raise.
    """
    content = digest_of(entry, settings.root, progress)
    steps = history_of(entry.manifest, settings.root)
    return {
        "id": str(entry.id),
        "revision": entry.manifest.revision,
        "content_digest": content,
        "lock_digest": _lock_digest(entry, content, lock) if lock else None,
        "recipe": "; ".join(line for step in steps for line in recipe_lines(step.recipe)) or None,
        "licence": entry.manifest.licence,
    }


def _lock_digest(entry: Entry, content: str, lock: Path) -> str | None:
    """Return the digest of a lock file, `sha256:…`; None if it does not lock this content."""
    locked = read_lock(lock).values()
    if not any(one.stored_id == entry.id and one.content == content for one in locked):
        return None
    with disk_errors(lock):
        return f"sha256:{hashlib.sha256(lock.read_bytes()).hexdigest()}"
