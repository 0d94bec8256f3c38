"""D4RL: one flat HDF5 file, as `d4rl.qlearning_dataset` and `d4rl.sequence_dataset` read it.

```
observations, actions, rewards, terminals, timeouts      N rows, one for each action
next_observations                                        only if some final observation is known
infos/…                                                  N rows
metadata/…                                               single values
```

What `sources.d4rl` takes from `metadata`, from kitchen's `infos`, and from `timeouts` that do not mark the
end of the file is written there.

Source: `d4rl/offline_env.py` and `d4rl/__init__.py` of https://github.com/Farama-Foundation/D4RL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, Key, join_key
from offline_data.formats.base import Release
from offline_data.formats.options import Options
from offline_data.formats.registry import get_source
from offline_data.formats.writing.base import (
    ExportJob,
    ExportOptions,
    ExportTarget,
    Holds,
    LeafPlace,
)
from offline_data.formats.writing.episodes import ExportedEpisodes, Leaf
from offline_data.formats.writing.plan import place_at
from offline_data.raw.hdf5 import h5
from offline_data.store.arrays import COLUMNS, TIMEOUT

if TYPE_CHECKING:
    from offline_data.formats.base import RawDataset

_NEXT = "next_observations"
_FLAT = {REWARD: "rewards", TERMINATED: "terminals", TRUNCATED: "timeouts"}
"""Names of arrays of one number a row."""
_DEMO: Key = ("info", "demo")


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
        episodes=frozenset(TIMEOUT),
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
        if leaf.table == "episodes":
            return place_at(leaf, f"@{key[0]}", self.holds)
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

    def differs(self, leaf: Leaf, episodes: ExportedEpisodes) -> str:
        """Return why `timeouts` cannot be those of the source: they have to end every episode but the last."""
        ended = episodes.last_flags(TERMINATED) | episodes.column(leaf.key).astype(bool)
        known = leaf.dtype == "bool" and ended[:-1].all() and not ended[-1]
        return "" if known else "timeouts are where episodes are truncated"

    def omits_final(self, job: ExportJob) -> bool:
        """Return True if no next observation of a last row is known."""
        return not job.known_final

    def write(self, batches: Iterable[EpisodeBatch], path: Path, job: ExportJob) -> None:
        """Write the file, each array at its whole length."""
        rows, done = job.episodes.transitions, 0
        seen = next(place for place in job.places if place.path == "observations")
        after = not self.omits_final(job) and seen.leaf.table == "observations"
        about = job.episodes.reader.manifest.about
        columns = about[COLUMNS] if isinstance(about.get(COLUMNS), Mapping) else {}
        names = _names_of(job, columns)
        with h5().File(path, "w") as file:
            for place, name in names.items():
                shape = () if name in _FLAT.values() else place.leaf.shape
                known = columns.get(name) if place.leaf.key in {TERMINATED, TRUNCATED} else None
                file.create_dataset(name, (rows, *shape), known or place.dtype)
            if after:
                file.create_dataset(_NEXT, (rows, *seen.leaf.shape), seen.dtype)
            metadata = about.get("metadata") if columns else None
            for name, value in metadata.items() if isinstance(metadata, Mapping) else ():
                file[f"metadata/{name}"] = value
            for batch in batches:
                span = slice(done, done + batch.transitions)
                for place, name in names.items():
                    values = place.step_rows(batch)
                    if name == _FLAT[TRUNCATED] and TIMEOUT in batch.episodes:
                        values = np.array(values)
                        values[batch.last_rows, 0] = batch.episodes[TIMEOUT]
                    file[name][span] = values.reshape(len(values), *file[name].shape[1:])
                if after:
                    file[_NEXT][span] = seen.step_rows(batch, after=True)
                done = span.stop

    def read(self, path: Path, job: ExportJob) -> RawDataset:
        """Open the file as a local one of D4RL."""
        both = any(place.path == _NEXT for place in job.places)
        return get_source("d4rl").open(
            Release(job.name, "1", local=path, options=Options(keep_episodes=both)), path
        )


def _names_of(job: ExportJob, columns: Mapping[str, Any]) -> dict[LeafPlace, str]:
    """Return the names of arrays; the number of kitchen's demonstrations is `infos` itself."""
    places = [place for place in job.places if place.leaf.table != "episodes"]
    infos = [place.leaf.key for place in places if place.leaf.key[0] == "info"]
    whole = infos == [_DEMO] and "infos" in columns
    return {p: "infos" if whole and p.leaf.key == _DEMO else p.path for p in places}
