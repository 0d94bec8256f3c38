"""The published D4RL datasets: location, rule for episode ends, and known problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from offline_data.formats.catalogues import ActionKind, Catalog, CatalogEntry, read_catalog

FAMILIES = {
    "ant_maze_new": "an ant in a maze",
    "ant_maze_v1": "an ant in a maze",
    "ant_maze_v2": "an ant in a maze",
    "bullet": "PyBullet locomotion and point mazes",
    "carla": "driving in CARLA",
    "flow": "traffic control in Flow",
    "gym_mujoco": "MuJoCo locomotion",
    "gym_mujoco_v1": "MuJoCo locomotion",
    "gym_mujoco_v2": "MuJoCo locomotion",
    "hand_dapg": "an Adroit hand",
    "hand_dapg_v1": "an Adroit hand",
    "kitchen": "a Franka arm in a kitchen",
    "maze2d": "a point mass in a maze",
    "minigrid": "a grid world of four rooms",
}
"""Subject of the datasets in each folder of the host."""

NOTES = {
    "adroit-human-v0": "Whether this file has 25 or 50 episodes is in doubt (D4RL issue 137).",
    "adroit-log-std": "Its infos/action_logstd is called action_log_std in the v1 sets.",
    "antmaze": "Terminals mark rows at the goal, where the ant is not reset: the episode goes on.",
    "antmaze-eval": "Its file is named as the other one of play and diverse.",
    "antmaze-single": "Terminals are set on single rows, unlike in other antmaze sets (D4RL issue "
    "199).",
    "antmaze-v0": "Timeouts are out of step with resets: positions jump inside episodes (D4RL "
    "issues 77 and 146); the v2 sets are repaired.",
    "carla": "The file was replaced by one of another size in December 2020 (D4RL issue 64).",
    "carla-render": "Its file is that of carla-town-full-v0.",
    "carla-town": "Elements of an observation from the 17th on are always the same (D4RL issue 61).",
    "kitchen-ends": "Terminals are set on the last row of every demonstration, solved or not.",
    "kitchen-reward": "A reward is the number of tasks solved in the observation of its own row.",
    "longhorizon": "Its file is that of the set without longhorizon: only the limit of steps "
    "differs.",
    "maze2d-reward": "A reward is that of the observation of its own row: one step early (D4RL "
    "issue 194).",
    "maze2d-waypoints": "Timeouts mark waypoints reached, not resets: the next episode goes on "
    "from there (D4RL issue 85).",
    "minigrid": "Terminals are set at the limit of steps too: timeouts and successes are indistinguishable.",
    "mujoco-v0": "Some timeouts are not marked in the v0 sets (D4RL issue 162).",
}
"""Known problems, by code in the catalogue's column `notes`."""


@dataclass(frozen=True)
class EndRule:
    """Rule for dividing the rows of a file into episodes."""

    marks: str = "terminals|timeouts"
    """One of `offline_data.formats.d4rl.episode_ends.RULES`, or `jumps`."""
    horizon: int | None = None  # maximum steps of an episode, if the rule's columns are missing


@dataclass(frozen=True)
class PublishedD4RL:
    """One published dataset; its name is also the id of its environment.

    `ref_min` and `ref_max` are the returns of a random and an expert policy, for D4RL's score;
    `bytes` is the size of the file, None if unpublished; so are the next two.
    """

    name: str
    url: str
    ref_min: float | None
    ref_max: float | None
    rule: EndRule
    bytes: int | None
    transitions: int | None
    episodes: int | None
    notes: tuple[str, ...]

    @property
    def file(self) -> str:
        """Name of the file, which cannot be derived from the id."""
        return self.url.rpartition("/")[2]

    @property
    def summary(self) -> str:
        return FAMILIES[self.url.split("/")[-2]]

    @property
    def action(self) -> ActionKind:
        return "discrete" if "/minigrid/" in self.url else "continuous"

    @property
    def environment(self) -> dict[str, Any]:
        return {"id": self.name, "max_episode_steps": self.rule.horizon}

    @property
    def about(self) -> dict[str, Any]:
        """Other facts for the manifest: location, step limit, reference scores."""
        scores = {"ref_min_score": self.ref_min, "ref_max_score": self.ref_max}
        known = {name: score for name, score in scores.items() if score is not None}
        return {"url": self.url, "horizon": self.rule.horizon, **known}


@lru_cache(maxsize=1)
def read_table() -> dict[str, PublishedD4RL]:
    """Return all published datasets by name, in the order of the catalogue.

    Example:
        >>> read_table()["kitchen-complete-v0"].rule
        EndRule(marks='terminals', horizon=280)
    """
    return {
        row["id"]: PublishedD4RL(
            row["id"],
            row["url"],
            float(row["ref_min"]) if row["ref_min"] else None,
            float(row["ref_max"]) if row["ref_max"] else None,
            EndRule(row["ends"], int(row["horizon"])),
            _count(row["bytes"]),
            _count(row["transitions"]),
            _count(row["episodes"]),
            tuple(NOTES[code] for code in row["notes"].split()),
        )
        for row in read_catalog("d4rl")
    }


def _count(cell: str) -> int | None:
    return int(cell) if cell else None


class D4RLCatalog(Catalog):
    """The datasets in D4RL's tables."""

    name = "d4rl"
    title = "D4RL: locomotion, mazes, hands, kitchen, driving and traffic (flat HDF5)"
    licence = "CC-BY-4.0"
    citation = (
        "Justin Fu, Aviral Kumar, Ofir Nachum, George Tucker, Sergey Levine: D4RL: Datasets for Deep "
        "Data-Driven Reinforcement Learning, 2020, arXiv:2004.07219"
    )

    def catalog(self) -> Sequence[CatalogEntry]:
        return [
            CatalogEntry(
                x.name, x.transitions, x.episodes, x.bytes, x.summary, x.notes, action=x.action
            )
            for x in read_table().values()
        ]
