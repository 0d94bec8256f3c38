"""Sending a dataset directory to a repository of the hub: only what is missing, then one commit.

`huggingface_hub` does the transfer. Large files are sent before the commit, and the hub keeps them for
some time: after an interruption only those that it lacks are sent again, and until the commit the
repository has the dataset that it had before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError, NetworkError, NotFoundError
from offline_data.base.progress import Progress
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.hub import ask_hub, hub_api, hub_errors, list_hub
from offline_data.fetch.hub_session import quiet_push
from offline_data.store.layout import EPISODES, MANIFEST, OBSERVATIONS, STEPS, TED, TEXT
from offline_data.store.library import Entry

if TYPE_CHECKING:
    from typing_extensions import Self


_AT_ONCE = 5  # files that are sent at the same time


@dataclass(frozen=True)
class HubPush:
    """A dataset and the files of it that a repository lacks, as it was when the hub was asked."""

    repository: str  # `OWNER/NAME`
    files: Mapping[str, Path | bytes]
    """All files of the dataset by path, without the card: where they are, or their bytes."""
    digests: Mapping[str, tuple[int, str]]  # their sizes and sha256
    exists: bool  # whether there is such a repository
    private: bool  # whether only its owner can read it; a new one is private
    parent: str | None  # the commit of its main branch; None: there is none
    changed: tuple[str, ...]  # files that it lacks, or has with other bytes
    stale: tuple[str, ...]  # files of an earlier dataset, which are not of this one

    @classmethod
    def to(cls, repository: str, entry: Entry, manifest: bytes, settings: Settings) -> Self:
        """Compare a dataset with a repository; raises `OfflineError`, `AuthError`, `NetworkError`."""
        files: dict[str, Path | bytes] = {
            name: entry.path / name for name in entry.manifest.digests
        }
        digests = {name: (d["size"], d["sha256"]) for name, d in entry.manifest.digests.items()}
        files[MANIFEST] = manifest
        digests[MANIFEST] = len(manifest), hashlib.sha256(manifest).hexdigest()
        hub_api(settings)  # raises if it is not to be asked
        try:
            listing = list_hub(repository, "", None, settings, may_be_empty=True)
        except NotFoundError:
            return cls(repository, files, digests, False, True, None, (*files,), ())
        there = {file.path: file for file in listing.files}
        changed = tuple(
            name
            for name, content in files.items()
            if name not in there or not _is_same(there[name], content, *digests[name])
        )
        ours = (f"{STEPS}/", f"{OBSERVATIONS}/", f"{EPISODES}/", f"{TED}/")
        stale = tuple(
            path for path in there if path not in files and (path.startswith(ours) or path == TEXT)
        )
        private = listing.private
        return cls(repository, files, digests, True, private, listing.commit, changed, stale)

    @property
    def unchanged(self) -> bool:
        """Whether the repository has the dataset as it is here."""
        return not (self.changed or self.stale)

    @property
    def size(self) -> int:
        """Bytes of the files that are sent."""
        return sum(self.digests[name][0] for name in self.changed)

    def send(self, card: Mapping[str, bytes], settings: Settings, progress: Progress) -> str | None:
        """Send what is missing, then commit it with the files of the card; returns the commit.

        Raises `AuthError`, `NetworkError`, and `IntegrityError` if a file changes meanwhile.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        what, api = f"dataset repository {self.repository}", hub_api(settings)
        where: dict[str, Any] = {"repo_id": self.repository, "repo_type": "dataset"}
        if not self.exists:
            ask_hub(what, lambda: api.create_repo(**where, private=True, exist_ok=True), settings)
        added: list[Any] = []
        with quiet_push(), progress.task(f"push {self.repository}", self.size, "B") as bar:
            for first in range(0, len(self.changed), _AT_ONCE):
                names = self.changed[first : first + _AT_ONCE]
                with hub_errors(what):
                    some = [CommitOperationAdd(name, self._content(name)) for name in names]
                preupload = partial(api.preupload_lfs_files, additions=some, **where)
                ask_hub(what, preupload, settings, once=True)  # it tries again by itself
                for name, one in zip(names, some, strict=True):
                    if one.upload_info.sha256.hex() != self.digests[name][1]:
                        raise IntegrityError(f"{name} was changed while it was pushed")
                    bar.advance(self.digests[name][0])
                added += some
            added += [CommitOperationAdd(name, content) for name, content in card.items()]
            removed = [CommitOperationDelete(path) for path in self.stale]
            try:
                with hub_errors(what):  # not again: it may have been made, and its answer lost
                    made = api.create_commit(
                        operations=[*removed, *added],
                        commit_message="Push a dataset with offline-data",
                        parent_commit=self.parent,
                        **where,
                    )
            except NetworkError:
                if (commit := self._committed(settings)) is None:
                    raise
                return commit
        return str(made.oid)

    def make_public(self, settings: Settings) -> None:
        """Let everybody read the repository."""
        what, api = f"dataset repository {self.repository}", hub_api(settings)

        def ask() -> None:
            api.update_repo_settings(self.repository, repo_type="dataset", private=False)

        ask_hub(what, ask, settings)

    def _content(self, name: str) -> str | bytes:
        content = self.files[name]
        return content if isinstance(content, bytes) else str(content.resolve())

    def _committed(self, settings: Settings) -> str | None:
        """Return the commit if the repository has all files now."""
        listing = list_hub(self.repository, "", None, settings, may_be_empty=True)
        there = {file.path: file for file in listing.files}
        whole = all(
            name in there and _is_same(there[name], content, *self.digests[name])
            for name, content in self.files.items()
        )
        return listing.commit if whole and not there.keys() & {*self.stale} else None


def _is_same(there: RemoteFile, content: Path | bytes, size: int, sha256: str) -> bool:
    """Return True if the hub's digest of a file, sha256 or git's, is that of ours."""
    algorithm, _, value = (there.digest or "").partition(":")
    if algorithm == "sha256" or there.size != size:
        return value == sha256
    data = content if isinstance(content, bytes) else content.read_bytes()  # a small file
    header = f"blob {size}\0".encode()
    return hashlib.sha1(header + data, usedforsecurity=False).hexdigest() == value
