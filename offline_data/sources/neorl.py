"""NeoRL-2: near-real-world benchmark, flat npz files like those of D4RL, read without the neorl2 package.

Source: `neorl2/envs/base.py` and `neorl2/envs/info.py` of https://github.com/polixir/NeoRL2.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from offline_data.config import Settings
from offline_data.files import is_file
from offline_data.readers.flat_arrays import describe_arrays
from offline_data.readers.flat_hdf5 import FlatFormat
from offline_data.readers.npy import open_npz
from offline_data.sources import d4rl
from offline_data.sources.base import (
    UNVERSIONED,
    CatalogEntry,
    CatalogSource,
    Release,
    RemoteFile,
)
from offline_data.sources.catalogs import read_catalog
from offline_data.sources.d4rl import D4RLEpisodes
from offline_data.sources.d4rl.episode_ends import EndRule
from offline_data.sources.fingerprint import fingerprint

HOST = "http://datasets.polixir.site/neorl2"
MAGIC = b"PK\x03\x04"
BUDGET = 8 << 30
"""Bytes of the arrays of a file, which are read as a whole; the published ones have below 100 MB."""

CITATION = (
    "Songyi Gao, Zuolin Tu, Rong-Jun Qin, Yi-Hao Sun, Xiong-Hui Chen, Yang Yu: NeoRL-2: Near Real-World "
    "Benchmarks for Offline Reinforcement Learning with Extended Realistic Scenarios, 2025, "
    "arXiv:2503.19267"
)
NOTES = {
    "RocketRecovery": "neorl2 itself loads only the first 100 trajectories of this file, and 25 of the "
    "validation file.",
    "Fusion": "neorl2 itself loads only the first 20 trajectories of this file, and 5 of the validation "
    "file.",
}
"""Known differences, by environment."""

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


@lru_cache(maxsize=1)
def read_table() -> dict[str, dict[str, str]]:
    """Return the rows of the catalogue by environment."""
    return {row["id"]: row for row in read_catalog("neorl")}


class NeoRL(CatalogSource):
    """The published datasets, and the user's npz files in their format."""

    name = "neorl"
    title = "NeoRL-2: pipelines, glucose, fusion, rockets, sales and more (npz)"
    licence = "CC-BY-4.0"
    citation = CITATION
    action = "continuous"

    def catalog(self) -> Sequence[CatalogEntry]:
        """List the training files, and the validation files as `NAME-val`."""
        return [
            CatalogEntry(
                name + suffix,
                summary="validation" if suffix else "training",
                notes=(NOTES[name],) if name in NOTES else (),
            )
            for name in read_table()
            for suffix in ("", "-val")
        ]

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:  # noqa: ARG002
        """Return a published dataset from the catalogue; does not use the network."""
        self.find(name, revision)
        environment, split = name.removesuffix("-val"), "val" if name.endswith("-val") else "train"
        file = f"{environment}-{split}.npz"
        url, digest = (
            f"{HOST}/{environment}/{file}",
            f"md5:{read_table()[environment][f'{split}_md5']}",
        )
        return Release(name, UNVERSIONED, (RemoteFile(file, (url,), digest=digest, magic=MAGIC),))

    def has_format(self, path: Path) -> bool:
        """Return True if `path` is an npz file with the columns of NeoRL."""
        if not is_file(path) or path.suffix != ".npz":
            return False
        with open_npz(path, budget=BUDGET) as arrays:
            return all(name in arrays for name in FORMAT.required_columns)

    def release_of(self, path: Path, name: str) -> Release:
        return Release(name, fingerprint(path, [path]), local=path)

    def open(self, release: Release, raw: Path) -> D4RLEpisodes:
        """Read the file, and compare next observations with the following rows."""
        path = raw / release.files[0].path if release.files and raw.is_dir() else raw
        row = read_table().get(release.name.removesuffix("-val")) if release.local is None else None
        facts = {}
        if row is not None:
            about = {
                "url": f"{HOST}/{row['id']}/{path.name}",
                "ref_min_score": float(row["min_score"]),
                "ref_max_score": float(row["max_score"]),
            }
            facts = {"environment": {"id": row["id"]}, "about": about}
        with open_npz(path, budget=BUDGET) as arrays:
            flat = describe_arrays(dict(arrays), FORMAT, path)
        return d4rl.cut_to_episodes(
            flat, EndRule(), self.describe(release, **facts), keep_episodes=release.keep_episodes
        )
