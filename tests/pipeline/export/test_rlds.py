"""RLDS records by protobuf and CRC-32C, not by the product's own reader; and by TFDS."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from PIL import Image

import offline_data
from offline_data.base.config import Settings
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED
from offline_data.formats.rlds import writer as rlds
from offline_data.formats.rlds.writer import write_example
from offline_data.raw.images import encode_image
from offline_data.store.encoded import EncodedColumn
from offline_data.testing.toy import toy_batch, write_toy
from tests.films import frames
from tests.pipeline.export.conftest import BATCHES, LENGTHS
from tests.toys.rlds import example_class

TFDS = os.environ.get("OFFLINE_DATA_TFDS")
"""Python that has tensorflow_datasets, which then opens the folders."""
ENDS = np.cumsum(LENGTHS)

Write = Callable[..., Path]


@pytest.fixture
def write(settings: Settings, tmp_path: Path) -> Write:
    """Export a batch and return the folder."""

    def export(batch: EpisodeBatch, name: str = "robot") -> Path:
        folder = tmp_path / "stored" / name
        write_toy(folder, [batch], dataset=f"local:{name}@1")
        dest = tmp_path / "out" / name
        offline_data.export(folder, dest, to="rlds", settings=settings, progress=False)
        return dest

    return export


def parsed(data: bytes) -> dict[str, list[Any]]:
    """Return the values of a record by feature, as protobuf reads it."""
    found = {}
    for name, one in example_class().FromString(data).features.feature.items():
        found[name] = list(getattr(one, one.WhichOneof("kind")).value)
    return found


def records(folder: Path) -> Iterator[dict[str, list[Any]]]:
    """Yield the records of all files, whose checksums are compared."""

    def mask(data: bytes) -> int:
        crc = google_crc32c.value(data)
        return int(((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    for file in sorted(folder.glob("*.tfrecord-*")):
        data = file.read_bytes()
        while data:
            (length, crc), data = struct.unpack("<QI", data[:12]), data[12:]
            assert crc == mask(struct.pack("<Q", length))
            record, (crc,), data = (
                data[:length],
                struct.unpack("<I", data[length : length + 4]),
                data[length + 4 :],
            )
            assert crc == mask(record)
            yield parsed(record)


@pytest.mark.parametrize("name", BATCHES)
def test_values_and_alignment(name: str, write: Write) -> None:
    batch = BATCHES[name]()
    folder = write(batch, "robot")
    key = ("observation",) if ("observation",) in batch.observations else ("observation", "state")
    state: Any = batch.observations[key]
    found = list(records(folder))
    assert len(found) == len(LENGTHS)
    for number, record in enumerate(found):
        length, final = LENGTHS[number], int(batch.final_observation[number])
        rows, first = length + final, int(ENDS[number]) - length
        seen = state[first + number : first + number + rows]
        stored = record["/".join(("steps", *key))]
        if seen.dtype == np.float64:
            assert stored == [row.tobytes() for row in seen]
        else:
            np.testing.assert_array_equal(np.array(stored, np.float32).reshape(seen.shape), seen)
        action = batch.steps["action",][first : first + length].reshape(-1)
        np.testing.assert_array_equal(record["steps/action"], [*action, *[0] * final])
        if REWARD in batch.steps:
            reward = [*batch.steps[REWARD][first : first + length, 0].tolist(), *[0.0] * final]
            kind = "<f8" if batch.steps[REWARD].dtype == np.float64 else "<f4"
            got = [np.frombuffer(one, kind)[0] if isinstance(one, bytes) else one
                   for one in record["steps/reward"]]  # fmt: skip
            np.testing.assert_array_equal(np.array(got, kind), np.array(reward, kind))
        else:
            assert "steps/reward" not in record
        ended = int(batch.steps[TERMINATED][ENDS[number] - 1, 0])
        assert record["steps/is_first"] == [1] + [0] * (rows - 1)
        assert record["steps/is_last"] == [0] * (rows - 1) + [1]
        assert record["steps/is_terminal"] == [0] * (rows - 1) + [ended]
        assert record["steps/discount"] == [1.0] * length + [0.0] * final
        for column in batch.episodes:
            values = batch.episodes[column][number]
            assert record[f"episode_metadata/{column[0]}"] == [values]
    info = json.loads((folder / "dataset_info.json").read_text())
    (split,) = info["splits"]
    size = sum(file.stat().st_size for file in folder.glob("*.tfrecord-*"))
    assert split["numBytes"] == str(size)
    assert split["shardLengths"] == [str(len(LENGTHS))]


def test_texts_and_images(write: Write) -> None:
    batch = toy_batch(LENGTHS, text=True, images=True)
    rows = sum(LENGTHS) + len(LENGTHS)
    jpeg = [encode_image(image, "jpeg") for image in frames(rows, 3)]
    observations = {
        **batch.observations,
        ("observation", "stored"): EncodedColumn.of(jpeg, ("jpeg", "uint8", (32, 48, 3))),
        ("observation", "big"): np.arange(rows, dtype=np.uint64) + (1 << 63),
        ("observation", "small"): -np.arange(rows, dtype=np.int8)[:, None],
        ("observation", "half"): np.arange(rows * 2, dtype=np.float16).reshape(rows, 1, 2),
    }
    folder = write(replace(batch, observations=observations))
    at = 0
    for record, length in zip(records(folder), LENGTHS, strict=True):
        span = slice(at, at + length + 1)
        at = span.stop
        texts = [text.decode() for text in record["steps/observation/mission"]]
        assert texts == batch.observations["observation", "mission"][span].tolist()
        for one, image in zip(
            record["steps/observation/image"],
            batch.observations["observation", "image"][span],
            strict=True,
        ):
            np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(one))), image)
        assert record["steps/observation/stored"] == jpeg[span]
        for name in ("big", "small", "half"):
            values: Any = observations["observation", name][span]
            expected = values.view(np.int64) if name == "big" else values
            np.testing.assert_array_equal(record[f"steps/observation/{name}"], expected.ravel())


def test_integers_of_all_lengths() -> None:
    bits = np.arange(64, dtype=np.uint64)
    powers = (np.uint64(1) << bits).view(np.int64)
    values = np.concatenate([powers, powers - 1, -powers, [0, -1, 300]])
    texts = [b"", b"x" * 127, b"y" * 128, b"z" * 70_000]
    data = write_example({"n": values, "t": texts, "f": np.array([1.5, -0.0, np.inf], np.float32)})
    assert parsed(data) == {"n": values.tolist(), "t": texts, "f": [1.5, -0.0, np.inf]}


def test_several_files(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlds, "_SHARD", 500)
    folder = write(BATCHES["flat"](), "some-Set.v2")
    files = sorted(file.name for file in folder.glob("*.tfrecord-*"))
    split = json.loads((folder / "dataset_info.json").read_text())["splits"][0]
    assert len(files) == len(split["shardLengths"]) > 1
    assert files[0] == f"some_set_v2-train.tfrecord-00000-of-{len(files):05d}"
    assert sum(map(int, split["shardLengths"])) == len(LENGTHS) == len(list(records(folder)))


def test_a_set_of_tfds_is_the_same_after_a_round_trip(
    realdata: Path, settings: Settings, tmp_path: Path
) -> None:
    source = realdata / "rlds_tfds_generated/toy_robot/0.1.0"
    offline_data.convert(source, "robot", split="train", settings=settings, progress=False)
    done = offline_data.export(
        "local:robot", tmp_path / "out", to="rlds", settings=settings, progress=False
    )
    assert not [loss for loss in done.losses if loss.leaf.startswith("observation/")]
    new = list(records(tmp_path / "out"))
    old = list(records(source))[: len(new)]  # of train, whose file is the first
    assert len(old) == len(new) == done.episodes == 5
    for one, other in zip(old, new, strict=True):
        for name in ("steps/action/world_vector", "episode_metadata/file_path"):
            assert other[name] == one[name]


_SCRIPT = """
import sys, json, numpy as np, tensorflow_datasets as tfds
for path in sys.argv[1:]:
    builder = tfds.builder_from_directory(path)
    for episode in builder.as_dataset(split="train"):
        steps = list(episode["steps"].as_numpy_iterator())
        def of(step):
            seen = step["observation"]
            return seen["state"] if isinstance(seen, dict) else seen
        seen = [one["observation"] for one in steps]
        nested = isinstance(seen[0], dict)
        print(json.dumps({
            "state": [of(one).tolist() for one in steps],
            "action": [np.ravel(one["action"]).tolist() for one in steps],
            "reward": [float(one["reward"]) for one in steps],
            "last": [bool(one["is_last"]) for one in steps],
            "mission": [one["mission"].decode() for one in seen] if nested else [],
            "image": [int(one["image"].sum()) for one in seen] if nested else [],
        }))
