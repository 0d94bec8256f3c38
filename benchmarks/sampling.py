"""Sampling from warm files: this package beside TorchRL's buffer over the same values.

Both give a TensorDict of all leaves with `index`, of rows drawn uniformly; what they give for the
same rows is compared first. TorchRL's best documented setting for data on disk is a
`TensorStorage` over a memory-mapped TED (layout `ted`) without prefetching; beside it stands the
same storage copied into RAM.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict

from benchmarks.timing import Row, interleaved
from offline_data import open_dataset
from offline_data.buffers import native
from offline_data.episodes import EpisodeBatch
from offline_data.testing.toy import write_toy

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    from torchrl.data import ImmutableDatasetWriter, TensorDictReplayBuffer, TensorStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from offline_data.episodes import Key

OURS = "offline-data"
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


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure every case; `scale` shrinks the data for a quick look."""
    gather = "compiled" if native.compiled else "by torch alone: the extension was not built"
    print(
        f"sampling: torch {torch.__version__}, {torch.get_num_threads()} threads, gather {gather}"
    )
    for number, case in enumerate(CASES):
        rows = max(int(case.rows * scale) // STEPS, 1) * STEPS
        buffers = _open(folder / str(number), case, rows)
        _assert_same(buffers, rows)
        for size, target in case.targets.items():
            jobs = {name: partial(buffer.sample, size) for name, buffer in buffers.items()}
            seconds = interleaved(jobs, repeats=repeats, calls=_calls(jobs["TorchRL"]))
            for name, each in seconds.items():
                yield Row(
                    f"{case.title}, batch {size}",
                    name,
                    f"{each / seconds[OURS]:.1f}×",
                    f"{each * 1e6:.1f} µs",
                    f"≥ {target:g}× TorchRL" if name == OURS else "",
                )


def _calls(job: Callable[[], object]) -> int:
    """Choose calls that take about a fifth of a second, after a warm-up."""
    interleaved({"": job}, repeats=1, calls=20)
    return max(5, int(0.2 / interleaved({"": job}, repeats=1, calls=20)[""]))


def _open(folder: Path, case: Case, rows: int) -> dict[str, Any]:
    """Write the data in both layouts, and open them with both libraries."""
    batch = _episodes(case, rows)
    for layout in ("compact", "ted"):
        write_toy(folder / layout, [batch], layout=layout, audit="none")  # type: ignore[arg-type]
    ted = TensorDict.load_memmap(folder / "ted" / "ted")
    return {
        OURS: open_dataset(folder / "compact"),
        "TorchRL": _torchrl(ted),
        "TorchRL, all in RAM": _torchrl(ted.clone()),
    }


def _torchrl(data: Any) -> Any:
    return TensorDictReplayBuffer(storage=TensorStorage(data), writer=ImmutableDatasetWriter())


def _assert_same(buffers: dict[str, Any], rows: int) -> None:
    index = torch.randint(rows, (500,))
    mine = buffers[OURS][index]
    sampled = buffers[OURS].sample(500)
    for name in set(buffers) - {OURS}:
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
