"""Datasets whose next observations are not the rows that follow: every reader gives the stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data import SliceSampler, frame_stack, n_step
from offline_data.buffers.dataset import Dataset
from offline_data.episode.fields import next_of
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.testing.toy import toy_batch, write_toy
from tests import oracles_derived as oracle

STATE = ("observation", "state")
CODE = ("info", "code")
LENGTHS = (5, 1, 4)
BOUNDS = [(0, 5), (5, 6), (6, 10)]
APART = 0.5
"""How far the stored next observation is from the row that follows."""


@pytest.fixture(params=LAYOUTS, scope="module")
def ds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("apart") / "toy"
    toy = toy_batch(LENGTHS)
    frames = toy.observations[STATE]
    steps: dict[Any, NDArray[Any]] = {
        **toy.steps,
        STATE: frames[toy.root_rows],
        next_of(STATE): (frames[toy.next_rows] + APART).astype(np.float32),  # type: ignore[operator]
    }
    layout: LayoutName = request.param
    batch = replace(toy, steps=steps, observations={CODE: toy.observations[CODE]})
    manifest = write_toy(folder, [batch], layout=layout)
    assert manifest.two_copies == (STATE,)
    return Dataset(folder, 4)


def before_and_after() -> tuple[NDArray[Any], NDArray[Any]]:
    codes = [1000.0 * (e + 1) + t + 1 for e, n in enumerate(LENGTHS) for t in range(n)]
    rows = np.repeat(np.array(codes, np.float32)[:, None], 3, axis=1)
    return rows, rows + np.float32(1 + APART)


@pytest.mark.parametrize("copy", [True, False])
def test_to_numpy(ds: Dataset, copy: bool) -> None:
    before, after = before_and_after()
    chosen: Any = [7, 1, 1, 9]
    parts: list[Any] = [slice(None), slice(6, 10), chosen]
    views = (ds, ds.episodes_at([2]), ds.subset(chosen))
    for buffer, rows in zip(views, parts, strict=True):
        for style in ("transitions", "dataset", "ogbench"):
            arrays = buffer.to_numpy(style, copy=copy)
            np.testing.assert_array_equal(arrays["observations"], before[rows])
            np.testing.assert_array_equal(arrays["next_observations"], after[rows])
    arrays = ds.to_numpy("qlearning", copy=copy)
    kept = [row for row in range(9) if row != 5]
    np.testing.assert_array_equal(arrays["next_observations"], before[[r + 1 for r in kept]])
    codes = ds.to_numpy(observation_key="info/code", copy=copy)
    np.testing.assert_array_equal(codes["next_observations"], before[:, 0] + 1)


def test_windows_and_slices(ds: Dataset) -> None:
    before, after = before_and_after()
    folder = ds.data_path
    stacked = Dataset(folder, derived=[frame_stack(3, [STATE])])[:]
    frames = oracle.frame_stack(before, BOUNDS, k=3)
    np.testing.assert_array_equal(stacked[STATE], frames)
    np.testing.assert_array_equal(
        stacked[next_of(STATE)], oracle.next_frame_stack(before, after, BOUNDS, k=3)
    )
    ahead = Dataset(folder, derived=[n_step(3, 0.5)])[:]
    last = [min(row + 2, stop - 1) for start, stop in BOUNDS for row in range(start, stop)]
    np.testing.assert_array_equal(ahead[next_of(STATE)], after[last])
    slices = Dataset(folder, 8, sampler=SliceSampler(slice_len=4)).sample()
    np.testing.assert_array_equal(slices[STATE], before[slices["index"]])
    np.testing.assert_array_equal(slices[next_of(STATE)], after[slices["index"]])
