"""Options applied to a release, and the results of `download` and `convert`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from offline_data.base.config import Settings
from offline_data.base.errors import NotFoundError, UsageError
from offline_data.base.ids import DatasetId, did_you_mean
from offline_data.fetch.plan import FetchPlan
from offline_data.formats.base import NOT_TAKEN, Release
from offline_data.formats.options import (
    ALL_SPLITS,
    Options,
    TextOptions,
)
from offline_data.formats.registry import get_source
from offline_data.store.layout import LayoutName
from offline_data.store.tokenizers import remember_tokenizer


class SeveralSplitsError(UsageError):
    """Files with several splits, such as `train` and `val`, none of which was chosen."""

    def __init__(self, where: str, splits: tuple[str, ...]) -> None:
        self.where, self.splits = where, splits
        super().__init__(
            f"{where} has {len(splits)} splits: {', '.join(splits)}",
            hint=f"choose one: --split={splits[0]!r}; or all as one dataset: --split={ALL_SPLITS!r}",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.where, self.splits)


def apply_options(options: Options, release: Release, source: str) -> Release:
    """Return a release with options, see `Source.with_options`; raises `NotFoundError` for a split."""
    _check_split(release, source, options.split)
    options = replace(options, mapping=options.mapping or release.options.mapping)
    if any(getattr(options, name) for name in NOT_TAKEN):
        release = get_source(source).with_options(release, options)
    else:  # without the adapter, which needs numpy
        release = replace(release, options=options)
    if options.allow_changed:
        files = (
            replace(file, size=None, digest=None, accepts_changes=True) for file in release.files
        )
        release = replace(release, files=tuple(files))
    return release


def _check_split(release: Release, source: str, split: str | None) -> None:
    there, where = release.splits, str(release.local or release.name)
    if split is None and len(there) > 1:
        raise SeveralSplitsError(where, there)
    if split is not None and not there:
        raise UsageError(
            f"{where}, as files of {source}, has no separate splits",
            hint="leave --split out"
            + ("; a split of a download is part of its id" if release.local is None else ""),
        )
    if split not in {None, ALL_SPLITS, *there}:
        raise NotFoundError(
            f"{where} has no split {split!r}; it has {', '.join(there)}",
            hint=did_you_mean(str(split), there),
        )


def pinned_text(text: TextOptions | None, settings: Settings) -> TextOptions | None:
    """Return options of text with the digest of their tokenizer, which then may not change.

    The place of one on this machine is remembered. Raises as `text.tokenizer.load_tokenizer`.
    """
    if text is None:
        return None
    pinned = get_source("text").pin_text(text, offline=settings.offline)
    if pinned.from_path and pinned.tokenizer_sha256:
        remember_tokenizer(settings.root, pinned.tokenizer_sha256, pinned.tokenizer)
    return pinned


@dataclass(frozen=True)
class DownloadPlan:
    """The result of `plan_download`; nothing has been changed."""

    id: DatasetId
    """The id, with the revision if it could be resolved."""
    destination: Path
    existing: Path | None
    """Its directory if it exists already; then nothing would be done."""
    fetch: FetchPlan | None
    """Files to fetch; None if they are on this machine already."""
    free_bytes: int
    """Free bytes on the disk of the root."""
    shards: int | None = None
    """Number of shards, which are fetched, converted and freed one by one; None if unknown."""


@dataclass(frozen=True)
class ConvertPlan:
    """Plan of a conversion of local files; nothing has been changed."""

    id: DatasetId
    source: str
    """Source whose format the files have."""
    layout: LayoutName
    destination: Path
    existing: Path | None
    """Directory of an existing dataset that satisfies the request, if any; nothing is done then."""
    replaces: DatasetId | None
    """Dataset of the same name that would go."""
    files: int
    """Raw files, and their bytes."""
    bytes: int
    transitions: int | None
    """As the files state it, like the next one; of all files, for any requested range."""
    episodes: int | None
    free_bytes: int
    warnings: tuple[str, ...]
    """Facts that a user would not expect."""
