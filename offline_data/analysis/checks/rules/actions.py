"""Rules on actions and spaces: outside a space, saturated, of a wrong dtype or scale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

import numpy as np

from offline_data.analysis.checks.block import RowBlock, all_leaves, numeric
from offline_data.analysis.checks.finding import Finding
from offline_data.analysis.checks.rule import Measured, Rule, Tally
from offline_data.analysis.checks.rules.values import Range, RangeRule, name_features
from offline_data.base.plurals import plural
from offline_data.episode.fields import Key, join_key
from offline_data.store.reader import DatasetReader
from offline_data.store.spaces import LeafSpace, declared_spaces, mismatched_spaces

_TOLERANCE = 1e-6  # relative distance beyond a bound that rounding to float32 can make


def declared_bounds(reader: DatasetReader, root: str = "action") -> dict[Key, LeafSpace]:
    """Return the spaces of numeric features, where the source declares one that fits them.

    Raises:
        FormatError: The space cannot be read.
    """
    leaves = numeric(all_leaves(reader), root)
    return {key: space for key, space in declared_spaces(reader).items() if key in leaves}


def _bounded_actions(_rule: Rule, reader: DatasetReader) -> list[Key]:
    """Return the floating-point leaves of a Box with finite bounds, the upper ones larger."""
    return [
        key
        for key, space in declared_bounds(reader).items()
        if space.kind == "Box"
        and reader.leaves[key].dtype.startswith("float")
        and np.isfinite([space.low, space.high]).all()
        and (space.high > space.low).all()
    ]


class _OutsideSpace(Rule):
    """A rule on the leaves below one root, whose space the source declares."""

    root: ClassVar[str]

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        spaces = declared_bounds(reader, self.root).items()
        return [key for key, space in spaces if np.isfinite([space.low, space.high]).any()]

    def measure(self, block: RowBlock, key: Key) -> Tally | None:
        bounds = declared_bounds(block.reader, self.root)[key]
        room = _TOLERANCE * np.maximum(1, np.abs([bounds.low, bounds.high]))
        room[~np.isfinite(room)] = 0
        low, high = bounds.low - room[0], bounds.high + room[1]
        least, greatest = block.extremes(key)
        if ((least >= low) & (greatest <= high)).all():  # False where an extreme is NaN
            return None
        values = block.numbers(key)
        beyond = ((values < low) | (values > high)).reshape(len(values), -1)
        rows = np.flatnonzero(beyond.any(1))
        if not len(rows):
            return None
        far = values.reshape(len(values), -1)[beyond]
        return Tally.of(block, key, rows, low=float(far.min()), high=float(far.max()))

    def findings(self, measured: Measured) -> Iterator[Finding]:
        for key, problem in mismatched_spaces(measured.reader, self.root).items():
            yield self.finding(measured.reader, problem, leaf=join_key(key))
        yield from super().findings(measured)

    def message(self, reader: DatasetReader, key: Key, found: Tally) -> str:
        space = declared_bounds(reader, self.root)[key]
        low, high = float(space.low.min()), float(space.high.max())
        most = f" to {found.high:.6g}" if found.high != found.low else ""
        return (
            f"{plural(found.number, 'row is', 'rows are')} outside "
            f"{space.kind}({low:g}, {high:g}): {found.low:.6g}{most}"
        )


class ActionOutsideSpace(_OutsideSpace):
    """An action is outside the space that the source declares.

    An environment clips it or raises, and a policy that is squashed to the bounds never reaches it.
    Values beyond a bound by up to a millionth of it, as after rounding to float32, are accepted. A
    space of another shape, which contains no row, is reported as well.
    """

    code = "RL030"
    name = "action-outside-space"
    severity = "error"
    hint = "clip the actions with `preprocess --step clip`, or correct the space in the source"
    root = "action"


class ObservationOutsideSpace(_OutsideSpace):
    """An observation is outside the space that the source declares.

    Scaling by the bounds then gives values outside its range, `ds.observation_space` does not
    contain the row, and `ds.specs` refuses the batch. Images and text are not checked. Values
    beyond a bound by up to a millionth of it, as after rounding to float32, are accepted. A space
    of another shape, which contains no row, is reported as well.
    """

    code = "RL023"
    name = "observation-outside-space"
    severity = "warning"
    hint = "scale by the range of the data (`stats`), or correct the space in the source"
    root = "observation"


class SaturatedActions(Rule):
    """Most values of a continuous action are at the bounds of its space.

    The density of a squashed Gaussian is infinite there: its log-likelihood (behaviour cloning,
    AWAC) becomes NaN or very large. Bang-bang policies produce such data, and so does clipping.
    """

    code = "RL031"
    name = "saturated-actions"
    severity = "warning"
    hint = "clip targets to slightly within the bounds, or use a loss without a density"
    thresholds: ClassVar = {"share": 0.5}
    explained: ClassVar = {"share": "share of the values of a dimension, at its two bounds"}

    leaves = _bounded_actions

    def measure(self, block: RowBlock, key: Key) -> Tally:
        bounds, values = declared_bounds(block.reader)[key], block.numbers(key)
        room = _TOLERANCE * np.maximum(1, np.abs(bounds.high - bounds.low))
        low, high = bounds.low + room, bounds.high - room
        least, greatest = block.extremes(key)
        if not ((least <= low) | (greatest >= high)).any():
            return Tally(number=np.zeros(low.shape, np.int64), rows=len(values))
        return Tally(number=((values <= low) | (values >= high)).sum(0), rows=len(values))

    def of_leaf(self, reader: DatasetReader, key: Key, found: Tally) -> Iterator[Finding]:
        share = np.atleast_1d(found.number / found.rows)
        over = np.argwhere(share >= self.limits["share"])
        if len(over):
            most = f"in {100 * float(share.max()):.0f} % of the rows at most"
            text = f"{name_features(over, share.size)} at the bounds {most}"
            yield self.finding(reader, text, leaf=join_key(key), count=len(over))


class ActionDtype(Rule):
    """Actions are stored as another kind of number than their space declares.

    Indices stored as floats need a cast before `one_hot` or `gather`; a network's output is compared
    with numbers of another type.
    """

    code = "RL032"
    name = "action-dtype"
    severity = "info"
    hint = "cast with `preprocess --step cast`"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader = measured.reader
        for key, bounds in declared_bounds(reader).items():
            stored, declared = np.dtype(reader.leaves[key].dtype), np.dtype(bounds.dtype)
            if (stored.kind == "f") != (declared.kind == "f"):
                text = f"Rows are {stored}, and the space is {bounds.kind} of {declared}"
                yield self.finding(reader, text, leaf=join_key(key))


class ActionScale(RangeRule):
    """The actions use a small part of the range that their space declares.

    Often they were recorded in another unit (normalised or not, degrees or radians): a policy that
    is scaled to the bounds then acts far too strongly.
    """

    code = "RL033"
    name = "action-scale"
    severity = "warning"
    hint = "compare with what the environment expects; rescale with `preprocess --fn`"
    thresholds: ClassVar = {"part": 0.01}
    explained: ClassVar = {"part": "largest extent of all dimensions, as a part of the range"}

    leaves = _bounded_actions

    def of_leaf(self, reader: DatasetReader, key: Key, found: Range) -> Iterator[Finding]:
        bounds = declared_bounds(reader)[key]
        farthest = np.maximum(np.abs(found.low), np.abs(found.high)).astype(np.float64)
        part = float(np.nanmax(farthest / np.maximum(np.abs(bounds.low), np.abs(bounds.high))))
        if 0 < part < self.limits["part"]:
            space = f"{bounds.low.min():g} to {bounds.high.max():g}"
            text = f"No value exceeds {100 * part:.2g} % of the bounds ({space})"
            yield self.finding(reader, text, leaf=join_key(key))
