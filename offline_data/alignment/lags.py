"""Find the lag between two series by held-out ridge regression.

The leaf that may be shifted is compared at lags k from -5 to 5. It either helps to predict a target,
as an action does with the next observation, or is predicted itself, as a reward is:

```
x[t] = [1, fixed[t], lagged[t + k]]     y[t] = target[t]
x[t] = [1, fixed[t]]                    y[t] = lagged[t + k]          if there is no target

W = (X'X + λ N diag(var X))⁻¹ X'Y       fitted on the groups of episodes of all other folds
```

All of these regressions read one matrix of products for each group of episodes. The lag with the smallest
error is claimed only if it is the smallest in nearly all bootstrap samples of the groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Columns: TypeAlias = NDArray[np.intp]

REACH = 5
LAGS = tuple(range(-REACH, REACH + 1))
"""Lags that are compared, in rows."""
SHORTEST = 2 * REACH + 2
"""Rows of the shortest episode that can be used: one row that has all lags, and the row before each."""

FOLDS = 8
"""Regressions for each lag: a group is predicted with the weights of the groups of all other folds."""
LEAST_GROUPS = 6
"""Groups with which a lag can be claimed."""
LEAST_ROWS = 100
"""Rows with which a lag can be claimed."""

RIDGE = 1e-4
"""λ, as a share of the variance of each column."""
HUGE = 1e60
"""Values of at least this size are skipped, as those that are not finite are: their squares would overflow."""
FLOOR = 1e-6
"""Smallest error that counts, as a share of the target's variance: smaller ones are rounding errors."""
SAMPLES, TAIL = 500, 0.005
"""Bootstrap samples, and the share of them in which another lag may have a smaller error."""

LEAST_GAIN = 0.02
"""Decrease of the mean logarithm of the error that the best lag must bring."""
LEAST_APART, LEAST_ACTED = 0.4, 0.01
"""Least difference of this logarithm between the best lag and all others, and that of actions which do not
follow observations. Smaller differences come from a model that does not fit."""
REPEATED = 0.05
"""Largest share of the decrease that the row before the best lag may add to it.

Once the action that led to an observation is known, earlier ones add little. Where they do add, the
action at the best lag may be a later one, chosen because of what the observation had become.
"""
UNCERTAIN = 0.1
"""Largest absolute value of that share in 90 % of the bootstrap samples."""
FOLLOWING, REPLAYED = 0.75, 0.97
"""Share of the variance of the row before the best lag that `fixed` explains: above the first, actions follow
observations, so that a later one shows how the observation had changed; above the second, nothing is decided."""

Reason: TypeAlias = Literal[
    "too few episodes",
    "constant",
    "nothing predictable",
    "several lags predict alike",
    "beyond the lags compared",
    "actions follow from observations",
]


@dataclass(frozen=True)
class Series:
    """Rows of a group of episodes, end to end."""

    lengths: NDArray[np.int64]
    """`[E]` rows of each episode; they add up to N."""
    fixed: Array
    """`[N, F]` columns known at each row; F may be 0."""
    lagged: Array
    """`[N, L]` columns of the leaf that may be shifted."""
    target: Array | None = None
    """`[N, Y]` columns to predict from both; None: `lagged` is predicted from `fixed`."""


@dataclass(frozen=True)
class LagEstimate:
    """The lag of a leaf, and how well each lag predicts.

    A lag of k means that the value that belongs to row t is stored in row t + k.
    """

    lag: int | None
    """Rows, -5 to 5; None: undecided."""
    reason: Reason | None
    """Why it is undecided; None if it is decided."""
    errors: tuple[float, ...] = ()
    """Error at each lag of `LAGS` as a multiple of the error without the leaf that is compared, or, if it is
    predicted itself, of its variance: geometric mean over columns, on held-out episodes."""
    best: int | None = None
    """Lag with the smallest error, decided or not."""
    apart: tuple[float, float] | None = None
    """99 % interval of the logarithm of the error of the next best lag over that of the best one."""
    episodes: int = 0
    rows: int = 0


