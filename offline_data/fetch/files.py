"""What fetching starts from and ends with: a file as published, a verified file on this disk."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.disk import disk_errors
from offline_data.paths import check_relative
from offline_data.urls import redact

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True)
class RemoteFile:
    """One raw file of a dataset, as it is published."""

    path: str
    """Relative posix path inside the raw folder; no `..`, not absolute."""
    urls: tuple[str, ...]
    """Its places, best first. `hf://datasets/<repo>@<commit>/<path>` goes through
    huggingface_hub, `http(s)://` is fetched plainly, `file://` is already here."""
    size: int | None = None
    """Bytes, where the source publishes them."""
    digest: str | None = None
    """`sha256:…`, `md5:…`, `crc32c:…` or `git:…` (the id of the blob, for which the size must be
    known too) in hex, where the source publishes one."""
    magic: bytes = b""
    """First bytes that the file must have (`\\x89HDF\\r\\n\\x1a\\n`); empty: anything."""


@dataclass(frozen=True)
class FetchedFile:
    """One raw file on this disk, verified against everything its source publishes about it."""

    name: str
    """Relative posix path inside the raw folder: `RemoteFile.path`."""
    path: Path
    """Path of its bytes. Never write to it: it is shared."""
    sha256: str
    """Hex digest of the bytes."""
    size: int
    """Bytes."""
    url: str
    """URL they came from: one of the published URLs or a mirror's; redacted."""
    failed: tuple[str, ...] = ()
    """Places that failed before `url`, as `host: reason`; redacted."""

    def __post_init__(self) -> None:
        """Keep no password: these values go into manifests."""
        object.__setattr__(self, "url", redact(self.url))
        object.__setattr__(self, "failed", tuple(map(redact, self.failed)))


def assemble(fetched: Iterable[FetchedFile], folder: Path) -> None:
    """Give every file its name under `folder`: a hard link, or a symlink where that cannot be.

    An existing file of that name is replaced. Files are shared and read-only: never write to them.

    Raises:
        IntegrityError: A name that would leave the folder; no file was linked.
        AccessError: The folder may not be written.
    """
    places = [(file.path, folder / check_relative(file.name)) for file in fetched]
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, place in places:
            place.parent.mkdir(parents=True, exist_ok=True)
            beside = place.with_name(f".{secrets.token_hex(4)}.link")
            try:
                beside.hardlink_to(path.resolve())
            except OSError:  # another disk, or a file of another user
                beside.symlink_to(path.resolve())
            try:
                beside.replace(place)
            finally:
                beside.unlink(missing_ok=True)  # rename does nothing between two links of one file
