"""DSRL: offline safe RL with costs, flat HDF5 files like those of D4RL, read without the dsrl package.

Source: `dsrl/offline_env.py` and `dsrl/infos.py` of https://github.com/liuzuxin/DSRL.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from offline_data.base.config import Settings
from offline_data.base.plurals import plural
from offline_data.episode import Key
from offline_data.formats.base import UNVERSIONED, Release, RemoteFile, SourceInfo
from offline_data.formats.catalogues.control import DSRLCatalog, trajectories_in
from offline_data.formats.catalogues.d4rl import EndRule
from offline_data.formats.d4rl import source as d4rl
from offline_data.formats.d4rl.source import D4RLEpisodes
from offline_data.raw.hdf5 import MAGIC

REPOSITORY = "YYY-45/DSRL"
HOST = f"https://huggingface.co/datasets/{REPOSITORY}/resolve/main/"
COST: Key = ("next", "cost")


def leaf_of(name: str) -> Key:
    """Return the leaf of a column: that of D4RL, and `next/cost` of `costs`."""
    return COST if name == "costs" else d4rl.leaf_of(name)


FORMAT = replace(d4rl.FORMAT, title="DSRL", leaf_of=leaf_of)
NAMES = replace(d4rl.NAMES, required=(*FORMAT.required_columns, "costs"))


class DSRL(DSRLCatalog, d4rl.FlatSource):
    """The published datasets, and the user's files of their form."""

    form, names = FORMAT, NAMES

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:  # noqa: ARG002
        """Return a published dataset from the catalogue; does not use the network."""
        file = self.rows[self.find(name, revision).name]["file"]
        found = RemoteFile(file, (f"hf://datasets/{REPOSITORY}@main/{file}",), magic=MAGIC)
        return Release(name, UNVERSIONED, (found,))

    def known_of(self, release: Release, path: Path) -> tuple[EndRule, SourceInfo]:  # noqa: ARG002
        row = self.rows.get(release.name) if release.local is None else None
        facts = {}
        if row is not None:
            about = {"url": HOST + row["file"], "horizon": int(row["steps"])}
            about |= {
                "ref_min_score": float(row["min_reward"]),
                "ref_max_score": float(row["max_reward"]),
                "min_episode_cost": float(row["min_cost"]),
                "max_episode_cost": float(row["max_cost"]),
            }
            facts = {"environment": {"id": release.name}, "about": about}
        note = "next/cost is the cost that the action of its row brought."
        return EndRule(), self.describe(release, note, **facts)

    def open(self, release: Release, raw: Path) -> D4RLEpisodes:
        found = super().open(release, raw)
        stated, episodes = trajectories_in(release.file_in(raw).name), len(found.lengths)
        if stated in {None, episodes}:
            return found
        warning = (
            f"The file's name says {plural(stated or 0, 'trajectory', 'trajectories')}; it has "
            f"{plural(episodes, 'episode')}."
        )
        notes, warnings = (*found.info.notes, warning), (*found.info.warnings, warning)
        return replace(found, info=replace(found.info, notes=notes, warnings=warnings))
