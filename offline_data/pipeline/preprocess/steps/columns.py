"""Steps that change whole columns: `cast clip concat exclude flatten rename select`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from offline_data.base.errors import StepError
from offline_data.base.exact import changes, holds
from offline_data.base.ids import did_you_mean
from offline_data.episode.fields import (
    ACTION_ROOTS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Key,
    join_key,
    next_of,
    split_key,
)
from offline_data.pipeline.preprocess.steps.base import Step
from offline_data.pipeline.preprocess.steps.leaves import (
    OUTCOMES,
    below,
    change_columns,
    column,
    leaves,
    matching,
    meant,
    numbers,
    outcomes,
    place_of,
    rebuilt,
    replace_columns,
    root_of,
)
from offline_data.pipeline.preprocess.steps.parse import FINITE, read_arguments, usage_error
from offline_data.store.chunk import EpisodeChunk
from offline_data.store.layout import DTYPES

BLOCK_BYTES = 1 << 20
"""Bytes of a column converted at once, to stay in the processor's cache."""


@dataclass(frozen=True)
class Cast(Step, name="cast", example="cast:observation=float32"):
    """Convert numbers of some features to another type; shapes are unchanged.

    Values are rounded to the nearest for floating-point and complex types; finite ones must stay
    finite. For integers and bool every value must be exactly representable. If two pairs match a
    feature, the later one applies: `obs=float32,obs.code=int32`.

    Raises:
        UsageError: No pair, or a type that cannot be stored.
        StepError: No such numeric feature; a value that the type cannot represent, with its row; a
            flag that would not be bool, a reward that would not be real.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> smaller = Cast((("observation", "float32"),)).apply(toy_chunk([2])).batch
        >>> smaller.observations["observation", "position"].dtype.name
        'float32'
    """

    types: tuple[tuple[str, str], ...]
    """Pairs of a feature, or the beginning of several keys, and numpy's name of a type."""

    def _problems(self) -> Iterator[str]:
        if not self.types:
            yield "needs a pair like observation=float32"
        for _, dtype in self.types:
            if dtype not in DTYPES:
                guess = did_you_mean(dtype, DTYPES, shown=repr) or f"there are {', '.join(DTYPES)}"
                yield f"knows no type {dtype!r}; {guess}"

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        wanted: dict[Key, np.dtype[Any]] = {}
        for name, dtype in self.types:
            wanted.update(dict.fromkeys(numbers(chunk, [name], "biufc"), np.dtype(dtype)))
        return replace_columns(
            chunk, {key: self._cast(chunk, key, to) for key, to in wanted.items()}
        )

    def _cast(self, chunk: EpisodeChunk, key: Key, dtype: np.dtype[Any]) -> NDArray[Any]:
        must = {TERMINATED: "b", TRUNCATED: "b", REWARD: "iuf"}.get(key, dtype.kind)
        if dtype.kind not in must:
            kind = "bool" if must == "b" else "real numbers"
            raise StepError(f"Step 'cast' would make {join_key(key)!r} {dtype}; it must be {kind}")
        values = column(chunk, key)
        if values.dtype == dtype:
            return values
        cast = np.empty(values.shape, dtype)
        if lost := convert(values, cast):
            place = place_of(chunk, key, lost[0])
            raise StepError(
                f"Step 'cast': {join_key(key)!r} is {lost[1]} in {place}, which {dtype} cannot hold"
            )
        return cast


