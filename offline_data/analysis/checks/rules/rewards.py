"""Rules on rewards: outliers, constant or zero throughout, shifted by one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.checks.block import RowBlock
from offline_data.analysis.checks.finding import Finding
from offline_data.analysis.checks.rule import Rule, Tally
from offline_data.analysis.checks.rules.values import Range, RangeRule
from offline_data.analysis.checks.tokens import token_leaves
from offline_data.base.errors import UsageError
from offline_data.base.plurals import plural, plural_of
from offline_data.episode.fields import REWARD, Key
from offline_data.store.reader import DatasetReader

if TYPE_CHECKING:
    # Of observations, actions and next observations, `[n, …]` (mappings where leaves are nested);
    # returns rewards `[n]`.
    RewardFunction: TypeAlias = Callable[[Any, Any, Any], NDArray[Any]]

_EXPONENTS = 2100  # binary exponents of float64, from that of its least number on
_LEAST = -1075


def _reward_leaf(_rule: Rule, reader: DatasetReader) -> Iterable[Key]:
    return (REWARD,) if REWARD in reader.step_leaves else ()


class RewardOutliers(Rule):
    """A few rewards are many times as large as all others.

    They dominate returns and the loss of a value function. A sensor's error value (-9999) or a crash
    in the simulation are usual causes. Sparse rewards are not outliers: zeros do not count.
    """

    code = "RL040"
    name = "reward-outliers"
    severity = "warning"
    hint = "inspect these rows; clip with `preprocess --step clip`, or filter the episodes"
    thresholds: ClassVar = {"times": 64.0, "share": 0.001}
    explained: ClassVar = {
        "times": "magnitude, as a multiple of that of the other rewards",
        "share": "largest share of the rewards other than 0 that are outliers",
    }

    leaves = _reward_leaf

    def measure(self, block: RowBlock, key: Key) -> Tally:
        values = np.abs(block.numbers(key)[:, 0].astype(np.float64))
        values[~np.isfinite(values)] = 0
        counts = np.bincount(np.frexp(values[values > 0])[1] - _LEAST, minlength=_EXPONENTS)
        at = int(values.argmax())
        return Tally(counts=counts, high=float(values[at]), place=block.place(key, at))

    def merge(self, first: Tally, second: Tally) -> Tally:
        if second.high > first.high:
            first.place = second.place
        return first + second

    def of_leaf(self, reader: DatasetReader, key: Key, found: Tally) -> Iterator[Finding]:
        sizes = np.flatnonzero(found.counts)
        above = np.cumsum(found.counts[::-1])[::-1]
        gap = int(np.ceil(np.log2(self.limits["times"])))
        few = above[sizes[1:]] <= self.limits["share"] * above[0]
        outlying = sizes[1:][(np.diff(sizes) > gap) & few]
        if len(outlying):
            rows, usual = int(above[outlying[0]]), sizes[sizes < outlying[0]][-1]
            yield self.finding(
                reader,
                f"{plural(rows, 'reward is', 'rewards are')} up to {found.high:.6g} in magnitude; "
                f"the others are at most {2.0 ** float(usual + _LEAST):.3g}",
                found.place,
                count=rows,
            )


class ConstantReward(RangeRule):
    """Every reward is the same number, other than 0.

    Nothing distinguishes good actions, except where episodes have different lengths: a cost of -1 for
    each step, or 1 while a pole stands, is harmless.
    """

    code = "RL041"
    name = "constant-reward"
    severity = "info"
    hint = "relabel the rewards, unless the length of episodes is the objective"

    leaves = _reward_leaf

    def of_leaf(self, reader: DatasetReader, key: Key, found: Range) -> Iterator[Finding]:
        if reader.transitions > 1 and found.low == found.high != 0:
            yield self.finding(
                reader, f"Every reward is {found.low.item():.6g}", leaf="next/reward"
            )


class AllZeroReward(RangeRule):
    """Every reward is 0.

    Demonstrations often have none (RLDS writes zeros): imitation learning works, reinforcement
    learning does not. Text without scores is not reported.
    """

    code = "RL042"
    name = "all-zero-reward"
    severity = "warning"
    hint = "relabel the rewards (`derived=relabel(…)`), or train by imitation"

    leaves = _reward_leaf

    def of_leaf(self, reader: DatasetReader, key: Key, found: Range) -> Iterator[Finding]:
        if found.is_zero and not token_leaves(reader):
            text = f"All {plural(reader.transitions, 'reward is', 'rewards are')} 0"
            yield self.finding(reader, text, leaf="next/reward", count=reader.transitions)


class ShiftedReward(Rule):
    """The rewards are those of the row before or after, according to a given reward function.

    D4RL's first maze2d datasets have such rewards. The function is given in Python:
    `offline_data.check(ds, reward=fn)`; it gets arrays of observations, actions and next observations
    (mappings of arrays where features are nested) and returns rewards, `[n]`. Rows at the ends of
    episodes are not compared.
    """

    code = "RL043"
    name = "shifted-reward"
    severity = "error"
    hint = "shift the rewards by a row in the source, or relabel them (`derived=relabel(…)`)"
    thresholds: ClassVar = {"share": 0.99, "tolerance": 1e-4}
    explained: ClassVar = {
        "share": "share of the rows that a shifted function must match",
        "tolerance": "difference, relative to the larger reward (or 1), that counts as equal",
    }

    def __init__(
        self, thresholds: Mapping[str, float] | None = None, reward: RewardFunction | None = None
    ) -> None:
        super().__init__(thresholds)
        self._reward = reward

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        return () if self._reward is None else _reward_leaf(self, reader)

    def measure(self, block: RowBlock, key: Key) -> Tally:
        assert self._reward is not None  # noqa: S101 -- see `leaves`
        reader = block.reader
        rows = np.arange(max(block.first - 1, 0), min(block.stop + 1, reader.transitions))
        known = reader.transitions_at(rows)
        given = (
            _nest(known, root) for root in (("observation",), ("action",), ("next", "observation"))
        )
        expected = np.asarray(self._reward(*given), np.float64).reshape(-1)
        if len(expected) != len(rows):
            raise UsageError(
                f"The reward function returned {plural(len(expected), 'reward')} for "
                f"{plural(len(rows), 'row')}"
            )
        rewards = block.numbers(key)[:, 0].astype(np.float64)
        offset = block.first - int(rows[0])
        starts, lengths = reader.starts[block.episodes], reader.lengths[block.episodes]
        at = np.arange(block.first, block.stop)
        inner = np.flatnonzero((at > starts) & (at < starts + lengths - 1))
        found = [self._equal(rewards[inner], expected[inner + offset + by]) for by in (-1, 0, 1)]
        before, same, after = (int(equal.sum()) for equal in found)
        figures = {"rows": len(inner), "before": before, "same": same, "after": after}
        return Tally.of(block, key, inner[~found[1]], **figures)

    def of_leaf(self, reader: DatasetReader, key: Key, found: Tally) -> Iterator[Finding]:
        shifted = max(found.before, found.after)
        if found.rows and shifted >= self.limits["share"] * found.rows > found.same:
            which = "before" if found.before >= found.after else "after"
            text = plural_of(shifted, found.rows, "reward", "is", "are") + f" of the row {which}; "
            text += f"{plural(found.same, 'is of its', 'are of their')} own row"
            yield self.finding(reader, text, found.place, count=shifted)

    def _equal(self, values: NDArray[Any], others: NDArray[Any]) -> NDArray[np.bool_]:
        size = np.maximum(1, np.maximum(np.abs(values), np.abs(others)))
        return np.asarray(np.abs(values - others) <= self.limits["tolerance"] * size)


def _nest(leaves: Mapping[Key, NDArray[Any]], root: Key) -> Any:
    """Return the array at a key, or a mapping of those below it."""
    if root in leaves:
        return np.asarray(leaves[root])
    names = dict.fromkeys(key[len(root)] for key in leaves if key[: len(root)] == root)
    return {name: _nest(leaves, (*root, name)) for name in names}
