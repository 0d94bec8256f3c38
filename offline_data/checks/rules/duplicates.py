"""Rules on episodes that are there twice: exactly, nearly, or in two datasets."""

from __future__ import annotations

import hashlib
import re
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.checks.block import all_leaves, is_image, is_numeric
from offline_data.checks.rule import Measured, Rule
from offline_data.episodes.fields import REWARD, join_key
from offline_data.store.encoded import EncodedColumn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from offline_data.checks.block import Block
    from offline_data.checks.finding import Finding
    from offline_data.episodes.fields import Key
    from offline_data.store.reader import DatasetReader

    Hashes: TypeAlias = NDArray[np.uint64]
    Sums: TypeAlias = list[tuple[int, Hashes]]
    """First episode of a block, and a sum of hashes for each of its episodes."""

_FEATURES, _STRIDE = 8, 8
"""Features of a leaf, and distance of rows in an episode, that hashes are made of."""
_SAMPLED = 24
"""Rows of an episode that near duplicates are found by, on average."""
_MOST_COMPARED = 256
"""Candidates that are compared value by value; what is beyond is counted by its hash alone."""
_MIX = np.uint64(0x9E3779B97F4A7C15)


def _mixed(values: Hashes) -> Hashes:
    """Return 64-bit hashes of numbers (the finalizer of splitmix64; Steele, Lea and Flood, 2014)."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))


def _seed(key: Key) -> np.uint64:
    """Return a number that differs between leaves."""
    digest = hashlib.blake2b(join_key(key).encode(), digest_size=8).digest()
    seed: np.uint64 = np.uint64(int.from_bytes(digest, "big"))
    return seed


def _row_hashes(values: NDArray[Any], seed: np.uint64) -> Hashes:
    """Hash some features of rows, `[n]`, by their bits."""
    flat = values.reshape(len(values), prod(values.shape[1:]))[:, :_FEATURES]
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[min(flat.dtype.itemsize, 8)]
    hashed = np.full(len(values), seed)
    with np.errstate(over="ignore"):
        for feature in range(flat.shape[1]):
            bits = np.ascontiguousarray(flat[:, feature]).view(kind)[: len(values)]
            hashed = _mixed(hashed * _MIX + bits.astype(np.uint64))
    return hashed


class _EpisodeHashes(Rule):
    """A rule on hashes of episodes: sums over every eighth row, mixed with its place."""

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        """Return numeric observations, actions and the reward."""
        roots = {"observation", "action"}
        known = all_leaves(reader).items()
        return [
            key for key, leaf in known if is_numeric(leaf) and (key[0] in roots or key == REWARD)
        ]

    def measure(self, block: Block, key: Key) -> Sums:
        """Return the sum of hashes of each episode of the block."""
        return block.once(("episode hashes", key), lambda: self._sums(block, key))

    def merge(self, first: Sums, second: Sums) -> Sums:
        """Append; an episode in two blocks is summed at the end."""
        first.extend(second)
        return first

    def _sums(self, block: Block, key: Key) -> Sums:
        place = np.arange(block.first, block.stop) - block.reader.starts[block.episodes]
        rows = np.flatnonzero(place % _STRIDE == 0)
        sums = np.zeros(block.last_episode - block.first_episode + 1, np.uint64)
        if len(rows):
            values = block.at_rows(key, rows)
            hashed = _row_hashes(values, _seed(key))
            with np.errstate(over="ignore"):
                hashed = _mixed(hashed + place[rows].astype(np.uint64) * _MIX)
                numbers = block.episodes[rows] - block.first_episode
                starts = np.flatnonzero(np.diff(numbers, prepend=-1))
                sums[numbers[starts]] = np.add.reduceat(hashed, starts)
        return [(block.first_episode, sums)]


def _episode_hashes(measured: Measured) -> Hashes:
    """Return the hash of each episode, `[E]`, over all its leaves; 0 for one-step episodes."""
    total = np.zeros(measured.reader.episode_count, np.uint64)
    with np.errstate(over="ignore"):
        for parts in measured.leaves.values():
            leaf = np.zeros_like(total)
            for first, sums in parts:
                leaf[first : first + len(sums)] += sums
            total += _mixed(leaf)
        total = _mixed(total + measured.reader.lengths.astype(np.uint64))
    total[measured.reader.lengths < 2] = 0
    return total


def _equal(reader: DatasetReader, one: int, other_reader: DatasetReader, other: int) -> bool:
    """Return True if two episodes have the same values in all leaves."""
    first, second = reader.episode_batch(one, one + 1), other_reader.episode_batch(other, other + 1)
    for table in ("steps", "observations"):
        mine, theirs = getattr(first, table), getattr(second, table)
        if mine.keys() != theirs.keys():
            return False
        for key, column in mine.items():
            if isinstance(column, EncodedColumn):
                same = (
                    isinstance(theirs[key], EncodedColumn)
                    and column.images() == theirs[key].images()
                )
            else:
                same = np.array_equal(column, theirs[key], equal_nan=column.dtype.kind == "f")
            if not same:
                return False
    return True


class DuplicateEpisodes(_EpisodeHashes):
    """An episode has the same values as an earlier one.

    It counts twice in every batch, and random splits have one copy in each part. Hashes find
    candidates, whose values are then compared. Episodes of one step are not looked at.
    """

    code = "RL060"
    name = "duplicate-episodes"
    severity = "warning"
    hint = "leave them out with `offline-data filter`"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        """Yield one finding."""
        reader, hashes = measured.reader, _episode_hashes(measured)
        _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        earlier = first[inverse]
        copies = np.flatnonzero((earlier < np.arange(len(hashes))) & (hashes != 0))
        confirmed = [
            int(episode)
            for i, episode in enumerate(copies)
            if i >= _MOST_COMPARED or _equal(reader, int(earlier[episode]), reader, int(episode))
        ]
        if confirmed:
            episode = confirmed[0]
            yield self.finding(
                reader,
                f"{len(confirmed):,} of {reader.episode_count:,} episodes are copies of others; "
                f"episode {episode} is one of episode {earlier[episode]}",
                episode=episode,
                row=int(reader.starts[episode]),
                count=len(confirmed),
            )


class Leakage(_EpisodeHashes):
    """An episode is in two of the datasets that are checked together.

    A policy that was trained on one cannot be judged on the other. It is an error for parts of one
    dataset (their parents are the same, or their names differ in train, valid, test).
    """

    code = "RL062"
    name = "leakage"
    severity = "warning"
    hint = "split again by whole episodes: `offline-data split`"

    def across(self, measured: Sequence[Measured]) -> Iterator[Finding]:
        """Yield a finding for each pair of datasets."""
        hashes = [_episode_hashes(one) for one in measured]
        for i, one in enumerate(measured):
            for j in range(i):
                found = self._shared(measured[j], hashes[j], one, hashes[i])
                if found is not None:
                    yield found

    def _shared(
        self, first: Measured, of_first: Hashes, second: Measured, of_second: Hashes
    ) -> Finding | None:
        _, mine, theirs = np.intersect1d(of_second, of_first, return_indices=True)
        pairs = [
            (a, b)
            for a, b in sorted(zip(mine.tolist(), theirs.tolist(), strict=True))
            if of_second[a]
        ]
        reader, other = second.reader, first.reader
        pairs = [
            (a, b)
            for i, (a, b) in enumerate(pairs)
            if i >= _MOST_COMPARED or _equal(reader, a, other, b)
        ]
        if (
            not pairs
            or reader.manifest.id in other.manifest.parents
            or other.manifest.id in reader.manifest.parents
        ):
            return None
        episode, copy = pairs[0]
        return self.finding(
            reader,
            f"{len(pairs):,} of {reader.episode_count:,} episodes are also in {other.manifest.id}; "
            f"episode {episode} is its episode {copy}",
            episode=episode,
            row=int(reader.starts[episode]),
            count=len(pairs),
            about=other.manifest.id,
            severity="error" if _are_splits(reader, other) else None,
        )


_SPLITS = ("train", "training", "valid", "validation", "val", "test", "eval")


def _are_splits(reader: DatasetReader, other: DatasetReader) -> bool:
    """Return True if two datasets say that they are parts of one."""
    mine, theirs = reader.manifest, other.manifest
    if mine.parents and mine.parents == theirs.parents:
        return True
    names = [re.split(r"[^A-Za-z0-9]+", one.name) for one in (mine, theirs)]
    split = [[word for word in words if word not in _SPLITS] for words in names]
    return names[0] != names[1] and split[0] == split[1]


class NearDuplicateEpisodes(Rule):
    """An episode shares most of its rows with another one, up to rounding.

    Episodes that were recorded twice with another precision, or that go on from a shared beginning,
    are like that. Observations and actions are rounded to about three digits; rows that many episodes
    have (states of a small grid, resets) do not count. A sample of the rows is compared, by eight
    features of each leaf.
    """

    code = "RL061"
    name = "near-duplicate-episodes"
    severity = "info"
    hint = "look at both episodes; leave one out with `offline-data filter`"
    thresholds = MappingProxyType({"share": 0.8, "least_rows": 4, "most_episodes": 4})
    explained = MappingProxyType(
        {
            "share": "share of the sampled rows of an episode that another one has, too",
            "least_rows": "smallest number of these rows",
            "most_episodes": "rows in more episodes than this do not count",
        }
    )

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        """Return the first numeric leaf of observations, whose blocks the others are read with."""
        keys = _continuous(reader)
        return keys[:1]

    def measure(self, block: Block, key: Key) -> list[tuple[NDArray[np.int64], Hashes]]:
        """Return episode and hash of the rows whose hash is small: the same rows in each episode."""
        reader = block.reader
        share = min(0.25, min(_SAMPLED * reader.episode_count, 2_000_000) / reader.transitions)
        rows = np.arange(len(block))
        first = _row_hashes(_rounded(block.at_rows(key, rows), 2), _seed(key))
        rows = np.flatnonzero(first <= np.uint64(int((1 << 64) * share) - 1))
        hashed = first[rows]
        for leaf in _continuous(reader):
            values = _rounded(block.at_rows(leaf, rows), _FEATURES)
            with np.errstate(over="ignore"):
                hashed = _mixed(hashed * _MIX + _row_hashes(values, _seed(leaf)))
        return [(block.episodes[rows], hashed)]

    def findings(self, measured: Measured) -> Iterator[Finding]:
        """Yield one finding, of the pair that shares most."""
        reader = measured.reader
        for parts in measured.leaves.values():
            episodes = np.concatenate([one for one, _ in parts])
            hashes = np.concatenate([one for _, one in parts])
            pairs, sampled = _shared_rows(
                episodes, hashes, reader.episode_count, int(self.limits["most_episodes"])
            )
            near = [
                (one, other, count)
                for (one, other), count in pairs.items()
                if count >= self.limits["least_rows"]
                and count >= self.limits["share"] * sampled[other]
            ]
            near = [
                one
                for i, one in enumerate(sorted(near, key=lambda pair: (-pair[2], pair[:2])))
                if i >= _MOST_COMPARED or not _equal(reader, one[0], reader, one[1])
            ]
            if near:
                one, other, count = near[0]
                copies = len({pair[1] for pair in near})
                yield self.finding(
                    reader,
                    f"{copies:,} of {reader.episode_count:,} episodes share most rows with another; "
                    f"episode {other} has {count} of {sampled[other]} sampled rows of episode {one}",
                    episode=other,
                    row=int(reader.starts[other]),
                    count=copies,
                )


def _rounded(values: NDArray[Any], features: int) -> NDArray[np.uint32]:
    """Return the bits of some features as float32 with 10 bits of mantissa, `[n, features]`."""
    flat = values.reshape(len(values), prod(values.shape[1:]))[:, :features].astype(np.float32)
    return np.asarray((flat.view(np.uint32) + np.uint32(1 << 12)) >> np.uint32(13))


def _continuous(reader: DatasetReader) -> list[Key]:
    """Return the leaves of floating-point observations and actions."""
    known = all_leaves(reader).items()
    return sorted(
        (
            key
            for key, leaf in known
            if key[0] in {"observation", "action"}
            and leaf.dtype.startswith("float")
            and not is_image(leaf)
        ),
        key=lambda key: (key[0] != "observation", key),
    )


def _shared_rows(
    episodes: NDArray[np.int64], hashes: Hashes, count: int, most: int
) -> tuple[dict[tuple[int, int], int], NDArray[np.int64]]:
    """Return how many hashes two episodes share, by pair, and how many each has."""
    both = np.unique(np.stack([hashes, episodes.astype(np.uint64)]), axis=1)
    sampled = np.bincount(both[1].astype(np.int64), minlength=count)
    starts = np.flatnonzero(np.diff(both[0], prepend=both[0][:1] + np.uint64(1)))
    sizes = np.diff(np.append(starts, both.shape[1]))
    pairs: dict[tuple[int, int], int] = {}
    for start, size in zip(
        starts[(sizes > 1) & (sizes <= most)], sizes[(sizes > 1) & (sizes <= most)], strict=True
    ):
        group = both[1, start : start + size].astype(int).tolist()
        for i, one in enumerate(group):
            for other in group[i + 1 :]:
                pairs[one, other] = pairs.get((one, other), 0) + 1
    return pairs, sampled
