"""Find the lag between two series by held-out ridge regression.

The feature that may be shifted is compared at lags k from -5 to 5. It either helps to predict a target,
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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Columns: TypeAlias = NDArray[np.intp]

REACH = 5
LAGS = tuple(range(-REACH, REACH + 1))  # lags that are compared, in rows
SHORTEST = 2 * REACH + 2  # rows of a usable episode: one that has all lags, and the row before each

FOLDS = 8  # regressions for each lag; the groups of a fold are predicted with weights of all others
LEAST_GROUPS, LEAST_ROWS = 6, 100  # groups and rows with which a lag can be claimed

RIDGE = 1e-4  # λ, as a share of the variance of each column
HUGE = 1e60  # values of this size are skipped like non-finite ones: their squares would overflow
FLOOR = 1e-6  # of the target's variance: smaller errors are rounding errors
SAMPLES, TAIL = 500, 0.005  # bootstrap samples, share in which another lag may have a smaller error

LEAST_GAIN = 0.02  # decrease of the mean logarithm of the error that the best lag must bring
# Least difference of this logarithm between the best lag and all others, and that of actions which
# do not follow observations, at lags from 0: smaller differences come from a model that does not
# fit, or, below 0, from a body that follows slowly.
LEAST_APART, LEAST_ACTED = 0.4, 0.01
# Largest share of the decrease that the row before the best lag may add to it. Once the action that
# led to an observation is known, earlier ones add little. Where they do add, the action at the best
# lag may be a later one, chosen because of what the observation had become.
REPEATED = 0.05
UNCERTAIN = 0.1  # largest absolute value of that share in 90 % of the bootstrap samples
# Share of the variance of the row before the best lag that `fixed` explains, at the 95 % quantile
# of the samples, as a few rows far from all others hide it: above the first, actions follow
# observations, so that a later one shows how the observation had changed; above the second, nothing
# is decided.
FOLLOWING, REPLAYED = 0.75, 0.97

# Least difference of the logarithm by which the best lag with the history has to be apart from all
# others to replace another one without it: a body that follows slowly also moves by what earlier
# actions began.
LEAST_CORRECTED = 1.0

Reason: TypeAlias = Literal[
    "too few episodes",
    "constant",
    "nothing predictable",
    "several lags fit equally well",
    "beyond the lags compared",
    "actions follow from observations",
]


@dataclass(frozen=True)
class Series:
    """Rows of a group of episodes, end to end."""

    lengths: NDArray[np.int64]  # `[E]` rows of each episode; they add up to N
    fixed: Array  # `[N, F]` columns known at each row; F may be 0
    lagged: Array  # `[N, L]` columns of the leaf that may be shifted
    target: Array  # `[N, Y]` columns to predict from both; if Y is 0, `fixed` predicts `lagged`
    history: Array | None = None  # `[N, H]` earlier rows; a claimed lag is the best with them, too


@dataclass(frozen=True)
class LagEstimate:
    """The lag of a feature, and how well each lag predicts.

    A lag of k means that the value that belongs to row t is stored in row t + k.
    """

    lag: int | None
    """Rows, -5 to 5; None: undecided."""
    reason: Reason | None = None
    """Why it is undecided; None if it is decided."""
    errors: dict[int, float] = field(default_factory=dict)
    """Error at each lag as a multiple of the error without the feature that is compared, or, if it is
    predicted itself, of its variance: geometric mean over columns, on held-out episodes."""
    best: int | None = None
    """Lag with the smallest error, decided or not."""
    apart: tuple[float, float] | None = None
    """99 % interval of the logarithm of the error of the next best lag over that of the best one."""
    episodes: int = 0
    rows: int = 0
    """Episodes and rows that were compared."""

    def reverse(self) -> LagEstimate:
        """Return the lag of `fixed`, if `lagged` was compared with it."""
        lag, best = (None if lag is None else -lag for lag in (self.lag, self.best))
        errors = {-lag: error for lag, error in reversed(self.errors.items())}
        return replace(self, lag=lag, best=best, errors=errors)


def find_lag(groups: Iterable[Series], *, seed: int = 0) -> LagEstimate:
    """Find the lag of a feature; undecided if the data do not decide.

    Skips rows next to values that are not finite, and episodes of fewer than 12 rows. Takes
    O(rows · columns²) time, and memory for one group and columns² products of each, where columns
    counts all lags. Values should be of the order of 1, as sums of their squares are taken. All
    groups have the same columns; the bootstrap, by `seed`, draws groups.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> a = draw.normal(size=(20, 50, 1))
        >>> moves = np.roll(a, 2, axis=1) + 0.1 * draw.normal(size=a.shape)  # a[t - 2] moves row t
        >>> known, length = np.zeros((50, 0)), np.array([50])
        >>> find_lag([Series(length, known, *pair) for pair in zip(a, moves)]).lag
        -2
    """
    counts, products, widths, episodes = [], [], (0, 0, 0, 0), 0
    for series in groups:
        rows, used = _sound_rows(series)
        if len(rows):
            around = (rows[:, None] + np.arange(-REACH - 1, REACH + 1)).ravel()
            history = series.fixed[:, :0] if series.history is None else series.history
            parts = series.fixed[rows], history[rows], series.lagged[around], series.target[rows]
            widths = tuple(part.shape[1] for part in parts)
            ones = np.ones((len(rows), 1))
            columns = np.concatenate([ones, *(p.reshape(len(rows), -1) for p in parts)], axis=1)
            counts.append(len(rows))
            products.append(columns.T @ columns)
            episodes += used
    if len(counts) < LEAST_GROUPS or sum(counts) < LEAST_ROWS:
        found = LagEstimate(None, "too few episodes")
    else:
        model = _Regressions(np.array(counts, np.float64), np.stack(products), widths)
        found = _decide(model, np.random.default_rng(seed))
    return replace(found, episodes=episodes, rows=sum(counts))


def _sound_rows(series: Series) -> tuple[Columns, int]:
    """Return rows that have all lags and only finite values, and in how many episodes they are."""
    ends = np.cumsum(series.lengths)
    episode = np.repeat(np.arange(len(ends)), series.lengths)
    row = np.arange(len(episode))
    within, left = row - (ends - series.lengths)[episode], ends[episode] - row
    known = [part for part in (series.fixed, series.history, series.target) if part is not None]
    sound = np.logical_and.reduce([(np.abs(part) < HUGE).all(1) for part in known])
    rows = np.flatnonzero(sound & (within > REACH) & (left > REACH))
    unknown = np.concatenate([[0], np.cumsum(~(np.abs(series.lagged) < HUGE).all(1))])
    rows = rows[unknown[rows + REACH + 1] == unknown[rows - REACH - 1]]
    return rows, len(np.unique(episode[rows]))


class _Regressions:
    """Held-out errors of ridge regressions on the products of groups of episodes.

    The columns are `[1, fixed, history, lagged[t - 6], …, lagged[t + 5], target]`, of fixed,
    history, lagged and target as many as `widths` says. `counts` `[G]` are rows of each group,
    `products` `[G, C, C]` sums of products of columns.
    """

    def __init__(self, counts: Array, products: Array, widths: tuple[int, ...]) -> None:
        self.counts, self.products = counts, products
        self.rows = float(counts.sum())
        total = products.sum(0)
        squares, means = np.diagonal(total) / self.rows, total[0] / self.rows
        variance = squares - means**2
        # `[C]`, exactly 0 for columns that vary by rounding alone
        self.variance = np.where(variance > 1e-12 * (squares + means**2), variance, 0.0)
        folds = min(FOLDS, len(counts))
        self.fold = np.arange(len(counts)) % folds
        inside = self.fold == np.arange(folds)[:, None]
        self.others = np.stack([total - products[own].sum(0) for own in inside])
        self.other_counts = self.rows - inside @ counts
        fixed, history, self.width, target = widths
        ends = [1 + fixed, 1 + fixed + history, len(total) - target]
        self.fixed, self.history, self.leaf, self.target = np.split(np.arange(len(total)), ends)

    def leaf_at(self, lag: int) -> Columns:
        """Return the columns of the leaf at a lag from -6 to 5."""
        first = (lag + REACH + 1) * self.width
        return self.leaf[first : first + self.width]

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


def _decide(model: _Regressions, draw: np.random.Generator) -> LagEstimate:
    """Compare the lags, and claim the best one if the samples agree and no guard objects."""
    varies = model.variance[model.leaf_at(0)] > 0
    if not varies.any():
        return LagEstimate(None, "constant")
    leaf = {lag: model.leaf_at(lag)[varies] for lag in (-REACH - 1, *LAGS)}
    if not all(model.variance[columns].all() for columns in leaf.values()):
        return LagEstimate(None, "too few episodes")
    groups = len(model.counts)
    drawn = draw.multinomial(groups, np.full(groups, 1 / groups), SAMPLES).astype(np.float64)
    acted = len(model.target) > 0
    if acted:
        target = model.target[model.variance[model.target] > 0]
        if not len(target):
            return LagEstimate(None, "nothing predictable")
        alone = model.errors(model.fixed, target)
        errors = [model.errors(np.append(model.fixed, leaf[lag]), target) for lag in LAGS]
    else:
        alone = model.errors(model.fixed[:1], leaf[0])
        both = model.errors(model.fixed, np.concatenate([leaf[lag] for lag in LAGS]))
        errors = np.split(both, len(LAGS), axis=1)
    base = float(model.score(alone)[0])
    scores, best, (low, high) = _compare(model, errors, drawn)
    gain = base - scores[best]
    reason: Reason | None = None
    if gain < LEAST_GAIN:
        reason = "nothing predictable"
    elif low <= (LEAST_ACTED if acted else LEAST_APART):
        reason = "several lags fit equally well"
    elif abs(best) == REACH:
        reason = "beyond the lags compared"
    elif acted:
        before = leaf[best - 1]
        more = model.errors(np.concatenate([model.fixed, leaf[best], before]), target)
        sampled = model.score(errors[LAGS.index(best)], drawn)
        gains = np.maximum(model.score(alone, drawn) - sampled, LEAST_GAIN)
        least, most = np.quantile((sampled - model.score(more, drawn)) / gains, [0.05, 0.95])
        share = (scores[best] - float(model.score(more)[0])) / gain
        unexplained = drawn @ model.errors(model.fixed, before).mean(1) / (drawn @ model.counts)
        explained = 1 - np.quantile(unexplained, 0.05)
        follows = explained > (FOLLOWING if low <= LEAST_APART else REPLAYED)
        if share > REPEATED or most > UNCERTAIN or follows:
            reason = "actions follow from observations"
        elif least < -UNCERTAIN:
            reason = "too few episodes"
        elif len(model.history):
            known = np.concatenate([model.fixed, model.history])
            errors = [model.errors(np.append(known, leaf[lag]), target) for lag in LAGS]
            other = _compare(model, errors, drawn)
            if other[1] != best and other[2][0] > LEAST_CORRECTED and explained <= FOLLOWING:
                scores, best, (low, high) = other
                base = float(model.score(model.errors(known, target))[0])
            elif other[1] != best or (best < 0 and low <= LEAST_APART):
                reason = "several lags fit equally well"
    ratios = {lag: float(np.exp(score - base)) for lag, score in scores.items()}
    lag = best if reason is None else None
    return LagEstimate(lag, reason, ratios, best, (low, high))


def _compare(
    model: _Regressions, errors: Sequence[Array], drawn: Array
) -> tuple[dict[int, float], int, tuple[float, float]]:
    """Return scores by lag, the best lag, and by how much the samples of all others are above its own."""
    scores = {lag: float(model.score(each)[0]) for lag, each in zip(LAGS, errors, strict=True)}
    place = int(np.argmin([*scores.values()]))
    samples = np.array([model.score(each, drawn) for each in errors])
    ahead = np.delete(samples, place, 0).min(0) - samples[place]
    low, high = np.quantile(ahead, [TAIL, 1 - TAIL])
    return scores, LAGS[place], (float(low), float(high))
