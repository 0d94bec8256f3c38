"""RLDS records to arrays, compared with tf.data and TFDS, with and without decoding images.

Times are CPU seconds: TensorFlow's pipelines use an extra thread. The peers run in a separate
interpreter that has TensorFlow: `--tensorflow PYTHON`.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.memory import added_mib
from benchmarks.timing import Row
from offline_data.formats.base import Release
from offline_data.formats.rlds.source import OpenX
from offline_data.raw.images import encode_image
from offline_data.store.encoded import EncodedColumn
from tests.toys.rlds import write_rlds

EPISODES, STEPS, SIDE, CAMERAS = 64, 100, 128, 2
PEERS = {"tf.data, parse_single_example": "parsed", "TFDS, steps batched": "tfds"}


def run(
    folder: Path, *, repeats: int = 5, scale: float = 1.0, tensorflow: str | None = None
) -> Iterator[Row]:
    """Run both cases; without `tensorflow` only this package."""
    path = write(folder / "bench" / "0.1.0", max(2, int(EPISODES * scale)))
    episodes = max(2, int(EPISODES * scale))
    size = sum(file.stat().st_size for file in path.glob("*.tfrecord*"))
    peer = Peer(tensorflow, path) if tensorflow else None
    for case, decode in (("images left encoded", False), ("images decoded", True)):
        jobs: dict[str, Any] = {
            "offline-data": partial(ours, path, decode=decode),
            "offline-data, joined to batches": partial(ours, path, decode=decode, join=True),
        }
        for name, job in PEERS.items() if peer else ():
            jobs[name] = partial(peer.run, job, decode=decode)  # type: ignore[union-attr]
        seen: dict[str, list[float]] = {name: [] for name in jobs}
        said: dict[str, list[float]] = {}
        for _ in range(repeats + 1):
            for name, job in jobs.items():
                seconds, said[name] = job()
                seen[name].append(seconds)
        seconds = {name: median(times[1:]) for name, times in seen.items()}
        for name, took in seconds.items():
            wrong = "" if np.allclose(said[name], said["offline-data"]) else ", WRONG VALUES"
            note = f"{episodes / took:,.0f} episodes/s, {size / took / 2**20:,.0f} MiB/s{wrong}"
            if name.startswith("offline-data"):
                note += f", peak +{peak_memory(path, decode, 'joined' in name)} MiB"
            title = f"{episodes} episodes of {STEPS} steps, {CAMERAS} cameras {SIDE}², {case}"
            target = "≥ 2× tf.data" if name == "offline-data" and not decode else ""
            yield Row(title, name, f"{took / seconds['offline-data']:.2f}×", note, target)


def ours(path: Path, *, decode: bool, join: bool = False) -> tuple[float, list[float]]:
    """Read all episodes in one thread: one by one like the peers, or joined like a conversion.

    Returns:
        CPU seconds, and sums for comparison.
    """
    before = time.process_time()
    dataset = OpenX().open(Release("bench", "0.1.0", local=path), path)
    sums = np.zeros(2)
    for shard in dataset.shards():
        piece = dataset._pieces[shard.name]
        alone = (read() for _, read in dataset._readings(piece))
        for batch in dataset.read(shard) if join else alone:
            sums += batch.steps[("action",)].sum(dtype=float), batch.transitions
            for column in batch.observations.values() if decode else ():
                if isinstance(column, EncodedColumn):
                    for row in batch.root_rows:  # like the peers: a row at a time, in one thread
                        out = np.empty(column.shape[1:], column.dtype)
                        column[row : row + 1].decode([out], 1)
    return time.process_time() - before, sums.tolist()


class Peer:
    """A process of the other interpreter that runs jobs on request."""

    def __init__(self, python: str, path: Path) -> None:
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("rlds_peer.py")), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answers = iter(self._process.stdout or ())

    def run(self, job: str, *, decode: bool) -> tuple[float, list[float]]:
        """Run a job; returns the same as `ours`."""
        print(job, int(decode), file=self._process.stdin, flush=True)
        seconds, sums = json.loads(next(self._answers))
        return float(seconds), sums


def peak_memory(path: Path, decode: bool, join: bool) -> int:
    """Return the MiB that reading adds to a process with its imports done."""
    setup = "from benchmarks import rlds\nimport PIL.JpegImagePlugin\n"
    return added_mib(setup, f"rlds.ours(Path(sys.argv[1]), decode={decode}, join={join})", path)


def write(folder: Path, episodes: int) -> Path:
    """Write a dataset like those of Open X-Embodiment, in four files."""
    rng = np.random.default_rng(0)
    images = [_image(rng) for _ in range(32)]
    shards: list[list[Any]] = [[] for _ in range(4)]
    for episode in range(episodes):
        last = np.arange(STEPS) == STEPS - 1
        record: dict[str, Any] = {
            "steps/action": rng.standard_normal(STEPS * 7).astype(np.float32),
            "steps/observation/state": rng.standard_normal(STEPS * 8).astype(np.float32),
            "steps/language_embedding": rng.standard_normal(STEPS * 512).astype(np.float32),
            "steps/language_instruction": [f"put the cup {episode % 9}".encode()] * STEPS,
            "steps/reward": last.astype(np.float32),
            "steps/discount": np.ones(STEPS, np.float32),
            "steps/is_first": (np.arange(STEPS) == 0).astype(int),
            "steps/is_last": last.astype(int),
            "steps/is_terminal": last.astype(int),
            "episode_metadata/file_path": [f"/data/{episode}".encode()],
        }
        for camera in range(CAMERAS):
            which = rng.integers(0, len(images), STEPS)
            record[f"steps/observation/image_{camera}"] = [images[n] for n in which]
        shards[episode % 4].append(record)
    return write_rlds(folder, {"train": shards}, features=_features(), name="bench")


def _features() -> dict[str, Any]:
    home = "tensorflow_datasets.core.features"

    def tensor(dtype: str, *shape: int) -> dict[str, Any]:
        sizes = {"dimensions": [str(size) for size in shape]} if shape else {}
        name = f"{home}.tensor_feature.Tensor" if shape else f"{home}.scalar.Scalar"
        inner = {"dtype": dtype, "shape": sizes, "encoding": "none"}
        return {"pythonClassName": name, "tensor": inner}

    def dictionary(**features: Any) -> dict[str, Any]:
        name = f"{home}.features_dict.FeaturesDict"
        return {"pythonClassName": name, "featuresDict": {"features": features}}

    text = {"pythonClassName": f"{home}.text_feature.Text", "text": {}}
    sizes = {"dimensions": [str(SIDE), str(SIDE), "3"]}
    image = {
        "pythonClassName": f"{home}.image_feature.Image",
        "image": {"shape": sizes, "dtype": "uint8", "encodingFormat": "jpeg"},
    }
    cameras = {f"image_{n}": image for n in range(CAMERAS)}
    steps = dictionary(
        action=tensor("float32", 7),
        observation=dictionary(state=tensor("float32", 8), **cameras),
        language_embedding=tensor("float32", 512),
        language_instruction=text,
        reward=tensor("float32"),
        discount=tensor("float32"),
        is_first=tensor("bool"),
        is_last=tensor("bool"),
        is_terminal=tensor("bool"),
    )
    dataset = {
        "pythonClassName": f"{home}.dataset_feature.Dataset",
        "sequence": {"feature": steps, "length": "-1"},
    }
    return dictionary(steps=dataset, episode_metadata=dictionary(file_path=text))


def _image(rng: np.random.Generator) -> bytes:
    coarse = rng.integers(0, 256, (16, 16, 3), np.uint8)
    return encode_image(np.kron(coarse, np.ones((SIDE // 16, SIDE // 16, 1), np.uint8)), "jpeg", 90)
