"""One Minari dataset, opened: cut into parts, read part by part."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from offline_data.errors import FormatError
from offline_data.sources.base import Part
from offline_data.sources.minari.assemble import read_batch
from offline_data.sources.minari.plan import Described, Plan, make_plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offline_data.episodes import EpisodeBatch
    from offline_data.sources.base import SourceInfo
    from offline_data.sources.minari.leaves import Storage

_LOOKED_AT = 16  # episodes, spread evenly, that the leaves of the infos are collected from
_SPARE = 1.25  # room in a part for episodes longer than the average, before it has to grow


class MinariDataset:
    """A dataset in any storage; picklable, opens files only inside its methods.

    Args:
        info: What the source says of it.
        storage: Its data files.
        declared: Names of the leaves that its spaces declare, by section.
    """

    threaded = False

    def __init__(
        self,
        info: SourceInfo,
        storage: Storage,
        declared: Mapping[str, Sequence[tuple[str, ...]]],
    ) -> None:
        self.info = info
        self._storage = storage
        self._declared = declared

    def parts(self, budget: int) -> Sequence[Part]:
        """Cut all episodes into consecutive parts of about `budget` bytes.

        The size of an episode is taken to be the average; where lengths differ much, so do parts.

        Raises:
            FormatError: There is no episode, or there are fewer than the metadata say.
        """
        count = len(self._numbers)
        episode_bytes = self._average_length * self._plan.bytes_per_step
        run = max(1, int(budget / max(1.0, episode_bytes)))
        return [Part(first, min(first + run, count)) for first in range(0, count, run)]

    def read(self, part: Part) -> EpisodeBatch:
        """Read the episodes of one part.

        Episode columns are `id` (int64), `seed` (int64, -1: the source gives none), `options`
        (text: JSON of the options of the reset, or None) and, where recorders noted something of
        their own, `metadata` (text: JSON).

        Raises:
            FormatError: A file is damaged or does not hold what the first episode holds.
        """
        numbers = self._numbers[part.first : part.stop]
        capacity = int(len(numbers) * (self._average_length * _SPARE + 1)) + 1
        with self._storage.views(numbers) as views:
            return read_batch(views, self._plan, capacity)

    @cached_property
    def _numbers(self) -> Sequence[int]:
        numbers = self._storage.numbers()
        expected = self.info.episodes or 1
        if len(numbers) < expected:
            raise FormatError(
                f"{self._storage.where} has {len(numbers)} episodes; expected {expected}",
                hint="fetch or copy it again; a flat file (D4RL's) is read with --from d4rl",
            )
        return numbers

    @cached_property
    def _described(self) -> tuple[tuple[Described, ...], bool]:
        step = max(1, -(-len(self._numbers) // _LOOKED_AT))
        some = sorted({*self._numbers[::step], self._numbers[-1]})
        episodes, noted = [], False
        with self._storage.views(some) as views:
            for view in views:
                episodes.append(Described(view.where, tuple(view.describe())))
                noted = noted or view.facts().metadata is not None
        return tuple(episodes), noted

    @cached_property
    def _plan(self) -> Plan:
        episodes, noted = self._described
        return make_plan(episodes, self._declared, metadata=noted)

    @cached_property
    def _average_length(self) -> float:
        """Steps of an average episode, as the metadata say, else as the episodes looked at do."""
        if self.info.transitions and self.info.episodes:
            return self.info.transitions / self.info.episodes
        lengths = [episode.rows("rewards") for episode in self._described[0]]
        return sum(lengths) / len(lengths)
