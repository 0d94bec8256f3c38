"""Films of episodes: frames decoded from the files again, against the arrays that were converted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageSequence

from offline_data import api
from offline_data.analysis.frames import Film, film, image_layout, image_leaves
from offline_data.base.errors import NotFoundError
from offline_data.raw import pixels
from offline_data.reports.video import open_rerun, write_film
from offline_data.store.reader import DatasetReader, open_reader

LENGTHS = (5, 3)
SHAPES: dict[str, tuple[int, ...]] = {
    "colour": (37, 51, 3),
    "first": (3, 20, 30),
    "grey": (20, 31),
    "mask": (16, 16, 1),
    "rgba": (18, 22, 4),
    "stack": (4, 24, 26),
    "stack_rgb": (6, 24, 26),
}


def _smooth(number: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return a frame that changes slowly, as lossy formats like it, different for each number."""
    places = np.indices(shape).astype(np.float64)
    wave = sum((n + 1) * axis for n, axis in enumerate(places)) + 12 * number
    return np.asarray(127 + 100 * np.sin(wave / 20), np.uint8)


def _episodes() -> list[dict[str, Any]]:
    episodes = []
    for number, length in enumerate(LENGTHS):
        seen: dict[str, Any] = {
            name: np.stack([_smooth(10 * number + t, shape) for t in range(length + 1)])
            for name, shape in SHAPES.items()
        }
        seen["depth"] = 300 + 40 * np.arange((length + 1) * 12 * 10).reshape(length + 1, 12, 10)
        seen["depth"] = seen["depth"].astype(np.uint16)
        seen["state"] = np.zeros((length + 1, 2))
        episode = {"observations": seen, "actions": np.zeros(length), "rewards": np.ones(length)}
        episodes.append({**episode, "terminations": True})
    return episodes


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> DatasetReader:
    stored = api.convert(_episodes(), "films", root=tmp_path_factory.mktemp("root"))
    return open_reader(stored.path)


def _expected(name: str, episode: int) -> list[NDArray[Any]]:
    """Return the frames as RGB, by the documented rule for each shape."""
    stored = _episodes()[episode]["observations"][name]
    if name == "depth":
        stored = np.rint(255 * (stored / 1.0 - stored.min()) / (stored.max() - stored.min()))
    rules: dict[str, Any] = {
        "colour": lambda one: one,
        "first": lambda one: one.transpose(1, 2, 0),
        "grey": lambda one: np.stack([one] * 3, axis=2),
        "depth": lambda one: np.stack([one] * 3, axis=2),
        "mask": lambda one: np.repeat(one, 3, axis=2),
        "rgba": lambda one: one[:, :, :3],
        "stack": lambda one: np.stack([one[3]] * 3, axis=2),
        "stack_rgb": lambda one: one[3:].transpose(1, 2, 0),
    }
    return [rules[name](one) for one in stored]


@pytest.mark.parametrize("name", [*SHAPES, "depth"])
@pytest.mark.parametrize("chunk", [1, 16 << 20])
def test_frames_of_every_shape(
    reader: DatasetReader, name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixels, "HELD", chunk)
    found = film(reader, 1, f"observation/{name}")
    expected = _expected(name, 1)
    images = list(found.frames)
    assert found.length == len(images) == LENGTHS[1] + 1
    for image, wanted in zip(images, expected, strict=True):
        assert image.shape == (found.height, found.width, 3)
        np.testing.assert_array_equal(image, wanted)
    said = " ".join(found.notes)
    assert ("uint16 values from 300 to" in said) == (name == "depth")
    assert ("newest" in said) == name.startswith("stack")
    assert ("transparency" in said) == (name == "rgba")


def test_the_first_leaf_is_colour_and_others_are_named(reader: DatasetReader) -> None:
    names = list(image_leaves(reader))
    assert names[0] == "observation/colour"
    assert names[-1] == "observation/depth"
    assert set(names) == {f"observation/{name}" for name in [*SHAPES, "depth"]}
    found = film(reader, 0)
    assert found.key == "observation/colour"
    assert "observation/stack_rgb" in found.notes[0]


def test_what_is_no_image() -> None:
    for dtype, shape in (
        ("float32", (84, 84)),
        ("uint8", (84,)),
        ("uint8", (4, 5)),
        ("int64", (9, 9)),
        ("uint8", (20, 84, 84)),
        ("uint16", (3, 84, 84)),
        ("uint8", (2, 9, 9, 3)),
    ):
        assert image_layout(dtype, shape) == "", (dtype, shape)


