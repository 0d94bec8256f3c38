"""Histograms in one pass: against numpy on all values at once, in any order and chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.analysis.histograms import HISTOGRAM_BINS, Histograms

RNG = np.random.default_rng(3)
NORMAL = RNG.normal(size=2000)

COLUMNS: dict[str, NDArray[Any]] = {
    "normal": NORMAL,
    "far from zero": 1e6 + NORMAL,
    "heavy tail": RNG.standard_cauchy(2000),
    "growing": np.geomspace(1e-12, 1e12, 2000),
    "a few values": RNG.choice([0.0, 0.1, 1.0, -1.3], 2000),
    "constant": np.full(2000, 0.3),
    "zeros, then tiny": np.r_[np.zeros(1999), 1e-200],
    "largest float64": np.r_[NORMAL, 1.7e308, -1.7e308],
    "denormal": np.r_[NORMAL, 5e-324],
    "one value": np.array([7.5]),
    "float32": NORMAL.astype(np.float32),
    "float16": NORMAL.astype(np.float16),
    "NaN and infinite": np.r_[NORMAL, np.nan, np.inf, -np.inf],
    "only NaN": np.full(9, np.nan),
    "int64": RNG.integers(-500, 400, 2000),
    "wide int64": RNG.integers(-(2**62), 2**62, 2000),
    "uint8": RNG.integers(0, 256, 2000).astype(np.uint8),
    "int8": RNG.integers(-128, 100, 2000).astype(np.int8),
    "uint64": RNG.integers(0, 2**64 - 1, 2000, dtype=np.uint64),
    "bool": NORMAL > 1,
}


def _add(seen: Histograms, values: NDArray[Any]) -> None:
    number = values.astype(np.float64)[None]
    number = np.where(np.isfinite(number), number, np.nan)
    seen.add(values[None], np.fmin.reduce(number, 1), np.fmax.reduce(number, 1))


def _seen(values: NDArray[Any], chunk: int) -> Histograms:
    seen = Histograms(1, values.dtype)
    for begin in range(0, len(values), chunk):
        _add(seen, values[begin : begin + chunk])
    return seen


@pytest.mark.parametrize("name", COLUMNS)
def test_bins_hold_the_values_between_their_edges(name: str) -> None:
    values = COLUMNS[name]
    numbers = values.astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    found = _seen(values, 301).histogram((1,))
    counts, edges = found.counts[0], found.edges[0]
    assert (found.counts.shape, found.edges.shape) == ((1, HISTOGRAM_BINS), (1, HISTOGRAM_BINS + 1))
    assert counts.sum() == len(numbers)
    if not len(numbers):
        assert np.isnan(edges).all()
        return
    assert (np.diff(edges) > 0).all() or edges[-1] == np.finfo(np.float64).max
    places = np.searchsorted(edges, numbers, side="right") - 1
    np.testing.assert_array_equal(counts, np.bincount(places, minlength=HISTOGRAM_BINS))


@pytest.mark.slow
@pytest.mark.parametrize("name", COLUMNS)
def test_order_and_chunks_change_no_count(name: str) -> None:
    values = COLUMNS[name]
    whole = _seen(values, len(values)).histogram(())
    for other in (_seen(values[::-1], 1), _seen(RNG.permutation(values), 77)):
        np.testing.assert_array_equal(other.histogram(()).counts, whole.counts)
        np.testing.assert_array_equal(other.histogram(()).edges, whole.edges)


def test_features_are_counted_apart() -> None:
    names = ["normal", "heavy tail", "a few values", "constant", "growing"]
    together = np.stack([COLUMNS[name] for name in names])
    seen = Histograms(len(names))
    for begin in range(0, together.shape[1], 400):
        chunk = together[:, begin : begin + 400]
        seen.add(chunk, chunk.min(1), chunk.max(1))
    for place, name in enumerate(names):
        alone = _seen(COLUMNS[name], 400)
        np.testing.assert_array_equal(
            seen.histogram((len(names),)).counts[place], alone.histogram((1,)).counts[0]
        )
