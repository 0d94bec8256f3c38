"""Options and results of `download` and `convert`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from offline_data.errors import NotFoundError, UsageError
from offline_data.files import human_bytes
from offline_data.ids import did_you_mean
from offline_data.plurals import plural
from offline_data.sources.base import ALL_SPLITS
from offline_data.sources.registry import get_source
from offline_data.store.layout import DEFAULT_AUDIT, AuditMode

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.fetch.plan import FetchPlan
    from offline_data.ids import DatasetId
    from offline_data.sources.base import Release
    from offline_data.sources.text_options import TextOptions
    from offline_data.store.layout import LayoutName
    from offline_data.store.manifest import Manifest

_MOST_DIGITS = 18
"""Maximum digits of an episode's number: more do not fit into int64."""


class SeveralSplitsError(UsageError):
    """Files with several splits, such as `train` and `val`, none of which was chosen.

    Attributes:
        splits: Their names.
    """

    def __init__(self, where: str, splits: tuple[str, ...]) -> None:
        self.where, self.splits = where, splits
        super().__init__(
            f"{where} has {len(splits)} splits: {', '.join(splits)}",
            hint=f"choose one: --split={splits[0]!r}; or all as one dataset: --split={ALL_SPLITS!r}",
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Keep `splits` when pickled."""
        return type(self), (self.where, self.splits)


@dataclass(frozen=True)
class Options:
    """Options of `download` and `convert`."""

    layout: LayoutName | None = None
    """Layout to write; None: that of an existing dataset, `compact` for a new one."""
    episodes: tuple[int | None, int | None] | None = None
    """Half-open range of the source's episodes, or None for all of them."""
    strict: bool = False
    """Whether a leaf that cannot be stored is an error."""
    audit: AuditMode = DEFAULT_AUDIT
    """Share of rows that are read back and compared with the source."""
    keep_raw: bool = False
    """Whether to keep raw files after conversion."""
    force: bool = False
    """Whether to fetch and convert an existing dataset again."""
    keep_episodes: bool = False
    """Whether to keep episodes whole if a source's next observation differs from the following row;
    else they are cut there. With False an existing dataset of either kind is accepted."""
    skip_bad_episodes: bool = False
    """Whether to leave out episodes that cannot be read; else they are errors. An existing dataset
    of either kind is accepted."""
    allow_changed: bool = False
    """Whether raw files may differ from what their source publishes of them."""
    images: Literal["encoded", "raw"] | None = None
    """`raw`: decode JPEG and PNG images and store pixels. `encoded`: keep them as in the source.
    None: the same, and an existing dataset of either kind is accepted."""
    checkpoints: tuple[int | None, int | None] | None = None
    """Half-open range of checkpoints, for sources that have them; None: all."""
    split: str | None = None
    """Split to read of local files that have several, or `all`. Not for text, which has its own."""
    text: TextOptions | None = None
    """Tokenization of text; None: not text, and an existing dataset of any kind is accepted."""

    def __post_init__(self) -> None:
        for name, given in (("episodes", self.episodes), ("checkpoints", self.checkpoints)):
            first, stop = given or (None, None)
            if (first or 0) < 0 or (stop is not None and stop <= (first or 0)):
                raise UsageError(
                    f"{name.capitalize()} {first or 0}:{stop} is not a range; expected 0 <= A < B, "
                    f"as in --{name} 0:10"
                )

    def revision_of(self, revision: str) -> str:
        """Return the revision to write, which differs for a range of episodes or checkpoints.

        Example:
            >>> Options(episodes=(0, 10)).revision_of("3f2a")
            '3f2a+episodes-0-10'
        """
        for name, given in (("checkpoints", self.checkpoints), ("episodes", self.episodes)):
            if given is not None:
                first, stop = given
                revision += f"+{name}-{first or 0}-{'end' if stop is None else stop}"
        if self.split not in {None, ALL_SPLITS}:
            revision += f"+split-{self.split}"
        return revision if self.text is None else f"{revision}+text-{self.text.digest}"

    @property
    def whole(self) -> bool:
        """Whether the whole dataset is requested."""
        return self.episodes is None and self.checkpoints is None

    def accept(self, manifest: Manifest) -> bool:
        """Return True if an existing dataset has the requested episodes and images."""
        recorded = manifest.converter.get("options") or {}
        return (bool(recorded.get("keep_episodes")) or not self.keep_episodes) and (
            self.images in {None, recorded.get("images") or "encoded"}
            and (self.text is None or self.text.are_recorded_as(recorded.get("text")))
        )

    def apply_to(self, release: Release, source: str) -> Release:
        """Return a release with these options; raises `UsageError` if its source lacks one.

        Raises `NotFoundError` if there is no such split.
        """
        _check_split(release, source, self.split)
        if self.checkpoints is not None:
            release = get_source(source).narrowed(release, self.checkpoints)
        if self.text is not None:
            release = get_source(source).with_text(release, self.text)
        if self.allow_changed:
            files = (
                replace(file, size=None, digest=None, accepts_changes=True)
                for file in release.files
            )
            release = replace(release, files=tuple(files))
        return replace(
            release,
            keep_episodes=self.keep_episodes,
            skip_bad_episodes=self.skip_bad_episodes,
            split=self.split,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the options that are recorded in the manifest."""
        return {
            "episodes": list(self.episodes) if self.episodes else None,
            "strict": self.strict,
            "keep_raw": self.keep_raw,
            "audit": self.audit,
            "keep_episodes": self.keep_episodes,
            "skip_bad_episodes": self.skip_bad_episodes,
            "allow_changed": self.allow_changed,
            "images": self.images,
            "checkpoints": list(self.checkpoints) if self.checkpoints else None,
            "split": self.split,
            "text": self.text.recorded() if self.text else None,
        }


def _check_split(release: Release, source: str, split: str | None) -> None:
    """Raise unless a split is chosen where there are several, and only one that there is."""
    there, where = release.splits, str(release.local or release.name)
    if split is None and len(there) > 1:
        raise SeveralSplitsError(where, there)
    if split is not None and not there:
        raise UsageError(
            f"{where}, as files of {source}, has no splits that are told apart",
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

    Raises as `offline_data.text.tokenizer.load_tokenizer`.
    """
    return get_source("text").pin_text(text, offline=settings.offline) if text else None


def parse_range(text: str | None, name: str = "--episodes") -> tuple[int | None, int | None] | None:
    """Parse `A:B`, where either side may be omitted; raises `UsageError` naming the option."""
    if text is None:
        return None
    first, colon, stop = text.partition(":")
    sides = [side.strip() for side in (first, stop)]
    given = f"{name} is {text[:40]!r}"
    if not colon or not all(re.fullmatch("[0-9]*", side) for side in sides):
        raise UsageError(f"{given}; expected A:B", hint=f"{name} 0:10 takes the first ten")
    digits = max(map(len, sides))
    if digits > _MOST_DIGITS:
        raise UsageError(
            f"{given}; a number of {digits} digits is too large: expected at most {_MOST_DIGITS}",
            hint="leave B out to take all from A on",
        )
    begin, end = (int(side) if side else None for side in sides)
    return begin, end


def format_range(given: tuple[int | None, int | None]) -> str:
    """Return a range in the form that `parse_range` reads.

    Example:
        >>> format_range((10, None))
        '10:'
    """
    return ":".join("" if end is None else str(end) for end in given)


@dataclass(frozen=True)
class Stored:
    """A dataset on this disk, as the result of a command."""

    id: DatasetId
    """Its id, revision included."""
    path: Path
    """Its directory."""
    manifest: Manifest
    """Its manifest."""
    existed: bool
    """Whether it existed before."""
    seconds: float
    """Wall time of the command."""

    def __repr__(self) -> str:
        """Return id, counts, size and place, on one line."""
        return (
            f"Stored({self.id}, {plural(self.transitions, 'transition')}, "
            f"{plural(self.episodes, 'episode')}, {human_bytes(self.bytes)}, {str(self.path)!r})"
        )

    @property
    def layout(self) -> LayoutName:
        """Its layout."""
        return self.manifest.layout

    @property
    def transitions(self) -> int:
        """Number of its transitions."""
        return int(self.manifest.counts["transitions"])

    @property
    def episodes(self) -> int:
        """Number of its episodes."""
        return int(self.manifest.counts["episodes"])

    @property
    def bytes(self) -> int:
        """Bytes of its files but the manifest."""
        return self.manifest.bytes


@dataclass(frozen=True)
class DownloadPlan:
    """The result of `plan_download`; nothing has been changed."""

    id: DatasetId
    """The id, with the revision if it could be resolved."""
    destination: Path
    """Directory that the dataset would have."""
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
    """The id it would have."""
    source: str
    """Source whose format the files have."""
    layout: LayoutName
    destination: Path
    """Its directory."""
    existing: Path | None
    """The same where it is on this disk already, as asked for; then nothing would be done."""
    replaces: DatasetId | None
    """Dataset of the same name that would go."""
    files: int
    """Raw files, and their bytes."""
    bytes: int
    transitions: int | None
    """As the files state it, like the next one; of all files, for any requested range."""
    episodes: int | None
    free_bytes: int
    """Free bytes on the disk of the root."""
    warnings: tuple[str, ...]
    """Facts that a user would not expect."""