def test_a_gif_has_the_frames_exactly(reader: DatasetReader, tmp_path: Path) -> None:
    for name in ("grey", "stack"):  # at most 256 colours
        write_film(film(reader, 0, f"observation/{name}"), tmp_path / "a.gif", 20)
        with Image.open(tmp_path / "a.gif") as image:
            assert image.info["duration"] == 50
            found = [np.asarray(one.convert("RGB")) for one in ImageSequence.Iterator(image)]
        with av.open(tmp_path / "a.gif") as opened:
            again = [one.to_ndarray(format="rgb24") for one in opened.decode(video=0)]
        np.testing.assert_array_equal(found, _expected(name, 0))
        np.testing.assert_array_equal(again, _expected(name, 0))
    write_film(film(reader, 0, "observation/colour"), tmp_path / "a.gif", 20)
    with Image.open(tmp_path / "a.gif") as image:
        found = [np.asarray(one.convert("RGB")) for one in ImageSequence.Iterator(image)]
    errors = np.abs(np.array(found).astype(int) - _expected("colour", 0))
    assert (len(found), errors.max() < 40, errors.mean() < 5) == (6, True, True)


def test_an_mp4_has_the_frames_within_the_loss(reader: DatasetReader, tmp_path: Path) -> None:
    write_film(film(reader, 0, "observation/colour"), tmp_path / "a.mp4", 12.5)
    with av.open(tmp_path / "a.mp4") as opened:
        stream: Any = opened.streams.video[0]
        assert (stream.width, stream.height, float(stream.average_rate)) == (52, 38, 12.5)
        found = [one.to_ndarray(format="rgb24") for one in opened.decode(video=0)]
    assert len(found) == LENGTHS[0] + 1
    for image, wanted in zip(found, _expected("colour", 0), strict=True):
        cut = image[:37, :51].astype(int)
        assert np.abs(cut - wanted).mean() < 8
        assert np.abs(image[37].astype(int) - image[36]).mean() < 8  # the last row is repeated
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def _failing() -> Iterator[NDArray[np.uint8]]:
    yield np.zeros((16, 16, 3), np.uint8)
    raise NotFoundError("the frames end here")


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_a_failed_film_leaves_the_old_file_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b"old")
    with pytest.raises(NotFoundError, match="the frames end here"):
        write_film(Film("x", 2, 16, 16, (), _failing()), path, 30)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [(path.name, b"old")]


def test_rerun_gets_frames_and_rewards(
    reader: DatasetReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[tuple[str, int, Any]] = []
    now = [-1]
    fake = SimpleNamespace(
        init=lambda name, spawn: logged.append((name, -1, spawn)),
        set_time=lambda _, sequence: now.__setitem__(0, sequence),
        log=lambda name, value: logged.append((name, now[0], value)),
        Image=lambda image: image,
        Scalars=lambda value: value,
    )
    monkeypatch.setitem(sys.modules, "rerun", fake)
    shown = film(reader, 1, "observation/grey")
    open_rerun(replace(shown, key="grey"), np.array([0.5, 1.5, 2.5]), "films")
    assert logged[0] == ("films", -1, True)
    assert [(step, value) for name, step, value in logged if name == "reward"] == [
        (0, 0.5), (1, 1.5), (2, 2.5)
    ]  # fmt: skip
    images = [value for name, _, value in logged if name == "grey"]
    np.testing.assert_array_equal(images, _expected("grey", 1))


@pytest.mark.slow
def test_encoded_images_of_a_real_file(realdata: Path, tmp_path: Path) -> None:
    source = realdata / "rlds_octo_bridge" / "bridge_dataset"
    stored = api.convert(source, "bridge", episodes=(0, 2), split="train", root=tmp_path / "root")
    opened = open_reader(stored.path)
    shown = film(opened, 1, "observation/image_0")
    images = list(shown.frames)
    batch = opened.episode_batch(1, 2)
    decoded = np.asarray(batch.observations["observation", "image_0"])
    known = len(decoded) - (not batch.final_observation[0])
    assert (shown.length, len(images)) == (known, known)
    np.testing.assert_array_equal(images, decoded[:known])
