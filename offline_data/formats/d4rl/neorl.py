"""NeoRL-2: near-real-world benchmark, flat npz files like those of D4RL, read without the neorl2 package.

Source: `neorl2/envs/base.py` and `neorl2/envs/info.py` of https://github.com/polixir/NeoRL2.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from offline_data.base.config import Settings
from offline_data.formats.base import UNVERSIONED, Release, RemoteFile, SourceInfo
from offline_data.formats.catalogues.control import NeoRLCatalog
from offline_data.formats.catalogues.d4rl import EndRule
from offline_data.formats.d4rl.source import FlatSource, leaf_of
from offline_data.formats.flat.arrays import inspect_npz
from offline_data.formats.flat.hdf5 import FlatFile, FlatFormat
from offline_data.formats.recognition import ArrayNames

HOST = "http://datasets.polixir.site/neorl2"
MAGIC = b"PK\x03\x04"

FORMAT = FlatFormat(
    "NeoRL",
    leaf_of,
    observation="obs",
    action="action",
    reward="reward",
    terminated="done",
    truncated="truncated",
    next_observation="next_obs",
)
NAMES = ArrayNames(FORMAT.required_columns)


class NeoRL(NeoRLCatalog, FlatSource):
    """The published datasets, and the user's npz files in their format."""

    form, names = FORMAT, NAMES
    arrays: ClassVar = {"npz": NAMES}

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
        return super().has_format(path) if path.suffix == ".npz" else 0

    def inspect(self, path: Path) -> FlatFile:
        return inspect_npz(path, FORMAT)

    def known_of(self, release: Release, path: Path) -> tuple[EndRule, SourceInfo]:
        row = self.rows.get(release.name.removesuffix("-val")) if release.local is None else None
        facts = {}
        if row is not None:
            about = {
                "url": f"{HOST}/{row['id']}/{path.name}",
                "ref_min_score": float(row["min_score"]),
                "ref_max_score": float(row["max_score"]),
            }
            facts = {"environment": {"id": row["id"]}, "about": about}
        return EndRule(), self.describe(release, **facts)
