"""Episodes as they are shown: the values, pictures and texts of the right steps."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from offline_data.base.errors import NotFoundError
from offline_data.reports.pages.episodes import Frames, example_episodes, read_episode
from offline_data.store.library import Entry
from offline_data.store.reader import open_reader
from tests.reports.pages.conftest import HOSTILE, LENGTHS


def pixels(frames: Frames, place: int = 0) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(frames.files[place][1])))


def test_curves_are_the_values_of_the_steps(rich: Entry) -> None:
    reader = open_reader(rich.path)
    shown = read_episode(reader, 2, 10, 20)
    assert (shown.length, shown.first, shown.stop) == (30, 10, 20)
    assert (shown.terminated, shown.truncated, shown.final_observation) == (False, True, False)
    curves = {one.key: one for one in shown.curves}
    rows = np.arange(8, 38)
    assert curves["next/reward"].values.tolist() == [rows[10:20].tolist()]
    assert curves["return so far"].values[0, 0] == rows[:11].sum()
    assert shown.returned == rows.sum()
    state = reader.episode_batch(2, 3).observations[("observation", "state")][10:20]
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
    assert not whole.notes
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


@pytest.mark.parametrize(("number", "first"), [(3, 0), (-1, 0), (0, 7)])
def test_there_is_no_such_step(rich: Entry, number: int, first: int) -> None:
    with pytest.raises(NotFoundError):
        read_episode(open_reader(rich.path), number, first, first + 1)


def test_examples_are_of_the_lowest_median_and_highest_return(rich: Entry) -> None:
    found = example_episodes(open_reader(rich.path))
    assert found == {1: "lowest return", 0: "median return", 2: "highest return"}
