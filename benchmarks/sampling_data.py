"""Data for sampling benchmarks, opened by this package and its peers.

TorchRL's best documented configuration for data on disk is a `TensorStorage` over a memory-mapped TED
(our layout `ted`) without prefetching. Values are random and equal in both layouts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor

from offline_data.episode import EpisodeBatch, Key
from offline_data.testing.toy import write_toy

with warnings.catch_warnings():  # importing torchrl warns about its own deprecated classes
    warnings.simplefilter("ignore")
    from torchrl.data import ImmutableDatasetWriter, TensorDictReplayBuffer, TensorStorage


OURS = "offline-data"
STEPS = 1000
"""Number of transitions of an episode."""


@dataclass(frozen=True)
class Data:
    """A kind of dataset."""

    title: str
    steps: Mapping[Key, tuple[str, tuple[int, ...]]]
    """Type and shape of each step leaf except reward and flags."""
    observations: Mapping[Key, tuple[str, tuple[int, ...]]]
    """Type and shape of each leaf before and after an action."""
    reward: str = "float32"


_ANTMAZE_INFO: Mapping[Key, tuple[str, tuple[int, ...]]] = {
    **{("info", name): ("float64", (size,)) for name, size in (("qpos", 15), ("qvel", 14))},
    ("info", "goal"): ("float64", (2,)),
    **{("info", f"reward_{i}"): ("float64", ()) for i in range(9)},
    ("info", "success"): ("bool", ()),
}

D4RL = Data(
    "D4RL-like, 12 features, 182 B",
    {("action",): ("float32", (6,)), ("reward_to_go",): ("float32", (1,))},
    {("observation",): ("float32", (17,))},
)
ANTMAZE = Data(
    "antmaze-like, 38 features and root flags, 1192 B",
    {("action",): ("float32", (8,))},
    {
        ("observation", "observation"): ("float64", (27,)),
        ("observation", "achieved_goal"): ("float64", (2,)),
        ("observation", "desired_goal"): ("float64", (2,)),
        **_ANTMAZE_INFO,
    },
    "float64",
)
IMAGES = Data(
    "images 84 x 84 x 3, before and after",
    {("action",): ("float32", (6,))},
    {("pixels",): ("uint8", (84, 84, 3))},
)


def write(folder: Path, data: Data, rows: int, seed: int = 0) -> int:
    """Write whole episodes of about `rows` rows in both layouts; returns the number of rows."""
    rows = max(rows // STEPS, 1) * STEPS
    batch = _episodes(data, rows, np.random.default_rng(seed))
    write_toy(folder / "compact", [batch], layout="compact", audit="none")
    write_toy(folder / "ted", [batch], layout="ted", audit="none")
    return rows


def load_ted(folder: Path) -> TensorDict:
    """Map the result of `write` as TorchRL does."""
    return TensorDict.load_memmap(folder / "ted" / "ted")


def torchrl(data: TensorDict, **options: Any) -> TensorDictReplayBuffer:
    """Return TorchRL's buffer over immutable transitions."""
    return TensorDictReplayBuffer(
        storage=TensorStorage(data), writer=ImmutableDatasetWriter(), **options
    )


class Columns:
    """A script without a library: a `numpy.take` per column."""

    def __init__(self, data: TensorDict) -> None:
        leaves = data.items(include_nested=True, leaves_only=True)
        self.columns = {key: leaf.numpy() for key, leaf in leaves}
        self.rows = len(data)

    def sample(self, size: int) -> dict[Any, Tensor]:
        rows = torch.randint(self.rows, (size,))
        return {**self[rows], "index": rows}

    def __getitem__(self, rows: Tensor) -> dict[Any, Tensor]:
        where = rows.numpy()
        return {
            key: torch.from_numpy(column.take(where, axis=0))
            for key, column in self.columns.items()
        }


def touch(buffer: Any, rows: int) -> None:
    """Read all rows once, so that no page is mapped for the first time during timing."""
    for begin in range(0, rows, STEPS):
        buffer[torch.arange(begin, min(begin + STEPS, rows))]


def leaves_of(batch: Any) -> dict[Any, Tensor]:
    """Return the leaves of a TensorDict by key; a dict is unchanged."""
    if isinstance(batch, dict):
        return batch
    return dict(batch.items(include_nested=True, leaves_only=True))


def assert_same(batch: Any, other: Any, ignore: tuple[Any, ...] = ("index",)) -> None:
    """Raise if two batches of the same rows differ in their keys or values."""
    mine, theirs = leaves_of(batch), leaves_of(other)
    for leaves in (mine, theirs):
        for key in ignore:
            leaves.pop(key, None)
    if set(mine) != set(theirs):
        raise AssertionError(f"leaves differ: {set(mine) ^ set(theirs)}")
    for key, leaf in mine.items():
        np.testing.assert_array_equal(leaf.numpy(), theirs[key].numpy(), str(key))


def calls_for(job: Callable[[], object], seconds: float = 0.2) -> int:
    """Return the number of calls that together take about `seconds`, after a warm-up."""
    from benchmarks.timing import interleaved

    interleaved({"": job}, repeats=1, calls=10)
    return max(5, int(seconds / interleaved({"": job}, repeats=1, calls=10)[""]))


def _episodes(data: Data, rows: int, rng: np.random.Generator) -> EpisodeBatch:
    lengths = np.full(rows // STEPS, STEPS)
    truncated = np.zeros((rows, 1), bool)
    truncated[STEPS - 1 :: STEPS] = True
    count = rows + len(lengths)
    return EpisodeBatch(
        lengths,
        {
            **{key: _column(rng, rows, *kind) for key, kind in data.steps.items()},
            ("next", "reward"): _column(rng, rows, data.reward, (1,)),
            ("next", "terminated"): np.zeros((rows, 1), bool),
            ("next", "truncated"): truncated,
        },
        {key: _column(rng, count, *kind) for key, kind in data.observations.items()},
        np.ones(len(lengths), bool),
    )


def _column(
    rng: np.random.Generator, count: int, dtype: str, shape: tuple[int, ...]
) -> NDArray[Any]:
    if dtype == "float32":
        return rng.random((count, *shape), np.float32)
    if dtype == "float64":
        return rng.random((count, *shape))
    most = 2 if dtype == "bool" else 256
    return rng.integers(0, most, (count, *shape), np.uint8).astype(dtype)
