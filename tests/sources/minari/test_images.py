"""Images, raw and JPEG-encoded, in every form in which Minari's versions have stored them."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from PIL import Image

from offline_data.errors import FormatError, MissingDependencyError
from offline_data.sources.minari.plan import NOTE_IMAGES
from offline_data.testing.minari_toy import STORAGES, read_minari, write_minari
from offline_data.testing.minari_values import ToyEpisode, box, toy_episode

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

EVERY_STORAGE = pytest.mark.parametrize("storage", STORAGES)


def image(number: int, *shape: int) -> NDArray[np.uint8]:
    """Noise, so that no two images or their JPEG files are alike."""
    return np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)


def jpeg(pixels: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="JPEG")
    return file.getvalue()


def decoded(data: bytes) -> NDArray[np.uint8]:
    return np.array(Image.open(io.BytesIO(data)), dtype=np.uint8)


def episode(number: int, frames: list[bytes] | NDArray[Any], **more: Any) -> ToyEpisode:
    return toy_episode(number, len(frames) - 1, observations=frames, **more)


@EVERY_STORAGE
@pytest.mark.parametrize("shape", [(48, 40, 3), (40, 36), (7, 7, 3)])
def test_jpeg_of_any_size(tmp_path: Path, storage: str, shape: tuple[int, ...]) -> None:
    frames = [[jpeg(image(10 * n + t, *shape)) for t in range(3 + n)] for n in range(2)]
    episodes = [episode(n, some) for n, some in enumerate(frames)]
    space = box(*shape, dtype="uint8")
    batch = read_minari(write_minari(tmp_path / "t-v0", episodes, storage, observation=space))
    expected = [decoded(frame) for some in frames for frame in some]
    np.testing.assert_array_equal(batch.observations["observation",], expected)
    assert batch.notes == (NOTE_IMAGES.format(leaf="observations"),)


def test_frames_that_happen_to_be_of_equal_length(tmp_path: Path) -> None:
    pixels = image(1, 40, 40)
    same, other = [jpeg(pixels)] * 3, [jpeg(pixels), jpeg(image(2, 40, 40))]
    folder = write_minari(
        tmp_path / "t-v0",
        [episode(0, same), episode(1, other)],
        observation=box(40, 40, dtype="uint8"),
    )
    with h5py.File(folder / "data" / "main_data.hdf5") as file:
        assert file["episode_0/observations"].dtype == np.uint8
        assert file["episode_1/observations"].dtype == object
    batch = read_minari(folder)
    expected = [decoded(frame) for frame in same + other]
    np.testing.assert_array_equal(batch.observations["observation",], expected)


def test_numbers_that_begin_like_a_jpeg_image_stay_numbers(tmp_path: Path) -> None:
    rows = image(3, 4, 9)
    rows[:, :3] = 0xFF, 0xD8, 0xFF
    space = box(9, dtype="uint8")
    batch = read_minari(write_minari(tmp_path / "t-v0", [episode(0, rows)], observation=space))
    np.testing.assert_array_equal(batch.observations["observation",], rows)
    assert not batch.notes


def test_jpeg_in_one_episode_and_raw_in_the_next(tmp_path: Path) -> None:
    frames, raw = [jpeg(image(t, 40, 36, 3)) for t in range(2)], image(9, 3, 40, 36, 3)
    space = box(40, 36, 3, dtype="uint8")
    folder = write_minari(
        tmp_path / "t-v0", [episode(0, frames), episode(1, raw)], observation=space
    )
    found = read_minari(folder).observations["observation",]
    np.testing.assert_array_equal(found, [*map(decoded, frames), *raw])


def test_jpeg_deep_in_infos(tmp_path: Path) -> None:
    frames = [jpeg(image(t, 8, 9, 3)) for t in range(3)]
    folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 2, infos={"cam": {"left": frames}})])
    found = read_minari(folder).observations["info", "cam", "left"]
    np.testing.assert_array_equal(found, [decoded(frame) for frame in frames])


@EVERY_STORAGE
def test_bytes_that_are_no_images_are_dropped_aloud(tmp_path: Path, storage: str) -> None:
    blobs = [b"a", b"bcd", b"ef"]
    folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 2, infos={"b": blobs})], storage)
    batch = read_minari(folder)
    assert [dropped.key for dropped in batch.dropped] == ["infos/b"]
    assert "JPEG" in batch.dropped[0].reason


@EVERY_STORAGE
def test_a_damaged_image(tmp_path: Path, storage: str) -> None:
    frames = [jpeg(image(t, 40, 36)) for t in range(3)]
    frames[2] = frames[2][:30]
    space = box(40, 36, dtype="uint8")
    folder = write_minari(tmp_path / "t-v0", [episode(0, frames)], storage, observation=space)
    with pytest.raises(FormatError, match=r"observations, row 2, is not a JPEG image"):
        read_minari(folder)


@EVERY_STORAGE
def test_an_image_of_another_size(tmp_path: Path, storage: str) -> None:
    frames = [jpeg(image(0, 40, 36)), jpeg(image(1, 40, 37))]
    folder = write_minari(
        tmp_path / "t-v0", [episode(0, frames)], storage, observation=box(40, 36, dtype="uint8")
    )
    with pytest.raises(FormatError, match=r"row 1, is an image of \[40, 37\]; expected \[40, 36\]"):
        read_minari(folder)


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [jpeg(image(t, 40, 36)) for t in range(2)]
    folder = write_minari(
        tmp_path / "t-v0", [episode(0, frames)], observation=box(40, 36, dtype="uint8")
    )
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError) as caught:
        read_minari(folder)
    assert caught.value.hint == "pip install 'offline-data[images]'"


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 1)], "arrow")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError) as caught:
        read_minari(folder)
    assert caught.value.hint == "pip install 'offline-data[arrow]'"
