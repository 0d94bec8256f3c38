"""d3rlpy: an HDF5 dump, as `d3rlpy.dataset.ReplayBuffer.load` and `MDPDataset` read it.

```
columns, num_episodes, version
observations_0, actions_0, rewards_0, terminated_0       episode 0; terminated is one flag
observations_0_0, observations_0_1                       a tuple of observations
NAME_0                                                   other columns, of `extra/NAME`
```

Discrete actions are int `[T, 1]`. Source: `d3rlpy/dataset/io.py` of https://github.com/takuseno/d3rlpy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_data.base.errors import MissingDependencyError
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, Key
from offline_data.formats.base import Release
from offline_data.formats.registry import get_source
from offline_data.formats.writing.base import (
    ExportJob,
    ExportOptions,
    ExportTarget,
    Holds,
    LeafPlace,
)
from offline_data.formats.writing.episodes import ExportedEpisodes, Leaf, each_episode
from offline_data.formats.writing.plan import place_at, plan_export, stored_batch
from offline_data.raw.hdf5 import h5

if TYPE_CHECKING:
    from offline_data.formats.base import RawDataset

VERSION = "2.1"
_NAME = re.compile(r"[A-Za-z]([A-Za-z_]{0,62}[A-Za-z])?")
COLUMNS = ("observations", "actions", "rewards", "terminated")


class D3rlpyTarget(ExportTarget):
    """d3rlpy's dump of episodes."""

    name = "d3rlpy"
    title = "d3rlpy's HDF5 dump"
    suffix = ".h5"
    contained = True
    reads = ("observation",)
    holds = Holds(
        final_observation=False,
        flags="one",
        nested=False,
        tuples=True,
        rewards="required",
        text=False,
        info=False,
        episodes=False,
    )
    own: ClassVar = dict.fromkeys(COLUMNS, ()) | {
        "observations": (("observation",),),
        "actions": (("action",),),
        "rewards": (REWARD,),
    }

    def place(self, leaf: Leaf, options: ExportOptions) -> LeafPlace | str:
        """Return the column of a leaf."""
        if leaf.key == options.observation:
            return place_at(leaf, "observations", self.holds, ("observation",))
        if leaf.key[:-1] == options.observation == ("observation",):
            return place_at(leaf, f"observations/{leaf.key[-1]}", self.holds)
        if leaf.key[0] == "action" and len(leaf.shape) < 2:
            return place_at(leaf, "actions", self.holds, ("action",))
        if leaf.key == REWARD:
            return place_at(leaf, "rewards", self.holds)
        if leaf.key in {TERMINATED, TRUNCATED}:
            return place_at(leaf, "terminated", self.holds)
        if leaf.key[0] == "extra" and len(leaf.key) == 2 and _NAME.fullmatch(leaf.key[1]):
            return place_at(leaf, leaf.key[1], self.holds)
        return f"{self.name} has no place for it"

    def write(self, batches: Iterable[EpisodeBatch], path: Path, job: ExportJob) -> None:
        """Write the columns of each episode."""
        with h5().File(path, "w", track_order=True) as file:
            others = [place.path for place in _others(job)]
            file.create_dataset("columns", data=[name.encode() for name in (*COLUMNS, *others)])
            file.create_dataset("num_episodes", data=len(job.episodes.lengths))
            file.create_dataset("version", data=VERSION)
            for number, episode in enumerate(each_episode(batches)):
                columns = _columns(episode, job)
                for name, column in columns.items():
                    if isinstance(column, tuple):
                        for part, one in enumerate(column):
                            file.create_dataset(f"{name}_{number}_{part}", data=one)
                    else:
                        file.create_dataset(f"{name}_{number}", data=column)
                for place in _others(job):
                    column = place.step_rows(episode)
                    file.create_dataset(f"{place.path}_{number}", data=column)

    def read(self, path: Path, job: ExportJob) -> RawDataset:  # noqa: ARG002
        """Open the file as a local one of d3rlpy."""
        return get_source("d3rlpy").open(Release(path.name, "1", local=path), path)


def _others(job: ExportJob) -> list[LeafPlace]:
    """Return the columns that only episodes of a user's own class have."""
    return [place for place in job.places if place.leaf.key[0] == "extra"]


def _columns(episode: EpisodeBatch, job: ExportJob) -> dict[str, Any]:
    """Return the arguments of d3rlpy's `Episode`."""
    found: dict[str, Any] = {}
    seen: list[Any] = []
    for place in sorted(job.places, key=lambda one: (len(one.path), one.path)):  # 2 is before 10
        column = np.asarray(getattr(episode, place.leaf.table)[place.leaf.key])
        if place.leaf.table == "observations":
            seen.append(column[:-1])
        elif place.path in {"actions", "rewards"}:
            found[place.path] = column.reshape(episode.transitions, -1)
    tuples = job.options.observation == ("observation",) and any(
        place.path == "observations/0" for place in job.places
    )
    ended = bool(episode.steps[TERMINATED][-1, 0])
    return {"observations": tuple(seen) if tuples else seen[0], **found, "terminated": ended}


def load_in_d3rlpy(episodes: ExportedEpisodes, observation: Key | None) -> Any:
    """Return a `d3rlpy.dataset.ReplayBuffer` with these episodes in memory.

    Raises:
        MissingDependencyError: d3rlpy cannot be imported.
        UsageError: Several observations, none of which was chosen; no rewards.
    """
    try:
        from d3rlpy.dataset import Episode, create_infinite_replay_buffer
    except ImportError as error:
        raise MissingDependencyError(
            f"d3rlpy cannot be imported: {error}", hint="pip install d3rlpy"
        ) from error
    target = D3rlpyTarget()
    job, _ = plan_export(episodes, target, ExportOptions(observation), Path("d3rlpy"))
    stored = (stored_batch(batch, job, target.holds) for batch in episodes.batches())
    columns = (_columns(episode, job) for episode in each_episode(stored))
    return create_infinite_replay_buffer([Episode(**one) for one in columns])
