"""Steps that select episodes: `dedupe filter split subsample`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.episodes import episode_quality, quality_columns
from offline_data.base.decode import Check
from offline_data.base.errors import StepError, UnknownLeafError, UsageError
from offline_data.base.ids import unknown
from offline_data.base.plurals import plural
from offline_data.episode.fields import Key
from offline_data.episode.permutation import EpochOrder
from offline_data.episode.split import ROUNDING, in_pairs, split_episodes
from offline_data.pipeline.preprocess.steps.base import Selection, episode_columns
from offline_data.pipeline.preprocess.steps.expressions import Expression
from offline_data.pipeline.preprocess.steps.parse import (
    at_least,
    number,
    read_pairs,
    scalar,
    split_parts,
    usage_error,
)
from offline_data.store.chunk import EpisodeChunk, episode_words

if TYPE_CHECKING:
    from typing_extensions import Self

    from offline_data.pipeline.preprocess.steps.base import Columns, Step, Words
    from offline_data.store.reader import DatasetReader

_SHARE = number("a number above 0, at most 1", lambda share: 0 < share <= 1)
_SHARES = Check(
    "NAME=SHARE, each above 0, at most 1",
    lambda shares: bool(shares) and all(_SHARE.holds(share) for _, share in shares),
)

DIGEST: Key = ("digest",)
"""Column of the table passed to `Dedupe.choose`."""

_BY_VALUES = frozenset({"return", "terminated", "truncated", "final_observation"})
"""Fields of `Filter` that length-preserving steps may change."""


@dataclass(frozen=True)
class Dedupe(Selection, name="dedupe", example="dedupe"):
    """Drop every episode whose content equals that of an earlier one.

    Content is all step and observation features at this point of the recipe, bytewise (0.0 and -0.0
    differ), and whether the final observation is known; columns of the episode table (`id`,
    `seed`, …) are ignored. To ignore a feature, exclude it before; to ignore rounding, cast it.

    Episodes are compared by 128 bits of BLAKE2b: the probability that two different ones collide
    is about `E² / 2^129`.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> step, chunk = Dedupe(), toy_chunk([2, 3])
        >>> column = np.concatenate([step.measure(chunk)[DIGEST] for _ in range(2)])
        >>> step.choose({DIGEST: column}, {}).tolist()
        [True, True, False, False]
    """

    needs_data: ClassVar[bool] = True

    def measure(self, chunk: EpisodeChunk) -> dict[Key, NDArray[Any]]:
        """Return `("number",)` int64 `[E]`, and `("digest",)` uint64 `[E, 2]` of each episode."""
        batch = chunk.batch
        schema = [
            [(key, table[key].dtype.str, table[key].shape[1:]) for key in sorted(table)]
            for table in (batch.steps, batch.observations)
        ]
        start = hashlib.blake2b(repr(schema).encode(), digest_size=16)
        steps = _pack_rows(batch.steps, batch.transitions)
        observations = _pack_rows(batch.observations, batch.transitions + len(batch.lengths))
        stops, digests = np.cumsum(batch.lengths), bytearray()
        rows = zip(batch.starts.tolist(), stops.tolist(), batch.final_observation, strict=True)
        for episode, (begin, stop, final) in enumerate(rows):
            digest = start.copy()
            digest.update(steps[begin:stop].data)
            digest.update(observations[begin + episode : stop + episode + 1].data)
            digest.update(b"\1" if final else b"\0")
            digests += digest.digest()
        pairs = np.frombuffer(bytes(digests), "<u8").astype(np.uint64).reshape(-1, 2)
        return {("number",): chunk.episodes, DIGEST: pairs}

    def choose(self, table: Columns, words: Words) -> NDArray[np.bool_]:
        digests = table[DIGEST]
        order = np.lexsort(digests.T)  # stable: the first of equal ones stays first
        ordered = digests[order]
        chosen = np.ones(len(digests), bool)
        chosen[order[1:]] = (ordered[1:] != ordered[:-1]).any(axis=1)
        return chosen


@dataclass(frozen=True)
class Filter(Selection, name="filter", example="filter:return > 100 and length >= 50"):
    """Keep the episodes for which an expression is true: `filter:return > 100 and not truncated`.

    Fields are the columns of the episode table at this point of the recipe: `length`, `return`,
    `terminated`, `truncated`, `final_observation`, `number` (in the parent), and the source's own
    (`id`, `seed`, …); `a.b` is the nested key `a/b`. Text is quoted. Columns of the quality of the
    dataset's episodes (`idle`, `jerk`, `saturated`, …; see `episodes`) are fields, too, unless steps
    other than selections come first.

    Supported are `+ - * / %`, comparisons, also chained (`10 <= length < 50`) and with lists
    (`id in ["3", "7"]`), `and`, `or`, `not`, and over all episodes `min(x)`, `max(x)`, `mean(x)`
    and `percentile(x, q)`: `return >= percentile(return, 90)` is the best tenth. Comparisons with
    NaN are false, except `!=`. The text is parsed, not executed. Quote it in a shell.

    `mark` and `note` are those of the dataset that were given in `browse`, empty where there are none:
    `mark != "bad"`. The recipe has the numbers of these episodes in their place.

    Raises:
        UsageError: The expression cannot be parsed, or has an unsupported part.
        StepError: A field that is missing or not one number, flag or text per episode; types that
            cannot be compared; no episode is left.

    Example:
        >>> table = {("return",): np.array([3.0, 7.0, 5.0]), ("length",): np.array([1, 2, 3])}
        >>> Filter("return >= mean(return) and length > 2").choose(table, {}).tolist()
        [False, False, True]
    """

    where: str
    """The expression."""
    reader: DatasetReader | None = field(
        default=None, compare=False, repr=False, metadata={"state": True}
    )
    """Dataset whose quality columns are fields."""
    asked: str = field(default="", compare=False, repr=False, metadata={"state": True})
    """The expression as it was given, if marks in it have become numbers of episodes."""

    def __post_init__(self) -> None:
        _ = self._expression

    @classmethod
    def parse(cls, text: str) -> Self:
        if not text.strip():
            raise usage_error(cls, "needs an expression")
        return cls(text.strip())

    @property
    def by_values(self) -> bool:
        return not _BY_VALUES.isdisjoint(self._expression.fields)

    def bind(self, reader: DatasetReader, before: Sequence[Step]) -> Self:
        fields = {".".join(key): key for key in reader.mark_keys.values()}
        read = fields.keys() & self._expression.fields
        if read and not any(step.adds_columns for step in before):
            columns = reader.mark_columns
            marks = {name: np.array(columns[fields[name]], object) for name in read}
            by_number = replace(self, where=self._expression.by_number(marks), asked=self.where)
            return by_number.bind(reader, before)
        if all(isinstance(step, Selection) for step in before):
            return replace(self, reader=reader)
        computed = {*quality_columns(reader)} - {"length", "return"}
        computed -= {".".join(key) for key in reader.episodes}
        if asked := sorted(computed.intersection(self._expression.fields)):
            raise StepError(
                f"Step 'filter': {asked[0]!r} is computed from the rows of {reader.manifest.id}, and "
                "steps before it may change rows",
                hint="put filter first, or write a dataset before filtering",
            )
        return self

    def settled(self, probe: EpisodeChunk) -> Self:
        known = episode_columns(probe)
        self.columns([*known, *self._quality_keys(known)])
        return self

    def choose(self, table: Columns, words: Words) -> NDArray[np.bool_]:
        computed = self._quality_keys(table)
        keys = self.columns([*table, *computed])
        asked = [key for key in computed if key in keys.values()]
        if self.reader and asked:
            quality, numbers = episode_quality(self.reader), table[("number",)]
            table = {**table, **{key: quality[key[0]][numbers] for key in asked}}
        fields = {name: _field(name, table[key], words.get(key)) for name, key in keys.items()}
        chosen = self._expression.evaluate(fields, len(next(iter(table.values()))))
        if not chosen.any():
            raise StepError(
                f"Step 'filter' leaves none of {plural(len(chosen), 'episode')} by {self.asked or self.where!r}: "
                + ", ".join(
                    _describe_range(name, column) for name, column in fields.items() if len(chosen)
                )
            )
        return chosen

    def notes(self) -> tuple[str, ...]:
        return (f"Episodes were selected by their marks: {self.asked}",) if self.asked else ()

    def _quality_keys(self, table: Columns) -> list[Key]:
        names = quality_columns(self.reader) if self.reader else ()
        return [key for name in names if (key := (name,)) not in table]

    @cached_property
    def _expression(self) -> Expression:
        return Expression(self.where)

    def columns(self, known: Iterable[Key]) -> dict[str, Key]:
        """Return the column of each field; raises `UnknownLeafError` if it is missing."""
        names = {".".join(key): key for key in known}
        for name in self._expression.fields:
            if name not in names:
                problem = "Step 'filter': episodes have no"
                raise unknown(UnknownLeafError, problem, name, names, shown=repr)
        return {field: names[field] for field in self._expression.fields}


@dataclass(frozen=True)
class Split(Selection, name="split", example="split:train,train=0.9,val=0.1,seed=0"):
    """Keep one part of a split of the episodes: `split:train,train=0.9,val=0.1,seed=0`.

    The same seed and shares select the episodes of `ds.split(train=0.9, val=0.1, seed=0)["train"]`,
    on every machine: parts are disjoint, and shares that sum to 1 cover all episodes. The order of
    the shares matters. Episodes keep their order.

    Raises:
        UsageError: Invalid shares, a part that is not one of them, a negative seed.
        StepError: A share without any episode.

    Example:
        >>> table = {("length",): np.ones(10, np.int64)}
        >>> shares = (("train", 0.8), ("val", 0.2))
        >>> train, val = (Split(part, shares).choose(table, {}) for part in ("train", "val"))
        >>> train.sum().item(), (train ^ val).all().item()
        (8, True)
    """

    by_values = False

    part: str
    """Name of the share to keep."""
    shares: Annotated[tuple[tuple[str, float], ...], _SHARES]
    """Name and size of each share, above 0; they sum to at most 1."""
    seed: Annotated[int, at_least(0)] = 0
    """Seed of the split."""

    def _problems(self) -> Iterator[str]:
        names, sizes = [name for name, _ in self.shares], [size for _, size in self.shares]
        shares = f"has shares={self.shares}; expected"
        if sum(sizes) > 1 + ROUNDING or len(set(names)) < len(names):
            yield f"{shares} different names, and shares that sum to 1 or less"
        if self.part not in names:
            yield f"has part={self.part}; expected one of the shares: {', '.join(names)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        words = split_parts(text)
        parts = [word for word in words if "=" not in word]
        if len(parts) != 1:
            raise usage_error(cls, f"is given {len(parts)} parts to keep; expected one")
        pairs = read_pairs(cls, [word for word in words if "=" in word])
        values = [(name, scalar(value)) for name, value in pairs]
        seeds = [value for name, value in values if name == "seed"]
        if len(seeds) > 1:
            raise usage_error(cls, "is given seed twice")
        return cls(parts[0], tuple(pair for pair in values if pair[0] != "seed"), *seeds)

    def choose(self, table: Columns, words: Words) -> NDArray[np.bool_]:
        count = len(table[("length",)])
        try:
            parts = split_episodes(count, dict(self.shares), self.seed, pairs=in_pairs(table))
        except UsageError as error:
            raise StepError(f"Step 'split': {error.message}", hint=error.shell_hint) from error
        chosen = np.zeros(count, bool)
        chosen[parts[self.part]] = True
        return chosen


@dataclass(frozen=True)
class Subsample(Selection, name="subsample", example="subsample:fraction=0.1,seed=0"):
    """Keep a fraction of the episodes, a number of them, or every n-th; at least one.

    A random choice depends only on the seed and the number of episodes. With the same seed, a
    smaller choice is a subset of a larger one, and a fraction equals the first share of `split` of
    that size. Episodes keep their order.

    Raises:
        UsageError: Not exactly one of `fraction`, `every` and `episodes`; a value out of range.
        StepError: More episodes than there are.

    Example:
        >>> table = {("length",): np.ones(7, np.int64)}
        >>> Subsample(every=3).choose(table, {}).nonzero()[0].tolist()
        [0, 3, 6]
        >>> Subsample(fraction=0.3).choose(table, {}).sum().item()
        2
    """

    by_values = False

    fraction: Annotated[float | None, _SHARE] = None
    """Fraction of the episodes, above 0, at most 1; rounded to whole episodes."""
    every: Annotated[int | None, at_least(1)] = None
    """Episodes 0, `every`, 2 · `every`, … at this point."""
    episodes: Annotated[int | None, at_least(1)] = None
    """Number of episodes."""
    seed: Annotated[int, at_least(0)] = 0
    """Seed of the choice."""

    def _problems(self) -> Iterator[str]:
        names = ("fraction", "every", "episodes")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            values = ", ".join(f"{name}={getattr(self, name)!r}" for name in given) or "none"
            yield f"needs one of {', '.join(names)}; found {values}"

    def choose(self, table: Columns, words: Words) -> NDArray[np.bool_]:
        count = len(table[("length",)])
        chosen = np.zeros(count, bool)
        if self.every is not None:
            chosen[:: self.every] = True
            return chosen
        size = self.episodes or 0
        if self.fraction is not None:
            size = max(1, math.floor(self.fraction * count + 0.5 + ROUNDING))
        elif size > count:
            raise StepError(
                f"Step 'subsample' is to keep {plural(size, 'episode')}, and there are {count}",
                hint="subsample:fraction=1 keeps all",
            )
        chosen[EpochOrder(count, self.seed, 0).between(0, size)] = True
        return chosen


def episodes_where(reader: DatasetReader, where: str) -> NDArray[np.bool_]:
    """Return for which episodes of a dataset an expression of `Filter` is true, bool `[E]`.

    Raises `UsageError`, `StepError`, `UnknownLeafError` as `Filter`.
    """
    table: dict[Key, NDArray[Any]] = {key: np.asarray(c) for key, c in reader.episodes.items()}
    table[("number",)] = np.arange(reader.episode_count)
    return Filter.parse(where).bind(reader, ()).choose(table, episode_words(reader))


def _pack_rows(columns: Mapping[Key, NDArray[Any]], rows: int) -> NDArray[np.uint8]:
    """Return the bytes of all columns side by side, `[rows, width]`, so an episode is one buffer."""
    parts = [np.zeros((rows, 0), np.uint8)]
    for key in sorted(columns):
        if width := math.prod(columns[key].shape[1:]):
            flat = np.ascontiguousarray(columns[key]).reshape(rows, width)
            parts.append(flat.view(np.uint8))
    return np.concatenate(parts, axis=1)


def _field(name: str, column: NDArray[Any], words: Sequence[str] | None) -> NDArray[Any]:
    """Return one value per episode, in a type that expressions support."""
    flat = np.asarray(column).reshape(len(column), -1)
    if flat.shape[1] != 1 or flat.dtype.kind not in "biuf":
        raise StepError(
            f"Step 'filter': {name!r} is {column.dtype} {list(column.shape[1:])} for each episode; "
            "expected one number, flag or text"
        )
    values = flat[:, 0]
    if words is not None:
        return np.asarray(np.array([*words, None], object)[values])  # -1: no text
    small = values.dtype.kind in "iu" and int(values.max(initial=0)) <= np.iinfo(np.int64).max
    return values.astype(np.int64) if small else values


def _describe_range(name: str, field: NDArray[Any]) -> str:
    if field.dtype != object:
        return f"{name} is from {field.min()} to {field.max()}"
    known = [word for word in dict.fromkeys(field) if word is not None]
    words = [word if len(word) <= 40 else f"{word[:40]}…" for word in known[:5]]
    return f"{name} is one of {words}" + ("…" if len(known) > 5 else "")
