"""Decides what is to be fetched; asks no host and writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from offline_data.base.config import Settings
from offline_data.base.errors import UsageError
from offline_data.base.files import check_relative, free_bytes, human_bytes
from offline_data.base.plurals import plural
from offline_data.fetch.cache import (
    FetchRecord,
    PartialState,
    bytes_of,
    partial_path,
    read_record,
    whole_path,
)
from offline_data.fetch.files import RemoteFile, check_plausible, split_digest
from offline_data.fetch.hub import cached_by_user, url_on_hub
from offline_data.fetch.mirrors import scheme_of, with_mirrors

Action: TypeAlias = Literal["keep", "fetch", "resume", "replace"]


@dataclass(frozen=True)
class FileStep:
    """The action for one file, and its reason."""

    file: RemoteFile
    action: Action
    """`keep`: it is here; `fetch`: it is not; `resume`: a part is; `replace`: what is here goes."""
    reason: str  # half a sentence for people
    places: tuple[str, ...]  # mirrors and published URLs, in the order in which they are tried
    wanted: int | None  # bytes still to come over the network; None if unknown
    path: Path | None = None  # of its bytes, if kept
    record: FetchRecord | None = None  # of the last fetch
    force: bool = False  # whether a change of content since then is accepted


@dataclass(frozen=True)
class FetchPlan:
    """Steps for all files of a dataset; `str()` of it is what `--dry-run` shows."""

    steps: tuple[FileStep, ...]  # one for each file, in the order given
    root: Path  # the downloads folder
    free: int  # bytes free there

    @property
    def wanted(self) -> int:
        """Bytes still to come, as far as they are known."""
        return sum(step.wanted or 0 for step in self.steps)

    @property
    def unknown(self) -> int:
        """Number of files of unknown size."""
        return sum(step.wanted is None for step in self.steps)

    def __str__(self) -> str:
        lines = []
        for step in self.steps:
            size = "?" if step.wanted is None else human_bytes(step.wanted)
            lines.append(f"{step.action:8} {size:>10}  {step.file.path}  ({step.reason})")
        more = f" and {plural(self.unknown, 'file')} of unknown size" if self.unknown else ""
        total = f"{human_bytes(self.wanted)}{more} to fetch; {human_bytes(self.free)} free"
        return "\n".join([*lines, f"{total} in {self.root}"])


def plan_fetch(
    files: Sequence[RemoteFile], settings: Settings, *, force: bool = False
) -> FetchPlan:
    """Decide about every file. Nothing is written and no host is asked.

    `offline` does not change a plan, only whether it can run. `force`: fetch again what is here,
    and accept that it changed.

    Raises:
        IntegrityError: A path that would leave its folder, a size that no file has.
        UsageError: No URL, an unknown kind of URL, a malformed digest, a path given twice.
    """
    paths = [check_relative(file.path) for file in files]
    if len(set(paths)) < len(paths):
        twice = ", ".join(sorted({path for path in paths if paths.count(path) > 1}))
        raise UsageError(f"Files to fetch have the same path: {twice}")
    for file in files:
        check_plausible(file.size or 0, f"According to its source, {file.path}")
    steps = tuple(_step(file, settings, force=force) for file in files)
    return FetchPlan(steps, settings.downloads, free_bytes(settings.downloads))


def _step(file: RemoteFile, settings: Settings, *, force: bool) -> FileStep:
    def plainly(url: str) -> str:
        return url_on_hub(url, settings) if scheme_of(url) == "hf" else url

    places = with_mirrors(file.urls, settings.mirrors, plainly)
    if not places:
        raise UsageError(f"{file.path} has no URL")
    for url in places:
        if scheme_of(url) not in {"http", "https", "hf", "file"}:
            known = "file://, hf://, http://, https://"
            raise UsageError(f"{file.path} cannot be fetched from {url!r}; known are {known}")
    if file.digest is not None:
        split_digest(file.digest)
    record = read_record(settings, file.urls[0])

    def step(action: Action, reason: str, wanted: int | None, path: Path | None = None) -> FileStep:
        return FileStep(file, action, reason, places, wanted, path, record, force=force)

    path = here(file, settings, record)
    if path is not None and not force:
        return step("keep", "here already", 0, path)
    if force and record is not None:
        return step("replace", "asked for again", file.size)
    if record is not None and bytes_of(settings, record) is not None:
        return step("replace", "published as another file since", file.size)
    if scheme_of(places[0]) == "file":
        return step("fetch", "on this machine, to be verified", 0)
    if scheme_of(file.urls[0]) == "hf" and cached_by_user(file.urls[0]):
        return step("fetch", "in the Hugging Face cache, to be verified", 0)
    part = partial_path(settings, file.urls[0])
    try:
        size = part.stat().st_size
    except OSError:
        size = 0
    # without a digest only what surely outlived a crash is resumed
    size = size if file.digest or not size else PartialState.read(part).count_written(size)
    if size:
        left = None if file.size is None else max(file.size - size, 0)
        return step("resume", f"{human_bytes(size)} are here", left)
    return step("fetch", "not here", file.size)


def here(file: RemoteFile, settings: Settings, record: FetchRecord | None) -> Path | None:
    """Return where a file's verified bytes are on this disk, or None."""
    # They are its bytes if they have the published sha256, or if they were verified when they were
    # fetched from its URL and what is published now does not say otherwise.
    if record is not None and record.agrees(file):
        path = bytes_of(settings, record)
        if path is not None:
            return path
    algorithm, value = split_digest(file.digest) if file.digest else ("", "")
    if algorithm != "sha256":
        return None
    path = whole_path(settings, value)
    return path if path.exists() and file.size in {None, path.stat().st_size} else None
