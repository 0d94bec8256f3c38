"""Names of OGBench datasets, and the tasks that they stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import NotFoundError
from offline_data.base.plurals import plural

_NAME = re.compile(
    r"(?P<stem>[a-z0-9]+(-[a-z0-9]+)*?)"
    r"(?P<single>-singletask(-task(?P<task>[0-9]{1,2}))?|(?P<oracle>-oraclerep))?"
    r"-v0(?P<val>-val)?"
)

DEFAULT_TASKS = {
    "maze": 1, "antsoccer": 4, "cube": 2, "scene": 2, "puzzle-3x3": 4, "puzzle-4x4": 4,
    "puzzle-4x5": 2, "puzzle-4x6": 2,
}  # fmt: skip
"""Number of the task of a name without one, by kind of environment."""

_OBJECTS = 14
"""First element of `qpos` after those of the arm."""
_CUBE = 7
_BALL = 15
_TOLERANCE = 0.04
"""Largest distance of a cube, drawer or window from its goal, in metres."""


@dataclass(frozen=True)
class Name:
    """The parts of a name; see `offline_data.formats.ogbench.source`."""

    stem: str
    """`antmaze-large-navigate`."""
    task: int | None = None
    """Number of the task, from 1; None: a name without `singletask`."""
    has_oracle: bool = False
    is_val: bool = False

    @classmethod
    def parse(cls, name: str) -> Name | None:
        """Return the parts of a name; None if it has not the form of one.

        Example:
            >>> Name.parse("cube-double-play-singletask-v0").task
            2
            >>> Name.parse("antmaze-large-navigate-v0-val").file
            'antmaze-large-navigate-v0-val'
        """
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        parsed = cls(found["stem"], None, bool(found["oracle"]), bool(found["val"]))
        if not found["single"] or found["oracle"]:
            return parsed
        number = int(found["task"]) if found["task"] else parsed.default_task
        return cls(parsed.stem, number, is_val=parsed.is_val)

    @property
    def base(self) -> str:
        """Name of the published set, the directory of its files if there are many."""
        return f"{self.stem}-v0"

    @property
    def file(self) -> str:
        """Name of its file without suffix."""
        return self.base + "-val" * self.is_val

    @property
    def domain(self) -> str:
        """Environment without its version: `antmaze-large`, `visual-cube-double`, `scene`."""
        return "-".join(self.stem.removesuffix("-100m").split("-")[:-1])

    @property
    def environment(self) -> str:
        """Id in Gymnasium's registry after `import ogbench`."""
        task = "" if self.task is None else f"-singletask-task{self.task}"
        return f"{self.domain}{task}-v0"

    @property
    def kind(self) -> tuple[str, str]:
        """Kind of environment and its variant: `("maze", "large")`, `("scene", "")`."""
        word, _, variant = self.domain.removeprefix("visual-").partition("-")
        return ("maze" if word.endswith("maze") else word), variant

    @property
    def default_task(self) -> int:
        """Number of the task of a name without one."""
        kind, variant = self.kind
        return DEFAULT_TASKS.get(f"{kind}-{variant}", DEFAULT_TASKS.get(kind, 1))

    def check_task(self) -> None:
        """Raise `NotFoundError` for tasks or goals that the environment does not have."""
        kind, variant = self.kind
        known = goals().get(kind, {}).get(variant, [])
        if (self.task is not None or self.has_oracle) and not known:
            raise NotFoundError(
                f"OGBench defines no tasks for {self.domain}", hint=f"ask for ogbench:{self.base}"
            )
        if self.task is not None and not 1 <= self.task <= len(known):
            raise NotFoundError(
                f"There is no task {self.task} of {self.domain}: it has {plural(len(known), 'task')}",
                hint=f"for example ogbench:{self.stem}-singletask-task1-v0",
            )

    @property
    def needs(self) -> tuple[str, ...]:
        """Arrays of a file that rewards or the representation of goals are computed from."""
        kind, _ = self.kind
        if self.task is None and not self.has_oracle:
            return ()
        arrays = {"puzzle": ("button_states",), "scene": ("qpos", "button_states")}
        return arrays.get(kind, ("qpos",))

    def successes(self, rows: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
        """Return which parts of the task are solved in each state, `[n, parts]`.

        Args:
            rows: `qpos` `[n, …]` and `button_states` `[n, buttons]`, as in the file.
        """
        kind, variant = self.kind
        goal: Any = goals()[kind][variant][(self.task or 1) - 1]
        if kind in {"maze", "antsoccer"}:
            tolerance = 1.0 if self.domain.endswith(f"pointmaze-{variant}") else 0.5
            distance = np.linalg.norm(self._position(rows) - np.array(goal, np.float64), axis=-1)
            return np.asarray(distance <= tolerance)[:, None]
        parts = []
        if "cubes" in goal:
            cubes = self._cubes(rows) - np.array(goal["cubes"], np.float64)
            parts.append(np.linalg.norm(cubes, axis=-1) <= _TOLERANCE)
        if "buttons" in goal:
            parts.append(rows["button_states"] == np.array(goal["buttons"]))
        for number, name in enumerate(("drawer", "window")):
            if name in goal:
                place = rows["qpos"][:, self._drawer + number]
                parts.append(np.abs(place - goal[name])[:, None] <= _TOLERANCE)
        return np.concatenate(parts, axis=-1)

    def oracle_reps(self, rows: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the goal representation of each state, `[n, …]`; `rows` as for `successes`."""
        kind, _ = self.kind
        if kind in {"maze", "antsoccer"}:
            return self._position(rows).astype(np.float32)
        parts: list[NDArray[Any]] = []
        if kind in {"cube", "scene"}:
            scaled = (self._cubes(rows) - np.array([0.425, 0, 0])) * 10.0
            parts.append(scaled.reshape(len(scaled), -1))
        if kind in {"scene", "puzzle"}:
            parts.append(rows["button_states"])
        if kind == "scene":
            qpos, drawer = rows["qpos"], self._drawer
            parts += [qpos[:, [drawer]] * 18.0, qpos[:, [drawer + 1]] * 15.0]
        return np.concatenate(parts, axis=-1).astype(np.float32)

    def _position(self, rows: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return what is to reach the goal, `[n, 2]`: the agent, or the ball."""
        first = _BALL if self.kind[0] == "antsoccer" else 0
        return rows["qpos"][:, first : first + 2]

    def _cubes(self, rows: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the positions of the cubes, `[n, cubes, 3]`."""
        kind, variant = self.kind
        count = len(goals()[kind][variant][0]["cubes"])
        places = rows["qpos"][:, _OBJECTS : _OBJECTS + count * _CUBE]
        return places.reshape(len(places), count, _CUBE)[:, :, :3]

    @property
    def _drawer(self) -> int:
        """Element of `qpos` of the drawer; that of the window follows."""
        goal = goals()["scene"][""][0]
        return _OBJECTS + len(goal["cubes"]) * _CUBE + len(goal["buttons"])


@lru_cache(maxsize=1)
def goals() -> dict[str, dict[str, list[Any]]]:
    """Return the goal of each task, by kind of environment and variant.

    Constants of `ogbench/locomaze/maze.py` and `ogbench/manipspace/envs/`; of mazes the place `[x, y]`
    of the agent or the ball.
    """
    text = (
        files("offline_data.formats.catalogues").joinpath("ogbench_goals.json").read_text("utf-8")
    )
    found: dict[str, dict[str, list[Any]]] = json.loads(text)
    return found