def find_lag(groups: Iterable[Series], *, seed: int = 0) -> LagEstimate:
    """Find the lag of a leaf; undecided if the data do not decide.

    Skips rows next to values that are not finite, and episodes of fewer than 12 rows. Takes
    O(rows · columns²) time, and memory for one group and columns² products of each, where columns counts
    all lags.

    Args:
        groups: Series of groups of episodes, with the same columns; the bootstrap draws groups.
        seed: Seed of the bootstrap.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> a = draw.normal(size=(20, 50, 1))
        >>> moves = np.roll(a, 2, axis=1) + 0.1 * draw.normal(size=a.shape)  # a[t - 2] moves row t
        >>> known, length = np.zeros((50, 0)), np.array([50])
        >>> find_lag([Series(length, known, *pair) for pair in zip(a, moves)]).lag
        -2
    """
    counts, products, episodes = [], [], 0
    first: _Layout | None = None
    for series in groups:
        layout = first = first or _Layout(series)
        rows, used = _sound_rows(series)
        if len(rows):
            columns = layout.columns(series, rows)
            counts.append(len(rows))
            products.append(columns.T @ columns)
            episodes += used
    if first is None or len(counts) < LEAST_GROUPS or sum(counts) < LEAST_ROWS:
        return LagEstimate(None, "too few episodes", episodes=episodes, rows=sum(counts))
    model = _Regressions(np.array(counts, np.float64), np.stack(products))
    return _decide(model, first, np.random.default_rng(seed), episodes)


class _Layout:
    """Columns of the products: `[1, fixed, lagged[t - 6], …, lagged[t + 5], target]`.

    Subtracts the means of the first group, so that sums of squares stay small.
    """

    def __init__(self, series: Series) -> None:
        parts = [series.fixed, series.lagged, *([] if series.target is None else [series.target])]
        self.means = [_finite_mean(part) for part in parts]
        self.width = series.lagged.shape[1]
        self.fixed = np.arange(1 + series.fixed.shape[1])
        end = len(self.fixed) + (2 * REACH + 2) * self.width
        self.target = None if series.target is None else end + np.arange(series.target.shape[1])

    def leaf_at(self, lag: int) -> Columns:
        """Return the columns of the leaf at a lag from -6 to 5."""
        return np.asarray(len(self.fixed) + (lag + REACH + 1) * self.width + np.arange(self.width))

    def columns(self, series: Series, rows: Columns) -> Array:
        around = (rows[:, None] + np.arange(-REACH - 1, REACH + 1)).ravel()
        lagged = (series.lagged - self.means[1])[around].reshape(len(rows), -1)
        parts = [np.ones((len(rows), 1)), series.fixed[rows] - self.means[0], lagged]
        if series.target is not None:
            parts.append(series.target[rows] - self.means[2])
        return np.concatenate(parts, axis=1)


def _finite_mean(values: Array) -> Array:
    finite = np.abs(values) < HUGE
    return np.asarray(np.where(finite, values, 0).sum(0) / np.maximum(1, finite.sum(0)))


def _sound_rows(series: Series) -> tuple[Columns, int]:
    """Return rows that have all lags and only finite values, and in how many episodes they are."""
    ends = np.cumsum(series.lengths)
    episode = np.repeat(np.arange(len(ends)), series.lengths)
    row = np.arange(len(episode))
    within, left = row - (ends - series.lengths)[episode], ends[episode] - row
    known = (np.abs(series.fixed) < HUGE).all(1)
    if series.target is not None:
        known &= (np.abs(series.target) < HUGE).all(1)
    rows = np.flatnonzero(known & (within > REACH) & (left > REACH))
    unknown = np.concatenate([[0], np.cumsum(~(np.abs(series.lagged) < HUGE).all(1))])
    rows = rows[unknown[rows + REACH + 1] == unknown[rows - REACH - 1]]
    return rows, len(np.unique(episode[rows]))


