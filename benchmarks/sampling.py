"""Sampling from warm files: this package beside TorchRL's buffer over the same values.

Both give a TensorDict of all leaves with `index`, of rows drawn uniformly; what they give for the
same rows is compared first. TorchRL's best documented setting for data on disk is a
`TensorStorage` over a memory-mapped TED (layout `ted`) without prefetching; beside it stands the
same storage copied into RAM.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict

from benchmarks.timing import interleaved
from offline_data import open_dataset
from offline_data.buffers import native
from offline_data.episodes import EpisodeBatch
from offline_data.testing.toy import write_toy

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    from torchrl.data import ImmutableDatasetWriter, TensorDictReplayBuffer, TensorStorage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

    from offline_data.episodes import Key

STEPS = 1000
"""Transitions of an episode."""


@dataclass(frozen=True)
class Case:
    """A kind of data, and what is asked for it: `{batch size: times faster than TorchRL}`."""

    title: str
    rows: int
    steps: dict[Key, tuple[str, tuple[int, ...]]]
    observations: dict[Key, tuple[str, tuple[int, ...]]]
    targets: dict[int, float]
    reward: str = "float32"


_ANTMAZE_INFO = {
    **{("info", name): ("float64", (size,)) for name, size in (("qpos", 15), ("qvel", 14))},
    ("info", "goal"): ("float64", (2,)),
    **{("info", f"reward_{i}"): ("float64", ()) for i in range(9)},
    ("info", "success"): ("bool", ()),
}

CASES = (
    Case(
        "D4RL-like, 12 leaves, 182 B",
        1_000_000,
        {("action",): ("float32", (6,)), ("reward_to_go",): ("float32", (1,))},
        {("observation",): ("float32", (17,))},
        {32: 10, 256: 10, 1024: 9, 4096: 9},
    ),
    Case(
        "antmaze-like, 38 leaves and root flags, 1192 B",
        300_000,
        {("action",): ("float32", (8,))},
        {
            ("observation", "observation"): ("float64", (27,)),
            ("observation", "achieved_goal"): ("float64", (2,)),
            ("observation", "desired_goal"): ("float64", (2,)),
            **_ANTMAZE_INFO,
        },
        {256: 8, 4096: 8},
        "float64",
    ),
    Case(
        "images 84 x 84 x 3, before and after",
        10_000,
        {("action",): ("float32", (6,))},
        {("pixels",): ("uint8", (84, 84, 3))},
        {256: 6},
    ),
)


def run(folder: Path, options: argparse.Namespace) -> None:
    if options.threads:
        torch.set_num_threads(options.threads)
    how = "compiled gather" if native.compiled else "torch alone: the extension was not built"
    print(f"sampling, page cache warm, {torch.get_num_threads()} torch threads, {how}")
    print(f"torch {torch.__version__}; µs a batch, medians of {max(options.repeats, 5)} repeats")
    line = "{:<48}{:>6}{:>11}{:>9}{:>9}{:>8}{:>8}{:>8}"
    heads = ("data", "batch", "torchrl", "in RAM", "ours", "ratio", "target", "in RAM")
    print(line.format(*heads))
    for number, case in enumerate(CASES):
        rows = case.rows // (10 if options.small else 1)
        buffers = _open(folder / str(number), case, rows)
        _assert_same(buffers, rows)
        for size, target in case.targets.items():
            times = interleaved(_candidates(buffers, size), options.repeats)
            memmap, ram, ours = times["memmap"], times["ram"], times["ours"]
            cells = (f"{memmap:.0f}", f"{ram:.0f}", f"{ours:.1f}", f"{memmap / ours:.1f}x")
            print(line.format(case.title, size, *cells, f"{target}x", f"{ram / ours:.1f}x"))


def _open(folder: Path, case: Case, rows: int) -> dict[str, Any]:
    """Write the data in both layouts, and open them with both libraries."""
    batch = _episodes(case, rows)
    for layout in ("compact", "ted"):
        write_toy(folder / layout, [batch], layout=layout, audit="none")  # type: ignore[arg-type]
    ted = TensorDict.load_memmap(folder / "ted" / "ted")
    peers = {"memmap": ted, "ram": ted.clone()}
    return {
        "ours": open_dataset(folder / "compact"),
        **{name: _torchrl(data) for name, data in peers.items()},
    }


def _torchrl(data: Any) -> Any:
    return TensorDictReplayBuffer(storage=TensorStorage(data), writer=ImmutableDatasetWriter())


def _candidates(buffers: dict[str, Any], size: int) -> dict[str, Callable[[], Any]]:
    return {name: lambda buffer=buffer: buffer.sample(size) for name, buffer in buffers.items()}


def _assert_same(buffers: dict[str, Any], rows: int) -> None:
    index = torch.randint(rows, (500,))
    mine = buffers["ours"][index]
    sampled = buffers["ours"].sample(500)
    for name in ("memmap", "ram"):
        for batch, want in ((mine, index), (sampled, sampled["index"])):
            other = buffers[name][want]
            keys = set(other.keys(include_nested=True, leaves_only=True))
            if keys != set(batch.keys(include_nested=True, leaves_only=True)) - {"index"}:
                raise AssertionError(f"leaves differ from {name}: {keys}")
            for key in keys:
                np.testing.assert_array_equal(batch[key].numpy(), other[key].numpy(), str(key))


def _episodes(case: Case, rows: int) -> EpisodeBatch:
    rng = np.random.default_rng(0)

    def column(count: int, dtype: str, shape: tuple[int, ...]) -> Any:
        if dtype == "float32":
            return rng.random((count, *shape), np.float32)
        if dtype == "float64":
            return rng.random((count, *shape))
        return rng.integers(0, 2 if dtype == "bool" else 256, (count, *shape), np.uint8).astype(
            dtype
        )

    lengths = np.full(rows // STEPS, STEPS)
    truncated = np.zeros((rows, 1), bool)
    truncated[STEPS - 1 :: STEPS] = True
    return EpisodeBatch(
        lengths,
        {
            **{key: column(rows, *kind) for key, kind in case.steps.items()},
            ("next", "reward"): column(rows, case.reward, (1,)),
            ("next", "terminated"): np.zeros((rows, 1), bool),
            ("next", "truncated"): truncated,
        },
        {key: column(rows + len(lengths), *kind) for key, kind in case.observations.items()},
        np.ones(len(lengths), bool),
    )
