"""Differences between two datasets, or two revisions of one."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.figures import DatasetStats
from offline_data.analysis.statistics import dataset_stats
from offline_data.base.pickles import pickled_by_name
from offline_data.base.progress import SILENT, Progress
from offline_data.document.blocks import Block, fields_of, non_empty, table
from offline_data.document.html import Document
from offline_data.episode.cut import runs_within
from offline_data.episode.fields import join_key
from offline_data.store.content import Content, Leaf, episode_digests
from offline_data.store.encoded import as_encoded
from offline_data.store.layout import EPISODES, OBSERVATIONS
from offline_data.store.reader import DatasetReader

if TYPE_CHECKING:
    # Rows of A, as many rows of B to compare them with, and the pair that each belongs to.
    Rows: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]

Match: TypeAlias = Literal["id", "position"]  # pairing of episodes by unique `id`, or by number

_MOST_RUNS = 8  # runs of episodes that are shown
_BLOCK = 16 << 20  # bytes of one leaf of one dataset that are compared at once
_FIGURES = ("min", "median", "max", "mean", "std", "nan", "inf", "distinct", "missing")


@dataclass(frozen=True)
class LeafDifference:
    """A feature that only one dataset has, or whose kind (`float32[3]`) differs; None: it lacks it."""

    table: str
    """`steps`, `observations` or `episodes`."""
    key: str
    a: str | None
    b: str | None


@pickled_by_name
@dataclass(frozen=True)
class EpisodeDifferences:
    """Episodes by their numbers, counted from 0; first those of the same content are paired.

    The content is that of the features that both datasets have.
    """

    same: int
    """Pairs of the same content."""
    moved: int
    """Those of them with another number in B."""
    added: tuple[int, ...]
    """Numbers in B of episodes that A lacks."""
    removed: tuple[int, ...]
    """Numbers in A of episodes that B lacks."""
    changed: tuple[tuple[int, int], ...]
    """Numbers in A and B of pairs of different content."""
    matched_by: Match


@pickled_by_name
@dataclass(frozen=True)
class ValueDifference:
    """Differences of a feature in pairs of changed episodes, in the rows that both of a pair have.

    `length` and `final_observation` of the table `episodes` are compared, too.
    """

    table: str
    key: str
    episodes: int
    """Pairs in which it differs."""
    rows: int
    """Rows in which it differs."""
    max_abs_difference: float | None
    """Largest difference of two finite numbers; None for text, images, and if there is none."""


@pickled_by_name
@dataclass(frozen=True)
class FigureDifference:
    """A figure of `stats` that differs by more than rounding; None: a dataset lacks it."""

    key: str
    """Key of the feature; or `length`, `return` of episodes."""
    figure: str
    a: float | None
    b: float | None


@pickled_by_name
@dataclass(frozen=True, repr=False)
class DatasetDiff(Document):
    """The differences between A and B; false in `if` where there are none."""

    a: str
    """Id of A, revision included."""
    b: str
    transitions: tuple[int, int]
    """Of A and B."""
    leaves: tuple[LeafDifference, ...]
    episodes: EpisodeDifferences
    values: tuple[ValueDifference, ...]
    """By table and key; empty if no episode is changed."""
    figures: tuple[FigureDifference, ...]
    """Of features of the same kind; empty if both have the same episodes."""

    def blocks(self) -> list[Block]:
        episodes = self.episodes
        fields = fields_of(
            self,
            f"A=a B=b steps=transitions same_episodes=episodes.same:count at_another_place:count "
            f"only_in_A only_in_B changed,_by_{episodes.matched_by}=changed",
            transitions="{:,} in A, {:,} in B".format(*self.transitions),
            at_another_place=episodes.moved or None,
            only_in_A=_format_runs(episodes.removed),
            only_in_B=_format_runs(episodes.added),
            changed=_format_runs([a for a, _ in episodes.changed]),
        )

        def name_leaf(difference: Any) -> str:
            return f"{difference.table} {difference.key}"

        return [
            fields,
            *non_empty(
                table("feature=leaf a b", self.leaves, leaf=name_leaf),
                table(
                    "values_of episodes:count rows:count max_difference=max_abs_difference:number",
                    self.values,
                    values_of=name_leaf,
                ),
                table("statistics_of=key figure a:number b:number", self.figures),
            ),
        ]

    @property
    def equal(self) -> bool:
        """Whether schema, episodes and their order are the same."""
        found = self.episodes
        return not (self.leaves or found.moved or found.added or found.removed or found.changed)

    def __bool__(self) -> bool:
        return not self.equal


def _format_runs(numbers: Sequence[int]) -> str | None:
    """Show ascending numbers as runs, `3: 0, 7-8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:_MOST_RUNS]]
    more = ", …" if len(runs) > _MOST_RUNS else ""
    return f"{len(numbers):,}: {', '.join(shown)}{more}" if numbers else None


def diff_datasets(a: DatasetReader, b: DatasetReader, progress: Progress = SILENT) -> DatasetDiff:
    """Compare two datasets of any layouts; see `offline_data.diff`.

    Reads all rows once, those of changed episodes again, and all for statistics if anything
    changed. Memory is bounded but for some hundred bytes per episode.
    """
    one, two = Content(a), Content(b)
    kinds, others = one.kinds, two.kinds
    leaves = tuple(
        LeafDifference(leaf[0], join_key(leaf[1]), kinds.get(leaf), others.get(leaf))
        for leaf in sorted(kinds.keys() | others.keys())
        if kinds.get(leaf) != others.get(leaf)
    )
    common = [leaf for leaf, kind in kinds.items() if others.get(leaf) == kind]
    ids = None
    if (EPISODES, ("id",)) in common:
        every = (c.rows((EPISODES, ("id",)), np.arange(c.reader.episode_count)) for c in (one, two))
        ids = [[value.tobytes() for value in np.asarray(column)] for column in every]
    digests = [episode_digests(content, common, progress) for content in (one, two)]
    episodes = _pair(digests[0], digests[1], ids)
    figures: tuple[FigureDifference, ...] = ()
    if episodes.added or episodes.removed or episodes.changed:
        stats = dataset_stats(a, progress), dataset_stats(b, progress)
        figures = tuple(_figures(*stats, common))
    return DatasetDiff(
        a.manifest.id,
        b.manifest.id,
        (a.transitions, b.transitions),
        leaves,
        episodes,
        tuple(_values(one, two, common, np.array(episodes.changed, np.int64).reshape(-1, 2))),
        figures,
    )


def _pair(
    a: NDArray[np.uint8], b: NDArray[np.uint8], ids: Sequence[list[bytes]] | None
) -> EpisodeDifferences:
    """Pair episodes by their digests `[E, 32]`, equal numbers first; then others."""
    count = min(len(a), len(b))
    equal = (a[:count] == b[:count]).all(axis=1)
    places: dict[bytes, deque[int]] = defaultdict(deque)
    for number in (*np.flatnonzero(~equal).tolist(), *range(count, len(b))):
        places[b[number].tobytes()].append(number)
    removed, moved = [], 0
    for number in (*np.flatnonzero(~equal).tolist(), *range(count, len(a))):
        if places[a[number].tobytes()]:
            places[a[number].tobytes()].popleft()
            moved += 1
        else:
            removed.append(number)
    added = sorted(number for numbers in places.values() for number in numbers)
    unique = ids is not None and all(len(set(one)) == len(one) for one in ids)
    name_a, name_b = ids if ids is not None and unique else (range(len(a)), range(len(b)))
    named = {name_b[number]: number for number in added}
    changed = [(number, named[name_a[number]]) for number in removed if name_a[number] in named]
    left = {pair[0] for pair in changed}, {pair[1] for pair in changed}
    return EpisodeDifferences(
        int(equal.sum()) + moved,
        moved,
        tuple(number for number in added if number not in left[1]),
        tuple(number for number in removed if number not in left[0]),
        tuple(changed),
        "id" if unique else "position",
    )


def _values(
    a: Content, b: Content, leaves: Sequence[Leaf], changed: NDArray[np.int64]
) -> Iterator[ValueDifference]:
    """Compare the leaves of changed episodes `[n, 2]`, row by row from the first."""
    first, second = changed.T
    lengths = a.reader.lengths[first], b.reader.lengths[second]
    if shorter := int((lengths[0] != lengths[1]).sum()):
        most = float(np.abs(lengths[0] - lengths[1]).max())
        yield ValueDifference(EPISODES, "length", shorter, shorter, most)
    if lost := int((a.reader.final[first] != b.reader.final[second]).sum()):
        yield ValueDifference(EPISODES, "final_observation", lost, lost, None)
    for leaf in leaves:
        count, pairs, largest = 0, set[int](), list[float]()
        for after in (False, True) if leaf[0] == OBSERVATIONS else (False,):
            for rows in _row_pairs(a, b, leaf, changed, after=after):
                differ, difference = _compare(a, b, leaf, rows, after=after)
                count += int(differ.sum())
                pairs.update(rows[2][differ].tolist())
                largest += [] if difference is None else [difference]
        if count:
            most_of_all = max(largest, default=None)
            yield ValueDifference(leaf[0], join_key(leaf[1]), len(pairs), count, most_of_all)


def _row_pairs(
    a: Content, b: Content, leaf: Leaf, changed: NDArray[np.int64], *, after: bool
) -> Iterator[Rows]:
    """Yield rows that both of a pair have, some at a time; `after`: the last, if known in both."""
    first, second = changed.T
    starts = a.reader.starts[first], b.reader.starts[second]
    lengths = np.minimum(a.reader.lengths[first], b.reader.lengths[second])
    most = max(1, _BLOCK // max(1, a.row_bytes(leaf)))
    if leaf[0] == EPISODES:
        starts, lengths = (first, second), np.ones_like(first)
    elif after:
        starts = starts[0] + lengths - 1, starts[1] + lengths - 1
        lengths = (a.reader.final[first] & b.reader.final[second]).astype(np.int64)
    for begin, stop in runs_within(lengths, most):
        of_run = lengths[begin:stop]
        pairs = np.repeat(np.arange(begin, stop), of_run)
        within = np.arange(len(pairs)) - np.repeat(np.cumsum(of_run) - of_run, of_run)
        for at in range(0, len(pairs), most):  # one episode may be longer
            cut = slice(at, at + most)
            rows = (one[pairs[cut]] + within[cut] for one in starts)
            yield next(rows), next(rows), pairs[cut]


def _compare(
    a: Content, b: Content, leaf: Leaf, rows: Rows, *, after: bool
) -> tuple[NDArray[np.bool_], float | None]:
    """Return which rows differ, and the largest difference of finite numbers."""
    left, right = a.rows(leaf, rows[0], after=after), b.rows(leaf, rows[1], after=after)
    images = as_encoded(left), as_encoded(right)
    if images[0] is not None and images[1] is not None:
        return ~images[0].same_rows(images[1]), None
    data = (np.frombuffer(one.tobytes(), np.uint8) for one in (left, right))
    differ = np.asarray(np.not_equal(*data).reshape(len(rows[2]), -1).any(axis=1))
    if a.specs[leaf].text or not differ.any():
        return differ, None
    kind = np.complex128 if left.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(left[differ].astype(kind) - right[differ].astype(kind))
    apart = apart[np.isfinite(apart) & (left[differ] != right[differ])]
    return differ, float(apart.max()) if apart.size else None


def _figures(
    a: DatasetStats, b: DatasetStats, common: Sequence[Leaf]
) -> Iterator[FigureDifference]:
    both: list[tuple[str, Any, Any]] = [
        (join_key(key), a[key], b[key]) for table, key in common if table != EPISODES
    ]
    of_a, of_b = a.per_episode, b.per_episode
    both += [("length", of_a.length, of_b.length), ("return", of_a.returns, of_b.returns)]
    for key, one, two in both:
        for name in _FIGURES:
            left, right = getattr(one, name, None), getattr(two, name, None)
            # another order of addition changes the last digits
            if left is None or right is None:
                same = left is right
            else:
                same = bool(np.isclose(left, right, 1e-9, 1e-12, equal_nan=True))
            if not same:
                yield FigureDifference(key, name, left, right)
