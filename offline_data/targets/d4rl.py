"""D4RL: one flat HDF5 file, as `d4rl.qlearning_dataset` and `d4rl.sequence_dataset` read it.

```
observations, actions, rewards, terminals, timeouts      N rows, one for each action
next_observations                                        only if some final observation is known
infos/…                                                  N rows
```

Source: `d4rl/offline_env.py` and `d4rl/__init__.py` of https://github.com/Farama-Foundation/D4RL.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from offline_data.episodes import EpisodeBatch
from offline_data.episodes.fields import REWARD, TERMINATED, TRUNCATED, join_key
from offline_data.readers.hdf5 import h5
from offline_data.sources.base import Release
from offline_data.sources.registry import get_source
from offline_data.store.arrays import TIMEOUT
from offline_data.targets.base import ExportJob, ExportOptions, ExportTarget, Holds, LeafPlace
from offline_data.targets.episodes import Leaf
from offline_data.targets.plan import place_at

if TYPE_CHECKING:
    from offline_data.sources.base import RawDataset

_NEXT = "next_observations"
_FLAT = {REWARD: "rewards", TERMINATED: "terminals", TRUNCATED: "timeouts"}
"""Names of arrays of one number a row."""


class D4RLTarget(ExportTarget):
    """D4RL's flat HDF5."""

    name = "d4rl"
    title = "D4RL's flat HDF5"
    suffix = ".hdf5"
    contained = True
    reads = ("observation",)
    holds = Holds(
        final_observation=True,
        flags="last",
        nested=False,
        rewards="required",
        text=False,
        episodes=False,
        both=True,
    )
    own: ClassVar = {
        "observations": (("observation",),),
        _NEXT: (("next", "observation"),),
        "actions": (("action",),),
        "rewards": (REWARD,),
        "infos": (("info",),),
        **dict.fromkeys(("terminals", "timeouts", "metadata", "virtual", "episode_terminals"), ()),
    }
    added = frozenset({("episodes", TIMEOUT)})

    def place(self, leaf: Leaf, options: ExportOptions) -> LeafPlace | str:
        """Return the array of a leaf."""
        key, seen = leaf.key, options.observation
        if key in _FLAT:
            return place_at(leaf, _FLAT[key], self.holds)
        if key == seen:
            return place_at(leaf, "observations", self.holds, ("observation",))
        if key == ("next", *(seen or ())):
            return place_at(leaf, _NEXT, self.holds, ("next", "observation"))
        if key[0] == "action":
            return place_at(leaf, "actions", self.holds, ("action",))
        if key[0] == "info":
            name = join_key(("infos", *key[1:]))
            return place_at(leaf, name, self.holds, key, "steps")
        if key[0] == "extra":
            return place_at(leaf, "/".join(key[1:]), self.holds)
        return f"{self.name} has no place for it"

    def omits_final(self, job: ExportJob) -> bool:
        """Return True if no next observation of a last row is known."""
        return not job.known_final

    def write(self, batches: Iterable[EpisodeBatch], path: Path, job: ExportJob) -> None:
        """Write the file, each array at its whole length."""
        rows, done = job.episodes.transitions, 0
        seen = next(place for place in job.places if place.path == "observations")
        after = not self.omits_final(job) and seen.leaf.table == "observations"
        with h5().File(path, "w") as file:
            for place in job.places:
                shape = () if place.path in _FLAT.values() else place.leaf.shape
                file.create_dataset(place.path, (rows, *shape), place.dtype)
            if after:
                file.create_dataset(_NEXT, (rows, *seen.leaf.shape), seen.dtype)
            for batch in batches:
                span = slice(done, done + batch.transitions)
                for place in job.places:
                    values = place.step_rows(batch)
                    file[place.path][span] = values.reshape(
                        len(values), *file[place.path].shape[1:]
                    )
                if after:
                    file[_NEXT][span] = seen.step_rows(batch, after=True)
                done = span.stop

    def read(self, path: Path, job: ExportJob) -> RawDataset:
        """Open the file as a local one of D4RL."""
        both = any(place.path == _NEXT for place in job.places)
        return get_source("d4rl").open(Release(job.name, "1", local=path, keep_episodes=both), path)
