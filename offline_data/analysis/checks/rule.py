"""Base class of rules: a short class with a code, whose docstring explains it."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from operator import add
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.checks.block import RowBlock, RowPlace
from offline_data.analysis.checks.finding import Finding, Severity
from offline_data.base.errors import UsageError
from offline_data.base.ids import unknown
from offline_data.episode.fields import Key
from offline_data.store.reader import DatasetReader


class Measured(NamedTuple):
    """A dataset and what a rule measured of its features."""

    reader: DatasetReader
    leaves: Mapping[Key, Any]


class Tally(SimpleNamespace):
    """Figures of some rows of a feature, by name; `+` joins those of the rows after them.

    Both have the same names. Numbers, arrays and counters add up; the first `place`, the least
    `low` and the greatest `high` stay. `number` is how many rows, or values, a finding is about.

    Example:
        >>> Tally(number=2, place=None, low=5.0) + Tally(number=1, place="row 7", low=4.0)
        Tally(number=3, place='row 7', low=4.0)
    """

    @classmethod
    def of(cls, block: RowBlock, key: Key, at: NDArray[np.intp], /, **figures: Any) -> Tally:
        """Return a tally of some rows of `block.values(key)`, ascending, with other figures."""
        place = block.place(key, int(at[0])) if len(at) else None
        return cls(number=len(at), place=place, **figures)

    def __bool__(self) -> bool:
        """Return True if there is something to report."""
        return bool(self.number)

    def __add__(self, other: Tally) -> Tally:
        joined: dict[str, Any] = {"place": lambda a, b: a or b, "low": min, "high": np.fmax}
        figures = vars(self).items()
        return Tally(**{k: joined.get(k, add)(v, getattr(other, k)) for k, v in figures})


class Rule(ABC):
    """A rule: subclasses set the four class attributes and override what they need.

    The first paragraph of a subclass's docstring says in one sentence what the rule looks for, the
    rest explains why it matters and when a finding is harmless; `offline-data explain CODE` prints it.

    A run creates each rule once. It passes each feature that `leaves` names to `measure`, block by
    block, in several threads, merges the results of a feature in order of rows, and passes them to
    `of_leaf`. A rule whose measures are a `Tally` may override `message` instead: it then has one
    finding for each feature. Rules that need no rows, only the manifest or the table of episodes,
    override `findings` alone; rules that compare datasets with each other override `across`.

    Args:
        thresholds: Values in place of those of `thresholds`.

    Raises:
        UsageError: A threshold that the rule does not have, or that is not a number.
    """

    code: ClassVar[str]
    """`RL020`; rules of other packages have other letters. `RL1` is reserved for text."""
    name: ClassVar[str]
    """Name for people, `non-finite-values`."""
    severity: ClassVar[Severity]
    hint: ClassVar[str] = ""
    """Next step after a finding."""
    by_default: ClassVar[bool] = True
    """Whether it is in a run that selects no rules."""
    thresholds: ClassVar[Mapping[str, float]] = {}
    """Names and defaults of what can be configured."""
    explained: ClassVar[Mapping[str, str]] = {}
    """Meaning of each threshold, with its unit, by name."""

    def __init__(self, thresholds: Mapping[str, float] | None = None) -> None:
        given = dict(thresholds or {})
        for name, value in given.items():
            if name not in self.thresholds:
                raise unknown(
                    UsageError, f"Rule {self.code} has no threshold", name, self.thresholds
                )
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise UsageError(f"Threshold {name!r} of {self.code} is {value!r}, not a number")
        self.limits: Mapping[str, float] = {**self.thresholds, **given}

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        """Return the features of steps or observations (root keys) to pass to `measure`."""
        del reader
        return ()

    def measure(self, block: RowBlock, key: Key) -> Any:
        """Measure one feature in one block; None if there is nothing to remember.

        Called in threads: must not change the rule.
        """
        raise NotImplementedError

    def merge(self, first: Any, second: Any) -> Any:
        """Join the measures of two consecutive parts of a feature, neither of them None."""
        return first + second

    def findings(self, measured: Measured) -> Iterable[Finding]:
        """Return the findings of one dataset, from what `measure` returned for each feature."""
        for key, found in measured.leaves.items():
            yield from self.of_leaf(measured.reader, key, found)

    def of_leaf(self, reader: DatasetReader, key: Key, found: Any) -> Iterable[Finding]:
        """Return the findings on one feature, from its merged measures."""
        if found and (message := self.message(reader, key, found)):
            yield self.finding(reader, message, found.place, count=found.number)

    def message(self, reader: DatasetReader, key: Key, found: Tally) -> str:
        """Return the finding on one feature, at `found.place` on `found.number` rows; empty: none."""
        del reader, key, found
        return ""

    def across(self, measured: Sequence[Measured]) -> Iterable[Finding]:
        """Return the findings that concern several datasets of the run, two at least."""
        del measured
        return ()

    def finding(
        self,
        reader: DatasetReader,
        message: str,
        place: RowPlace | None = None,
        *,
        leaf: str | None = None,
        episode: int | None = None,
        row: int | None = None,
        count: int = 1,
        about: str | None = None,
        severity: Severity | None = None,
        hint: str | None = None,
    ) -> Finding:
        """Make a finding of this rule; `place` sets feature, episode and row unless these are given."""
        if place is not None:
            leaf = leaf or place.leaf
            episode, row = place.episode, place.row
        return Finding(
            self.code,
            self.name,
            severity or self.severity,
            reader.manifest.id,
            message,
            leaf,
            episode,
            row,
            count,
            about,
            hint or self.hint or None,
        )

    @classmethod
    def summary(cls) -> str:
        """Return what the rule looks for, in one sentence."""
        return " ".join((cls.__doc__ or "").split("\n\n")[0].split())
