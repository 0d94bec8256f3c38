"""The picture of a dataset card: frames of cameras, else histograms."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from offline_data.base.errors import MissingDependencyError
from offline_data.reports.pages.preview import card_files
from offline_data.store.library import Entry
from tests.reports.pages.conftest import flat_batch, write


def pixels(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)


def test_frames_of_each_camera_over_an_episode(rich: Entry) -> None:
    files = card_files(rich)
    assert list(files) == ["README.md", "README.webp"]
    assert b"\n![Preview](README.webp)\n" in files["README.md"]
    picture = pixels(files["README.webp"])
    # episode 1, rows 8 and 9 of observations: one step, so one frame of each of four cameras
    assert picture.shape == (32 + 24 + 16 + 20 + 4 * 2, 42, 3)
    levels = [int(picture[at, 5].mean()) for at in (16, 34 + 12, 34 + 26 + 8)]
    assert levels == pytest.approx([8 * 6, 8, 150], abs=6)


def test_a_dataset_without_images_has_histograms(tmp_path: Path) -> None:
    entry = write(tmp_path, "flat", flat_batch(np.arange(40.0).reshape(-1, 1)))
    files = card_files(entry, name="my card.md")
    assert list(files) == ["my card.md", "my card.webp"]
    assert b"![Preview](my%20card.webp)" in files["my card.md"]
    picture = pixels(files["my card.webp"])
    assert picture.shape[1] > 2 * picture.shape[0]
    assert picture.std() > 20  # something is drawn


def test_without_the_packages_the_card_has_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingDependencyError("no matplotlib")

    monkeypatch.setattr("offline_data.reports.figure.require_matplotlib", missing)
    files = card_files(write(tmp_path, "flat", flat_batch(np.arange(40.0).reshape(-1, 1))))
    assert list(files) == ["README.md"]
    assert b"![" not in files["README.md"]
