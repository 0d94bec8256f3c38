"""Images: blank, frozen, channels first, lossy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offline_data.readers.images import encode_image
from offline_data.store.encoded import EncodedColumn
from tests.checks.planted import Write, changed, clean_batch, found

IMAGES = ["RL050", "RL051", "RL052", "RL053"]
KEY = ("observation", "camera")


def frames(*shape: int) -> Any:
    return np.random.default_rng(0).integers(0, 255, (44, *(shape or (16, 12, 3))), np.uint8)


def with_frames(write: Write, pixels: Any, **options: Any) -> Any:
    batch = clean_batch()
    observations: dict[Any, Any] = {
        ("observation", "state"): batch.observations["observation",],
        KEY: pixels,
    }
    batch = type(batch)(batch.lengths, batch.steps, observations, batch.final_observation)
    return write(batch, **options)


def encoded(pixels: Any, encoding: str) -> Any:
    images = [encode_image(frame, encoding) for frame in pixels]
    return EncodedColumn.of(images, (encoding, "uint8", pixels.shape[1:]))


@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_clean(write: Write, layout: str) -> None:
    path = with_frames(write, frames(), layout=layout)
    assert [one for code in IMAGES for one in found(path, code)] == []
    assert [one for code in IMAGES for one in found(write(clean_batch()), code)] == []


@pytest.mark.parametrize("kind", ["compact", "ted", "png"])
def test_blank(write: Write, kind: str) -> None:
    pixels = frames()
    pixels[15], pixels[20] = 0, 7  # observations of transitions 14 and 19
    column = encoded(pixels, "png") if kind == "png" else pixels
    path = with_frames(write, column, layout="ted" if kind == "ted" else "compact")
    (one,) = found(path, "RL050")
    assert (one.leaf, one.episode, one.row, one.count) == ("observation/camera", 1, 14, 2)
    assert one.message == "2 of 38 sampled frames have a single colour"
    assert one.severity == "warning"


def test_all_blank_is_an_error(write: Write) -> None:
    (one,) = found(with_frames(write, np.zeros((44, 16, 12), np.uint8)), "RL050")
    assert (one.severity, one.row, one.count) == ("error", 0, 38)


def test_frozen(write: Write) -> None:
    pixels = frames()
    pixels[13:34] = pixels[13]
    (one,) = found(with_frames(write, pixels), "RL051")
    assert (one.episode, one.row, one.count) == (1, 12, 19)
    assert found(with_frames(write, pixels), "RL051", share=0.6) == []


def test_channels_first(write: Write) -> None:
    (one,) = found(with_frames(write, frames(3, 16, 12)), "RL052")
    assert one.message == "Rows are [3, 16, 12]: channels, height, width"
    assert found(with_frames(write, frames(4, 16, 12)), "RL052") == []


def test_lossy(write: Write) -> None:
    (one,) = found(with_frames(write, encoded(frames(), "jpeg")), "RL053")
    assert (one.leaf, one.severity) == ("observation/camera", "info")
    assert found(with_frames(write, encoded(frames(), "png")), "RL053") == []


def test_only_a_sample_is_decoded(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from offline_data.checks.rules import images

    monkeypatch.setattr(images, "FRAMES", 4)
    pixels = np.zeros((44, 16, 12), np.uint8)
    (one,) = found(with_frames(write, pixels), "RL050")
    assert 3 <= one.count <= 5
    assert changed(clean_batch()).transitions == 41
