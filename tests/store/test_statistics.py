"""Moments of parts merged are those of the whole; ranks of quantiles are within the stated error."""

from __future__ import annotations

import pickle
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from offline_data.store.quantiles import LEVELS, QUANTILES, QuantileSketch
from offline_data.store.statistics import Moments, moments_of
from tests.slow import every

FLOATS = st.lists(st.floats(-1e6, 1e6) | st.sampled_from([np.nan, np.inf, -np.inf]), max_size=9)


@settings(max_examples=40, deadline=None)
@given(FLOATS, st.integers(0, 9))
def test_merging_two_parts_is_measuring_both(values: list[float], cut: int) -> None:
    array = np.array(values, dtype=np.float64)
    merged = moments_of(array[:cut]).merge(moments_of(array[cut:]))
    finite = array[np.isfinite(array)]
    assert merged.count == len(finite)
    assert (merged.nan, merged.inf) == (np.isnan(array).sum(), np.isinf(array).sum())
    if len(finite):
        assert merged.minimum == finite.min()
        assert merged.maximum == finite.max()
        assert merged.mean == pytest.approx(finite.mean(), abs=1e-6)
        assert merged.std == pytest.approx(finite.std(), abs=1e-6)
    else:
        assert (merged.minimum, merged.maximum, merged.std) == (None, None, 0.0)


def test_a_small_spread_on_a_large_offset_is_not_lost() -> None:
    array = 1e9 + np.tile([0.0, 1.0], 5000)
    merged = Moments()
    for part in np.split(array, 100):
        merged = merged.merge(moments_of(part))
    assert merged.std == pytest.approx(0.5, rel=1e-9)


def test_every_item_type_is_measured_as_it_is() -> None:
    found = moments_of(np.array([2**63 - 1, -(2**63)], dtype=np.int64))
    assert (found.minimum, found.maximum) == (-(2**63), 2**63 - 1)
    found = moments_of(np.array([True, False, True, True]))
    assert (found.minimum, found.maximum, found.mean) == (0, 1, 0.75)
    found = moments_of(np.full(1000, 60000, dtype=np.float16))
    assert (found.mean, found.std) == (float(np.float16(60000)), 0.0)
    found = moments_of(np.array([1e300, -1e300])).merge(moments_of(np.array([1e300])))
    assert found.std == np.inf  # beyond float64, and silently
    found = moments_of(np.array([1 + 2j, complex(np.nan, 0), complex(np.inf, 0)]))
    assert found == Moments(nan=1, inf=1)


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


@pytest.mark.parametrize(("name", "block"), every(3, COLUMNS, [1, 700, N]))
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
