"""robomimic: HDF5 with a group for each demonstration, as `robomimic.utils.dataset.SequenceDataset` reads it.

```
data                attributes total, env_args
data/demo_0         attributes num_samples, success
    actions, rewards, dones, obs/…, next_obs/…        a row for each action
```

Source: `robomimic/utils/dataset.py` and `robomimic/scripts/dataset_states_to_obs.py` of robomimic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes import EpisodeBatch
from offline_data.episodes.fields import REWARD, TERMINATED, TRUNCATED, join_key
from offline_data.readers.hdf5 import h5
from offline_data.sources.base import Release
from offline_data.sources.registry import get_source
from offline_data.targets.base import ExportJob, ExportOptions, ExportTarget, Holds, LeafPlace
from offline_data.targets.episodes import Leaf, each_episode
from offline_data.targets.plan import place_at

if TYPE_CHECKING:
    from offline_data.sources.base import RawDataset

_READ_BY_ITSELF = (("demo",), ("file",), ("success",))


class RobomimicTarget(ExportTarget):
    """robomimic's HDF5."""

    name = "robomimic"
    title = "robomimic's HDF5"
    suffix = ".hdf5"
    contained = True
    holds = Holds(
        final_observation=True,
        flags="one",
        text=False,
        info=False,
        episodes=frozenset({"seed"}),
    )
    added = frozenset(
        {*(("episodes", key) for key in _READ_BY_ITSELF), ("steps", ("extra", "dones"))}
    )

    def place(self, leaf: Leaf, options: ExportOptions) -> LeafPlace | str:  # noqa: ARG002
        """Return the dataset of a leaf in the group of a demonstration."""
        key = leaf.key
        if key == ("action",):
            return place_at(leaf, "actions", self.holds)
        if key == REWARD:
            return place_at(leaf, "rewards", self.holds)
        if key in {TERMINATED, TRUNCATED}:
            return place_at(leaf, "dones", self.holds)
        if key == ("seed",):
            return place_at(leaf, "seed", self.holds)
        if leaf.table == "observations" and key[0] == "observation":
            name = key[1:] or ("state",)
            return place_at(leaf, join_key(("obs", *name)), self.holds, ("observation", *name))
        if key == ("state",):
            return place_at(leaf, "states", self.holds, key, "steps")
        if leaf.table == "steps" and key[0] == "extra" and key[1] != "dones":
            return place_at(leaf, "/".join(key[1:]), self.holds)
        return f"{self.name} has no place for it"

    def write(self, batches: Iterable[EpisodeBatch], path: Path, job: ExportJob) -> None:
        """Write a group for each episode."""
        with h5().File(path, "w") as file:
            data = file.create_group("data", track_order=True)
            data.attrs["total"] = job.episodes.transitions
            environment = job.episodes.reader.manifest.environment
            data.attrs["env_args"] = json.dumps(
                {
                    "env_name": str(environment.get("env_name", environment.get("id", ""))),
                    "type": 2,  # of Gym, in robomimic.envs.env_base.EnvType
                    "env_kwargs": environment.get("env_kwargs", environment.get("kwargs")) or {},
                }
            )
            for number, episode in enumerate(each_episode(batches)):
                group = data.create_group(f"demo_{number}", track_order=True)
                _write_demo(group, episode, job)

    def read(self, path: Path, job: ExportJob) -> RawDataset:  # noqa: ARG002
        """Open the file as a local one of robomimic."""
        return get_source("robomimic").open(Release(path.name, "1", local=path), path)


def _write_demo(group: Any, episode: EpisodeBatch, job: ExportJob) -> None:
    terminated = episode.steps[TERMINATED][:, 0]
    group.attrs["num_samples"] = episode.transitions
    group.attrs["success"] = bool(terminated[-1])
    for place in job.places:
        if place.path == "dones":
            continue
        if place.leaf.table == "episodes":
            group.attrs[place.path] = episode.episodes[place.leaf.key][0]
            continue
        before = np.asarray(place.step_rows(episode))
        flat = before.reshape(-1) if place.path == "rewards" else before
        group.create_dataset(place.path, data=flat)
        if place.path.startswith("obs/"):
            after = place.step_rows(episode, after=True)
            group.create_dataset(f"next_{place.path}", data=after)
    group.create_dataset("dones", data=terminated.astype(np.int64))
