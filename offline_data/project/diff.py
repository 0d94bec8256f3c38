"""Differences between two datasets, or two revisions of one."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from math import isclose, isnan
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from offline_data.episodes.fields import join_key
from offline_data.progress import SILENT
from offline_data.project.content import Content, episode_digests
from offline_data.reports.stats import LeafStats, TextStats, dataset_stats
from offline_data.store.encoded import as_encoded
from offline_data.store.layout import EPISODES, OBSERVATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from offline_data.progress import Progress
    from offline_data.project.content import Leaf
    from offline_data.reports.stats import DatasetStats
    from offline_data.store.reader import DatasetReader

Match: TypeAlias = Literal["id", "position"]
"""How episodes of different content were paired: by their `id`, or by their numbers."""

_BLOCK = 16 << 20
"""Bytes of one leaf of one dataset that are compared at once."""
_FINAL = "final_observation"
_FIGURES = ("min", "max", "mean", "std", "nan", "inf")
_NEAR = 1e-9
"""Relative difference of figures that rounding in another order of addition explains."""


@dataclass(frozen=True)
class LeafDifference:
    """A leaf that only one dataset has, or whose kind differs."""

    table: str
    """`steps`, `observations` or `episodes`."""
    key: str
    a: str | None
    """Its kind in A, `float32[3]`; None: A has no such leaf."""
    b: str | None


@dataclass(frozen=True)
class EpisodeDifferences:
    """Episodes by their numbers in A and B, counted from 0.

    Those with the same content in the leaves that both datasets have are paired first, then others by
    `matched_by`.
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


@dataclass(frozen=True)
class ValueDifference:
    """How a leaf differs in pairs of changed episodes, in the rows that both of a pair have."""

    table: str
    key: str
    """Key of the leaf; `length` and `final_observation` of the table `episodes` say so."""
    episodes: int
    """Changed episodes in which it differs."""
    rows: int
    """Rows in which it differs."""
    max_abs_difference: float | None
    """Largest difference of two finite numbers; None for text, images, and if there is none."""


@dataclass(frozen=True)
class FigureDifference:
    """A figure of `stats` that differs: of a leaf, or of all episodes."""

    key: str
    """Key of the leaf, or `length`, `return`."""
    figure: str
    """`min`, `max`, `mean`, `std`, `nan`, `inf`; `distinct`, `missing` of text; `median`."""
    a: float | None
    b: float | None


@dataclass(frozen=True)
class DatasetDiff:
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
    """Of leaves of the same kind in both; empty if the episodes are the same."""

    @property
    def equal(self) -> bool:
        """Whether schema, episodes and their order are the same."""
        found = self.episodes
        return not (self.leaves or found.moved or found.added or found.removed or found.changed)

    def __bool__(self) -> bool:
        """Return True if the datasets differ."""
        return not self.equal


def diff_datasets(a: DatasetReader, b: DatasetReader, progress: Progress = SILENT) -> DatasetDiff:
    """Compare two datasets of any layouts; see `offline_data.diff`.

    Reads all rows once; those of changed episodes a second time, and all for statistics if anything
    changed. Memory is bounded but for some hundred bytes per episode.
    """
    both = Content(a), Content(b)
    kinds_a, kinds_b = both[0].kinds, both[1].kinds
    leaves = tuple(
        LeafDifference(leaf[0], join_key(leaf[1]), kinds_a.get(leaf), kinds_b.get(leaf))
        for leaf in sorted(kinds_a.keys() | kinds_b.keys())
        if kinds_a.get(leaf) != kinds_b.get(leaf)
    )
    common = [leaf for leaf, kind in kinds_a.items() if kinds_b.get(leaf) == kind]
    digests = [episode_digests(one, common, progress) for one in both]
    id_leaf = (EPISODES, ("id",))
    ids = [_ids(one, id_leaf) for one in both] if id_leaf in common else None
    episodes = _pair(digests[0], digests[1], ids)
    values = tuple(_values(*both, common, episodes.changed, progress))
    differ = bool(episodes.added or episodes.removed or episodes.changed)
    figures = (
        tuple(_figures(dataset_stats(a, progress), dataset_stats(b, progress), common))
        if differ
        else ()
    )
    return DatasetDiff(
        a.manifest.id,
        b.manifest.id,
        (a.transitions, b.transitions),
        leaves,
        episodes,
        values,
        figures,
    )


