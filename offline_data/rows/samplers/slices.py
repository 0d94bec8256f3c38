"""Slices: consecutive rows of one episode, with replacement or one per episode and epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.rows.keys import NestedKey, as_key
from offline_data.rows.samplers.base import (
    Boundaries,
    EpisodeIndex,
    RingOrder,
    Sampleable,
    Sampler,
    make_generator,
)
from offline_data.rows.samplers.uniform import SamplerWithoutReplacement
from offline_data.rows.unsupported import refuse

Distribution: TypeAlias = Literal["episodes", "starts"]  # unit that is drawn uniformly

MASK = ("collector", "mask")
"""Key of the mask that separates rows from padding, as in TorchRL: bool `[B]`."""

_NUMBERS = ("index", "episode", "dataset_index", "dataset_episode")
"""Features of row and episode numbers."""

_IGNORED = ("cache_values", "compile", "use_gpu", "step_key")
"""TorchRL's performance options, and one of `fragmented`, which is refused."""

_STARTS = 1  # separates the random numbers of slice starts from those of the episode order


@pickled_by_name
@dataclass(frozen=True)
class EpisodePieces:
    """The runs of a view of rows by the episode that they are pieces of.

    ```
    rows of the view      0 1 2 3 | 4 5 | 6 7 8      runs, of the episodes A, B and A
    slices of 2 begin at  0 1 2     4     6 7        A: 3 + 2 starts, B: 1
    ```
    """

    order: NDArray[np.int64]  # runs by episode, those of one after another
    ends: NDArray[np.int64]  # number of starts in the runs of `order` up to each
    counts: NDArray[np.int64]
    """`[K]` number of starts in each episode, in order of first occurrence."""

    @classmethod
    def find(
        cls, runs: EpisodeIndex, kept: NDArray[np.bool_], counts: NDArray[np.int64]
    ) -> EpisodePieces | None:
        """Return the pieces among the runs `kept`, which have `counts` starts; None: all are whole."""
        if runs.episode is None:
            return None
        found = np.unique(runs.episode.numpy()[kept], return_index=True, return_inverse=True)
        number = np.argsort(np.argsort(found[1]))[found[2]]
        order = np.argsort(number, kind="stable")
        own = np.bincount(number, weights=counts).astype(np.int64)
        return cls(order, np.cumsum(counts[order]), own)

    def at(
        self, episodes: NDArray[np.int64], fractions: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the run, and the number of a start in it, of a fraction of each episode's starts."""
        before = np.cumsum(self.counts) - self.counts
        number = before[episodes] + (fractions * self.counts[episodes]).astype(np.int64)
        place = np.searchsorted(self.ends, number, side="right")
        first = np.concatenate([[0], self.ends])[place]
        return self.order[place], number - first


@pickled_by_name
@dataclass(frozen=True)
class SliceStarts:
    """Rows at which slices of one length may begin, in the `K` episodes that have any, ascending.

    ```
    episode of 5 rows, slices of 3:    0 1 2 3 4     a slice may begin at 3 rows: 0, 1, 2
    episode of 2 rows, slices of 3:    0 1           none, or the episode itself is a slice
    ```
    """

    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    ends: NDArray[np.int64]
    order: RingOrder | None = None
    """See `EpisodeIndex.order`: numbers here are positions in it, converted to rows at the end."""
    span: tuple[int, NDArray[np.int64], int] | None = None
    """`(before, lengths, length)`: how many steps before its episode a slice may begin, rows of each
    episode, rows of a slice."""
    pieces: EpisodePieces | None = None
    """Those that are pieces of one episode, as in a view of rows; None: each is an episode."""

    @classmethod
    def find(
        cls, episodes: EpisodeIndex, length: int, *, strict: bool, span: tuple[int, int] = (0, 0)
    ) -> SliceStarts:
        """Return the possible starts; raises `UsageError` if there are none.

        `strict`: leave out short episodes. `span`: maximum number of steps of a slice before and
        after its episode; these are cut off.
        """
        if any(span):
            return cls._spanning(episodes, length, *(min(side, length - 1) for side in span))
        starts, lengths = episodes.starts.numpy(), episodes.lengths.numpy()
        if not len(lengths):
            raise UsageError("There is no episode to take a slice from")
        kept = lengths >= length if strict else np.ones(len(lengths), bool)
        starts, lengths = starts[kept], lengths[kept]
        if not len(starts):
            raise UsageError(
                f"No episode has {plural(length, 'step')}; the longest of "
                f"{len(episodes.lengths)} has "
                f"{int(episodes.lengths.max())}",
                hint="use shorter slices, or include short episodes as a whole with "
                "strict_length=False",
            )
        counts = np.maximum(lengths - length + 1, 1)
        ends, pieces = np.cumsum(counts), EpisodePieces.find(episodes, kept, counts)
        whole = np.minimum(lengths, length)
        return cls(starts, counts, whole, ends, episodes.order, pieces=pieces)

    @classmethod
    def _spanning(
        cls, episodes: EpisodeIndex, length: int, before: int, behind: int
    ) -> SliceStarts:
        starts, lengths = episodes.starts.numpy(), episodes.lengths.numpy()
        counts = lengths - length + 1 + before + behind
        kept = counts > 0
        starts, lengths, counts = (part[kept] for part in (starts, lengths, counts))
        if not len(starts):
            raise UsageError(f"No episode has {plural(length - before - behind, 'step')}")
        whole, ends = np.minimum(lengths, length), np.cumsum(counts)
        pieces, span = EpisodePieces.find(episodes, kept, counts), (before, lengths, length)
        return cls(starts, counts, whole, ends, episodes.order, span, pieces)

    @property
    def episodes(self) -> int:
        """`K`, number of episodes in which a slice may begin."""
        return len(self.starts) if self.pieces is None else len(self.pieces.counts)

    def _cut(
        self, episodes: NDArray[np.int64], after: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return slices that begin `after` steps after (or before) their episodes' starts."""
        starts = self.starts[episodes]
        if self.span is None:
            return starts + after, self.lengths[episodes]
        before, lengths, length = self.span
        first = np.maximum(after - before, 0)
        return starts + first, np.minimum(after - before + length, lengths[episodes]) - first

    def draw(
        self,
        over: Distribution,
        episode_fractions: NDArray[np.float64],
        start_fractions: NDArray[np.float64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return first rows and lengths, both `[S]`, of slices selected by fractions in `[0, 1)`.

        `episode_fractions` select the episode (for `"starts"` the row), the others the row in it.
        """
        if over == "episodes":
            return self.at((episode_fractions * self.episodes).astype(np.int64), start_fractions)
        number = (episode_fractions * self.ends[-1]).astype(np.int64)
        episode = np.searchsorted(self.ends, number, side="right")
        return self._cut(episode, number - (self.ends[episode] - self.counts[episode]))

    def at(
        self, episodes: NDArray[np.int64], start_fractions: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return one slice of each of these episodes (numbers in `[0, K)`); see `draw`."""
        if self.pieces is not None:
            return self._cut(*self.pieces.at(episodes, start_fractions))
        return self._cut(episodes, (start_fractions * self.counts[episodes]).astype(np.int64))

    def lengths_from(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lengths of the slices that begin at `rows`, in the same shape."""
        episodes = np.searchsorted(self.starts, rows, side="right") - 1
        if self.span is None:
            return self.lengths[episodes]
        _, lengths, length = self.span
        return np.minimum(lengths[episodes] - (rows - self.starts[episodes]), length)

    def mask(self, count: int, size: int) -> NDArray[np.bool_]:
        """Return whether a slice may begin at each of the rows `[0, count)`; False up to `size`."""
        change = np.zeros(count + 1, np.int8)
        change[self.starts] += 1
        change[self.starts + self.counts] -= 1
        mask = np.zeros(size, np.bool_)
        mask[:count] = np.cumsum(change[:-1], dtype=np.int8).view(np.bool_)
        if self.order is not None:
            mask[:count] = self.order.by_row(torch.from_numpy(mask[:count])).numpy()
        return mask

    def positions(self, rows: Tensor) -> NDArray[np.int64]:
        found: NDArray[np.int64] = (self.order.positions(rows) if self.order else rows).numpy()
        return found

    def rows(self, positions: Tensor) -> Tensor:
        return self.order.rows(positions) if self.order else positions


class SliceSampler(Sampler):
    """Draws slices of consecutive rows of one episode; a batch has `B = slices · length` rows.

    The default, `over="episodes"`, is TorchRL's distribution: an episode that is long enough
    uniformly, then a start in it uniformly, so a start in an episode of `T` rows has probability
    `1 / (K · (T - length + 1))`. In a view of rows, an episode has the starts of all its runs. With
    `over="starts"` all starts of all episodes are equally likely.

    In the last row of each slice `truncated_key` is set, and `done` next to it; `terminated` is
    unchanged. In the first row `init_key` is set if the dataset has such a feature. Flags that are
    set stay set. Unlike TorchRL's, episodes are never merged because of a missing flag, the mask
    always exists with `pad_output`, and padding has the flags of the row it repeats.

    Args:
        num_slices: Number of slices in a batch; the batch size must be a multiple.
        slice_len: Number of rows in a slice, instead of `num_slices`; the batch size must be a
            multiple.
        strict_length: Whether to leave out episodes shorter than a slice. False: they are returned
            as a whole, and batches that contain some are shorter.
        pad_output: Whether to pad such slices by their last row, so that batches are `[B]`; needs
            `strict_length=False`. `("collector", "mask")`, bool `[B]`, is False for padding.
        pad: `"zero"`: slices begin at any row of any episode, and are padded after its end: every
            feature is 0 or False there, derived ones too, except `index` and `episode`, which are
            those of the last row; the mask is that of `pad_output`. With `over="starts"` these are
            the subsequences of Decision Transformer (Chen et al., 2021), which pads at the front:
            with the mask applied, both give the same loss.
        truncated_key: Key that marks ends of slices, bool `[B, 1]`; None: not marked.
        init_key: Key that marks starts of slices; None: not marked.
        over: Unit that is drawn uniformly, `"episodes"` or `"starts"`.
        seed: See `RandomSampler`.
        valid_only: Whether slices leave out the step whose next observation is unknown and
            that is not terminated. False (the default) includes it: mask it when bootstrapping from
            `("next", "observation")`.
        span: Maximum number of steps of a slice before and after its episode: an int, True for all
            but one, or a pair of these. They are cut off, so such slices are shorter, and rows at
            both ends of an episode are drawn as often as others.
        replacement: False returns a `SliceSamplerWithoutReplacement` with the other arguments.
        torchrl: TorchRL's other arguments. `traj_key`, `end_key` and `end_keys` set the features
            that separate trajectories in a growing storage, instead of those listed in
            `GrowingStorage.runs`; missing features are ignored, and `traj_key` can be combined with
            ends. A dataset's episodes are stored: there only its own `episode` and
            `("next", "done")` are allowed. `fragmented` is refused; `cache_values`, `compile`,
            `use_gpu` and `step_key` are ignored.

    Example:
        >>> SliceSampler(slice_len=8, traj_key="episode")
        SliceSampler(num_slices=None, slice_len=8, strict_length=True, over='episodes')
    """

    keeps_together = True
    _batch_size_multiplier = 1  # set by TorchRL's transforms: rows drawn per row of a batch
    _computed: tuple[str, ...] = ("_known",)
    _known: tuple[EpisodeIndex, int, SliceStarts] | None = None

    def __new__(cls, *_arguments: Any, replacement: bool = True, **_options: Any) -> Any:
        if replacement or cls is not SliceSampler:
            return super().__new__(cls)
        return super().__new__(SliceSamplerWithoutReplacement)

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        strict_length: bool = True,
        pad_output: bool = False,
        pad: Literal["zero"] | None = None,
        truncated_key: NestedKey | None = ("next", "truncated"),
        init_key: NestedKey | None = "is_init",
        over: Distribution = "episodes",
        seed: int | None = None,
        valid_only: bool = False,
        span: int | tuple[int, int] = 0,
        replacement: bool = True,  # noqa: ARG002 - used by `__new__`
        **torchrl: Any,
    ) -> None:
        self._traj_key, self.end_key = torchrl.get("traj_key"), torchrl.get("end_key")
        self.end_keys = torchrl.get("end_keys")
        self.span = (span, span) if isinstance(span, int) else tuple(span)
        if any(self.span) and pad_output:
            raise UsageError("span makes slices shorter, and pad_output cannot pad those")
        self._boundaries = _boundaries(type(self).__name__, torchrl)
        if (num_slices is None) == (slice_len is None):
            raise UsageError(
                f"Give either num_slices or slice_len; found {num_slices=} and {slice_len=}"
            )
        for name, value in (("num_slices", num_slices), ("slice_len", slice_len)):
            if value is not None and not (hasattr(value, "__index__") and value >= 1):
                raise UsageError(f"{name} is {value!r}; expected a whole number, at least 1")
        if pad not in (None, "zero"):
            raise UsageError(f"pad is {pad!r}; expected 'zero' or None")
        if pad is not None:
            if any(self.span):
                raise UsageError("pad cannot be combined with span")
            strict_length, pad_output, self.span = False, True, (0, True)
        if pad_output and strict_length:
            raise UsageError(
                "pad_output=True is incompatible with strict_length=True, which leaves out the short "
                "episodes that it would pad",
                hint="strict_length=False",
            )
        if over not in ("episodes", "starts"):
            raise UsageError(f"over is {over!r}; expected 'episodes' or 'starts'")
        self.num_slices = num_slices
        self.slice_len = slice_len
        self.strict_length = strict_length
        self.pad_output = pad_output
        self.pad = pad
        self.truncated_key = truncated_key
        self.init_key = init_key
        self.over = over
        self.valid_only = valid_only
        self._generator = make_generator(seed)

    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        count, length = self.slices_of(batch_size)
        starts_at = self.starts_in(storage, length)
        fractions = torch.rand(2, count, dtype=torch.float64, generator=self._generator).numpy()
        drawn = starts_at.draw(self.over, fractions[0], fractions[1])
        positions, leaves = self.batch_of(*drawn, length)
        return starts_at.rows(positions), leaves

    @property
    def traj_key(self) -> NestedKey | None:
        """`traj_key` if given, else the trajectory feature of the storage, else None."""
        return self._traj_key

    def sampleable(self, storage: Sampleable, batch_size: int) -> int:
        _, length = self.slices_of(batch_size)
        try:
            return int(self.starts_in(storage, length).ends[-1]) if len(storage) else 0
        except UsageError:  # no episode is long enough
            return 0

    def complete(self, batch: TensorDict, leaves: dict[Any, Tensor]) -> None:
        others = dict(leaves)
        last, first = others.pop(self.truncated_key, None), others.pop(self.init_key, None)
        if batch.batch_dims == 1:  # otherwise rows are whole trajectories
            if last is not None:
                _mark_ends(batch, self.truncated_key, last)
            if first is not None and batch.get(self.init_key, None) is not None:
                batch.set(self.init_key, _either(first, batch.get(self.init_key)))
        if self.pad is not None and batch.batch_dims == 1:
            _zero(batch, ~leaves[MASK])
        super().complete(batch, others)

    def info(self, batch: Any, leaves: dict[Any, Tensor]) -> dict[Any, Tensor]:
        if self.truncated_key is None or not isinstance(batch, TensorDictBase):
            return leaves
        last, found = leaves[self.truncated_key], dict(leaves)
        for name, instead in (("done", last), ("terminated", torch.zeros_like(last))):
            key: Any = name
            if isinstance(self.truncated_key, tuple):
                key = (*self.truncated_key[:-1], name)
            found[key] = batch.get(key, instead)
        return found

    def lookahead(self, storage: Sampleable, batch_size: int) -> Tensor | None:
        return self._drawn_by_copy(storage, batch_size)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_slices={self.num_slices}, slice_len={self.slice_len}, "
            f"strict_length={self.strict_length}, over={self.over!r})"
        )

    def slices_of(self, batch_size: int) -> tuple[int, int]:
        """Return the number and length of slices in a batch; raises `UsageError`."""
        batch_size *= self._batch_size_multiplier
        name = "num_slices" if self.num_slices else "slice_len"
        given: int = getattr(self, name)
        if batch_size % given:
            raise UsageError(
                f"A batch of {batch_size} must be a multiple of {name}={given}",
                hint=f"try a batch of {batch_size // given * given or given}",
            )
        other = batch_size // given
        return (given, other) if self.num_slices else (other, given)

    def starts_in(self, storage: Sampleable, length: int) -> SliceStarts:
        """Return the possible starts, the same object until the storage changes."""
        runs = runs_of(storage, self._boundaries)
        if self._known is None or self._known[0] is not runs or self._known[1] != length:
            if self._boundaries is None:
                self._traj_key = getattr(storage, "trajectory_key", None)
            episodes = _without_invalid_ends(storage, runs) if self.valid_only else runs
            sides = [length if side is True else int(side) for side in self.span]
            span = (sides[0], sides[1])
            found = SliceStarts.find(episodes, length, strict=self.strict_length, span=span)
            self._known = (runs, length, found)
        return self._known[2]

    def batch_of(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64], width: int
    ) -> tuple[Tensor, dict[Any, Tensor]]:
        """Return positions and features of joined slices `[S]`, padded to `width` if needed."""
        first: Any
        last: Any
        if (self.strict_length and not any(self.span)) or self.pad_output:
            steps = np.arange(width)
            first, last = slice(0, None, width), slice(width - 1, None, width)
            if self.pad_output:
                last = np.arange(len(starts)) * width + lengths - 1
                mask = (steps < lengths[:, None]).reshape(-1)
                steps = np.minimum(steps, lengths[:, None] - 1)
            rows = (starts[:, None] + steps).reshape(-1)
        else:
            ends = np.cumsum(lengths)
            first, last = ends - lengths, ends - 1
            rows = np.repeat(starts - first, lengths) + np.arange(ends[-1])
        marks = np.zeros((2, len(rows), 1), bool)
        marks[0, last] = True
        marks[1, first] = True
        leaves: dict[Any, Tensor] = {}
        if self.truncated_key is not None:
            leaves[self.truncated_key] = torch.from_numpy(marks[0])
        if self.init_key is not None:
            leaves[self.init_key] = torch.from_numpy(marks[1])
        if self.pad_output:
            leaves[MASK] = torch.from_numpy(mask)
        return torch.from_numpy(rows), leaves


class SliceSamplerWithoutReplacement(SamplerWithoutReplacement, SliceSampler):
    """Draws one slice of every episode exactly once per epoch.

    As in TorchRL, episodes are drawn without replacement: the slice begins uniformly anywhere in
    the episode, and the last batch of an epoch has the remaining slices. Order and starts depend
    only on `(seed, epoch)`, the number of episodes and the slice length; they are the same in every
    process and on every machine. Iteration is that of `SamplerWithoutReplacement`. Unlike TorchRL's,
    episodes that are too short are not part of an epoch, so every batch except the last is full,
    and slices are in the order drawn.

    Args:
        num_slices, slice_len, options: See `SliceSampler`; `over` is not supported.
        drop_last, seed: See `SamplerWithoutReplacement`.
        shuffle: Whether to shuffle the episodes; starts are always random.

    Example:
        >>> SliceSamplerWithoutReplacement(slice_len=8, seed=0)
        SliceSamplerWithoutReplacement(slice_len=8, seed=0, epoch=0, position=0)
    """

    _computed = (*SliceSampler._computed, *SamplerWithoutReplacement._computed)

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        drop_last: bool = False,
        shuffle: bool = True,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        if options.get("over", "episodes") != "episodes":
            raise UsageError(
                "Every episode is sampled once per epoch: over='starts' has no meaning"
            )
        SliceSampler.__init__(self, num_slices=num_slices, slice_len=slice_len, **options)
        SamplerWithoutReplacement.__init__(
            self, drop_last, shuffle, seed=seed, valid_only=self.valid_only
        )

    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        count, length = self.slices_of(batch_size)
        starts_at = self.starts_in(storage, length)
        episodes = starts_at.episodes
        if self.drop_last and count > episodes:
            raise UsageError(
                f"A batch of {plural(count, 'slice')} is more than the "
                f"{plural(episodes, 'episode')} of an epoch, and "
                "drop_last leaves out batches that are not full"
            )
        numbers, epoch, position = self._take(episodes, count)
        # The k-th slice of an epoch uses the k-th random number, whatever the batch size.
        seed = np.random.SeedSequence((self._choose_seed(), epoch, _STARTS))
        raw = np.asarray(
            np.random.PCG64(seed).advance(position).random_raw(len(numbers)), np.uint64
        )
        fractions = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
        positions, leaves = self.batch_of(*starts_at.at(numbers, fractions), length)
        return starts_at.rows(positions), leaves

    def __repr__(self) -> str:
        given = "num_slices" if self.num_slices else "slice_len"
        return super().__repr__().replace("(", f"({given}={getattr(self, given)}, ", 1)


def runs_of(storage: Any, boundaries: Boundaries | None) -> EpisodeIndex:
    """Return the trajectories of a storage, by its own features or others; raises `UsageError`."""
    if boundaries is None:
        found: EpisodeIndex = storage.runs()
    elif (by_leaves := getattr(storage, "runs_by", None)) is not None:
        found = by_leaves(boundaries)
    else:
        boundaries.check_stored()
        found = storage.runs()
    return found


def _boundaries(sampler: str, arguments: dict[str, Any]) -> Boundaries | None:
    keys = (arguments.pop(name, None) for name in ("traj_key", "end_key", "end_keys"))
    trajectory, end, several = keys
    others = {name: value for name, value in arguments.items() if name not in _IGNORED}
    refuse(sampler, others, "ends trajectories fragmented")
    if end is not None and several is not None:
        raise UsageError(f"Give either end_key or end_keys; found {end!r} and {several!r}")
    if several is not None and (isinstance(several, str) or not len(several)):
        raise UsageError(f"end_keys is {several!r}; expected a list of keys")
    ends = (end,) if end is not None else tuple(several or ())
    if trajectory is None and not ends:
        return None
    return Boundaries(None if trajectory is None else as_key(trajectory), tuple(map(as_key, ends)))


def _without_invalid_ends(storage: Sampleable, runs: EpisodeIndex) -> EpisodeIndex:
    left_out = storage.rows(valid_only=True).left_out
    if not len(left_out):
        return runs
    starts, lengths = runs.starts.numpy(), runs.lengths.numpy()
    lengths = lengths - np.isin(starts + lengths - 1, left_out)
    kept = lengths > 0
    episode = None if runs.episode is None else runs.episode[torch.from_numpy(kept)]
    starts, lengths = starts[kept], lengths[kept]
    return EpisodeIndex(torch.from_numpy(starts), torch.from_numpy(lengths), episode=episode)


def _mark_ends(batch: TensorDict, key: Any, last: Tensor) -> None:
    *above, name = key if isinstance(key, tuple) else (key,)
    if above and batch.get(tuple(above), None) is None:
        batch.set(key, torch.zeros_like(last))
    flags = batch.get(tuple(above)) if above else batch
    truncated, done = _either(last, flags.get(name, None)), flags.get("done", None)
    if done is None:
        done = _either(truncated, flags.get("terminated", None))
    flags.set(name, truncated)
    flags.set("done", _either(last, done))


def _zero(batch: TensorDict, where: Tensor) -> None:
    """Set all features except row and episode numbers to zero in place, where `where` is True."""
    for key in batch.keys(include_nested=True, leaves_only=True):
        leaf = batch.get(key)
        if key not in _NUMBERS:
            leaf.masked_fill_(where.to(leaf.device).view(-1, *[1] * (leaf.ndim - 1)), 0)


def _either(mark: Tensor, stored: Tensor | None) -> Tensor:
    if stored is None:
        return mark
    if stored.shape != mark.shape:
        mark = mark.reshape(-1, *[1] * (stored.ndim - 1))
    marked = mark.to(stored.device, torch.bool)
    return torch.where(marked, torch.ones_like(stored), stored)  # of any type
