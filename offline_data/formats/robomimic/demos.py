"""Demonstrations in robomimic's HDF5 layout: a group for each, a row for each action.

```
row of a demonstration      0     1     2
obs/*                       s0    s1    s2        before the action
actions                     a0    a1    a2
rewards, dones              r0    r1    r2        of the state that the action led to
next_obs/*                  s1    s2    s3        may be missing, and with it s3
states, datagen_info/*      x0    x1    x2        of the simulator, before the action
```

LIBERO's observations may be those after the action instead, see `alignment`. IsaacLab has no rewards,
and its `states` are those after the action, with `initial_state` before the first.

Source: `robomimic/utils/dataset.py` and `robomimic/scripts/dataset_states_to_obs.py` of robomimic, and
`utils/datasets/hdf5_dataset_file_handler.py` of https://github.com/isaac-sim/IsaacLab.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, EpisodeBatch
from offline_data.episode.assembly import assemble
from offline_data.episode.fields import REWARD, Key
from offline_data.episode.joining import join_episodes
from offline_data.formats.base import RawDataset, Shard, SourceInfo
from offline_data.formats.flat.episodes import OBSERVATION
from offline_data.formats.options import Alignment
from offline_data.formats.robomimic.file import (
    ATTRIBUTES,
    POSITIONS,
    DemoFile,
    parse_attribute,
)
from offline_data.raw import hdf5_tree
from offline_data.raw.hdf5 import open_hdf5

if TYPE_CHECKING:
    Columns = dict[tuple[str, ...], NDArray[Any]]

RAW_HINT = (
    "robomimic's script writes observations: dataset_states_to_obs.py --dataset FILE --output_name "
    "low_dim.hdf5 --done_mode 2"
)
JUMPS = (
    "next_obs is not the obs of the row after: episodes end there, as truncated "
    "(--keep-episodes keeps them whole, and stores both)."
)
BOTH = "Every next observation is that of next_obs."

DONES: Key = ("extra", "dones")
_NEEDED = frozenset({"actions", "obs", "next_obs", "rewards", "dones"})
"""Groups and datasets that must have a row for each action."""


@dataclass(frozen=True)
class DemoFiles(RawDataset):
    """The demonstrations of some files, a shard each."""

    folder: Path
    paths: tuple[str, ...]
    """Paths of the files in it."""
    info: SourceInfo
    alignment: Alignment | None = None
    """That of LIBERO files; None: decided by the movements."""
    why: str = ""
    """Reason for the alignment, to be said in a note."""
    keep_episodes: bool = False
    """See `Release`."""
    skip_bad: bool = False
    """Whether to skip demonstrations that cannot be read."""

    def with_environment(self) -> DemoFiles:
        """Return the same with the environment of the first file; raises as `read` does."""
        with open_hdf5(self.folder / self.paths[0]) as opened:
            file = DemoFile(opened.id, self.paths[0], self.alignment)
            file.notes(self.why)  # raises before anything is converted
            found = file.attributes.get("env_args", {})
        about = {"env_name": found["env_name"], **self.info.about} if "env_name" in found else {}
        return replace(self, info=replace(self.info, environment=found, about=about))

    def shards(self) -> Sequence[Shard]:
        return tuple(Shard(path, (path,)) for path in self.paths)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        with open_hdf5(self.folder / shard.files[0]) as opened:
            file = DemoFile(opened.id, shard.name, self.alignment)
            notes = file.notes(self.why)
            readings = (
                (f"{file.name} {name}", partial(self._read_demo, file, number, name, target))
                for number, name, target in file.demos
            )
            for batch in join_episodes(readings, skip_bad=self.skip_bad):
                yield replace(batch, notes=(*notes, *batch.notes))

    def _read_demo(self, file: DemoFile, number: int, name: str, link: str | None) -> EpisodeBatch:
        """Return a demonstration as an episode, or several if it is cut; raises `FormatError`."""
        if link is not None:
            raise FormatError(f"it is a link to {link!r}, which is not followed")
        try:
            group = hdf5_tree.open_group(file.data, (name,))
            attributes = hdf5_tree.read_attributes(group, ATTRIBUTES)
            columns, initial, dropped = _read_columns(group)
        except OSError as error:
            raise FormatError(f"it cannot be read: {error}") from error
        rows = len(columns["actions",])
        if (stated := attributes.get("num_samples", rows)) != rows:
            raise FormatError(f"its num_samples is {stated}, and it has {plural(rows, 'action')}")
        before, after = (
            {
                (*OBSERVATION, *path[1:]): columns.pop(path)
                for path in sorted(columns)
                if path[0] == root
            }
            for root in ("obs", "next_obs")
        )
        if file.is_libero != ((*OBSERVATION, POSITIONS) in before and not after):
            raise FormatError(
                f"only it, or the first, has obs/{POSITIONS} without next_obs, as LIBERO"
            )
        if file.is_libero and ("robot_states",) in columns:
            before["info", "robot_states"] = columns.pop(("robot_states",))
        if after and (reason := _difference(before, after)):
            dropped, after = (*dropped, Dropped("next_obs", reason)), {}
        first = int(file.alignment == "raw")
        if rows <= first:
            raise FormatError(f"it has {plural(rows, 'row')}, too few for a step")
        steps = {_leaf_of(path): column[first:] for path, column in columns.items()}
        for key, array in ((REWARD, "rewards"), (DONES, "dones")):
            if steps.get(key, np.zeros(1)).shape[1:] not in {(), (1,)}:
                raise FormatError(
                    f"its {array} have shape {list(steps[key].shape)}, expected [{rows}]"
                )
        steps |= {key: steps[key].reshape(-1, 1) for key in (REWARD, DONES) if key in steps}
        last = np.arange(rows - first) == rows - first - 1
        return assemble(
            np.array([rows - first]),
            steps,
            before,
            terminated=last & is_terminated(file, steps.get(DONES), attributes),
            after=after,
            jumps=JUMPS,
            keep=self.keep_episodes,
            episodes={**_facts(file, number, name, attributes), **initial},
            dropped=dropped,
            notes=(BOTH,) if self.keep_episodes and after else (),
        )


def _leaf_of(path: tuple[str, ...]) -> Key:
    """Return the leaf of a dataset with a row for each action.

    Example:
        >>> _leaf_of(("states",)), _leaf_of(("states", "robot", "root_pose"))
        (('state',), ('next', 'state', 'robot', 'root_pose'))
        >>> _leaf_of(("action_dict", "rel_pos"))
        ('extra', 'action_dict', 'rel_pos')
    """
    known: dict[str, Key] = {
        "actions": ("action",),
        "rewards": REWARD,
        "states": ("state",) if len(path) == 1 else ("next", "state"),
        "datagen_info": ("info", "datagen_info"),
    }
    return (*known.get(path[0], ("extra", path[0])), *path[1:])


def _read_columns(group: Any) -> tuple[Columns, dict[Key, NDArray[Any]], tuple[Dropped, ...]]:
    """Return the datasets with a row for each action, those with one row, and why others are dropped."""
    found = dict(hdf5_tree.walk(group))
    there = sorted({path[0] for path in found})
    if ("actions",) not in found:
        raise FormatError(f"it has no 'actions'; it has {', '.join(there) or 'nothing'}")
    if "obs" not in there:
        raise FormatError(
            f"it has no 'obs', only {', '.join(there)}: observations were not made of the simulator's "
            "states",
            hint=RAW_HINT,
        )
    count = hdf5_tree.describe(found["actions",]).rows
    columns: Columns = {}
    initial: dict[Key, NDArray[Any]] = {}
    dropped = []
    for path, dataset in found.items():
        leaf, into = hdf5_tree.describe(dataset), initial if path[0] == "initial_state" else columns
        expected = 1 if into is initial else count
        if leaf.form == "array" and leaf.rows is not None and leaf.rows == expected:
            plain = hdf5_tree.read_plain(group, "/".join(path), leaf.dtype, leaf.shape)
            into[path] = hdf5_tree.read_numbers(dataset) if plain is None else plain
            continue
        reason = f"It has {plural(leaf.rows or 0, 'row')}, expected {expected}."
        if leaf.form != "array":
            reason = f"It has HDF5 type {dataset.dtype}, which is not a number."
        if path[0] in _NEEDED:
            raise FormatError(f"{'/'.join(path)!r} cannot be read. {reason}")
        dropped.append(Dropped("/".join(path), reason))
    return columns, initial, tuple(dropped)


def _difference(before: Mapping[Key, Any], after: Mapping[Key, Any]) -> str | None:
    """Return why the last of next_obs cannot be the final observation; None: it can."""
    for key in sorted(before.keys() | after.keys()):
        kinds = {(c[key].dtype, c[key].shape) if key in c else None for c in (before, after)}
        if len(kinds) > 1:
            return (
                f"Its {'/'.join(key[1:])} is absent in one of obs and next_obs, or of another type."
            )
    return None


def is_terminated(file: DemoFile, dones: Any, attributes: Mapping[str, Any]) -> bool:
    """Return True if the file says that the last action ended the task, see `ENDS`."""
    if file.ends == "attribute":
        return bool(np.all(attributes.get("success", False)))
    if dones is None or file.ends not in {"libero", "every", "some"}:
        return False
    return bool(dones[-1]) and (file.ends != "some" or (len(dones) > 1 and bool(dones[-2])))


def _facts(
    file: DemoFile, number: int, name: str, attributes: Mapping[str, Any]
) -> dict[Key, NDArray[Any]]:
    """Return what is known of the episode apart from datasets, `[1]`."""
    facts: dict[Key, NDArray[Any]] = {
        ("demo",): np.array([number]),
        ("file",): np.array([file.name], object),
        **{("mask", *key): np.array([name in names]) for key, names in file.masks.items()},
    }
    said = file.attributes.get("problem_info", {}).get("language_instruction")
    if (meta := attributes.get("ep_meta")) is not None:
        said = parse_attribute(meta, "its attribute 'ep_meta'").get("lang", said)
        facts["ep_meta",] = np.array([meta], object)
    if isinstance(said, (str, list)) and all(isinstance(part, str) for part in said):
        facts["language_instruction",] = np.array(["".join(said)], object)
    if isinstance(model := attributes.get("model_file"), str):
        facts["model_file",] = np.array([model], object)
    for attribute, dtype in (("seed", np.int64), ("success", np.bool_)):
        if attribute in attributes:
            value = np.asarray(attributes[attribute])
            if value.shape or value.dtype.kind not in "biu":
                raise FormatError(
                    f"its attribute {attribute!r} is {value.dtype} {list(value.shape)}"
                )
            facts[attribute,] = value.astype(dtype)[None]
    return facts
