"""Moments of chunks merged equal the moments of the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.store.statistics import Moments, moments_of

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
