"""ManiSkill: trajectories of simulated robots, an HDF5 file with a group for each, and a JSON file next to it.

```
traj_0/                           rows
    actions[/…]                   T         a0    a1    a2
    terminated, truncated         T         of the state that the action led to
    success, fail, rewards        T         the same; each may be missing
    obs[/…]                       T + 1     s0    s1    s2    s3     may be missing or an empty group
    env_states[/…]                T + 1     of the simulator
```

Source: `mani_skill/utils/wrappers/record.py` and `mani_skill/utils/download_demo.py` of
https://github.com/haosulab/ManiSkill.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.base.files import is_file
from offline_data.base.json import read_json
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, EpisodeBatch
from offline_data.episode.assembly import assemble
from offline_data.episode.fields import TERMINATED, TRUNCATED, Key
from offline_data.fetch.hub import list_hub
from offline_data.formats.base import CatalogEntry, CatalogSource, Release
from offline_data.formats.catalogues.robots import MANISKILL_ENVIRONMENTS, ManiSkillCatalog
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.groups import GroupEpisodes, names_in_first, numbered
from offline_data.raw import hdf5_tree
from offline_data.raw.hdf5 import MAGIC, open_hdf5

if TYPE_CHECKING:
    Columns = dict[Key, NDArray[Any]]

REPOSITORY, FOLDER = "haosulab/ManiSkill_Demonstrations", "demos/"
STATES = "The trajectories have no observations: `observation` is the state of the simulator (env_states)."
REPLAY = (
    "ManiSkill adds what a policy would see: python -m mani_skill.trajectory.replay_trajectory "
    "--traj-path FILE -o state --save-traj (or -o rgb)."
)
FLAGS = (
    "next/terminated and next/truncated are those of the file, which may go on after a success; the last row "
    "of a trajectory with neither is truncated."
)
_AFTER = frozenset({"rewards", "terminated", "truncated", "success", "fail"})
"""Datasets with one value for each action, of the state that it led to."""


class ManiSkill(ManiSkillCatalog, CatalogSource):
    """Published demonstrations, a file of the hub each, and the user's."""

    def remote(self, settings: Settings) -> Sequence[CatalogEntry]:
        """List the files that the hub has now; raises like `list_hub`."""
        files = list_hub(REPOSITORY, FOLDER, None, settings).files
        found = ((file.path.removeprefix(FOLDER), file.size) for file in files)
        return [CatalogEntry(path[:-3], bytes=size) for path, size in found if path.endswith(".h5")]

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """List the files of an environment at a commit on the hub; it needs one, or the name of one."""
        environment = name.partition("/")[0]
        if environment not in MANISKILL_ENVIRONMENTS:
            raise self.not_found(name, MANISKILL_ENVIRONMENTS)
        listing = list_hub(REPOSITORY, f"{FOLDER}{environment}/", revision, settings)
        files = {file.path.removeprefix(FOLDER): file for file in listing.files}
        names = [path[:-3] for path in files if path.endswith(".h5")]
        found = names if name == environment else [one for one in names if one == name]
        if len(found) != 1:
            has = ", ".join(f"{self.name}:{one}" for one in names) or "no .h5 file"
            count = plural(len(found), "file")
            raise NotFoundError(
                f"{self.name}:{name} names {count} at {listing.commit}", hint=f"there is {has}"
            )
        wanted = [path for suffix in (".h5", ".json") if (path := found[0] + suffix) in files]
        chosen = [replace(files[path], path=path.rpartition("/")[2]) for path in wanted]
        chosen[0] = replace(chosen[0], magic=MAGIC)
        return Release(found[0], listing.commit, tuple(chosen), licence=listing.licence)

    def published(self, release: Release) -> CatalogEntry | None:
        """Return the entry of the environment that a file of the hub belongs to."""
        return super().published(replace(release, name=release.name.partition("/")[0]))

    def has_format(self, path: Path) -> bool:
        """Return True if `path` is an HDF5 file with a group `traj_N` that has actions."""
        return is_file(path) and "actions" in names_in_first(path, Trajectories.name)

    def release_of(self, path: Path, name: str) -> Release:
        """Describe a file of the user, and the JSON file next to it if there is one."""
        files = [path, *filter(is_file, [path.with_suffix(".json")])]
        return Release(name, fingerprint(path.parent, files), local=path)

    def open(self, release: Release, raw: Path) -> Trajectories:
        """Open it: reads the JSON file, and which trajectories there are."""
        path = release.file_in(raw)
        with open_hdf5(path) as file:
            count = len(numbered(file.id, Trajectories.name))
        if not count:
            raise FormatError(f"{path} has no trajectories traj_0, traj_1, …")
        sidecar = path.with_suffix(".json")
        known = read_json(sidecar) if is_file(sidecar) else {}
        if not isinstance(known, dict):
            raise FormatError(f"{sidecar} is not a JSON object with env_info and episodes")
        lacking = f"There is no {sidecar.name} next to the file: environment and seeds are unknown."
        info = self.describe(release, FLAGS, *([] if known else [lacking]))
        if self.published(release):
            info = replace(info, licence=release.licence)
        about = {key: known[key] for key in ("source_type", "source_desc") if key in known}
        environment = known.get("env_info")
        if isinstance(environment, dict):
            about |= {"env_name": environment["env_id"]} if "env_id" in environment else {}
            info = replace(info, environment=environment)
        skip_bad = release.options.skip_bad_episodes
        info = replace(info, about=about, episodes=None if skip_bad else count)
        facts = _facts_of(known["episodes"], sidecar) if "episodes" in known else {}
        return Trajectories(path.parent, (path.name,), info, skip_bad, facts)