@dataclass(frozen=True)
class Clip(Step, name="clip", example="clip:action,low=-1,high=1"):
    """Clip numbers of some features to bounds; types are unchanged.

    `min(max(x, low), high)`, with the bounds rounded to the feature's type. Infinities become a bound,
    NaN stays NaN. Integers are clipped to the integers within the bounds.

    Raises:
        UsageError: No bound, one that is not finite, or `low` above `high`.
        StepError: No such feature of real numbers, or no value of its type within the bounds.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> Clip(("action",), high=2.0).apply(toy_chunk([3])).batch.steps["action",].max().item()
        2.0
    """

    keys: tuple[str, ...] = field(metadata={"many": True})
    """Features, or beginnings of keys: all features of real numbers below them."""
    low: Annotated[float | None, FINITE] = None
    """Minimum, in the feature's unit; None: no bound."""
    high: Annotated[float | None, FINITE] = None
    """Maximum; None: no bound."""

    def _problems(self) -> Iterator[str]:
        given = [bound for bound in (self.low, self.high) if bound is not None]
        if not given or sorted(given) != given:
            found = f"has low={self.low}, high={self.high}"
            yield f"{found}; expected one bound or two, low <= high"

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        found = numbers(chunk, self.keys)
        return replace_columns(chunk, {key: self._clip(column(chunk, key), key) for key in found})

    def _clip(self, values: NDArray[Any], key: Key) -> NDArray[Any]:
        dtype, low, high = values.dtype, self.low, self.high
        least, greatest = -math.inf, math.inf
        if dtype.kind == "f":
            most = float(np.finfo(dtype).max)
            least = least if low is None else min(max(low, -most), most)
            greatest = greatest if high is None else max(min(high, most), -most)
        else:
            info = np.iinfo(dtype)
            least = info.min if low is None else max(math.ceil(low), info.min)
            greatest = info.max if high is None else min(math.floor(high), info.max)
        if least > greatest:
            raise StepError(
                f"Step {self.name!r}: {join_key(key)!r} is {dtype}, and no such number is between "
                f"{'-inf' if low is None else low} and {'inf' if high is None else high}"
            )
        return np.asarray(np.clip(values, *np.array([least, greatest], dtype)))


@dataclass(frozen=True)
class Concat(
    Step,
    name="concat",
    example="concat:observation.position,observation.velocity→observation.state",
):
    """Concatenate features along the last axis, in the given order, and drop the sources.

    Scalars count as `[1]`; all other axes must be equal. Sources are all observation features,
    concatenated before and after the action alike; or, like the target, all step features under
    `next`; or all other step features. Types are promoted as in `torch.cat`: a floating-point type
    over every integer type (`int64` with `float32` is `float32`, rounded), a wider one over a
    narrower one.

    Raises:
        UsageError: No source or no target.
        StepError: A feature that is missing, repeated or does not match the others; a target that
            conflicts with another feature; a number that the promoted type cannot represent; reward, a
            flag or the last action feature would be dropped.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> step = Concat.parse("observation.position,observation.velocity→observation")
        >>> step.apply(toy_chunk([1])).batch.observations["observation",].tolist()
        [[1.0, -1.0, 1.5], [2.0, -2.0, 2.5]]
    """

    sources: tuple[str, ...] = field(metadata={"many": True})
    """Features, or beginnings of keys: all features of numbers below them, in the order of names."""
    target: str
    """Name of the new feature; may be a prefix of the sources' keys."""
    keep: bool = False
    """Whether to keep the sources."""

    def _problems(self) -> Iterator[str]:
        if not self.sources or not self.target:
            yield "needs features and what they become"

    @classmethod
    def parse(cls, text: str) -> Self:
        sources, *rest = (part.strip() for part in re.split("→|->", text))
        _, *options = "".join(rest).split(",")
        if len(rest) != 1 or not sources or not all("=" in option for option in options):
            raise usage_error(
                cls,
                "needs features, one arrow → and one name that they get; in a shell, -> wants quotes",
            )
        return cls(**read_arguments(cls, f"{sources},target={rest[0]}"))

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        every = [key for name in self.sources for key in sorted(numbers(chunk, [name], "biufc"))]
        twice = next((key for key in every if every.count(key) > 1), None)
        if twice:
            raise StepError(f"Step 'concat' is given {join_key(twice)!r} twice")
        target, gone = split_key(self.target), dict.fromkeys(() if self.keep else every)
        if not gone.keys().isdisjoint(OUTCOMES):  # also if the target has the name of one
            rebuilt(chunk, self.name, gone)
        sources = [
            key for key in every if (root := root_of(chunk, key)) == key or root not in every
        ]
        after = [next_of(key) for key in sources if next_of(key) in every]
        sides = {(key in chunk.batch.observations, next_of(key) in every) for key in sources}
        observed = (True, False) in sides
        if len(sides) > 1 or (
            not observed and len({k[0] == "next" for k in [*sources, target]}) > 1
        ):
            raise StepError(
                f"Step 'concat' cannot join {', '.join(map(join_key, sources))} into "
                f"{join_key(target)!r}: they must be all observation features (of which all or none "
                "store 'next' apart), all step features under 'next', or all other step features"
            )
        result = {target: self._join(chunk, sources)}
        if after:
            result[next_of(target)] = self._join(chunk, after)
        return rebuilt(chunk, self.name, gone, result, observed=observed)

    def _join(self, chunk: EpisodeChunk, sources: list[Key]) -> NDArray[Any]:
        found = {join_key(key): column(chunk, key) for key in sources}
        parts = [part[:, None] if part.ndim == 1 else part for part in found.values()]
        if len({part.shape[1:-1] for part in parts}) > 1:
            listed = ", ".join(f"{name} {list(part.shape[1:])}" for name, part in found.items())
            raise StepError(f"Step 'concat' cannot join rows of these shapes: {listed}")
        types = [part.dtype for part in parts]
        floats = [dtype for dtype in types if dtype.kind in "fc"]
        dtype = np.result_type(*(floats or types))
        if dtype.kind in "fc" and not floats:
            listed = ", ".join(f"{name} {part.dtype}" for name, part in found.items())
            raise StepError(
                f"Step 'concat' finds no integer type for all of {listed}",
                hint=f"cast them first: --step cast:{join_key(sources[0])}=float64",
            )
        joined = np.empty((*parts[0].shape[:-1], sum(part.shape[-1] for part in parts)), dtype)
        end = 0
        for key, part in zip(sources, parts, strict=True):
            begin, end = end, end + part.shape[-1]
            if lost := convert(part, joined[..., begin:end], rounded=False):
                place = place_of(chunk, key, lost[0])
                raise StepError(
                    f"Step 'concat': {join_key(key)!r} ({part.dtype}) is {lost[1]} in {place}, which "
                    f"{dtype}, the type of the others, cannot hold",
                    hint=f"cast it first, which rounds: --step cast:{join_key(key)}={dtype}",
                )
        return joined


