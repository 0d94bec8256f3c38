"""D4RL: flat HDF5 files of the 2020 benchmark, read without the d4rl package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offline_data.errors import (
    NotFoundError,
    OfflineDataError,
    OfflineError,
)
from offline_data.ids import nearest
from offline_data.readers.hdf5 import MAGIC, open_hdf5
from offline_data.sources.base import CatalogEntry, Release, RemoteFile
from offline_data.sources.d4rl.catalog import Listed, listed
from offline_data.sources.d4rl.ends import EndRule
from offline_data.sources.d4rl.look import has_columns, look
from offline_data.sources.d4rl.opening import open_file
from offline_data.sources.fingerprint import fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.sources.d4rl.dataset import D4RLEpisodes

UNVERSIONED = "unversioned"
"""The only revision: the host publishes neither versions nor digests."""


class D4RL:
    """The sets of D4RL's own tables, and files of the user's in their format."""

    name = "d4rl"
    title = "D4RL: locomotion, mazes, hands, kitchen, driving and traffic (flat HDF5)"
    needs: tuple[str, ...] = ()
    extra: str | None = None

    def catalog(self) -> Sequence[CatalogEntry]:
        """List the published sets; their sizes are not published."""
        return [_entry(one) for one in listed().values()]

    def remote(self, settings: Settings) -> Sequence[CatalogEntry]:
        """List the published sets: the host has no list of its own, and no set was ever added.

        Raises:
            OfflineError: In offline mode, where `catalog` is the list to ask for.
        """
        if settings.offline:
            raise OfflineError(
                "The D4RL host cannot be reached in offline mode",
                hint="without --remote, `offline-data list d4rl` lists the same sets",
            )
        return self.catalog()

    def local(self, settings: Settings) -> Sequence[CatalogEntry]:  # noqa: ARG002
        """List nothing: D4RL files on this machine are brought in with `convert`."""
        return ()

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:  # noqa: ARG002
        """Find a published set in the catalogue; needs no network.

        Raises:
            NotFoundError: No such set, with the nearest names; or a revision.
        """
        if name not in listed():
            near = nearest(name, listed())
            raise NotFoundError(
                f"There is no d4rl:{name}",
                hint=f"did you mean {' or '.join(f'd4rl:{one}' for one in near)}?"
                if near
                else "`offline-data list d4rl` lists all",
            )
        if revision not in {None, UNVERSIONED}:
            raise NotFoundError(
                f"There is no d4rl:{name}@{revision}: D4RL files have no revisions",
                hint=f"ask for d4rl:{name}",
            )
        return Release(name, UNVERSIONED, (_remote_file(listed()[name]),))

    def accepts(self, path: Path) -> bool:
        """Return True if `path` is an HDF5 file with the columns of D4RL."""
        if not path.is_file():
            return False
        try:
            with open_hdf5(path) as file:
                return has_columns(file)
        except OfflineDataError:
            return False

    def release_of(self, path: Path, name: str) -> Release:
        """Describe a file of the user's.

        Raises:
            FormatError: It is not a D4RL file.
            NotFoundError, AccessError: There is no such file, or it may not be read.
        """
        with open_hdf5(path) as file:
            look(file, path)
        return Release(name, fingerprint(path, [path]), local=path)

    def open(self, release: Release, raw: Path) -> D4RLEpisodes:
        """Open the file.

        A file of the user's own that has the name of a published one is cut by that one's rule,
        and a note says so.

        Raises:
            FormatError: It is not a D4RL file, or nothing marks the ends of its episodes.
        """
        path = raw / release.files[0].path if release.files and raw.is_dir() else raw
        published = None if release.local else listed().get(release.name)
        alike = next((one for one in listed().values() if one.file == path.name), None)
        known = published or alike
        notes = known.notes if known else ()
        if known and not published:
            said = f"The file has the name of d4rl:{known.name}, and was cut as that is."
            notes = (said, *notes)
        rule = known.rule if known else EndRule()
        return open_file(path, rule, published, notes, keep_episodes=release.keep_episodes)


def _entry(one: Listed) -> CatalogEntry:
    return CatalogEntry(one.name, summary=one.summary, notes=one.notes)


def _remote_file(one: Listed) -> RemoteFile:
    urls = (one.url, one.url.replace("http://", "https://", 1))
    return RemoteFile(one.file, urls, magic=MAGIC)