def _ids(content: Content, leaf: Leaf) -> list[bytes]:
    values = np.asarray(content.rows(leaf, np.arange(content.reader.episode_count)))
    return [value.tobytes() for value in values]


def _pair(
    a: NDArray[np.uint8], b: NDArray[np.uint8], ids: Sequence[list[bytes]] | None
) -> EpisodeDifferences:
    """Pair episodes by their digests `[E, 32]`, equal numbers first; then others."""
    count = min(len(a), len(b))
    equal = (a[:count] == b[:count]).all(axis=1)
    left_a = [*np.flatnonzero(~equal).tolist(), *range(count, len(a))]
    left_b = [*np.flatnonzero(~equal).tolist(), *range(count, len(b))]
    places: dict[bytes, deque[int]] = defaultdict(deque)
    for number in left_b:
        places[b[number].tobytes()].append(number)
    removed, moved = [], 0
    for number in left_a:
        if places[a[number].tobytes()]:
            places[a[number].tobytes()].popleft()
            moved += 1
        else:
            removed.append(number)
    added = sorted(number for numbers in places.values() for number in numbers)
    match: Match = "position"
    if ids is not None and all(len(set(one)) == len(one) for one in ids):
        match = "id"
        by_id = {ids[1][number]: number for number in added}
        changed = [(n, by_id[ids[0][n]]) for n in removed if ids[0][n] in by_id]
    else:
        same = set(removed).intersection(added)
        changed = [(number, number) for number in sorted(same)]
    paired = {pair[0] for pair in changed}, {pair[1] for pair in changed}
    return EpisodeDifferences(
        int(equal.sum()) + moved,
        moved,
        tuple(number for number in added if number not in paired[1]),
        tuple(number for number in removed if number not in paired[0]),
        tuple(changed),
        match,
    )


class _Tally:
    """Differences of one leaf so far."""

    def __init__(self) -> None:
        self.rows = 0
        self.episodes: set[int] = set()
        self.largest: float | None = None

    def add(self, differ: NDArray[np.bool_], pairs: NDArray[np.int64]) -> None:
        """Add rows; `pairs` are the numbers of the pairs that they belong to, both `[n]`."""
        self.rows += int(differ.sum())
        self.episodes.update(np.unique(pairs[differ]).tolist())

    def enlarge(self, found: float | None) -> None:
        """Take a larger difference."""
        if found is not None and (self.largest is None or found > self.largest):
            self.largest = found