"""


@pytest.mark.skipif(not TFDS, reason="OFFLINE_DATA_TFDS does not name a Python with TFDS")
@pytest.mark.parametrize("name", ["nested", "discrete", "without final"])
def test_tfds_reads_it(name: str, write: Write) -> None:
    batch = BATCHES[name]()
    command = [str(TFDS), "-c", _SCRIPT, str(write(batch))]
    environ = {**os.environ, "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert process.returncode == 0, process.stderr[-2000:]
    lines = process.stdout.splitlines()
    assert len(lines) == len(LENGTHS)
    key = ("observation",) if ("observation",) in batch.observations else ("observation", "state")
    for number, line in enumerate(lines):
        found, length = json.loads(line), LENGTHS[number]
        final, first = int(batch.final_observation[number]), int(ENDS[number]) - length
        span = slice(first + number, first + number + length + final)
        np.testing.assert_array_equal(found["state"], np.asarray(batch.observations[key])[span])
        steps = slice(first, first + length)
        action = np.asarray(batch.steps["action",])[steps].reshape(length, -1)
        np.testing.assert_array_equal(found["action"], [*action.tolist(), *[[0]] * final])
        reward = batch.steps[REWARD][steps, 0].tolist()
        assert found["reward"] == [*reward, *[0.0] * final]
        assert found["last"] == [False] * (length + final - 1) + [True]
        if name == "nested":
            for leaf in ("mission", "image"):
                values = np.asarray(batch.observations["observation", leaf])[span]
                expected = values if leaf == "mission" else values.sum(axis=(1, 2, 3))
                assert found[leaf] == expected.tolist()
