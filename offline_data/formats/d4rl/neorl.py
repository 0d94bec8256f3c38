"""NeoRL-2: near-real-world benchmark, flat npz files like those of D4RL, read without the neorl2 package.

Source: `neorl2/envs/base.py` and `neorl2/envs/info.py` of https://github.com/polixir/NeoRL2.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from offline_data.base.config import Settings
from offline_data.formats.base import (
    UNVERSIONED,
    CatalogSource,
    Release,
    RemoteFile,
)
from offline_data.formats.catalogues.control import NeoRLCatalog
from offline_data.formats.catalogues.d4rl import EndRule
from offline_data.formats.d4rl import source as d4rl
from offline_data.formats.d4rl.source import D4RLEpisodes
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.flat.arrays import inspect_npz
from offline_data.formats.flat.hdf5 import FlatFormat
from offline_data.formats.recognition import ArrayNames, array_names

HOST = "http://datasets.polixir.site/neorl2"
MAGIC = b"PK\x03\x04"

FORMAT = FlatFormat(
    "NeoRL",
    d4rl.leaf_of,
    observation="obs",
    action="action",
    reward="reward",
    terminated="done",
    truncated="truncated",
    next_observation="next_obs",
)
NAMES = ArrayNames(FORMAT.required_columns)


class NeoRL(NeoRLCatalog, CatalogSource):
    """The published datasets, and the user's npz files in their format."""

    arrays: ClassVar = {"npz": NAMES}
    takes = ("autoreset",)

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:  # noqa: ARG002
        """Return a published dataset from the catalogue; does not use the network."""
        self.find(name, revision)
        environment, split = name.removesuffix("-val"), "val" if name.endswith("-val") else "train"
        file = f"{environment}-{split}.npz"
        url, digest = (
            f"{HOST}/{environment}/{file}",
            f"md5:{self.rows[environment][f'{split}_md5']}",
        )
        return Release(name, UNVERSIONED, (RemoteFile(file, (url,), digest=digest, magic=MAGIC),))

    def has_format(self, path: Path) -> int:
        """Count NeoRL's arrays in an npz file."""
        return NAMES.count_in(array_names(path)) if path.suffix == ".npz" else 0

    def release_of(self, path: Path, name: str) -> Release:
        return Release(name, fingerprint(path, [path]), local=path)

    def open(self, release: Release, raw: Path) -> D4RLEpisodes:
        """Read the file, and compare next observations with the following rows."""
        path = release.file_in(raw)
        row = self.rows.get(release.name.removesuffix("-val")) if release.local is None else None
        facts = {}
        if row is not None:
            about = {
                "url": f"{HOST}/{row['id']}/{path.name}",
                "ref_min_score": float(row["min_score"]),
                "ref_max_score": float(row["max_score"]),
            }
            facts = {"environment": {"id": row["id"]}, "about": about}
        flat = inspect_npz(path, FORMAT)
        return d4rl.cut_to_episodes(
            flat, EndRule(), self.describe(release, **facts), release.options
        )