@dataclass(frozen=True)
class Exclude(Step, name="exclude", example="exclude:info,observation.velocity"):
    """Drop these features; all others are unchanged.

    Raises:
        StepError: A feature that is missing, or that every dataset needs: `next/reward`,
            `next/terminated`, `next/truncated`, the last action feature.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> [*Exclude(("info", "obs.velocity")).apply(toy_chunk([1])).batch.observations]
        [('observation', 'position')]
    """

    keys: tuple[str, ...] = field(metadata={"many": True})
    """Features to drop, or beginnings of keys: all features below them."""

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        return rebuilt(chunk, self.name, dict.fromkeys(matching(chunk, self.keys)))


@dataclass(frozen=True)
class Flatten(Step, name="flatten", example="flatten:observation.pixels"):
    """Flatten rows of some features to one axis: `[n, a, b]` to `[n, a · b]`, and `[n]` to `[n, 1]`.

    Row-major order, as in `torch.flatten`. Values and types are unchanged.

    Raises:
        StepError: A missing feature.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> batch = Flatten().apply(toy_chunk([2])).batch
        >>> batch.observations["observation", "velocity"].shape
        (3, 1)
    """

    keys: tuple[str, ...] = field(default=(), metadata={"many": True})
    """Features, or beginnings of keys; none: all that begin with `observation` or `action`."""

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        roots = {"observation", "action"}
        default = [key for key in leaves(chunk) if root_of(chunk, key)[0] in roots]
        keys = matching(chunk, self.keys) if self.keys else default
        return change_columns(
            chunk, keys, lambda rows: rows.reshape(len(rows), math.prod(rows.shape[1:]))
        )


