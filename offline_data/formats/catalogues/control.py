"""Benchmarks of simulated control: d3rlpy, DSRL, NeoRL-2, OGBench and V-D4RL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from offline_data.formats.catalogues import Catalog, CatalogEntry, FoldersCatalog, TableCatalog

D3RLPY_FILES = {  # on the host, by dataset of `d3rlpy.datasets`
    "cartpole": "uep0lzlhxpi79pd/cartpole_v1.1.0.h5",
    "cartpole-random": "4lgai7tgj84cbov/cartpole_random_v1.1.0.h5",
    "pendulum": "ukkucouzys0jkfs/pendulum_v1.1.0.h5",
    "pendulum-random": "hhbq9i6ako24kzz/pendulum_random_v1.1.0.h5",
}
NEORL_NOTES = {  # known differences, by environment
    "RocketRecovery": "neorl2 itself loads only the first 100 trajectories of this file, and 25 of the "
    "validation file.",
    "Fusion": "neorl2 itself loads only the first 20 trajectories of this file, and 5 of the validation "
    "file.",
}
OGBENCH_SUBJECTS = {
    "pointmaze": "a point mass in a maze",
    "antmaze": "an ant in a maze",
    "humanoidmaze": "a humanoid in a maze",
    "antsoccer": "an ant that dribbles a ball",
    "cube": "an arm that moves cubes",
    "scene": "an arm with a cube, buttons, a drawer and a window",
    "puzzle": "an arm that solves Lights Out with buttons",
    "powderworld": "drawing with elements on a grid",
}
_TRAJECTORIES = re.compile(r"-([0-9]{1,9})\.hdf5")


class D3rlpyCatalog(Catalog):
    """The datasets of `d3rlpy.datasets`."""

    name = "d3rlpy"
    title = "d3rlpy: files of version 1, and dumps of ReplayBuffer of version 2 (HDF5)"
    licence = "MIT"  # of the repository takuseno/d3rlpy
    citation = (
        "Takuma Seno, Michita Imai: d3rlpy: An Offline Deep Reinforcement Learning Library, Journal of "
        "Machine Learning Research 23, 2022"
    )

    def catalog(self) -> Sequence[CatalogEntry]:
        return [
            CatalogEntry(
                name,
                summary=f"{name.partition('-')[0]}, {'a random policy' if 'random' in name else 'replay'}",
                action="discrete" if name.startswith("cartpole") else "continuous",
            )
            for name in D3RLPY_FILES
        ]


class DSRLCatalog(TableCatalog):
    """The published datasets."""

    name = "dsrl"
    title = "DSRL: safe RL with costs in BulletSafetyGym, SafetyGymnasium and MetaDrive (HDF5)"
    licence = "CC-BY-4.0"
    citation = (
        "Zuxin Liu, Zijian Guo, Haohong Lin, Yihang Yao, Jiacheng Zhu, Zhepeng Cen, Hanjiang Hu, Wenhao "
        "Yu, Tingnan Zhang, Jie Tan, Ding Zhao: Datasets and Benchmarks for Offline Safe Reinforcement "
        "Learning, Journal of Data-centric Machine Learning Research, 2024"
    )
    action = "continuous"

    def catalog(self) -> Sequence[CatalogEntry]:
        return [
            CatalogEntry(name, episodes=trajectories_in(row["file"]), summary=_name_suite(name))
            for name, row in self.rows.items()
        ]


def trajectories_in(file: str) -> int | None:
    """Return the number of trajectories that the name of a file states."""
    match = _TRAJECTORIES.search(file)
    return None if match is None else int(match[1])


def _name_suite(name: str) -> str:
    if "Metadrive" in name:
        return "driving in MetaDrive, with costs"
    suite = "SafetyGymnasium" if "Gymnasium" in name else "BulletSafetyGym"
    return f"{suite}, with costs"


class NeoRLCatalog(TableCatalog):
    """A training and a validation file for each environment."""

    name = "neorl"
    title = "NeoRL-2: pipelines, glucose, fusion, rockets, sales and more (npz)"
    licence = "CC-BY-4.0"
    citation = (
        "Songyi Gao, Zuolin Tu, Rong-Jun Qin, Yi-Hao Sun, Xiong-Hui Chen, Yang Yu: NeoRL-2: Near "
        "Real-World Benchmarks for Offline Reinforcement Learning with Extended Realistic Scenarios, "
        "2025, arXiv:2503.19267"
    )
    action = "continuous"

    def catalog(self) -> Sequence[CatalogEntry]:
        return [
            CatalogEntry(
                name + suffix,
                summary="validation" if suffix else "training",
                notes=(NEORL_NOTES[name],) if name in NEORL_NOTES else (),
            )
            for name in self.rows
            for suffix in ("", "-val")
        ]


class OGBenchCatalog(TableCatalog):
    """The training and validation files; `singletask` and `oraclerep` name variants of these."""

    name = "ogbench"
    title = "OGBench: goal-conditioned mazes, manipulation and drawing (npz)"
    licence = "MIT"
    citation = (
        "Seohong Park, Kevin Frans, Benjamin Eysenbach, Sergey Levine: OGBench: Benchmarking Offline "
        "Goal-Conditioned RL, ICLR, 2025, arXiv:2410.20092"
    )

    def catalog(self) -> Sequence[CatalogEntry]:
        return [
            CatalogEntry(
                row["id"] + suffix,
                count_episodes(row, suffix) * (int(row["rows"]) - 1),
                count_episodes(row, suffix),
                summary=_describe_task(row["id"]) + ", validation" * bool(suffix),
                action="discrete" if row["id"].startswith("powderworld") else "continuous",
            )
            for row in self.rows.values()
            for suffix in (("",) if row["files"] else ("", "-val"))
        ]


def count_episodes(row: dict[str, str], suffix: str) -> int:
    """Return the episodes of a training file, or of a validation file, which has a tenth of them."""
    count = int(row["episodes"])
    return count // 10 if suffix else count * int(row["files"] or 1)


def _describe_task(name: str) -> str:
    subject = next(text for word, text in OGBENCH_SUBJECTS.items() if word in name)
    return f"{subject}, 64 px" if name.startswith("visual-") else subject


class VD4RLCatalog(FoldersCatalog):
    """Folders of `conglu/vd4rl` on the hub."""

    name = "vd4rl"
    title = "V-D4RL: walker, cheetah and humanoid from pixels (npz, HDF5)"
    licence = "MIT"  # of the repository conglu1997/v-d4rl
    citation = (
        "Cong Lu, Philip J. Ball, Tim G. J. Rudner, Jack Parker-Holder, Michael A. Osborne, Yee Whye "
        "Teh: Challenges and Opportunities in Offline Reinforcement Learning from Visual Observations, "
        "TMLR, 2023, arXiv:2206.04779"
    )
    action = "continuous"
    notes: ClassVar = {
        "fewer": "The hub had 100 episodes of this set in 2024, fewer than of its 84 px variant "
        "(v-d4rl issues 10 and 17).",
        "short-file": "One of its files was reported to have 500 images and 501 flags (pytorch/rl "
        "issue 1833): --skip-bad-episodes leaves it out.",
        "unchecked": "That the hub has this 84 px set was not checked.",
    }