def _values(
    a: Content,
    b: Content,
    leaves: Sequence[Leaf],
    changed: Sequence[tuple[int, int]],
    progress: Progress,
) -> Iterator[ValueDifference]:
    """Compare the leaves of changed episodes, paired row by row from the first."""
    if not changed:
        return
    first, second = np.array(changed, np.int64).T
    lengths = np.minimum(a.reader.lengths[first], b.reader.lengths[second])
    others = {"length": (a.reader.lengths, b.reader.lengths), _FINAL: (a.final, b.final)}
    for name, (left, right) in others.items():
        differ = left[first] != right[second]
        if differ.any():
            largest = np.abs(left[first].astype(int) - right[second]).max()
            most = float(largest) if name == "length" else None
            yield ValueDifference(EPISODES, name, int(differ.sum()), int(differ.sum()), most)
    final = a.final[first] & b.final[second] & (a.reader.lengths[first] == b.reader.lengths[second])
    pairs = np.arange(len(first))
    with progress.task("compare", len(leaves), "leaves") as task:
        for leaf in leaves:
            tally = _Tally()
            most = max(1, _BLOCK // max(1, a.row_bytes(leaf)))
            if leaf[0] == EPISODES:
                _compare(a, b, leaf, (first, second, pairs), most, tally)
            else:
                for part in _parts(lengths, most):
                    within = np.arange(int(lengths[part].sum()))
                    owner = np.repeat(pairs[part], lengths[part])
                    within -= np.repeat(np.cumsum(lengths[part]) - lengths[part], lengths[part])
                    rows = a.reader.starts[first][owner] + within
                    other = b.reader.starts[second][owner] + within
                    _compare(a, b, leaf, (rows, other, owner), most, tally)
            if leaf[0] == OBSERVATIONS and final.any():
                ends = [
                    (one.reader.starts + one.reader.lengths - 1)[numbers[final]]
                    for one, numbers in ((a, first), (b, second))
                ]
                _compare(a, b, leaf, (*ends, pairs[final]), most, tally, after=True)
            if tally.rows:
                yield ValueDifference(
                    leaf[0], join_key(leaf[1]), len(tally.episodes), tally.rows, tally.largest
                )
            task.advance()


def _parts(lengths: NDArray[np.int64], most: int) -> Iterator[slice]:
    """Cut consecutive episodes into parts of about `most` rows."""
    ends, first = np.cumsum(lengths), 0
    while first < len(lengths):
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield slice(first, stop)
        first = stop


def _compare(
    a: Content,
    b: Content,
    leaf: Leaf,
    rows: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    most: int,
    tally: _Tally,
    *,
    after: bool = False,
) -> None:
    """Compare rows of A with rows of B, which belong to pairs, `[n]` each, some at a time."""
    for begin in range(0, len(rows[0]), most):
        of_a, of_b, pairs = (one[begin : begin + most] for one in rows)
        left, right = a.rows(leaf, of_a, after=after), b.rows(leaf, of_b, after=after)
        images = as_encoded(left), as_encoded(right)
        if images[0] is not None and images[1] is not None:
            both = zip(images[0].images(), images[1].images(), strict=True)
            tally.add(np.array([one != two for one, two in both], bool), pairs)
            continue
        differ = _bytes_of(left, len(of_a)) != _bytes_of(right, len(of_a))
        wrong = np.asarray(differ.any(axis=1))
        tally.add(wrong, pairs)
        if wrong.any() and not a.specs[leaf].text:
            tally.enlarge(_largest(left[wrong], right[wrong]))


def _bytes_of(values: NDArray[Any], rows: int) -> NDArray[np.uint8]:
    return np.frombuffer(values.tobytes(), np.uint8).reshape(rows, -1)


def _largest(left: NDArray[Any], right: NDArray[Any]) -> float | None:
    kind = np.complex128 if left.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.abs(left.astype(kind) - right.astype(kind))
    differ = found[np.isfinite(found) & (left != right)]
    return float(differ.max()) if differ.size else None


def _figures(
    a: DatasetStats, b: DatasetStats, common: Sequence[Leaf]
) -> Iterator[FigureDifference]:
    keys = {join_key(leaf[1]) for leaf in common if leaf[0] != EPISODES}
    every: dict[str, LeafStats | TextStats] = {one.key: one for one in (*b.leaves, *b.texts)}
    for one in (*a.leaves, *a.texts):
        if one.key in keys and one.key in every:
            names = _FIGURES if isinstance(one, LeafStats) else ("distinct", "missing")
            yield from _moved(one.key, one, every[one.key], names)
    for key, name in (("length", "length"), ("return", "returns")):
        spreads = getattr(a.per_episode, name), getattr(b.per_episode, name)
        yield from _moved(key, *spreads, ("min", "median", "mean", "max"))


def _moved(key: str, a: Any, b: Any, names: Sequence[str]) -> Iterator[FigureDifference]:
    for name in names:
        one, two = getattr(a, name, None), getattr(b, name, None)
        if not _near(one, two):
            yield FigureDifference(key, name, one, two)


def _near(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return (isnan(a) and isnan(b)) or isclose(a, b, rel_tol=_NEAR, abs_tol=1e-12)
