"""Rules on episodes that are there more than once, in one dataset or in several.

An episode's content is its observations, actions and rewards: infos (times, global row numbers)
differ between copies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.checks.block import (
    BLOCK_ITEMS,
    RowBlock,
    all_leaves,
    blocks,
    is_image,
    mix_bits,
)
from offline_data.analysis.checks.finding import Finding
from offline_data.analysis.checks.names import are_related, is_derived, split, without_revision
from offline_data.analysis.checks.rule import Measured, Rule
from offline_data.analysis.checks.tokens import token_leaves
from offline_data.base.plurals import plural_of
from offline_data.episode.fields import Key, join_key
from offline_data.store.encoded import EncodedColumn
from offline_data.store.layout import LeafSpec
from offline_data.store.reader import DatasetReader

if TYPE_CHECKING:
    Hashes: TypeAlias = NDArray[np.uint64]
    Pair: TypeAlias = tuple[int, int]  # two episodes, the later one first
    Sketch: TypeAlias = tuple[NDArray[np.int64], Hashes]  # episodes of the rows kept, hashes

_BYTES = 16 << 20  # bytes of rows that are read at once

_ROWS_READ, _FRAMES_READ = 8, 3  # rows of an episode that find candidates: numbers, images

_FEATURES = 8  # features of a row that are hashed while all rows are read; four are the first ones

_SKETCH = 16  # least expected number of rows of an episode in a sketch; twice as many at most

_LEAST_ROWS = 8  # different rows in a sketch below which an episode's similarity says nothing

_MOST_COMMON = 16  # episodes with a row above which it says nothing: a start, a place of rest

A_COPY = ("is a copy of an earlier one", "are copies of earlier ones")  # verbs of a finding


class DuplicateEpisodes(Rule):
    """Episodes have the same observations, actions and rewards, bit by bit.

    A copy counts twice in every average and every epoch, and if episodes are split at random, one
    lands in training and its copy in validation. They come from concatenated files and interrupted
    uploads. Datasets whose observations and actions are all whole numbers, words or flags (grid
    worlds) have such episodes by chance: there the finding is info. Infos, and the observation
    after the last action, are not compared.

    Episodes are first compared by their length and eight of their rows (three of images; 24 bytes
    of memory each), and those that agree by 128 bits of BLAKE2b over all their rows. The
    probability that any two different ones are taken for copies is about `E² / 2^129`.
    """

    code = "RL060"
    name = "duplicate-episodes"
    severity = "warning"
    hint = "drop copies with `preprocess --step dedupe`, without features in which copies differ"
    thresholds: ClassVar = {"steps": 2, "candidates": 10_000}
    explained: ClassVar = {
        "steps": "Transitions of the shortest episode that is compared.",
        "candidates": "Maximum number of episodes compared in full; with more, the count is a lower bound.",
    }

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader = measured.reader
        values = _signatures(reader, self.limits["steps"])
        found, counts = np.unique(values, return_counts=True)
        again = np.isin(values, found[(counts > 1) & (found != 0)])
        same = _by_content(reader, again, self.limits["candidates"])
        pairs = sorted((copy, first) for first, *copies in same.values() for copy in copies)
        if pairs:
            yield self.finding(
                reader,
                plural_of(len(pairs), reader.episode_count, "episode", *A_COPY)
                + f": {listed_copies(pairs)}",
                episode=pairs[0][0],
                row=int(reader.starts[pairs[0][0]]),
                count=len(pairs),
                severity="info" if _is_discrete(reader) else None,
            )


class Leakage(Rule):
    """An episode of one dataset is also in another one.

    If one is for training and the other for evaluation, scores measure memory. It is an error where
    the datasets are splits of one: both made by `split` from the same parent, or with such names
    (`x-train` and `x-val`); else a warning, since a dataset may contain another on purpose
    (`hopper-medium-expert` has `hopper-medium`). As in RL060, findings on episodes of whole
    numbers, words and flags are info. Content is compared as in RL060, hence only between datasets
    of the same features, dtypes and encoding of images. A dataset is not compared with its own
    parent.
    """

    code = "RL062"
    name = "leakage"
    severity = "warning"
    hint = "split the episodes again with `preprocess --step split`, after `dedupe`"
    thresholds: ClassVar = DuplicateEpisodes.thresholds
    explained: ClassVar = DuplicateEpisodes.explained

    def across(self, measured: Sequence[Measured]) -> Iterator[Finding]:
        hashed = [(reader, _signatures(reader, self.limits["steps"])) for reader, _ in measured]
        for (first, of_first), (second, of_second) in combinations(hashed, 2):
            if first.path == second.path or is_derived(first.manifest, second.manifest):
                continue
            one, other = (
                _by_content(reader, np.isin(mine, others), self.limits["candidates"])
                for reader, mine, others in (
                    (first, of_first, of_second[of_second != 0]),
                    (second, of_second, of_first[of_first != 0]),
                )
            )
            pairs = sorted(
                (here, one[c][0]) for c in one.keys() & other.keys() for here in other[c]
            )
            if pairs:
                name, (here, there) = without_revision(first.manifest.id), pairs[0]
                yield self.finding(
                    second,
                    plural_of(len(pairs), second.episode_count, "episode", "is", "are")
                    + f" also in {name}: episode {here} here is {there} there",
                    episode=here,
                    row=int(second.starts[here]),
                    count=len(pairs),
                    about=name,
                    severity=_severity(first, second),
                )


class NearDuplicateEpisodes(Rule):
    """Episodes share nearly all of their observations, after rounding.

    Usually one is a copy that was rounded to another precision, or cut or extended by a few rows;
    RL060 reports exact copies. They count twice, and leak from training to validation.

    Similarity is the share of different rows that two episodes have in common (Jaccard), in the
    largest floating-point observation feature, whose numbers are rounded to 12 significant bits,
    about 1 in 4,000. A pass over all rows keeps 16 to 32 of each episode, chosen by their hash,
    which looks at 8 dimensions at most (250 to 500 bytes of memory per episode); pairs that agree
    there are then compared in full. Rows of more than 16 episodes say nothing about a pair, nor do
    episodes with fewer than 8 different rows: small state spaces (grid worlds, also as floats) and
    constant poses are not reported. Images, and features of a single number, are not compared.
    """

    code = "RL061"
    name = "near-duplicate-episodes"
    severity = "warning"
    hint = "inspect a pair; drop one of the two with `preprocess --step filter`"
    thresholds: ClassVar = {"similarity": 0.9, "candidates": 1000}
    explained: ClassVar = {
        "similarity": "Share of rows in common, 0 to 1, from which a pair is reported.",
        "candidates": "Maximum number of pairs compared in full.",
    }

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        sizes = {
            key: prod(leaf.shape)
            for key, leaf in reader.observation_leaves.items()
            if key[0] == "observation" and leaf.dtype.startswith("float") and not is_image(leaf)
        }
        largest = max(sizes, key=lambda key: (sizes[key], key), default=None)
        return [largest] if largest is not None and sizes[largest] > 1 else []

    def measure(self, block: RowBlock, key: Key) -> list[Sketch] | None:
        values = block.numbers(key)
        hashes = _rounded_hashes(values.reshape(len(values), -1))
        limits = _rates(block.reader.lengths[block.first_episode : block.last_episode + 1])
        few = np.flatnonzero(hashes <= limits.max())
        finals = block.known_ends + np.arange(len(block.known_ends)) + 1
        episodes = block.episodes[few - np.searchsorted(finals, few, side="right")]
        kept = hashes[few] <= limits[episodes - block.first_episode]
        return [(episodes[kept], hashes[few[kept]])] if kept.any() else None

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader = measured.reader
        for key, kept in measured.leaves.items():
            near = self._near(reader, key, kept, exact=False)
            if near:
                second = min(near)
                yield self.finding(
                    reader,
                    plural_of(len(near), reader.episode_count, "episode", "shares", "share")
                    + f" at least {self.limits['similarity']:.0%} of rows with an earlier one: "
                    f"{listed_copies(sorted(near.items()))}",
                    leaf=join_key(key),
                    episode=second,
                    row=int(reader.starts[second]),
                    count=len(near),
                )

    def pairs(self, reader: DatasetReader) -> dict[int, int]:
        """Return the episodes that share their rows with an earlier one, also copies, and that one."""
        found: dict[int, int] = {}
        for key in self.leaves(reader):
            every = blocks(reader, [reader.observation_leaves[key]], BLOCK_ITEMS)
            kept = [part for block in every for part in self.measure(block, key) or ()]
            found = self._near(reader, key, kept, exact=True) if kept else found
        return found

    def _near(
        self, reader: DatasetReader, key: Key, kept: list[Sketch], *, exact: bool
    ) -> dict[int, int]:
        likely = _likely_pairs(kept, reader, 0.8 * self.limits["similarity"])
        near: dict[int, int] = {}
        for second, first in likely[: int(self.limits["candidates"])]:
            if (
                second not in near
                and self._is_near(reader, key, first, second)
                and (exact or _content(reader, first) != _content(reader, second))
            ):
                near[second] = first
        return near

    def _is_near(self, reader: DatasetReader, key: Key, first: int, second: int) -> bool:
        rows = [_rows_of(reader, key, episode) for episode in (first, second)]
        one, other = (
            np.unique(_rounded_hashes(np.asarray(part).reshape(len(part), -1), every=True))
            for part in rows
        )
        shared = len(np.intersect1d(one, other, assume_unique=True))
        least = self.limits["similarity"] * (len(one) + len(other) - shared)
        return bool(shared >= least)


def _severity(first: DatasetReader, second: DatasetReader) -> Any:
    """Return the severity of an episode that two datasets share; None: the rule's own."""
    if _is_discrete(second):
        return "info"
    one, other = split(first.manifest), split(second.manifest)
    return "error" if one != other and are_related(first.manifest, second.manifest) else None


