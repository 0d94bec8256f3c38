"""Prioritized sampling from cached files: drawing 256 of a million rows, and updating them.

TorchRL's trees are compiled for one release of torch; if they cannot be loaded, its rows are omitted.
Plain numpy keeps one array of priorities and draws from their cumulative sums, recomputed after each
update. Importance weights are compared with it, and rows with TorchRL's storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.sampling import rows_of, setting
from benchmarks.sampling_data import (
    D4RL,
    OURS,
    Columns,
    assert_same,
    calls_for,
    load_ted,
    torchrl,
    touch,
    write,
)
from benchmarks.timing import Row, interleaved
from offline_data import open_dataset
from offline_data.rows.samplers import PrioritizedSampler

if TYPE_CHECKING:
    from tensordict import TensorDict


ALPHA, BETA, SIZE = 0.7, 0.5, 256


class Plain:
    """Priorities as in a simple script."""

    def __init__(self, data: TensorDict, priority: torch.Tensor) -> None:
        self.columns = Columns(data)
        self.weights = (priority.numpy().astype(np.float64) + 1e-8) ** ALPHA
        self.update_priority(torch.arange(0), torch.zeros(0))

    def sample(self, size: int) -> dict[Any, Any]:
        rows = np.searchsorted(self.sums, np.random.rand(size) * self.sums[-1], side="right")  # noqa: NPY002 - as scripts do
        weight = (self.weights[rows] / self.least) ** -BETA
        return {**self.columns[torch.from_numpy(rows)], "priority_weight": weight}

    def update_priority(self, rows: torch.Tensor, priority: torch.Tensor) -> None:
        self.weights[rows.numpy()] = (priority.numpy() + 1e-8) ** ALPHA
        self.sums, self.least = self.weights.cumsum(), self.weights.min()


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure drawing, updating and both; `scale` shrinks the data for a quick look."""
    print(f"prioritized: {setting()}")
    rows = write(folder, D4RL, int(1_000_000 * scale))
    priority = torch.rand(rows) + 0.1
    buffers = _open(folder, rows, priority)
    for buffer in buffers.values():
        touch(getattr(buffer, "columns", buffer), rows)
    _compare(buffers, priority)
    some = torch.randint(rows, (SIZE,))
    work: dict[str, tuple[Callable[[Any], object], str]] = {
        "a draw of 256": (lambda buffer: buffer.sample(SIZE), "≥ 4× TorchRL"),
        "an update of 256": (lambda buffer: buffer.update_priority(some, priority[some]), "≥ 4×"),
        "a draw and an update": (lambda buffer: _both(buffer, some, priority[some]), ""),
    }
    for title, (job, goal) in work.items():
        jobs = {name: partial(job, buffer) for name, buffer in buffers.items()}
        seconds = interleaved(jobs, repeats=repeats, calls=calls_for(jobs[OURS], 0.1))
        yield from rows_of(f"{D4RL.title}, {rows:,} rows, {title}", seconds, goal)


def _both(buffer: Any, rows: torch.Tensor, priority: torch.Tensor) -> None:
    buffer.sample(SIZE)
    buffer.update_priority(rows, priority)


def _open(folder: Path, rows: int, priority: torch.Tensor) -> dict[str, Any]:
    from torchrl.data import PrioritizedSampler as TorchRLs

    ted = load_ted(folder)
    sampler = PrioritizedSampler(rows, ALPHA, BETA)
    buffers: dict[str, Any] = {OURS: open_dataset(folder / "compact", sampler=sampler)}
    try:
        buffers["TorchRL"] = torchrl(ted, sampler=TorchRLs(rows, ALPHA, BETA))
    except RuntimeError as error:
        print(f"no TorchRL: its prioritized sampler cannot be used with this torch ({error})")
    for buffer in buffers.values():
        buffer.update_priority(torch.arange(rows), priority)
    return {**buffers, "numpy, cumulative sums": Plain(ted, priority)}


def _compare(buffers: dict[str, Any], priority: torch.Tensor) -> None:
    ours = buffers[OURS].sample(SIZE)
    plain = buffers["numpy, cumulative sums"]
    want = (plain.weights[ours["index"].numpy()] / plain.least) ** -BETA
    np.testing.assert_allclose(ours["priority_weight"].numpy(), want, rtol=1e-4)
    assert_same(ours, plain.columns[ours["index"]], ignore=("index", "priority_weight"))
    many = torch.cat([buffers[OURS].sample(4096)["index"] for _ in range(50)])
    drawn = (priority[many] ** -ALPHA).mean() * (priority**ALPHA).mean()
    if abs(float(drawn) - 1) > 0.02:  # E[1 / w] = N / Σw if rows are drawn in proportion to w
        raise AssertionError(f"rows are not drawn by their priority: {float(drawn)}")
