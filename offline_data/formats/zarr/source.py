"""Diffusion Policy: replay buffers in zarr, as a folder or a zip, of it, UMI, DexCap, iDP3 and others.

```
data/action, data/img, data/state, …    a row for each step of all episodes
meta/episode_ends                       one past the last row of each episode
```

There are no rewards, and no observation after the last action. UMI has no actions: its policies learn
the poses of the gripper. Source: `diffusion_policy/common/replay_buffer.py` of
https://github.com/real-stanford/diffusion_policy, and `diffusion_policy/common/sampler.py` of
https://github.com/real-stanford/universal_manipulation_interface.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError
from offline_data.base.files import is_file, is_folder
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, EpisodeBatch
from offline_data.episode.assembly import assemble
from offline_data.episode.fields import EPISODE_COLUMNS, Key, check_key
from offline_data.episode.joining import join_episodes
from offline_data.formats.base import (
    UNVERSIONED,
    CatalogSource,
    RawDataset,
    Release,
    RemoteFile,
    Shard,
    SourceInfo,
)
from offline_data.formats.catalogues.robots import DIFFUSION_POLICY_FILES, DiffusionPolicyCatalog
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.folders import files_below
from offline_data.raw.zarr_arrays import ZarrArray, is_zarr, open_zarr

HOST = "https://diffusion-policy.cs.columbia.edu/data/training/"
ENDS = "meta/episode_ends"
FINAL = (
    "The observation after the last action of an episode is not in the file; episodes end truncated, as the "
    "format does not say how."
)
POSES = (
    "There is no data/action: the action of a row is its own pose (eef_pos, eef_rot_axis_angle and "
    "gripper_width of each robot), as in UMI's sampler; policies learn those of the rows after."
)
_POSE = re.compile(r"robot[0-9]+_(eef_pos|eef_rot_axis_angle|gripper_width)")


class DiffusionPolicy(DiffusionPolicyCatalog, CatalogSource):
    """Published replay buffers, and the user's."""

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:  # noqa: ARG002
        """Return a published dataset; does not use the network."""
        file = DIFFUSION_POLICY_FILES[self.find(name, revision).name][0]
        return Release(name, UNVERSIONED, (RemoteFile(file, (HOST + file,), magic=b"PK\x03\x04"),))

    def has_format(self, path: Path) -> bool:
        """Return True if `path` is a zarr folder, or a zip of one, with ends of episodes."""
        if is_folder(path):
            return is_zarr(path) and is_folder(path / ENDS)
        if not is_file(path) or path.suffix != ".zip":
            return False
        with open_zarr(path) as arrays:
            return bool(_buffers_in(arrays))

    def release_of(self, path: Path, name: str) -> Release:
        files = files_below(path) if is_folder(path) else [path]
        return Release(name, fingerprint(path, files), local=path)

    def open(self, release: Release, raw: Path) -> ZarrEpisodes:
        """Open it: reads the ends of episodes, and what arrays there are."""
        path = release.file_in(raw)
        info = self.describe(release, FINAL)
        with open_zarr(path) as arrays:
            found = _buffers_in(arrays)
            if self.published(release):
                inner = f"{DIFFUSION_POLICY_FILES[release.name][1]}.zarr/"
                found = [one for one in found if f"/{one}".endswith(f"/{inner}")] or found
            if len(found) != 1:
                has = f"several: {', '.join(found)}" if found else f"no {ENDS}"
                raise FormatError(f"{path} is not one replay buffer: it has {has}")
            return _describe(
                path, found[0], arrays, info, skip_bad=release.options.skip_bad_episodes
            )


def _buffers_in(arrays: Mapping[str, Any]) -> list[str]:
    """Return the folder of each replay buffer, with a slash."""
    return [name.removesuffix(ENDS) for name in arrays if f"/{name}".endswith(f"/{ENDS}")]


