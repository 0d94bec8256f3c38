"""Verify a dataset directory: the digests of what is on disk against the manifest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.progress import SILENT
from offline_data.store.layout import MANIFEST
from offline_data.store.manifest import read_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from offline_data.progress import Progress, Task

_BLOCK = 4 << 20


@dataclass(frozen=True)
class Problem:
    """One file that is not what was written."""

    file: str
    """Relative posix path in the dataset directory."""
    problem: str
    """What is wrong, as half a sentence: "is missing", "has 10 bytes, not 20"."""


def verify(path: Path, progress: Progress = SILENT) -> tuple[Problem, ...]:
    """Compare every file of a dataset directory with the manifest; empty means all is well.

    Reads all bytes. Files the manifest does not list are named too.

    Raises:
        NotFoundError, ManifestError, NewerFormatError, AccessError: See `read_manifest`.
    """
    manifest = read_manifest(path)
    problems = []
    with progress.task("verify", manifest.bytes, "B") as task:
        for name, entry in manifest.digests.items():
            problem = _problem(path / name, entry, task)
            if problem:
                problems.append(Problem(name, problem))
    known = {*manifest.digests, MANIFEST}
    problems += [Problem(name, "is not in the manifest") for name in _files(path) - known]
    return tuple(sorted(problems, key=lambda problem: problem.file))


def _files(path: Path) -> set[str]:
    return {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}


def _problem(file: Path, entry: Mapping[str, Any], task: Task) -> str | None:
    digest = hashlib.sha256()
    try:
        size = file.stat().st_size
        if size != entry["size"]:
            return f"has {size} bytes, not {entry['size']}"
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
                task.advance(len(block))
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if digest.hexdigest() != entry["sha256"]:
        return f"has sha256 {digest.hexdigest()[:12]}…, not {entry['sha256'][:12]}…"
    return None
