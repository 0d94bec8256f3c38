"""`find_lag` against a plain ridge regression, and on series whose lag is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.analysis.alignment.lags import FLOOR, FOLDS, LAGS, REACH, RIDGE, Series, find_lag
from tests.toys.robomimic import libero_demo

TARGET = pytest.mark.parametrize("target", [True, False])


def groups(
    seed: int,
    lag: int,
    count: int = 30,
    lengths: tuple[int, ...] = (40,),
    *,
    target: bool = True,
    noise: float = 0.3,
) -> list[Series]:
    """Return groups in which `lagged[t + lag]` belongs to row t: it moves the target, or follows `fixed`."""
    draw = np.random.default_rng(seed)
    rows = sum(lengths)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    late = starts + (np.arange(rows) - starts - lag) % np.repeat(lengths, lengths)
    found = []
    for _ in range(count):
        fixed, own = draw.normal(size=(rows, 2)) + 7, draw.normal(size=(rows, 1)) - 100
        if not target:
            own = fixed[:, :1] + noise * own
        moves = fixed[:, :1] + own + noise * draw.normal(size=(rows, 1))
        found.append(Series(np.array(lengths), fixed, own[late], moves[:, : int(target)]))
    return found


def plain_errors(series: list[Series]) -> list[float]:
    """Compute the errors of `LagEstimate` with loops, `np.linalg.inv` and one group at a time."""

    predicts = series[0].target.shape[1] > 0

    def table(one: Series, lag: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        x, y, first = [], [], 0
        for length in one.lengths:
            for t in range(first + REACH + 1, first + length - REACH):
                late = one.lagged[t + lag]
                x.append([1, *one.fixed[t], *(late if predicts else ())])
                y.append(one.target[t] if predicts else late)
            first += length
        return np.array(x), np.array(y)

    def error(lag: int, width: int | None) -> float:
        tables = [table(one, lag) for one in series]
        every = np.concatenate([x for x, _ in tables])[:, :width]
        spread = np.concatenate([y for _, y in tables]).var(axis=0)
        ridge = np.diag(RIDGE * every.var(axis=0))
        total = np.zeros(len(spread))
        for number, (own_x, own_y) in enumerate(tables):
            others = [t for i, t in enumerate(tables) if i % FOLDS != number % FOLDS]
            x, y = (np.concatenate(part) for part in zip(*others, strict=True))
            x = x[:, :width]
            weights = np.linalg.inv(x.T @ x / len(x) + ridge) @ (x.T @ y / len(x))
            total += ((own_y - own_x[:, :width] @ weights) ** 2).sum(0) / spread
        return float(np.exp(np.log(total / len(every) + FLOOR).mean()))

    alone = error(0, 1 + series[0].fixed.shape[1] if predicts else 1)
    return [error(lag, None) / alone for lag in LAGS]


@TARGET
def test_errors_are_those_of_plain_ridge_regression(target: bool) -> None:
    series = groups(0, 2, lengths=(40, 5, 13), target=target)
    found = find_lag(series)
    assert [*found.errors] == [*LAGS]
    np.testing.assert_allclose([*found.errors.values()], plain_errors(series), rtol=1e-6)
    assert (found.lag, found.best, found.episodes) == (2, 2, 60)
    assert found.rows == 30 * (40 + 13 - 2 * (2 * REACH + 1))


@TARGET
@pytest.mark.parametrize("lag", [-4, -1, 0, 3])
def test_a_lag_is_found(lag: int, target: bool) -> None:
    assert find_lag(groups(1, lag, target=target)).lag == lag


@TARGET
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"count": 5}, "too few episodes"),
        ({"lengths": (11, 11, 13)}, "too few episodes"),
        ({"lag": 5}, "beyond the lags compared"),
        ({"noise": 30.0}, "nothing predictable"),
    ],
)
def test_a_lag_stays_undecided(change: dict[str, object], reason: str, target: bool) -> None:
    series = groups(**{"seed": 2, "lag": 0, "target": target, **change})  # type: ignore[arg-type]
    found = find_lag(series)
    assert (found.lag, found.reason) == (None, reason)


@TARGET
def test_constant_leaves_and_slow_ones_stay_undecided(target: bool) -> None:
    series = groups(2, 0, target=target)
    constant = [replace(one, lagged=one.lagged * 0 + 3) for one in series]
    assert find_lag(constant).reason == "constant"
    slow = [replace(one, lagged=np.repeat(one.lagged[::4], 4, axis=0)) for one in series]
    assert find_lag(slow).reason == "several lags fit equally well"


@pytest.mark.parametrize("target", [lambda one: one.target * 0 + 3, lambda one: one.fixed[:, :1]])
def test_targets_that_do_not_depend_on_the_leaf_decide_nothing(target: object) -> None:
    series = [replace(one, target=target(one)) for one in groups(2, 0)]  # type: ignore[operator]
    assert find_lag(series).reason == "nothing predictable"


@pytest.mark.parametrize("jump", [0, 5])
def test_a_later_action_of_a_policy_is_not_mistaken_for_the_cause(jump: int) -> None:
    """The action is a function of the observation, which moves by a curve that the model lacks.

    A few rows far from all others hide how well the observation explains the action.
    """
    draw = np.random.default_rng(3)
    series = []
    for number in range(40):
        seen = [draw.normal()]
        for row in range(60):
            seen.append(0.5 * seen[-1] + np.sin(3 * seen[-1]) + 0.3 * draw.normal())
            seen[-1] += jump * (row == 30 and number % 13 == 0)
        column = np.array(seen)[:, None]
        action = -np.clip(column[:-1], -2, 2)
        series.append(Series(np.array([60]), column[:-1], action, np.diff(column, axis=0)))
    found = find_lag(series)
    assert (found.best, found.lag, found.reason) == (1, None, "actions follow from observations")


def test_a_body_that_follows_slowly_is_not_mistaken_for_an_early_action() -> None:
    series = []
    for number in range(12):
        demo = libero_demo(number, 60, raw=False)
        seen, action = 20 * demo["obs/ee_states"][:, :3], demo["actions"][:, :3]
        moved = np.diff(seen, axis=0, append=np.nan)
        before = np.concatenate([moved[:1] * np.nan, moved[:-1]])
        series.append(Series(np.array([60]), seen, action, moved, before))
    assert find_lag(series).lag == 0
    assert find_lag([replace(one, history=None) for one in series]).lag == -1


def test_rows_near_values_that_are_not_finite_are_skipped() -> None:
    series = groups(4, 1)
    for one in series[:5]:
        one.lagged[20] = np.nan
        one.target[30] = 1e200
    found = find_lag(series)
    assert found.lag == 1
    assert found.rows == 30 * 29 - 5 * (12 + 1)  # rows 15 to 26, which use row 20, and row 30
