"""HDF5 files with a group for each episode, which has a number in its name."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from offline_data.episode import EpisodeBatch
from offline_data.episode.joining import join_episodes
from offline_data.formats.base import RawDataset, Shard, SourceInfo
from offline_data.raw import hdf5_tree
from offline_data.raw.hdf5 import name_hdf5_damage, open_hdf5


def numbered(group: Any, name: re.Pattern[str]) -> list[tuple[int, str, str | None]]:
    """Return number, name, and target of a link, of what is in a low-level group, ordered by number.

    `name` matches the names, and its first group the number.
    """
    found = ((name.fullmatch(one), target) for one, target in hdf5_tree.members(group))
    return sorted((int(match[1]), match[0], target) for match, target in found if match)


def names_in_first(path: Path, name: re.Pattern[str]) -> frozenset[str]:
    """Return what is in the first such group of an HDF5 file; nothing: it has none."""
    with open_hdf5(path) as file:
        for one, target in hdf5_tree.members(file.id):
            if name.fullmatch(one) and target is None:
                group = hdf5_tree.open_group(file.id, (one,))
                return frozenset(inside for inside, _ in hdf5_tree.members(group))
    return frozenset()


@dataclass(frozen=True)
class GroupEpisodes(RawDataset):
    """The episodes of some files, a shard each, ordered by number."""

    folder: Path
    paths: tuple[str, ...]
    """Paths of the files in it."""
    info: SourceInfo
    skip_bad: bool = False
    """Whether to skip episodes that cannot be read."""
    name: ClassVar[re.Pattern[str]]
    """Name of the group of an episode, with its number as the first group of the pattern."""
    place: ClassVar[str] = "{path} {name}"
    """Place of an episode, for messages; `{file}` is the path in the folder."""

    def shards(self) -> Sequence[Shard]:
        return tuple(Shard(path, (path,)) for path in self.paths)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        return join_episodes(self._readings(shard.name), skip_bad=self.skip_bad)

    def _readings(self, file: str) -> Iterator[tuple[str, Callable[[], EpisodeBatch]]]:
        path = self.folder / file
        with open_hdf5(path) as opened:
            for number, name, _ in self.listed(opened.id, file):
                place = self.place.format(path=path, file=file, name=name)
                yield place, partial(self._read, opened.id, file, number, name)

    def _read(self, opened: Any, file: str, number: int, name: str) -> EpisodeBatch:
        with name_hdf5_damage(self.folder / file):
            return self.read_group(hdf5_tree.open_group(opened, (name,)), number, file)

    def listed(self, opened: Any, file: str) -> list[tuple[int, str, str | None]]:  # noqa: ARG002
        """Return the groups as `numbered` does; may raise `FormatError` where there are none."""
        return numbered(opened, self.name)

    @abstractmethod
    def read_group(self, group: Any, number: int, file: str) -> EpisodeBatch:
        """Return the episode of a low-level group; raises `FormatError`, without the place."""