def _facts_of(episodes: Any, path: Path) -> dict[int, Columns]:
    """Return what the JSON file says of each trajectory: only what it says of all of them, `[1]`."""
    if not isinstance(episodes, list) or not all(
        isinstance(one, dict) and isinstance(one.get("episode_id"), int) for one in episodes
    ):
        raise FormatError(f"{path}: 'episodes' is not a list of objects with an 'episode_id'")
    recorded: dict[str, list[Any]] = {"steps": [one.get("elapsed_steps") for one in episodes]}
    resets = [one.get("reset_kwargs") for one in episodes]
    again = [one.get("seed") if isinstance(one, dict) else None for one in resets]
    recorded["seed"] = [
        one.get("episode_seed", seed) for one, seed in zip(episodes, again, strict=True)
    ]
    recorded |= {
        name: [one.get(name) for one in episodes] for name in ("control_mode", "success", "fail")
    }
    recorded["reset_kwargs"] = [one if one is None else json.dumps(one) for one in resets]
    columns: Columns = {}
    for name, values in recorded.items():
        plain = [one[0] if isinstance(one, list) and len(one) == 1 else one for one in values]
        for kind, dtype in ((bool, np.bool_), (int, np.int64), (str, object)):
            if all(type(one) is kind for one in plain) and (
                kind is not int or all(abs(one) < 2**63 for one in plain)
            ):
                columns[name,] = np.array(plain, dtype)
    numbers = [one["episode_id"] for one in episodes]
    return {n: {key: c[i : i + 1] for key, c in columns.items()} for i, n in enumerate(numbers)}


@dataclass(frozen=True)
class Trajectories(GroupEpisodes):
    """The trajectories of a file, ordered by number."""

    facts: Mapping[int, Columns] = field(default_factory=dict)
    """Columns of each trajectory from the JSON file, `[1]`; empty: there is none."""
    name = re.compile("traj_([0-9]{1,9})")

    def read_group(self, group: Any, number: int, file: str) -> EpisodeBatch:
        sidecar = Path(file).with_suffix(".json").name
        if self.facts and number not in self.facts:
            raise FormatError(f"{sidecar} has no episode {number}")
        facts = dict(self.facts.get(number, {}))
        stated = facts.pop(("steps",), None)
        found = dict(hdf5_tree.walk(group))
        batch = _read_episode(found, {("trajectory",): np.array([number]), **facts})
        if stated is None or stated[0] == batch.transitions:
            return batch
        said = f"In {sidecar}, elapsed_steps differ from the actions of some trajectories."
        return replace(batch, warnings=(*batch.warnings, said))


def _read_episode(found: Mapping[tuple[str, ...], Any], facts: Columns) -> EpisodeBatch:
    """Return a trajectory, given its datasets; raises `FormatError`."""
    described = {path: hdf5_tree.describe(dataset) for path, dataset in found.items()}
    rows = {leaf.rows for path, leaf in described.items() if path[0] == "actions"}
    if len(rows) != 1 or not (count := rows.pop() or 0):
        raise FormatError("it has no actions" if not rows else "its actions differ in length")
    observed = any(path[0] == "obs" for path in found)
    steps: Columns = {}
    observations: Columns = {}
    dropped = []
    for path, dataset in found.items():
        leaf, name = described[path], "/".join(path)
        before = path[0] in {"obs", "env_states"}
        expected = {count + 1} if before else {count}
        if path[0] not in {"actions", "obs", "env_states", *_AFTER}:
            expected = {count, count + 1}
        if leaf.form != "array" or leaf.rows not in expected:
            reason = f"it is {dataset.dtype} of shape {list(dataset.shape)}, expected {max(expected)} rows of numbers"
            if len(expected) == 1:
                raise FormatError(f"{name!r} cannot be read: {reason}")
            dropped.append(Dropped(name, f"{reason[0].upper()}{reason[1:]}."))
            continue
        values = hdf5_tree.read_numbers(dataset)
        if path[0] in _AFTER:
            if values.shape not in {(count,), (count, 1)}:
                raise FormatError(f"{name!r} has shape {list(values.shape)}, expected [{count}]")
            steps["next", path[0].replace("rewards", "reward")] = values.reshape(count, 1)
        elif before:
            root = "observation" if path[0] == "obs" or not observed else "state"
            observations |= {(root, *path[1:]): values}
        elif path[0] == "actions":
            steps |= {("action", *path[1:]): values}
        elif leaf.rows == count:
            steps |= {("extra", *path): values}
        else:
            observations |= {("info", *path): values}
    if not observations:
        raise FormatError("it has neither obs nor env_states")
    return assemble(
        np.array([count]),
        steps,
        observations,
        terminated=steps.pop(TERMINATED, None),
        truncated=steps.pop(TRUNCATED, None),
        episodes=facts,
        dropped=tuple(dropped),
        notes=() if observed else (STATES,),
        warnings=() if observed else (f"{STATES} {REPLAY}",),
    )
