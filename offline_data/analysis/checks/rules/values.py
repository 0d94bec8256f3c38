"""Rules on the values of numeric features: not finite, constant, all zero."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.checks.block import RowBlock, all_leaves, numeric
from offline_data.analysis.checks.finding import Finding, Severity
from offline_data.analysis.checks.rule import Rule, Tally
from offline_data.analysis.checks.tokens import TOKEN_ROOTS
from offline_data.base.plurals import plural
from offline_data.episode.fields import REWARD, Key, join_key
from offline_data.store.reader import DatasetReader

MOST_LISTED = 8  # features that a message lists

_LEARNT = ("observation", "action")  # roots of leaves that policies learn; others weigh less


class Range(NamedTuple):
    """Extremes of each dimension, `[*shape]`; NaN where one is."""

    low: NDArray[Any]
    high: NDArray[Any]

    @property
    def is_zero(self) -> bool:
        """Whether all rows are 0."""
        return not (self.low.any() or self.high.any())


def name_features(places: NDArray[Any], total: int) -> str:
    """Return the subject of a sentence on some dimensions.

    Example:
        >>> name_features(np.array([[0], [2]]), 3), name_features(np.array([[1]]), 3)
        ('2 of 3 dimensions ([0], [2]) are', '1 of 3 dimensions ([1]) is')
    """
    names = [str(list(map(int, place))) for place in places[:MOST_LISTED]]
    more = ", …" if len(places) > MOST_LISTED else ""
    verb = "is" if len(places) == 1 else "are"
    return f"{len(places)} of {plural(total, 'dimension')} ({', '.join(names)}{more}) {verb}"


class NonFiniteValues(Rule):
    """A feature has NaN or infinite values.

    One NaN in a batch makes the loss NaN and, with the next update, every weight. Sources use NaN
    for "not measured" (RoboHive's last action of each trial); a filter or a mask is needed then.
    """

    code = "RL020"
    name = "non-finite-values"
    severity = "error"
    hint = "remove these rows with a filter, or replace the values with `preprocess`"

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        return [k for k, leaf in all_leaves(reader).items() if leaf.dtype.startswith("float")]

    def measure(self, block: RowBlock, key: Key) -> Tally | None:
        low, high = block.extremes(key)
        if np.isfinite(low).all() and np.isfinite(high).all():
            return None
        values = block.numbers(key)
        bad, count = ~np.isfinite(values), int(np.isnan(values).sum())
        rows = np.flatnonzero(bad.reshape(len(values), -1).any(1))
        return Tally.of(block, key, rows, nan=count, inf=int(bad.sum()) - count)

    def message(self, reader: DatasetReader, key: Key, found: Tally) -> str:
        rows, infinite = plural(found.number, "row has", "rows have"), "infinite value"
        return f"{rows} {found.nan:,} NaN and {plural(found.inf, infinite)}"


class RangeRule(Rule):
    """A rule on the range of each dimension over the whole dataset."""

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        known = numeric(all_leaves(reader))  # tokens are words, and padding is constant
        return [key for key in known if key != REWARD and key[0] not in TOKEN_ROOTS]

    def measure(self, block: RowBlock, key: Key) -> Range:
        return Range(*block.extremes(key))

    def merge(self, first: Range, second: Range) -> Range:
        return Range(np.minimum(first.low, second.low), np.maximum(first.high, second.high))


class ConstantFeature(RangeRule):
    """A dimension of a feature has the same value in every row.

    It carries no information, and dividing by its standard deviation of 0 makes it NaN or infinite.
    Rewards, and features that are 0 throughout, have rules of their own.
    """

    code = "RL021"
    name = "constant-feature"
    severity = "warning"
    hint = "drop the dimension with `preprocess`, or normalize with a lower limit of the deviation"

    def of_leaf(self, reader: DatasetReader, key: Key, found: Range) -> Iterator[Finding]:
        places = np.argwhere(np.atleast_1d(found.low == found.high))
        if len(places) and reader.transitions > 1 and not found.is_zero:
            text = f"{name_features(places, found.low.size)} constant"
            if found.low.size == 1:
                text = f"Every row is {found.low.flat[0]!s}"
            severity: Severity | None = None if key[0] in _LEARNT else "info"
            leaf, count = join_key(key), len(places)
            yield self.finding(reader, text, leaf=leaf, count=count, severity=severity)


class AllZeroLeaf(RangeRule):
    """A feature is 0 in every row.

    Usually it was never written: TorchRL's Minari adapter allocates files of the right shape and
    writes no values. Infos that are 0 because nothing happened are harmless.
    """

    code = "RL022"
    name = "all-zero-leaf"
    severity = "warning"
    hint = "compare with the source; convert again with `--audit all`"

    def of_leaf(self, reader: DatasetReader, key: Key, found: Range) -> Iterator[Finding]:
        if found.is_zero:
            is_index = key[0] == "action" and found.low.dtype.kind != "f"  # 0 is one of them
            learnt: Severity = "warning" if is_index else "error"
            severity = learnt if key[0] in _LEARNT else "info"
            rows, leaf = reader.transitions, join_key(key)
            text = f"All {plural(rows, 'row is', 'rows are')} 0"
            yield self.finding(reader, text, leaf=leaf, count=rows, severity=severity)
