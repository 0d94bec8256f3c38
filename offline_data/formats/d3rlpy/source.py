"""d3rlpy: the flat HDF5 files of version 1, and the dumps of version 2, read without the d3rlpy package.

```
version 1    observations, actions, rewards, terminals, episode_terminals   a row for each transition
version 2    observations_0, actions_0, rewards_0, terminated_0             episode 0
             observations_1, …                                              episode 1
             observations_0_0, observations_0_1, …                          a tuple of observations
```

Neither has the observation after the last action. Source: `d3rlpy/dataset/io.py` and, of version 1,
`d3rlpy/dataset.pyx` of https://github.com/takuseno/d3rlpy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural
from offline_data.episode import EpisodeBatch
from offline_data.episode.assembly import assemble
from offline_data.episode.cut import lengths_of
from offline_data.episode.fields import REWARD, Key, check_key
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
from offline_data.formats.catalogues.control import D3RLPY_FILES, D3rlpyCatalog
from offline_data.formats.d4rl.source import D4RLEpisodes, leaf_of
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.flat.hdf5 import FlatFormat, inspect
from offline_data.formats.recognition import ArrayNames, array_names
from offline_data.raw import hdf5_tree
from offline_data.raw.hdf5 import MAGIC, name_hdf5_damage, open_hdf5

FORMAT = FlatFormat("d3rlpy 1", leaf_of, truncated="episode_terminals", next_observation="")
FLAT_NAMES = ArrayNames((*FORMAT.required_columns, FORMAT.truncated))
NAMES = ArrayNames(("columns", "num_episodes"))
_COLUMN = re.compile(r"([A-Za-z][A-Za-z_]{0,63}?)_([0-9]{1,9})(?:_([0-9]{1,4}))?")
_NEEDED = ("observations", "actions", "rewards", "terminated")
_LEAVES: dict[str, Key] = {"actions": ("action",), "rewards": REWARD}

_FINAL = "The observation after the last action of an episode is not in the file."


class D3rlpy(D3rlpyCatalog, CatalogSource):
    """d3rlpy's own four datasets, and the user's files of both versions."""

    arrays: ClassVar = {"HDF5": FLAT_NAMES}

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:  # noqa: ARG002
        """Return a published dataset; does not use the network."""
        place = D3RLPY_FILES[self.find(name, revision).name]
        file = RemoteFile(
            place.rpartition("/")[2], (f"https://www.dropbox.com/s/{place}?dl=1",), magic=MAGIC
        )
        return Release(name, UNVERSIONED, (file,))

    def has_format(self, path: Path) -> int:
        """Count the columns of version 1, or the names of version 2, in an HDF5 file."""
        names = () if path.suffix == ".npz" else array_names(path)
        return max(FLAT_NAMES.count_in(names), NAMES.count_in(names))

    def release_of(self, path: Path, name: str) -> Release:
        return Release(name, fingerprint(path, [path]), local=path)

    def open(self, release: Release, raw: Path) -> RawDataset:
        """Open the file: reads the flags of version 1, and the names of version 2."""
        path = release.file_in(raw)
        environment = {"cartpole": "CartPole-v1", "pendulum": "Pendulum-v1"}
        known = environment.get(release.name.partition("-")[0]) if not release.local else None
        info = self.describe(release, _FINAL, **({"environment": {"id": known}} if known else {}))
        with open_hdf5(path) as file:
            if FORMAT.truncated in {name for name, _ in hdf5_tree.members(file.id)}:
                return _open_flat(file, path, info)
            numbers = _episodes_of(file, path)
        info = replace(info, episodes=None if release.options.skip_bad_episodes else len(numbers))
        return D3rlpyEpisodes(path, numbers, info, release.options.skip_bad_episodes)


def _open_flat(file: Any, path: Path, info: SourceInfo) -> D4RLEpisodes:
    """Cut a file of version 1 at its `episode_terminals`, as `MDPDataset` does."""
    flat = inspect(file, path, FORMAT)
    terminals, ends, odd = flat.read_flags(file)
    if ends is None or not ends.any():
        raise FormatError(f"{path}: 'episode_terminals' marks no end of an episode")
    lengths = lengths_of(ends)
    within = int((terminals & ~ends).sum())
    notes = [*info.notes, *odd, "Episodes end where episode_terminals is set."]
    if within:
        notes.append(
            f"terminals is also set in {plural(within, 'row')} within episodes, which d3rlpy ignores: "
            "next/terminated is set in last rows only."
        )
    info = replace(
        info,
        transitions=flat.rows,
        episodes=len(lengths),
        about={**info.about, **({"metadata": dict(flat.scalars)} if flat.scalars else {})},
        notes=tuple(notes),
        dropped=flat.dropped,
    )
    return D4RLEpisodes(flat, lengths, terminals & ends, None, None, info)


def _episodes_of(file: Any, path: Path) -> tuple[int, ...]:
    """Return the numbers of the episodes of a dump of version 2, in order; raises `FormatError`."""
    names = {name for name, _ in hdf5_tree.members(file.id)}
    matches = (_COLUMN.fullmatch(name) for name in names)
    numbers = sorted({int(found[2]) for found in matches if found})
    stated = _read_value(file, "num_episodes") if "num_episodes" in names else None
    if numbers != list(range(len(numbers))) or not numbers or stated != len(numbers):
        found = f"{len(numbers)} numbers up to {numbers[-1]}" if numbers else "none"
        raise FormatError(
            f"{path} is not a dump of d3rlpy: num_episodes is {stated}, and its columns are those of "
            f"{found}; expected observations_0, observations_1 and so on"
        )
    return tuple(numbers)


def _read_value(file: Any, name: str) -> Any:
    """Return a single number or flag; None where it is something else."""
    dataset = hdf5_tree.open_dataset(file.id, (name,))
    if dataset is None or dataset.shape != () or dataset.dtype.kind not in "biuf":
        return None
    return hdf5_tree.read_scalar(dataset).item()


@dataclass(frozen=True)
class D3rlpyEpisodes(RawDataset):
    """The episodes of a dump of version 2."""

    path: Path
    numbers: tuple[int, ...]
    info: SourceInfo
    skip_bad: bool = False

    def shards(self) -> Sequence[Shard]:
        return (Shard("all episodes"),)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:  # noqa: ARG002 -- there is only one
        """Read the episodes in order; raises `FormatError` naming the episode."""
        with open_hdf5(self.path) as file:
            yield from join_episodes(self._readings(file), skip_bad=self.skip_bad)

    def _readings(self, file: Any) -> Iterator[tuple[str, Callable[[], EpisodeBatch]]]:
        columns: dict[int, list[tuple[str, str, str | None]]] = {}
        for name, target in hdf5_tree.members(file.id):
            if found := _COLUMN.fullmatch(name):
                if target is not None:
                    raise FormatError(f"{self.path}: {name!r} is a link, which is not followed")
                columns.setdefault(int(found[2]), []).append((name, found[1], found[3]))
        for number in self.numbers:
            reading = partial(self._read_episode, file, columns[number])
            yield f"{self.path} episode {number}", reading

    def _read_episode(
        self, file: Any, columns: Sequence[tuple[str, str, str | None]]
    ) -> EpisodeBatch:
        with name_hdf5_damage(self.path):
            return _read_episode(file, columns)


def _read_episode(file: Any, columns: Sequence[tuple[str, str, str | None]]) -> EpisodeBatch:
    found: dict[str, dict[Key, NDArray[Any]]] = {"steps": {}, "observations": {}}
    terminated = None
    if missing := set(_NEEDED) - {name for _, name, _ in columns}:
        raise FormatError(f"it has no {' and no '.join(sorted(missing))}")
    for name, column, part in columns:
        if column == "terminated":
            terminated = _read_value(file, name)
            continue
        dataset = hdf5_tree.open_dataset(file.id, (name,))
        if dataset is None:
            raise FormatError(f"its {column!r} cannot be opened")
        if hdf5_tree.describe(dataset).form != "array":
            raise FormatError(f"its {column!r} are {dataset.dtype}, expected numbers")
        values = hdf5_tree.read_numbers(dataset)
        if column == "observations":
            found["observations"][("observation", part) if part else ("observation",)] = values
        else:
            found["steps"][_LEAVES.get(column) or check_key(("extra", column))] = values
    if terminated not in {True, False}:
        raise FormatError(f"its 'terminated' is {terminated!r}; expected one bool")
    rewards = found["steps"][REWARD]
    length = len(rewards)
    if rewards.shape != (length, 1) or not length:
        raise FormatError(f"its rewards have shape {list(rewards.shape)}, expected [T, 1]")
    steps, observations = found.values()
    if rows := {len(column) for column in observations.values()} - {length}:
        raise FormatError(f"its observations have {plural(min(rows), 'row')}, expected {length}")
    ended = (np.arange(length) == length - 1) & bool(terminated)
    return assemble(np.array([length]), steps, observations, terminated=ended)