def _content_leaves(reader: DatasetReader) -> dict[Key, LeafSpec]:
    """Return the leaves of observations, actions and rewards, by key in order."""
    return {
        key: leaf
        for key, leaf in sorted(all_leaves(reader).items())
        if (key[0] in {"observation", "action"} or key == ("next", "reward")) and leaf.nbytes
    }


def _is_discrete(reader: DatasetReader) -> bool:
    """Return True if no observation and no action is a real number or an image."""
    leaves = [leaf for key, leaf in _content_leaves(reader).items() if key[0] != "next"]
    return not any(is_image(leaf) or leaf.dtype.startswith(("float", "complex")) for leaf in leaves)


def _signatures(reader: DatasetReader, steps: float) -> Hashes:
    """Hash length and some rows of each episode, `[E]`; 0 for those of fewer than `steps` rows."""
    starts, lengths = reader.starts, reader.lengths
    if token_leaves(reader):  # documents, which RL101 and RL105 compare
        return np.zeros(len(lengths), np.uint64)
    leaves = _content_leaves(reader)
    total = mix_bits(lengths.astype(np.uint64))
    size = sum(leaf.nbytes for leaf in leaves.values())
    run = max(1, _BYTES // max(1, size))
    for key, leaf in leaves.items():
        parts = _FRAMES_READ if is_image(leaf) else _ROWS_READ
        for first in range(0, len(starts), run):
            part = slice(first, first + run)
            for number in range(parts):
                rows = starts[part] + (lengths[part] - 1) * number // (parts - 1)
                total[part] = mix_bits(total[part] + _row_hashes(reader, key, rows))
    return np.asarray(np.where(lengths >= steps, total | np.uint64(1), np.uint64(0)))


def _row_hashes(reader: DatasetReader, key: Key, rows: NDArray[np.int64]) -> Hashes:
    """Hash rows of a leaf, `[n]`; text by its words, encoded images by their bytes."""
    values = _rows_at(reader, key, rows)
    if not _is_plain(values):
        digests = [hashlib.blake2b(row, digest_size=8).digest() for row in _each(values)]
        return np.array(np.frombuffer(b"".join(digests), "<u8"), np.uint64)
    data = np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)
    padded = np.zeros((len(data), -(-data.shape[1] // 8) * 8), np.uint8)
    padded[:, : data.shape[1]] = data
    places = mix_bits(np.arange(padded.shape[1] // 8, dtype=np.uint64))
    return np.asarray(mix_bits(padded.view(np.uint64) + places).sum(1, dtype=np.uint64))


def _by_content(
    reader: DatasetReader, chosen: NDArray[np.bool_], most: float
) -> dict[bytes, list[int]]:
    """Return the chosen episodes, at most `most`, by the digest of their content."""
    found: dict[bytes, list[int]] = {}
    for episode in np.flatnonzero(chosen)[: int(most)].tolist():
        found.setdefault(_content(reader, episode), []).append(episode)
    return found


def _content(reader: DatasetReader, episode: int) -> bytes:
    """Return a digest of an episode's observations, actions and rewards."""
    digest = hashlib.blake2b(digest_size=16)
    for key, leaf in _content_leaves(reader).items():
        values = _rows_of(reader, key, episode)
        digest.update(repr((key, str(values.dtype), values.shape, leaf.encoding)).encode())
        for part in [values.tobytes()] if _is_plain(values) else _each(values):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _is_plain(values: NDArray[Any] | EncodedColumn) -> TypeGuard[NDArray[Any]]:
    """Return True for an array of numbers or flags."""
    return isinstance(values, np.ndarray) and values.dtype != object


def _each(values: NDArray[Any] | EncodedColumn) -> list[bytes]:
    """Return the bytes of each row of encoded images or of text."""
    if isinstance(values, EncodedColumn):
        return values.images()
    return [repr(row).encode() for row in values.tolist()]


def _rows_of(reader: DatasetReader, key: Key, episode: int) -> NDArray[Any] | EncodedColumn:
    """Return an episode's rows of a leaf before each action, `[T, …]`."""
    begin = int(reader.starts[episode])
    return _rows_at(reader, key, np.arange(begin, begin + int(reader.lengths[episode])))


def _rows_at(
    reader: DatasetReader, key: Key, rows: NDArray[np.int64]
) -> NDArray[Any] | EncodedColumn:
    """Return a leaf at transitions, observations before the action; text as `str` objects."""
    values: NDArray[Any] | EncodedColumn = reader.as_text(key, reader.values_at(key, rows))
    return values


def _rounded_hashes(rows: NDArray[Any], *, every: bool = False) -> Hashes:
    """Hash rows `[n, f]` of floats rounded to 12 significant bits; of 8 features unless `every`."""
    features = rows.shape[1]
    half = _FEATURES // 2
    chosen = range(features) if every else sorted({
        *range(min(half, features)),
        *np.linspace(0, features - 1, half, dtype=int).tolist(),
    })  # fmt: skip
    total = np.zeros(len(rows), np.uint64)
    with np.errstate(over="ignore", invalid="ignore"):
        for number in chosen:
            bits = rows[:, number].astype(np.float32).view(np.uint32)
            word = ((bits + np.uint32(1 << 11)) >> np.uint32(12)).astype(np.uint64)
            total += word * _FACTORS[number % len(_FACTORS)]
    return mix_bits(total)


def _rates(lengths: NDArray[np.int64]) -> Hashes:
    """Return the largest hash that a sketch keeps of episodes of these lengths."""
    halvings = np.log2(np.maximum(lengths / _SKETCH, 1)).astype(np.uint64)
    return np.asarray(np.uint64(2**64 - 1) >> halvings)


def _likely_pairs(kept: list[Sketch], reader: DatasetReader, similarity: float) -> list[Pair]:
    """Return the pairs of episodes whose sketches are that similar, by the later episode."""
    episodes, hashes = map(np.concatenate, zip(*kept, strict=True))
    order = np.lexsort((episodes, hashes))
    hashes, episodes = hashes[order], episodes[order]
    new = np.append(True, (hashes[1:] != hashes[:-1]) | (episodes[1:] != episodes[:-1]))
    hashes, episodes = hashes[new], episodes[new]
    limits = _rates(reader.lengths)
    counts = np.bincount(episodes, minlength=len(limits))
    halved = np.bincount(
        episodes[hashes <= limits[episodes] >> np.uint64(1)], minlength=len(limits)
    )
    begins = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1]))
    runs = np.diff(np.append(begins, len(hashes)))
    common = np.repeat(runs > _MOST_COMMON, runs)
    hashes, episodes = hashes[~common], episodes[~common]
    codes = [np.zeros(0, np.int64)]
    for apart in range(1, _MOST_COMMON):
        same = np.flatnonzero(hashes[apart:] == hashes[:-apart])
        codes.append(episodes[same] * len(limits) + episodes[same + apart])
    pairs, shared = np.unique(np.concatenate(codes), return_counts=True)
    first, second = np.divmod(pairs, len(limits))
    # Of two rates that differ by one halving, the lower one is comparable
    one = np.where(limits[first] > limits[second], halved[first], counts[first])
    other = np.where(limits[second] > limits[first], halved[second], counts[second])
    likely = shared >= similarity * (one + other - shared)
    likely &= np.minimum(counts[first], counts[second]) >= _LEAST_ROWS
    return sorted(zip(second[likely].tolist(), first[likely].tolist(), strict=True))


def listed_copies(pairs: Sequence[Pair]) -> str:
    """Return the first copies, and of what: `5 of 0, 7 of 2`."""
    named = ", ".join(f"{second} of {first}" for second, first in pairs[:5])
    return named + (" …" if len(pairs) > 5 else "")


_FACTORS = mix_bits(np.arange(1, 257, dtype=np.uint64)) | np.uint64(1)  # odd, one a feature