@dataclass(frozen=True)
class Rename(Step, name="rename", example="rename:observation.position=state,info=extra"):
    """Rename features, all at once, so that two names can be swapped; values are unchanged.

    `a=b` renames the feature `a` to `b`; if `a` is a prefix of several keys, the prefix becomes `b`.
    An observation feature `a` becomes `b` and `next/b`. New names are used literally: short names
    (`obs`) are only for old ones.

    Raises:
        UsageError: No pair, or one feature twice.
        StepError: A missing feature; a name that conflicts with another feature or is reserved; no
            reward, flag or action feature would be left. Another feature may become the reward if it is
            suitable: `reward=next.old,next.shaped=next.reward`.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> renamed = Rename((("info.code", "state"), ("mission", "goal"))).apply(toy_chunk([1]))
        >>> ("state",) in renamed.batch.observations, [*renamed.words]
        (True, [('goal',)])
    """

    names: tuple[tuple[str, str], ...]
    """Pairs of an old and a new name."""

    def _problems(self) -> Iterator[str]:
        old = [split_key(pair[0]) for pair in self.names]
        if not old or len(set(old)) < len(old):
            yield "needs pairs like a=b, each old name once"

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        new: dict[Key, Key | None] = {}
        following: dict[Key, Key | None] = {}
        for old, name in self.names:
            beginning = meant(chunk, old)
            for key in below(chunk, beginning):
                if key[: len(beginning)] != beginning:  # `next` of a leaf that is named
                    following[key] = next_of((*split_key(name), *key[len(beginning) + 1 :]))
                elif key in new:
                    raise StepError(f"Step 'rename' has two new names for {join_key(key)!r}")
                else:
                    new[key] = (*split_key(name), *key[len(beginning) :])
        return rebuilt(chunk, self.name, following | new)


@dataclass(frozen=True)
class Select(Step, name="select", example="select:observation,action"):
    """Keep these features, `next/reward`, `next/terminated` and `next/truncated`; drop all others.

    All features of actions, or of tokens, are kept if none is named.

    Raises:
        StepError: A missing feature.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> kept = Select(("obs.position",)).apply(toy_chunk([1])).batch
        >>> [*kept.observations], [*kept.steps][:2]
        ([('observation', 'position')], [('action',), ('next', 'reward')])
    """

    keys: tuple[str, ...] = field(metadata={"many": True})
    """Features to keep, or beginnings of keys: all features below them."""

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        kept = {*matching(chunk, self.keys), *outcomes(chunk)}
        if not any(key[0] in ACTION_ROOTS for key in kept):
            kept.update(key for key in leaves(chunk) if key[0] in ACTION_ROOTS)
        return rebuilt(chunk, self.name, dict.fromkeys({*leaves(chunk)} - kept))


def convert(
    values: NDArray[Any], out: NDArray[Any], *, rounded: bool = True
) -> tuple[int, Any] | None:
    """Write numbers or bools to an array of another type; return row and value of the first lost one.

    Values are rounded to the nearest for floating-point and complex types, where finite values must
    stay finite; for integers and bool, or unless `rounded`, they must be exactly representable. An
    imaginary part must not be lost.

    Example:
        >>> out = np.empty(2, np.int64)
        >>> convert(np.array([3.0, 0.5]), out)
        (1, 0.5)
    """
    safe = holds(out.dtype, values.dtype)
    count = max(1, BLOCK_BYTES // max(1, values.dtype.itemsize * math.prod(values.shape[1:])))
    for first in range(0, len(values), count):
        block, result = values[first : first + count], out[first : first + count]
        unreal = block.dtype.kind == "c" and result.dtype.kind != "c"
        with np.errstate(all="ignore"):
            np.copyto(result, block.real if unreal else block, casting="unsafe")
            if safe:
                continue
            if rounded and result.dtype.kind in "fc":
                wrong = np.isfinite(block) & ~np.isfinite(result) | unreal & (block.imag != 0)
            else:
                wrong = changes(block, result)
        if wrong.any():
            where = tuple(int(axis[0]) for axis in np.nonzero(wrong))
            return first + where[0], block[where].item()
    return None
