"""Episodes as they are shown: the values, pictures and texts of the right steps."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from offline_data.analysis.episodes import episode_quality
from offline_data.base.errors import NotFoundError
from offline_data.reports.pages.episodes import (
    Frames,
    example_episodes,
    read_episode,
    read_frames,
)
from offline_data.store.library import Entry
from offline_data.store.reader import open_reader
from tests.analysis.test_episodes import STATE, walks
from tests.reports.pages.conftest import HOSTILE, LENGTHS, write


def pixels(frames: Frames, place: int = 0) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(frames.files[place][1])))


def test_curves_are_the_values_of_the_steps(rich: Entry) -> None:
    reader = open_reader(rich.path)
    shown = read_episode(reader, 2)
    assert (shown.number, shown.length, shown.final_observation) == (2, 30, False)
    curves = {one.key: one for one in shown.curves}
    rows = np.arange(8, 38)
    assert curves["next/reward"].values.tolist() == [rows.tolist()]
    assert curves["return so far"].values.tolist() == [np.cumsum(rows).tolist()]
    state = reader.episode_batch(2, 3).observations[("observation", "state")][:30]
    assert curves["observation/state"].names == ("[0]", "[1]", "[2]")
    np.testing.assert_array_equal(curves["observation/state"].values, state.T)
    assert list(curves) == ["next/reward", "return so far", "action", "observation/state"]


def test_long_episodes_are_shown_at_evenly_spaced_steps(rich: Entry) -> None:
    shown = read_episode(open_reader(rich.path), 2, points=4)
    assert shown.steps.tolist() == [0, 10, 19, 29]
    assert shown.curves[0].values.tolist() == [[8, 18, 27, 37]]
    assert shown.curves[1].values[0].tolist() == [8, sum(range(8, 19)), sum(range(8, 28)), 675]


def test_pictures_are_the_pixels_of_the_steps(rich: Entry) -> None:
    shown = {one.key: one for one in read_episode(open_reader(rich.path), 2, pictures=4).frames}
    assert {one.steps for one in shown.values()} == {(0, 10, 19, 29)}
    first = LENGTHS[0] + LENGTHS[1] + 2  # an observation more for each episode before
    for place, step in enumerate((0, 10, 19, 29)):
        assert (pixels(shown["observation/pixels"], place) == first + step).all()
        camera = pixels(shown["observation/camera"], place).astype(int)
        assert abs(camera - 6 * (first + step)).max() <= 4
        assert (pixels(shown["observation/stack"], place) == 150).all()
    depth = [int(pixels(shown["observation/depth"], place).mean()) for place in range(4)]
    assert depth == [0, round(255 * 10 / 29), round(255 * 19 / 29), 255]
    assert shown["observation/depth"].note == "uint16 from 10000 (black) to 39000 (white)"
    assert pixels(shown["observation/pixels"]).shape == (24, 20, 3)


def test_frames_of_an_episode_stay_within_their_budget(rich: Entry) -> None:
    reader = open_reader(rich.path)
    whole = read_episode(reader, 2)
    assert {one.steps for one in whole.frames} == {tuple(range(30))}
    assert {kind for one in whole.frames for kind, _ in one.files} == {"image/webp"}
    assert whole.notes == ("The last observation of this episode is unknown.",)
    sizes = [len(content) for one in whole.frames for _, content in one.files]
    small = read_episode(reader, 2, budget=sum(sizes) // 4)
    for one in small.frames:
        assert sum(len(content) for _, content in one.files) <= sum(sizes) // 16
        assert len(one.steps) == len(one.files) >= 1
    fewest = min(len(one.files) for one in small.frames)
    assert fewest < 30
    assert f"This page has {fewest} of 30 frames of each camera" in small.notes[0]
    assert "`offline-data view local:rich@1 2`" in small.notes[0]


def test_large_pictures_are_reduced_by_means(rich: Entry) -> None:
    found = read_episode(open_reader(rich.path), 0, pictures=1, side=12).frames
    shown = {one.key: one for one in found}
    assert pixels(shown["observation/pixels"]).shape == (12, 10, 3)
    assert pixels(shown["observation/depth"]).shape == (10, 9, 3)


def test_texts_are_given_where_they_change(rich: Entry) -> None:
    shown = read_episode(open_reader(rich.path), 0)
    ((name, changes),) = shown.texts
    assert name == "instruction"
    assert changes == ((0, f"go 0 {HOSTILE}"), (4, f"go 1 {HOSTILE}"))


@pytest.mark.parametrize("number", [3, -1, 10**15])
def test_there_is_no_such_episode(rich: Entry, number: int) -> None:
    with pytest.raises(NotFoundError, match="has no episode"):
        read_episode(open_reader(rich.path), number)
    with pytest.raises(NotFoundError, match="has no such frames"):
        read_frames(open_reader(rich.path), number, np.arange(1), 160, None)


def test_frames_are_those_of_the_steps_and_the_camera(rich: Entry) -> None:
    reader = open_reader(rich.path)
    every = read_frames(reader, 2, np.array([3, 29]), 160, None)
    names = ["camera", "pixels", "stack", "depth"]
    assert [one.key for one in every] == [f"observation/{name}" for name in names]
    assert {one.steps for one in every} == {(3, 29)}
    assert [int(pixels(every[1], place).mean()) for place in range(2)] == [13, 39]
    (one,) = read_frames(reader, 2, np.array([29]), 12, 1)
    assert (one.key, pixels(one).shape, pixels(one).mean()) == (
        "observation/pixels",
        (12, 10, 3),
        39,
    )
    (large,) = read_frames(reader, 0, np.arange(1), 640, 0)
    assert pixels(large).shape == (32, 40, 3)
    for steps, camera in ([30], None), ([-1], None), ([], None), ([0], 4), ([0], 10**15):
        with pytest.raises(NotFoundError):
            read_frames(reader, 2, np.array(steps, int), 160, camera)


def test_examples_begin_with_outliers_the_best_and_the_worst(rich: Entry, tmp_path: Path) -> None:
    assert [*example_episodes(open_reader(rich.path))] == [2, 0, 1]
    batch = walks([9] * 50)
    state: Any = batch.observations[STATE]
    state[-10:] *= 1000  # of the last episode
    returns = np.random.default_rng(0).permutation(50).astype(float)
    batch.steps["next", "reward"][:] = np.repeat(returns, 9)[:, None]
    reader = open_reader(write(tmp_path, "many", batch).path)
    quality = episode_quality(reader)
    found = [*example_episodes(reader, quality)]
    assert sorted(found) == [*range(50)]
    flagged = [number for number in quality.order("outliers") if quality["outliers"][number]][:8]
    assert found[: len(flagged)] == flagged
    assert 49 in flagged
    order = np.argsort(returns)
    extreme = [one for one in [*order[::-1][:4], *order[:4]] if one not in flagged]
    assert found[len(flagged) :][: len(extreme)] == extreme
    assert found != [*example_episodes(reader, quality, seed=1)]
    assert found == [*example_episodes(reader, quality)]