class _Regressions:
    """Held-out errors of ridge regressions on the products of groups of episodes.

    Args:
        counts: `[G]` rows of each group.
        products: `[G, C, C]` sums of products of columns, the first of which is 1.
    """

    def __init__(self, counts: Array, products: Array) -> None:
        self.counts, self.products = counts, products
        self.rows = float(counts.sum())
        total = products.sum(0)
        squares, means = np.diagonal(total) / self.rows, total[0] / self.rows
        variance = squares - means**2
        self.variance = np.where(variance > 1e-12 * (squares + means**2), variance, 0.0)
        """`[C]`, exactly 0 for columns that vary by rounding alone."""
        folds = min(FOLDS, len(counts))
        self.fold = np.arange(len(counts)) % folds
        inside = self.fold == np.arange(folds)[:, None]
        self.others = np.stack([total - products[own].sum(0) for own in inside])
        self.other_counts = self.rows - inside @ counts

    def errors(self, columns: Columns, targets: Columns) -> Array:
        """Return the squared errors of each group, `[G, targets]`, in units of the targets' variance."""
        used = columns[(self.variance[columns] > 0) | (columns == 0)]
        scale = np.sqrt(np.where(used == 0, 1.0, self.variance[used]))
        ridge = np.diag(np.where(used == 0, 1e-12, RIDGE))
        counts = self.other_counts[:, None, None]
        xx = self.others[:, used[:, None], used] / np.multiply.outer(scale, scale) / counts
        xy = self.others[:, used[:, None], targets] / scale[:, None] / counts
        weights = (np.linalg.solve(xx + ridge, xy) / scale[:, None])[self.fold]
        predicted = self.products[:, used[:, None], used] @ weights
        cross = self.products[:, used[:, None], targets]
        squares = self.products[:, targets, targets]
        left = squares + (weights * (predicted - 2 * cross)).sum(1)
        return np.asarray(np.maximum(left, 0) / self.variance[targets])

    def score(self, errors: Array, drawn: Array | None = None) -> Array:
        """Return the mean logarithm of the error over targets, for `[samples, G]` draws of groups."""
        drawn = np.ones((1, len(self.counts))) if drawn is None else drawn
        mean = (drawn @ errors) / (drawn @ self.counts)[:, None]
        return np.asarray(np.log(mean + FLOOR).mean(1))


def _decide(
    model: _Regressions, layout: _Layout, draw: np.random.Generator, episodes: int
) -> LagEstimate:
    """Compare the lags, and claim the best one if the samples agree and no guard objects."""

    def decide_nothing(reason: Reason) -> LagEstimate:
        return LagEstimate(None, reason, episodes=episodes, rows=int(model.rows))

    varies = model.variance[layout.leaf_at(0)] > 0
    if not varies.any():
        return decide_nothing("constant")
    if not all(
        (model.variance[layout.leaf_at(lag)[varies]] > 0).all() for lag in (-REACH - 1, *LAGS)
    ):
        return decide_nothing("too few episodes")
    if layout.target is None:
        targets = [layout.leaf_at(lag)[varies] for lag in LAGS]
        alone = model.errors(np.zeros(1, np.intp), targets[REACH])
        both = model.errors(layout.fixed, np.concatenate(targets))
        errors = np.split(both, len(LAGS), axis=1)
    else:
        target = layout.target[model.variance[layout.target] > 0]
        if not len(target):
            return decide_nothing("nothing predictable")
        alone = model.errors(layout.fixed, target)
        errors = [model.errors(np.append(layout.fixed, layout.leaf_at(k)), target) for k in LAGS]
    groups = len(model.counts)
    drawn = draw.multinomial(groups, np.full(groups, 1 / groups), SAMPLES).astype(np.float64)
    scores = np.array([float(model.score(each)[0]) for each in errors])
    samples = np.array([model.score(each, drawn) for each in errors])
    best = int(scores.argmin())
    ahead = np.delete(samples, best, 0).min(0) - samples[best]
    low, high = (float(value) for value in np.quantile(ahead, [TAIL, 1 - TAIL]))
    base = float(model.score(alone)[0])
    reason: Reason | None = None
    if base - scores[best] < LEAST_GAIN:
        reason = "nothing predictable"
    elif low <= (LEAST_APART if layout.target is None else LEAST_ACTED):
        reason = "several lags predict alike"
    elif abs(LAGS[best]) == REACH:
        reason = "beyond the lags compared"
    elif layout.target is not None:
        own, before = layout.leaf_at(LAGS[best]), layout.leaf_at(LAGS[best] - 1)
        more = model.errors(np.concatenate([layout.fixed, own, before]), target)
        gains = np.maximum(model.score(alone, drawn) - samples[best], LEAST_GAIN)
        least, most = np.quantile((samples[best] - model.score(more, drawn)) / gains, [0.05, 0.95])
        share = (scores[best] - float(model.score(more)[0])) / (base - scores[best])
        explained = 1 - model.errors(layout.fixed, before[varies]).sum(0).mean() / model.rows
        follows = explained > (FOLLOWING if low <= LEAST_APART else REPLAYED)
        if share > REPEATED or most > UNCERTAIN or follows:
            reason = "actions follow from observations"
        elif least < -UNCERTAIN:
            reason = "too few episodes"
    return LagEstimate(
        LAGS[best] if reason is None else None,
        reason,
        tuple(float(value) for value in np.exp(scores - base)),
        LAGS[best],
        (low, high),
        episodes,
        int(model.rows),
    )
