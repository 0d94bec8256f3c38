"""Quantiles of a sketch against numpy on all values at once; ranks within the error it states."""

from __future__ import annotations

import pickle
from functools import reduce
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.store.quantiles import LEVELS, QUANTILES, QuantileSketch

RNG = np.random.default_rng(7)
N = 30_000
NORMAL = RNG.normal(size=N)

COLUMNS: dict[str, NDArray[Any]] = {
    "normal": NORMAL,
    "sorted": np.sort(NORMAL),
    "reversed": np.sort(NORMAL)[::-1],
    "small and large in turn": np.where(np.arange(N) % 2, 1e6, 0) + np.arange(N),
    "saw": np.arange(N) % 64 + np.arange(N) / N,
    "heavy tail": RNG.standard_cauchy(N),
    "one outlier": np.r_[NORMAL[1:], 1e300],
    "over all magnitudes": np.geomspace(1e-300, 1e300, N),
    "constant": np.full(N, 0.3),
    "rare": (RNG.random(N) < 0.012).astype(np.float32),
    "NaN and infinite": np.where(RNG.random(N) < 0.3, RNG.choice([np.nan, np.inf, -np.inf], N), NORMAL),
    "finite only at first": np.where(np.arange(N) < 900, NORMAL, np.nan),
    "three finite": np.where(np.arange(N) < 3, NORMAL, np.nan),
    "float32": NORMAL.astype(np.float32),
    "float16": NORMAL.astype(np.float16),
    "int64": RNG.integers(-(2**62), 2**62, N),
    "uint64": RNG.integers(0, 2**64 - 1, N, dtype=np.uint64),
    "uint8": RNG.integers(0, 256, N).astype(np.uint8),
    "int8": RNG.integers(-128, 100, N).astype(np.int8),
    "bool": NORMAL > 1,
}  # fmt: skip


def sketch_of(values: NDArray[Any], block: int = 700, size: int | None = 256) -> QuantileSketch:
    seen = QuantileSketch(1, size)
    for begin in range(0, len(values), block):
        seen.add(values[None, begin : begin + block])
    return seen


def check_ranks(seen: QuantileSketch, values: NDArray[Any], place: int = 0) -> None:
    """Check every quantile against the values of the ranks that the stated error allows."""
    finite = np.sort(values.astype(np.float64)[np.isfinite(values.astype(np.float64))])
    assert seen.count[place] == len(finite)
    error = round(seen.rank_error * seen.rows)
    found = seen.quantiles(QUANTILES)[place]
    for level, value in zip(QUANTILES, found, strict=True):
        rank = level * (len(finite) - 1)
        low = finite[max(int(np.floor(rank)) - error, 0)]
        high = finite[min(int(np.ceil(rank)) + error, len(finite) - 1)]
        assert low <= value <= high, (level, low, value, high)
    assert (found[0], found[-1]) == (finite[0], finite[-1])


@pytest.mark.parametrize("block", [1, 700, N])
@pytest.mark.parametrize("name", COLUMNS)
def test_ranks_are_within_the_error(name: str, block: int) -> None:
    values = COLUMNS[name][: 3000 if block == 1 else N]
    seen = sketch_of(values, block)
    assert 0 < seen.rank_error < 0.02
    check_ranks(seen, values)


@pytest.mark.parametrize("name", COLUMNS)
def test_all_values_kept_are_numpys_quantiles(name: str) -> None:
    values = COLUMNS[name][:5000]
    seen = sketch_of(values, size=None)
    assert seen.rank_error == 0
    numbers = values.astype(np.float64)
    scale = 2.0**-8  # a difference of two of the largest numbers is not finite
    expected = np.quantile(numbers[np.isfinite(numbers)] * scale, QUANTILES)
    np.testing.assert_allclose(seen.quantiles(QUANTILES)[0] * scale, expected, rtol=1e-12)


@pytest.mark.parametrize("name", COLUMNS)
def test_merging_parts_in_order(name: str) -> None:
    values = COLUMNS[name]
    cuts = np.split(values, [1, 50, 8000, 8001, 20_000])
    parts = [pickle.loads(pickle.dumps(sketch_of(part))) for part in cuts]  # noqa: S301
    before = [part.quantiles(QUANTILES) for part in parts]
    whole = reduce(QuantileSketch.merge, parts)
    check_ranks(whole, values)
    assert whole.rank_error < 0.03
    again = reduce(QuantileSketch.merge, [whole.merge(QuantileSketch(1)), QuantileSketch(1, 256)])
    np.testing.assert_array_equal(again.quantiles(QUANTILES), whole.quantiles(QUANTILES))
    for part, unchanged in zip(parts, before, strict=True):
        np.testing.assert_array_equal(part.quantiles(QUANTILES), unchanged)


def test_features_are_apart() -> None:
    names = [name for name in COLUMNS if COLUMNS[name].dtype == np.float64]
    table = np.stack([COLUMNS[name] for name in names])
    seen = QuantileSketch(len(names), 256)
    for begin in range(0, N, 500):
        seen.add(np.asfortranarray(table[:, begin : begin + 500]))
    for place, name in enumerate(names):
        check_ranks(seen, COLUMNS[name], place)


def test_nothing_finite_is_nan() -> None:
    assert np.isnan(QuantileSketch(2).quantiles(QUANTILES)).all()
    seen = QuantileSketch(2, 16)
    seen.add(np.stack([np.full(99, np.nan), np.arange(99.0)]))
    assert np.isnan(seen.quantiles([0, 0.5, 1])[0]).all()
    assert seen.count.tolist() == [0, 99]


def test_merging_keeps_the_error() -> None:
    for blocks in range(1, 12):
        seen = sketch_of(NORMAL[: 64 * blocks], 64, 64)
        assert seen.merge(QuantileSketch(1, 64)).rank_error == seen.rank_error > 0


@pytest.mark.parametrize("block", [100, 1000])
def test_the_error_is_as_documented_in_small_blocks(block: int) -> None:
    seen = sketch_of(COLUMNS["saw"], block)
    assert seen.rank_error <= np.log2(2 * N / seen.size) / (2 * seen.size) * 1.05


def test_memory_is_bounded_and_the_error_is_as_documented() -> None:
    seen = QuantileSketch(3)
    block = RNG.normal(size=(3, 50_000))
    for _ in range(40):
        seen.add(block)
    kept = sum(values.shape[1] for values in seen._levels)
    assert kept < seen.size * (1 + np.log2(seen.rows / seen.size))
    assert seen.rank_error <= np.log2(2 * seen.rows / seen.size) / (2 * seen.size) * 1.05
    values = seen.quantiles([*LEVELS.values()])
    expected = np.quantile(block, [*LEVELS.values()], axis=1).T
    np.testing.assert_allclose(values, expected, atol=0.03)
