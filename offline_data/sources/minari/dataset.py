"""One Minari dataset, opened: cut into parts, read part by part."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from offline_data.errors import FormatError
from offline_data.sources.base import Part
from offline_data.sources.minari.assemble import read_batch
from offline_data.sources.minari.plan import Described, Plan, make_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from offline_data.episodes import EpisodeBatch
    from offline_data.sources.base import SourceInfo
    from offline_data.sources.minari.leaves import EpisodeView, Storage
    from offline_data.sources.minari.spaces import DeclaredLeaf

NOTE_ID = "Some episodes state another id than the name of their place has, which is kept."
NOTE_STEPS = "Some episodes state another total_steps than the steps they have."

_LOOKED_AT = 16  # episodes, spread evenly, that the leaves of the infos are collected from
_SPARE = 1.25  # room in a part for episodes longer than the average, before it has to grow


class MinariDataset:
    """A dataset in any storage; picklable, opens files only inside its methods.

    Args:
        info: What the source says of it.
        storage: Its data files.
        declared: What its spaces declare, by section and names.
    """

    threaded = False

    def __init__(
        self,
        info: SourceInfo,
        storage: Storage,
        declared: Mapping[str, Mapping[tuple[str, ...], DeclaredLeaf]],
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
    def _described(self) -> tuple[tuple[Described, ...], bool, tuple[str, ...]]:
        """Some episodes, whether a recorder noted something on them, what they state wrongly."""
        step = max(1, -(-len(self._numbers) // _LOOKED_AT))
        some = sorted({*self._numbers[::step], self._numbers[-1]})
        episodes, noted, notes = [], False, dict[str, None]()
        with self._storage.views(some) as views:
            for number, view in zip(some, views, strict=True):
                leaves = tuple(view.describe())
                groups = view.groups({leaf.place for leaf in leaves})
                episodes.append(Described(view.where, leaves, groups))
                noted = noted or view.facts().metadata is not None
                notes.update(dict.fromkeys(_wrong(view, number, episodes[-1])))
        return tuple(episodes), noted, tuple(notes)

    @cached_property
    def _plan(self) -> Plan:
        episodes, noted, notes = self._described
        plan = make_plan(episodes, self._declared, metadata=noted)
        return replace(plan, notes=(*plan.notes, *notes))

    @cached_property
    def _average_length(self) -> float:
        """Steps of an average episode, as the metadata say where that can be, else as looked at."""
        lengths = [episode.rows("rewards") for episode in self._described[0]]
        seen = sum(lengths) / len(lengths)
        stated = (self.info.transitions or 0) / len(self._numbers)
        return stated if seen / 4 <= stated <= 2 * max(lengths) else seen


def _wrong(view: EpisodeView, number: int, described: Described) -> Iterator[str]:
    """Note what an episode states of itself and is not so."""
    stated_id, steps = view.stated()
    if stated_id is not None and stated_id != number:
        yield NOTE_ID
    if steps is not None and steps != described.rows("rewards"):
        yield NOTE_STEPS
