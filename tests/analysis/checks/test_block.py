"""Figures of blocks of rows, beside plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

from offline_data.analysis.checks.block import RowBlock, zero_rows
from offline_data.store.reader import open_reader
from tests.analysis.checks.planted import Write, changed, clean_batch

GENERATOR = np.random.default_rng(3)


@pytest.mark.parametrize("features", [1, 5, 33, 700])
@pytest.mark.parametrize("rows", [0, 1, 40])
def test_zero_rows_are_all_of_them_and_no_others(rows: int, features: int) -> None:
    values = GENERATOR.integers(-1, 2, (rows, features)) * (GENERATOR.random((rows, 1)) < 0.5)
    values[::7, :-1] = 0  # only the last feature tells them apart
    values[::14] = 0
    assert zero_rows(values).tolist() == np.flatnonzero(~values.any(axis=1)).tolist()


def test_a_row_of_nan_or_negative_numbers_is_not_zero() -> None:
    values = np.array([[0.0, np.nan], [-1, 0], [-0.0, 0]])
    assert zero_rows(values).tolist() == [2]


@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 300), (1500,)])
def test_extremes_are_those_of_each_feature(write: Write, shape: tuple[int, ...]) -> None:
    batch = clean_batch((70, 80, 90))
    values = GENERATOR.normal(size=(240, *shape)).astype(np.float32)
    values[100:103] *= 50
    values.reshape(240, values[0].size)[7, :1] = np.nan
    reader = open_reader(write(changed(batch, steps={("info",): values})))
    for first, stop in ((0, 240), (90, 237), (101, 102), (5, 9)):
        low, high = RowBlock(reader, first, stop).extremes(("info",))
        np.testing.assert_array_equal(low, values[first:stop].min(0))
        np.testing.assert_array_equal(high, values[first:stop].max(0))
