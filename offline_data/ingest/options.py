"""Options and results of `download` and `convert`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offline_data.errors import UsageError
from offline_data.store.layout import DEFAULT_AUDIT, AuditMode

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.fetch.plan import FetchPlan
    from offline_data.ids import DatasetId
    from offline_data.store.layout import LayoutName
    from offline_data.store.manifest import Manifest


@dataclass(frozen=True)
class Options:
    """Options of `download` and `convert`."""

    layout: LayoutName | None = None
    """Layout to write; None keeps what is there, `compact` for a new dataset."""
    episodes: tuple[int | None, int | None] | None = None
    """Half-open range of the source's episodes, or None for all of them."""
    strict: bool = False
    """Whether a leaf that cannot be kept is an error."""
    audit: AuditMode = DEFAULT_AUDIT
    """How many rows are read back and compared with the source."""
    keep_raw: bool = False
    """Whether raw files stay after conversion."""
    force: bool = False
    """Whether to fetch and convert again what is there."""
    keep_episodes: bool = False
    """Whether episodes are kept whole where the source's next observation is not the next row's;
    else they are cut there. With False, a dataset that is there is taken either way."""

    def __post_init__(self) -> None:
        first, stop = self.episodes or (None, None)
        if (first or 0) < 0 or (stop is not None and stop <= (first or 0)):
            raise UsageError(
                f"Episodes {first or 0}:{stop} is no range; expected 0 <= A < B, as in --episodes 0:10"
            )

    def revision_of(self, revision: str) -> str:
        """Name the revision that is written: some episodes are never mistaken for all.

        Example:
            >>> Options(episodes=(0, 10)).revision_of("3f2a")
            '3f2a+episodes-0-10'
        """
        if self.episodes is None:
            return revision
        first, stop = self.episodes
        return f"{revision}+episodes-{first or 0}-{'end' if stop is None else stop}"

    def accept_episodes_of(self, manifest: Manifest) -> bool:
        """Return True unless episodes are to be kept whole that may have been cut in this dataset."""
        recorded = manifest.converter.get("options") or {}
        return bool(recorded.get("keep_episodes")) or not self.keep_episodes

    def to_json(self) -> dict[str, Any]:
        """Return what the manifest keeps of them."""
        return {
            "episodes": list(self.episodes) if self.episodes else None,
            "strict": self.strict,
            "keep_raw": self.keep_raw,
            "audit": self.audit,
            "keep_episodes": self.keep_episodes,
        }


@dataclass(frozen=True)
class Stored:
    """A dataset that is on this disk now."""

    id: DatasetId
    """Its id, revision included."""
    path: Path
    """Its directory."""
    manifest: Manifest
    """Its manifest."""
    existed: bool
    """Whether it was there already, as it was asked for."""
    seconds: float
    """Wall time it took."""


@dataclass(frozen=True)
class DownloadPlan:
    """The result of `plan_download`; nothing has been changed."""

    id: DatasetId
    """The id, with the revision where it could be resolved."""
    destination: Path
    """Directory that the dataset would have."""
    existing: Path | None
    """Its directory if it is on this disk already; then nothing would be done."""
    fetch: FetchPlan | None
    """Files to fetch; None where they are on this machine already."""
    free_bytes: int
    """Free bytes on the disk of the root."""
    shards: int | None = None
    """Shards that are fetched, converted and freed one by one, where the source tells."""
