"""Preprocessing functions, and ways to run them: this package's, TorchRL's, `datasets.map`."""

from __future__ import annotations

import importlib.util
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

import offline_data
from benchmarks.sampling_data import D4RL, Data, load_ted
from benchmarks.sampling_data import write as write_data
from offline_data.episode import Key
from offline_data.store.reader import open_reader

if TYPE_CHECKING:
    from tensordict import TensorDict


SPLIT = Data(
    "D4RL-like in two parts",
    {("action",): ("float32", (6,)), ("reward_to_go",): ("float32", (1,))},
    {("observation", "a"): ("float32", (8,)), ("observation", "b"): ("float32", (9,))},
)
FRAMES = Data("images", {("action",): ("float32", (6,))}, {("pixels",): ("uint8", (84, 84, 3))})
LOC, SCALE = torch.arange(17.0) / 10, torch.arange(17.0) + 1


@dataclass(frozen=True)
class Work:
    """A function on a dataset, in the form that each library needs."""

    title: str
    data: Data
    row: Callable[[Any], Any]
    """Function of one transition."""
    block: Callable[[Any], Any]
    """Function of a batch of transitions."""
    steps: Sequence[str]
    """Equivalent steps of this package; empty if there are none."""
    leaf: Key
    """Leaf to compare."""
    expected: Callable[[Path], NDArray[Any]]
    """Its expected values, computed by numpy, `[n, …]`."""
    columns: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Function of columns, names joined by `.`, for `datasets.map`."""


def write(folder: Path, data: Data, rows: int) -> Path:
    """Write a dataset in both layouts; returns the folder of both."""
    write_data(folder, data, rows)
    return folder


def ours(source: Path, stages: list[Any], leaf: Key, out: Path, **options: Any) -> NDArray[Any]:
    """Preprocess with this package."""
    shutil.rmtree(out, ignore_errors=True)
    dataset = offline_data.open_dataset(source / "compact")
    dataset.preprocess(stages, dest=out, **options)
    return _found(out, leaf)


def torchrl(source: Path, fn: Callable[[Any], Any], leaf: Key, out: Path) -> NDArray[Any]:
    """Preprocess with TorchRL: two processes, its own chunks."""
    shutil.rmtree(out, ignore_errors=True)
    result = _torchrl_dataset(source).preprocess(
        fn, num_workers=2, dest=out, mp_start_method="fork", num_chunks=32
    )
    return np.asarray(result._storage[leaf])


def torchrl_rows(
    source: Path, fn: Callable[[Any], Any], leaf: Key, rows: int, out: Path
) -> NDArray[Any]:
    """Preprocess the first rows with TorchRL as documented: one row at a time."""
    shutil.rmtree(out, ignore_errors=True)
    result = _torchrl_dataset(source).preprocess(
        fn, num_workers=2, dest=out, mp_start_method="fork", chunksize=0, num_frames=rows
    )
    return np.asarray(result._storage[leaf])


def has_datasets() -> bool:
    """Return True if `datasets` is installed."""
    return importlib.util.find_spec("datasets") is not None


def mapped(source: Path, work: Work, out: Path) -> NDArray[Any]:
    """Map columns with `datasets`, without its cache, in two processes."""
    import datasets

    datasets.disable_progress_bars()
    shutil.rmtree(out, ignore_errors=True)
    stored = source / "arrow"
    if not stored.exists():
        leaves = load_ted(source).items(include_nested=True, leaves_only=True)
        columns = {
            ".".join((key,) if isinstance(key, str) else key): leaf.numpy() for key, leaf in leaves
        }
        datasets.Dataset.from_dict(columns).save_to_disk(stored)
    rows = datasets.load_from_disk(stored).with_format("numpy")
    out.mkdir()
    result = rows.map(
        work.columns,
        batched=True,
        batch_size=10_000,
        num_proc=2,
        cache_file_name=str(out / "x.arrow"),
    )
    return np.asarray(result.with_format("numpy")[:][".".join(work.leaf)])


def _found(path: Path, leaf: Key) -> NDArray[Any]:
    reader = open_reader(path)
    if leaf in reader.step_leaves:
        return np.asarray(reader.step(leaf))
    root, after = (leaf[1:], True) if leaf[0] == "next" else (leaf, False)
    return reader.observations_at(root, np.arange(reader.transitions), after=after)


def _torchrl_dataset(source: Path) -> Any:
    """Open TED as a TorchRL dataset."""
    with warnings.catch_warnings():  # importing torchrl warns about its own deprecated classes
        warnings.simplefilter("ignore")
        from torchrl.data import TensorDictReplayBuffer, TensorStorage
        from torchrl.data.datasets.common import BaseDatasetExperienceReplay

    class OnDisk(BaseDatasetExperienceReplay):
        def __init__(self, data: TensorDict) -> None:
            TensorDictReplayBuffer.__init__(self, storage=TensorStorage(data))

        data_path = data_path_root = property(lambda _: source)
        _is_downloaded = property(lambda _: True)

    return OnDisk(load_ted(source))


def _cat(td: Any) -> Any:
    td["obs"] = torch.cat([td["observation", "a"], td["observation", "b"]], -1)
    after = [td["next", "observation", "a"], td["next", "observation", "b"]]
    td["next", "obs"] = torch.cat(after, -1)
    return td.exclude("observation", ("next", "observation"))


def _cat_columns(columns: dict[str, Any]) -> dict[str, Any]:
    names = ("observation.a", "observation.b")
    return {
        "obs": np.concatenate([columns[name] for name in names], 1),
        "next.obs": np.concatenate([columns[f"next.{name}"] for name in names], 1),
    }


def _cat_expected(source: Path) -> NDArray[Any]:
    ted = load_ted(source)["next", "observation"]
    return np.concatenate([ted["a"].numpy(), ted["b"].numpy()], 1)


def _reward(td: Any) -> Any:
    td["next", "reward"] = td["next", "reward"] * 0.1
    return td


def _normalize(td: Any) -> Any:
    td["observation"] = (td["observation"] - LOC) / SCALE
    td["next", "observation"] = (td["next", "observation"] - LOC) / SCALE
    return td


def _normalize_columns(columns: dict[str, Any]) -> dict[str, Any]:
    return {
        name: (columns[name] - LOC.numpy()) / SCALE.numpy()
        for name in ("observation", "next.observation")
    }


def _resized(images: Any) -> Any:
    """Halve one image `[H, W, C]`, or many: TorchRL passes both."""
    wide = images.movedim(-1, -3)
    one = wide.ndim == 3
    result = torch.nn.functional.interpolate(
        wide[None] if one else wide, (42, 42), mode="bilinear", antialias=True
    )
    return (result[0] if one else result).movedim(-3, -1).contiguous()


def _resize(td: Any) -> Any:
    td["pixels"], td["next", "pixels"] = _resized(td["pixels"]), _resized(td["next", "pixels"])
    return td


CAT = Work(
    "CatTensors",
    SPLIT,
    _cat,
    _cat,
    ("concat:observation.a,observation.b→obs",),
    ("next", "obs"),
    _cat_expected,
    _cat_columns,
)
REWARD = Work(
    "reward scaling",
    D4RL,
    _reward,
    _reward,
    ("reward_scale:0.1",),
    ("next", "reward"),
    lambda source: load_ted(source)["next", "reward"].numpy() * np.float32(0.1),
    lambda columns: {"next.reward": columns["next.reward"] * np.float32(0.1)},
)
NORMALIZE = Work(
    "observation scaling, given statistics",
    D4RL,
    _normalize,
    _normalize,
    (),
    ("next", "observation"),
    lambda source: (load_ted(source)["next", "observation"].numpy() - LOC.numpy()) / SCALE.numpy(),
    _normalize_columns,
)
RESIZE = Work(
    "resize 84 × 84 × 3 to 42 × 42",
    FRAMES,
    _resize,
    _resize,
    ("resize:42,pixels",),
    ("next", "pixels"),
    lambda source: _resized(torch.as_tensor(load_ted(source)["next", "pixels"])).numpy(),
)
