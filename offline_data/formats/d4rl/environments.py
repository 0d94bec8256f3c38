"""The registered environments that succeed those of D4RL, which need gym and mujoco-py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from offline_data.formats.catalogues.d4rl import read_table


@dataclass(frozen=True)
class Successor:
    """An environment that Gymnasium or Gymnasium-Robotics registers."""

    id: str
    """Registered id."""
    difference: str
    """Differences from D4RL's environment, for the user."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """Keywords for `gymnasium.make`."""
    package: str = "gymnasium-robotics"
    """Package that registers it."""
    steps: int | None = None
    """D4RL's limit of steps."""

    @property
    def spec(self) -> dict[str, Any]:
        """Environment spec, in Gymnasium's form."""
        return {"id": self.id, "kwargs": self.keywords, "max_episode_steps": self.steps}


MUJOCO = (
    "it is simulated by MuJoCo's own bindings instead of mujoco-py; observations, actions, rewards "
    "and ends are defined as before"
)
FORCES = f"{MUJOCO}; the contact forces, from the 28th number of an observation on, may not be 0"

ANT_MAZE = (
    "an observation of D4RL is `concatenate([achieved_goal, observation])` of its dict; positions are "
    "relative to the centre of the maze, not to the start, with y reversed; motors are five times as "
    "strong; a goal is reached within 0.45, not 0.5. A policy for D4RL's ant must be trained again. "
    "Starts and goals are random: D4RL's are those of `reset(options={{'reset_cell': [1, 1], "
    "'goal_cell': {goal}}})`"
)
POINT_MAZE = (
    "an observation of D4RL is `observation` of its dict, with positions as row and column of the "
    "maze, from 0 in the corner; here they are x and y from the centre, y upwards; a goal is reached "
    "within 0.45, not 0.5. Goals are random: D4RL's is that of `reset(options={{'goal_cell': {goal}}})`"
)
ADROIT = (
    f"{MUJOCO}, except that gymnasium-robotics 1.2.1 to 1.4.2 reward the distance to the object in "
    "door, hammer and relocate with the wrong sign"
)
KITCHEN = (
    "an observation is a dict of 59 numbers, with velocities, and of goals; D4RL's are 60: positions "
    "of the arm (9) and of the objects (21), and their goals (30)"
)


def maze(kind: str, text: str, goal: list[int], **keywords: Any) -> Successor:
    """Describe a maze, in which D4RL has one goal, in a row and column."""
    return Successor(kind, text.format(goal=goal), keywords)


def kitchen(*tasks: str) -> Successor:
    """Describe the kitchen with its tasks."""
    return Successor("FrankaKitchen-v1", KITCHEN, {"tasks_to_complete": list(tasks)})


SUCCESSORS = {
    "ant": Successor("Ant-v4", FORCES, {"use_contact_forces": True}, "gymnasium[mujoco]"),
    "halfcheetah": Successor("HalfCheetah-v4", MUJOCO, package="gymnasium[mujoco]"),
    "hopper": Successor("Hopper-v4", MUJOCO, package="gymnasium[mujoco]"),
    "walker2d": Successor("Walker2d-v4", MUJOCO, package="gymnasium[mujoco]"),
    "antmaze-umaze": maze("AntMaze_UMaze-v4", ANT_MAZE, [3, 1], continuing_task=False),
    "antmaze-medium": maze("AntMaze_Medium-v4", ANT_MAZE, [6, 6], continuing_task=False),
    "antmaze-large": maze("AntMaze_Large-v4", ANT_MAZE, [7, 9], continuing_task=False),
    "maze2d-open": maze("PointMaze_Open-v3", POINT_MAZE, [2, 3]),
    "maze2d-open-dense": maze("PointMaze_OpenDense-v3", POINT_MAZE, [2, 3]),
    "maze2d-umaze": maze("PointMaze_UMaze-v3", POINT_MAZE, [1, 1]),
    "maze2d-umaze-dense": maze("PointMaze_UMazeDense-v3", POINT_MAZE, [1, 1]),
    "maze2d-medium": maze("PointMaze_Medium-v3", POINT_MAZE, [6, 6]),
    "maze2d-medium-dense": maze("PointMaze_MediumDense-v3", POINT_MAZE, [6, 6]),
    "maze2d-large": maze("PointMaze_Large-v3", POINT_MAZE, [7, 9]),
    "maze2d-large-dense": maze("PointMaze_LargeDense-v3", POINT_MAZE, [7, 9]),
    "kitchen-complete": kitchen("microwave", "kettle", "light switch", "slide cabinet"),
    "kitchen-partial": kitchen("microwave", "kettle", "light switch", "slide cabinet"),
    "kitchen-mixed": kitchen("microwave", "kettle", "bottom burner", "light switch"),
    "door": Successor("AdroitHandDoor-v1", ADROIT),
    "hammer": Successor("AdroitHandHammer-v1", ADROIT),
    "pen": Successor("AdroitHandPen-v1", MUJOCO),
    "relocate": Successor("AdroitHandRelocate-v1", ADROIT),
}
"""By the beginning of D4RL's name; the longest that fits.

MuJoCo's are v4, which models and rewards like the v2 that D4RL recorded; v5 changed both. PyBullet,
CARLA, Flow, MiniGrid and the mazes of `eval` have none.
"""


def successor_of(name: object) -> Successor | None:
    """Return the successor of a published dataset's environment.

    Example:
        >>> successor_of("hopper-medium-v2").id, successor_of("carla-lane-v0")
        ('Hopper-v4', None)
    """
    found = read_table().get(name) if isinstance(name, str) else None
    families = [family for family in SUCCESSORS if found and found.name.startswith(f"{family}-")]
    if not found or not families:
        return None
    return replace(SUCCESSORS[max(families, key=len)], steps=found.rule.horizon)
