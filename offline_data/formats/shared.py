"""`shared:hf://OWNER/NAME`, `shared:https://…`, `shared:file:///…`: dataset directories that were pushed.

The manifest at the address lists all other files, so that no listing of a folder is needed. It is a
stranger's: it is checked, and says sizes and digests, before any other file is fetched or opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from offline_data.base.config import Settings
from offline_data.base.errors import InvalidIdError, ManifestError, NotFoundError, OfflineError
from offline_data.base.ids import parse_id
from offline_data.base.json import read_whole
from offline_data.fetch.client import get_document
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.hub import list_hub
from offline_data.fetch.mirrors import path_of_url
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.run import run_fetch
from offline_data.formats.base import CatalogEntry, Release, Source
from offline_data.formats.local import StoredEpisodes
from offline_data.store.layout import MANIFEST
from offline_data.store.manifest import MAX_BYTES, parse_manifest

_NOT_PUSHED = (
    "`offline-data push ID` writes such datasets; Minari's on the hub are minari:hf://OWNER/DATASET, "
    "text is hf:OWNER/NAME"
)
_DAMAGED = "what is at this address is not what was pushed: push it again, or ask its owner"


class Shared(Source):
    """Dataset directories of this package at an address; they are copied, not converted."""

    name = "shared"
    title = "datasets that were pushed: a repository of the hub, a web server, a folder"

    def catalog(self) -> Sequence[CatalogEntry]:
        return ()

    def remote(self, settings: Settings) -> Sequence[CatalogEntry]:  # noqa: ARG002
        return ()

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """Read the manifest at an address.

        The revision is the commit on the hub, elsewhere the beginning of the manifest's sha256; other
        addresses than those of the hub keep only the newest.

        Raises:
            NotFoundError: No manifest at the address, or not of this revision.
            ManifestError: It is damaged, or not one.
            OfflineError, AuthError, NetworkError: The host is not asked, refuses, or does not answer.
        """
        scheme, _, rest = name.partition("://")
        if settings.offline and scheme not in {"file", "http", "https"}:
            raise OfflineError(f"{name} cannot be reached in offline mode")
        if scheme == "hf":
            found, home, data = self._from_hub(rest, revision, settings)
        else:
            home = f"{scheme}://{quote(rest, safe='/:')}"
            data = self._read(home, scheme, settings)
            found = hashlib.sha256(data).hexdigest()[:12]
            if revision not in {None, found}:
                raise NotFoundError(
                    f"{name} is at revision {found} now, not {revision}",
                    hint=f"the address keeps only the newest: leave out @{revision}",
                )
        manifest = parse_manifest(data, name, _DAMAGED)
        try:
            parse_id(manifest.id)
        except InvalidIdError as error:
            raise ManifestError(f"{name}/{MANIFEST} has no id: {error}", hint=_DAMAGED) from error
        listed = {
            path: (entry["size"], entry["sha256"]) for path, entry in manifest.digests.items()
        }
        listed[MANIFEST] = len(data), hashlib.sha256(data).hexdigest()
        files = tuple(
            RemoteFile(path, (_url(home, path),), size, f"sha256:{sha256}")
            for path, (size, sha256) in sorted(listed.items())
        )
        return Release(name, found, files, licence=manifest.licence)

    def open(self, release: Release, raw: Path) -> StoredEpisodes:  # noqa: ARG002
        """Open the directory, of which only a part, or in another form, is requested."""
        return StoredEpisodes(raw)

    def _from_hub(
        self, repository: str, revision: str | None, settings: Settings
    ) -> tuple[str, str, bytes]:
        """Return the commit, the beginning of URLs, and the bytes of the manifest."""
        if repository.count("/") != 1:
            raise InvalidIdError(
                f"hf://{repository} is not a repository; expected hf://OWNER/NAME", hint=_NOT_PUSHED
            )
        listing = list_hub(repository, "", revision, settings)
        file = next((file for file in listing.files if file.path == MANIFEST), None)
        if file is None or (file.size or 0) > MAX_BYTES:
            raise NotFoundError(
                f"hf://{repository} is not a dataset that was pushed: it has no {MANIFEST}",
                hint=_NOT_PUSHED,
            )
        (fetched,) = run_fetch(plan_fetch([file], settings), settings)
        home = f"hf://datasets/{repository}@{listing.commit}"
        return listing.commit, home, read_whole(fetched.path, MAX_BYTES)

    def _read(self, home: str, scheme: str, settings: Settings) -> bytes:
        url = f"{home}/{MANIFEST}"
        try:
            if scheme == "file":
                return read_whole(Path(path_of_url(url)), MAX_BYTES)
            return get_document(url, settings, lambda body, _: body)
        except NotFoundError as error:
            raise NotFoundError(
                f"There is no dataset at {home}: {error.message}", hint=_NOT_PUSHED
            ) from error


def _url(home: str, path: str) -> str:
    return f"{home}/{path if home.startswith('hf:') else quote(path)}"
