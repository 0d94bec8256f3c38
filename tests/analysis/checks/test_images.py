"""Black and frozen frames, order of channels, lossy encodings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.store.encoded import EncodedColumn
from tests.analysis.checks.planted import Write, changed, clean_batch, found
from tests.pictures import JPEG, PNG, pictures, written

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch, Key

LENGTHS = (12, 20, 9)
ROWS = sum(LENGTHS)
IMAGES = ("RL050", "RL051", "RL052", "RL053")


def column(frames: NDArray[Any], encoding: str | None = None) -> Any:
    """Return frames as a batch has them, encoded if asked for."""
    if encoding is None:
        return frames
    images = [written(one, encoding) for one in frames]
    return EncodedColumn.of(images, (encoding, "uint8", frames.shape[1:]))


def with_pixels(frames: NDArray[Any], encoding: str | None = None) -> EpisodeBatch:
    """Return three episodes whose observations are frames."""
    seen = {("observation",): column(frames, encoding)}
    return changed(clean_batch(LENGTHS), observations=seen)


def clean_frames(rows: int = ROWS + 3, kind: Any = PNG) -> NDArray[Any]:
    return pictures(rows, kind)


@pytest.mark.parametrize(
    ("encoding", "layout"), [(None, "compact"), (None, "ted"), ("png", "compact")]
)
def test_clean(write: Write, encoding: str | None, layout: str) -> None:
    batch = with_pixels(clean_frames(), encoding)
    path = write(batch, layout=layout)
    for code in IMAGES:
        assert found(path, code) == []
    vectors = write(clean_batch(), layout=layout)
    for code in IMAGES:
        assert found(vectors, code) == []


@pytest.mark.parametrize(
    ("encoding", "layout"),
    [(None, "compact"), (None, "ted"), ("png", "compact"), ("jpeg", "compact")],
)
def test_black_frames(write: Write, encoding: str | None, layout: str) -> None:
    frames = clean_frames(kind=JPEG if encoding == "jpeg" else PNG)
    frames[[15, 16, 33]] = 0  # 33: after the last action of episode 1
    path = write(with_pixels(frames, encoding), layout=layout)
    (one,) = found(path, "RL050")
    assert (one.leaf, one.episode, one.row) == ("observation", 1, 14)
    assert (one.count, one.severity) == (3, "warning")
    assert one.message == f"3 of {ROWS + 3} frames are black"
    assert found(path, "RL050", share=0.1) == []


@pytest.mark.parametrize("encoding", [None, "png"])
def test_a_camera_that_is_always_black_is_to_be_dropped(write: Write, encoding: str | None) -> None:
    for black, always in (([15, 16, 33], False), (slice(None), True)):
        frames = clean_frames()
        frames[black] = 0
        (one,) = found(write(with_pixels(frames, encoding)), "RL050")
        said = f"`offline-data preprocess {one.dataset} --step exclude:observation --out NAME`"
        assert (one.severity == "error", said in str(one.hint)) == (always, always)


@pytest.mark.parametrize("encoding", [None, "png"])
def test_a_black_frame_after_the_last_action(write: Write, encoding: str | None) -> None:
    frames = clean_frames()
    frames[12] = 0
    (one,) = found(write(with_pixels(frames, encoding)), "RL050")
    assert (one.leaf, one.episode, one.row, one.count) == ("next/observation", 0, 11, 1)


@pytest.mark.parametrize("encoding", [None, "png"])
def test_black_frames_of_steps(write: Write, encoding: str | None) -> None:
    frames = clean_frames(ROWS)
    frames[32] = 0
    batch = changed(clean_batch(LENGTHS), steps={("camera",): column(frames, encoding)})
    (one,) = found(write(batch), "RL050")
    assert (one.leaf, one.episode, one.row) == ("camera", 2, 32)


def test_black_frames_outside_the_sample_are_found_by_their_size(write: Write) -> None:
    frames = clean_frames()
    frames[[14, 20, 21, 30]] = 0
    (one,) = found(write(with_pixels(frames, "png")), "RL050", sample=1)
    assert (one.count, one.row) == (4, 13)


def test_all_black(write: Write) -> None:
    for encoding in (None, "png"):
        path = write(with_pixels(0 * clean_frames(), encoding))
        (one,) = found(path, "RL050")
        assert (one.severity, one.count, one.row) == ("error", ROWS + 3, 0)
        assert found(path, "RL051") == []


def test_unknown_final_frames_are_no_frames(write: Write) -> None:
    frames = clean_frames()
    frames[[12, 33, 43]] = 0
    batch = replace(with_pixels(frames, "png"), final_observation=np.array([False, False, True]))
    (one,) = found(write(batch), "RL050")
    assert (one.count, one.leaf, one.episode) == (1, "next/observation", 2)


@pytest.mark.parametrize(
    ("encoding", "layout"), [(None, "compact"), (None, "ted"), ("png", "compact")]
)
def test_frozen_episodes(write: Write, encoding: str | None, layout: str) -> None:
    frames = clean_frames()
    frames[13:34] = frames[13]
    path = write(with_pixels(frames, encoding), layout=layout)
    (one,) = found(path, "RL051")
    assert (one.leaf, one.episode, one.row, one.count) == ("observation", 1, 12, 1)
    assert one.message == "1 of 3 examined episodes shows one frame from first to last"
    assert found(path, "RL051", steps=21) == []
    frames[14] = clean_frames()[14]
    assert found(write(with_pixels(frames, encoding), layout=layout), "RL051") == []


def test_goal_images_may_stay(write: Write) -> None:
    frames = np.repeat(clean_frames(1), ROWS, axis=0)
    batch = changed(clean_batch(LENGTHS), steps={("goal_image",): frames})
    assert found(write(batch), "RL051") == []


@pytest.mark.parametrize("channels_first", [False, True])
def test_one_colour(write: Write, channels_first: bool) -> None:
    frames = clean_frames()
    frames[15:30] = np.add.outer(
        np.arange(15, dtype=np.uint8), np.array([[[10, 200, 30]]], np.uint8)
    )
    frames = np.moveaxis(frames, -1, 1) if channels_first else frames
    (one,) = found(write(with_pixels(frames)), "RL051")
    # Before the action; the last ones of episodes are not looked at
    assert (one.about, one.row, one.count) == ("one colour", 14, 15)
    assert one.message == "15 of 41 examined frames have one colour"
    assert found(write(with_pixels(frames)), "RL051", colour_share=0.5) == []


def test_channels_first(write: Write) -> None:
    frames = np.moveaxis(clean_frames(), -1, 1)
    (one,) = found(write(with_pixels(frames)), "RL052")
    assert (one.severity, one.leaf) == ("info", "observation")
    assert one.message == "Frames are [3, 12, 17]: channels come first"


def test_another_order_than_declared(write: Write) -> None:
    space = {"type": "Box", "shape": [3, 12, 17], "dtype": "uint8"}
    (one,) = found(write(with_pixels(clean_frames()), spaces={"observation": space}), "RL052")
    assert (one.severity, one.leaf) == ("warning", "observation")
    assert one.message == "Frames are [12, 17, 3], and the declared space is [3, 12, 17]"
    right = {"observation": {**space, "shape": [12, 17, 3]}}
    assert found(write(with_pixels(clean_frames()), spaces=right), "RL052") == []
    nested = {"type": "Dict", "subspaces": {"camera": space}}
    frames: dict[Key, Any] = {("observation", "camera"): clean_frames()}
    batch = replace(clean_batch(LENGTHS), observations=frames)
    (one,) = found(write(batch, spaces={"observation": nested}), "RL052")
    assert one.leaf == "observation/camera"


def test_lossy_images(write: Write) -> None:
    (one,) = found(write(with_pixels(clean_frames(kind=JPEG), "jpeg")), "RL053")
    assert (one.severity, one.leaf, one.message) == ("info", "observation", "Images are JPEG")
    notes = ("Images are lossy JPEG in the source (observations).",)
    (one,) = found(write(with_pixels(clean_frames()), notes=notes), "RL053")
    assert (one.leaf, one.message) == (
        None,
        "Images were JPEG in the source, and are stored decoded",
    )