def _describe(
    path: Path, folder: str, arrays: Mapping[str, ZarrArray], info: SourceInfo, *, skip_bad: bool
) -> ZarrEpisodes:
    ends = _read_ends(arrays[folder + ENDS], path)
    columns: dict[Key, str] = {}
    episodes: dict[Key, str] = {}
    dropped = []
    for name, array in arrays.items():
        place = name.removeprefix(folder)
        root, *rest = place.split("/")
        if place == ENDS or not name.startswith(folder):
            continue
        rows = array.shape[0] if array.shape else None
        if array.unknown_codec is not None:
            reason = f"It is encoded by {array.unknown_codec!r:.60}, which is not read."
            dropped.append(Dropped(place, reason))
        elif root == "data" and rest:
            if rows != ends[-1]:
                raise FormatError(
                    f"{path}: {place!r} has shape {list(array.shape)}, expected {plural(ends[-1], 'row')}, as "
                    "meta/episode_ends says"
                )
            key = ("action",) if rest == ["action"] else check_key(("observation", *rest))
            columns[key] = name
        elif root == "meta" and rows == len(ends) and rest[0] not in EPISODE_COLUMNS:
            episodes[check_key(tuple(rest))] = name
        else:
            dropped.append(
                Dropped(
                    place, "It has no row for each step or episode, or a name with another use."
                )
            )
    lost = [one.key for one in dropped if one.key.startswith("data/")]
    holes = [name.removeprefix(folder) for name in columns.values() if arrays[name].absent_chunks]
    said = {
        "Arrays that are left out, as their codec is not read": lost,
        "Arrays without some of their chunks, which zarr reads as the fill value": holes,
    }
    warnings = tuple(f"{what}: {', '.join(names)}." for what, names in said.items() if names)
    poses = [] if ("action",) in columns else _poses(columns)
    if ("action",) not in columns and not poses:
        has = ", ".join("/".join(key[1:]) for key in columns) or "nothing"
        raise FormatError(
            f"{path} has no data/action, and no poses of a gripper to take in its place; data has {has}"
        )
    info = replace(
        info,
        episodes=None if skip_bad else len(ends),
        transitions=None if skip_bad else int(ends[-1]),
        notes=(*info.notes, *([POSES] if poses else []), *warnings),
        warnings=warnings,
        dropped=tuple(dropped),
    )
    return ZarrEpisodes(path, ends, columns, episodes, tuple(poses), info, skip_bad)


def _read_ends(array: ZarrArray, path: Path) -> NDArray[np.int64]:
    """Return the ends of episodes; raises `FormatError` unless they are increasing whole numbers."""
    if len(array.shape) != 1 or array.dtype.kind not in "iu" or not array.shape[0]:
        raise FormatError(
            f"{path}: meta/episode_ends is {array.dtype} {list(array.shape)}, expected whole numbers [E]"
        )
    ends = array.read(0, array.shape[0]).astype(np.int64)
    if (lengths := np.diff(ends, prepend=0)).min() < 1:
        bad = int(lengths.argmin())
        raise FormatError(
            f"{path}: meta/episode_ends says that episode {bad} has {lengths[bad]} rows, expected 1 or more"
        )
    return ends


def _poses(columns: Mapping[Key, str]) -> list[Key]:
    """Return the columns of which UMI makes actions, in its order; empty: a part is missing."""
    found = [key for key in columns if len(key) == 2 and _POSE.fullmatch(key[1])]
    parts = ("eef_pos", "eef_rot_axis_angle", "gripper_width")
    robots = sorted({key[1].partition("_")[0] for key in found}, key=lambda one: int(one[5:]))
    whole: list[Key] = [("observation", f"{robot}_{part}") for robot in robots for part in parts]
    return whole if set(whole) == set(found) else []


@dataclass(frozen=True, eq=False)
class ZarrEpisodes(RawDataset):
    """The episodes of a replay buffer."""

    path: Path
    ends: NDArray[np.int64]
    """`[E]` one past the last row of each episode."""
    columns: Mapping[Key, str]
    """Name of the array of each leaf."""
    episodes: Mapping[Key, str]
    """The same of leaves with a row for each episode."""
    poses: tuple[Key, ...]
    """Observations that are the action, end to end; empty: it has actions."""
    info: SourceInfo
    skip_bad: bool = False

    def shards(self) -> Sequence[Shard]:
        return (Shard("all episodes"),)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:  # noqa: ARG002 -- there is only one
        with open_zarr(self.path) as arrays:
            yield from join_episodes(self._readings(arrays), skip_bad=self.skip_bad)

    def _readings(
        self, arrays: Mapping[str, ZarrArray]
    ) -> Iterator[tuple[str, Callable[[], EpisodeBatch]]]:
        starts = np.concatenate([[0], self.ends[:-1]])
        for number, rows in enumerate(zip(starts.tolist(), self.ends.tolist(), strict=True)):
            yield f"episode {number}", partial(self._read_episode, arrays, number, *rows)

    def _read_episode(
        self, arrays: Mapping[str, ZarrArray], number: int, start: int, stop: int
    ) -> EpisodeBatch:
        found = {key: arrays[name].read(start, stop) for key, name in self.columns.items()}
        if self.poses:
            parts = [found[key].reshape(stop - start, -1) for key in self.poses]
            found["action",] = np.concatenate(parts, axis=1)
        steps: dict[Key, NDArray[Any]] = {("action",): found.pop(("action",))}
        facts = {key: arrays[name].read(number, number + 1) for key, name in self.episodes.items()}
        return assemble(np.array([stop - start]), steps, found, episodes=facts)
