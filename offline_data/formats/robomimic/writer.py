"""robomimic: HDF5 with a group for each demonstration, as `robomimic.utils.dataset.SequenceDataset` reads it.

```
data                attributes total, env_args, problem_info
data/demo_0         attributes num_samples, model_file, ep_meta, seed, success
    actions, rewards, dones, obs/…, next_obs/…        a row for each action
    states, datagen_info/…                            the same; initial_state/… has one row
mask/…              filter keys: names of demonstrations
```

What `sources.robomimic` takes from one of these places is written there. Source:
`robomimic/utils/dataset.py` and `robomimic/scripts/dataset_states_to_obs.py` of robomimic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, Key, join_key
from offline_data.formats.base import Release
from offline_data.formats.options import Options
from offline_data.formats.registry import get_source
from offline_data.formats.robomimic.demos import DONES, is_terminated
from offline_data.formats.robomimic.file import POSITIONS, DemoFile, parse_attribute
from offline_data.formats.writing.base import (
    ExportJob,
    ExportOptions,
    ExportTarget,
    Holds,
    LeafPlace,
)
from offline_data.formats.writing.episodes import ExportedEpisodes, Leaf, each_episode
from offline_data.formats.writing.plan import place_at
from offline_data.raw.hdf5 import h5

if TYPE_CHECKING:
    from offline_data.formats.base import RawDataset

_DEMO, _SUCCESS, _META, _WORDS = "demo", "success", "ep_meta", "language_instruction"
_TYPES = {"seed": "int64", _SUCCESS: "bool", _DEMO: "int64", "mask": "bool"} | dict.fromkeys(
    (_META, _WORDS, "model_file"), "text"
)
"""Dtypes of columns of episodes that are attributes (`@NAME` in places), names and filter keys."""


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
        info=frozenset({"datagen_info"}),
        episodes=frozenset({*_TYPES, "initial_state"}),
        both=True,
    )
    own: ClassVar = {
        "obs": (("observation",),),
        "next_obs": (("next", "observation"),),
        "states": (("state",), ("next", "state")),
        "actions": (("action",),),
        "rewards": (REWARD,),
        "dones": (DONES,),
        "datagen_info": (("info",),),
        "initial_state": (("initial_state",),),
    }
    added = frozenset(
        {
            *(("episodes", (name,)) for name in (_DEMO, "file", _SUCCESS, _META, _WORDS)),
            ("steps", DONES),
        }
    )

    def place(self, leaf: Leaf, options: ExportOptions) -> LeafPlace | str:  # noqa: ARG002
        """Return the dataset or attribute of a leaf, in the group of a demonstration or the file."""
        key, path = leaf.key, ""
        known = {REWARD: "rewards", TERMINATED: "dones", TRUNCATED: "dones", ("action",): "actions"}
        if leaf.table == "episodes":
            wanted = _TYPES.get(key[0], "numbers" if leaf.dtype == "text" else leaf.dtype)
            plain = key[0] not in _TYPES or (not leaf.shape and bool(key[1:]) == (key[0] == "mask"))
            if leaf.dtype != wanted or not plain:
                return f"robomimic has {key[0]} of {wanted}"
            path = join_key(key) if key[0] in {"mask", "initial_state"} else f"@{key[0]}"
        elif key in known:
            path = known[key]
        elif key == ("state",):
            return place_at(leaf, "states", self.holds, key, "steps")
        elif key[0] == "observation":
            name = key[1:] or ("state",)
            return place_at(leaf, join_key(("obs", *name)), self.holds, ("observation", *name))
        elif leaf.table == "steps" and (key != DONES or leaf.shape in {(), (1,)}):
            roots: dict[Key, str] = {
                ("next", "observation"): "next_obs",
                ("next", "state"): "states",
            }
            if key[:2] in roots and key[2:]:
                path = join_key((roots[key[:2]], *key[2:]))
            elif key[0] in {"extra", "info"}:
                path = "/".join(key[1:])
        return place_at(leaf, path, self.holds) if path else f"{self.name} has no place for it"

    def differs(self, leaf: Leaf, episodes: ExportedEpisodes) -> str:
        """Return why a column of episodes does not come back."""
        name = leaf.key[0]
        if name not in {_DEMO, _SUCCESS, _META, _WORDS}:
            return ""
        column, there = episodes.column(leaf.key), {one.key for one in episodes.leaves}
        if name == _DEMO:
            same = column[0] >= 0 and column[-1] < 10**9 and (np.diff(column) > 0).all()
            return "" if same else "demonstrations are numbered anew"
        if name == _SUCCESS:
            same = np.array_equal(column, episodes.last_flags(TERMINATED))
            return "" if same else "success is whether the last row is terminated"
        if name == _META:
            same = all(_lang_of(text) is not None for text in column)
            return "" if same else "robomimic has JSON objects there"
        if (_META,) not in there:
            return ""
        default = column[0] if len(set(column)) == 1 else ""
        said = [_lang_of(text) or default for text in episodes.column((_META,))]
        return "" if said == column.tolist() else "robomimic has that of ep_meta"

    def omits_final(self, job: ExportJob) -> bool:
        """Return True if no final observation is known; LIBERO's files would be read as LIBERO's."""
        return not job.known_final and all(p.path != f"obs/{POSITIONS}" for p in job.places)

    def write(self, batches: Iterable[EpisodeBatch], path: Path, job: ExportJob) -> None:
        """Write a group for each episode."""
        columns = {p.leaf.key: p.path for p in job.places if p.leaf.table == "episodes"}
        numbers = np.arange(len(job.episodes.lengths))
        if (_DEMO,) in columns:
            numbers = job.episodes.column((_DEMO,))
        masks: dict[Key, list[bytes]] = {key: [] for key in columns if key[0] == "mask"}
        words = set(job.episodes.column((_WORDS,))) if (_WORDS,) in columns else set()
        ends = []
        with h5().File(path, "w") as file:
            data = file.create_group("data", track_order=True)
            data.attrs["total"] = job.episodes.transitions
            data.attrs["env_args"] = json.dumps(_environment_of(job))
            if len(words) == 1:
                data.attrs["problem_info"] = json.dumps({_WORDS: words.pop()})
            for number, episode in zip(numbers.tolist(), each_episode(batches), strict=True):
                name = f"demo_{number}"
                group = data.create_group(name, track_order=True)
                _write_demo(group, episode, job, final=not self.omits_final(job))
                if words and (_META,) not in columns:
                    group.attrs[_META] = json.dumps({"lang": episode.episodes[_WORDS,][0]})
                for key, chosen in masks.items():
                    chosen += [name.encode()] * bool(episode.episodes[key][0])
                ends.append((group["dones"][-2:], bool(episode.steps[TERMINATED][-1, 0])))
            for key, chosen in masks.items():
                file.create_dataset(columns[key], data=np.array(chosen, "S" if chosen else "S1"))
            if (_SUCCESS,) not in columns:
                _say_ends(file, data, numbers, ends)

    def read(self, path: Path, job: ExportJob) -> RawDataset:
        """Open the file as a local one of robomimic."""
        both = any(place.path.startswith("next_obs/") for place in job.places)
        release = Release(path.name, "1", local=path, options=Options(keep_episodes=both))
        return get_source("robomimic").open(release, path)


def _write_demo(group: Any, episode: EpisodeBatch, job: ExportJob, *, final: bool) -> None:
    group.attrs["num_samples"] = episode.transitions
    for place in job.places:
        if place.leaf.table == "episodes":
            value = episode.episodes[place.leaf.key]
            if place.leaf.key[0] == "initial_state":
                group.create_dataset(place.path, data=value)
            elif place.leaf.key[0] not in {_DEMO, _WORDS, "mask"}:
                group.attrs[place.leaf.key[0]] = value[0]
            continue
        if place.leaf.key in {TERMINATED, TRUNCATED}:
            continue
        before = np.asarray(place.step_rows(episode))
        flat = before.reshape(-1) if place.path in {"rewards", "dones"} else before
        group.create_dataset(place.path, data=flat)
        if final and place.leaf.table == "observations" and place.path.startswith("obs/"):
            after = place.step_rows(episode, after=True)
            group.create_dataset(f"next_{place.path}", data=after)
    if "dones" not in group:
        ended = episode.steps[TERMINATED][:, 0]
        group.create_dataset("dones", data=ended.astype(np.int64))


def _say_ends(
    file: Any, data: Any, numbers: NDArray[Any], ends: list[tuple[NDArray[Any], bool]]
) -> None:
    """Write how demonstrations end as `success`, if their `dones` do not say it to a reader."""
    found = DemoFile(file.id, "")
    if any(is_terminated(found, dones, {}) != terminated for dones, terminated in ends):
        for number, (_, terminated) in zip(numbers.tolist(), ends, strict=True):
            data[f"demo_{number}"].attrs[_SUCCESS] = terminated


def _environment_of(job: ExportJob) -> Mapping[str, Any]:
    environment = job.episodes.reader.manifest.environment
    if "env_name" in environment:
        return environment
    return {
        "env_name": str(environment.get("id", "")),
        "type": 2,  # of Gym, in robomimic.envs.env_base.EnvType
        "env_kwargs": environment.get("env_kwargs", environment.get("kwargs")) or {},
    }


def _lang_of(meta: Any) -> str | None:
    """Return the words of an `ep_meta`, empty if it has none; None: it is not a JSON object."""
    try:
        said = parse_attribute(meta, "ep_meta").get("lang", "")
        return "".join(said)
    except (FormatError, TypeError):
        return None
