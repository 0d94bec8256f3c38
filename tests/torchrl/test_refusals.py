"""What ensembles and TorchRL's dataset classes refuse: the cases are the lines of `refusals.json`."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import offline_data
from offline_data.buffers.dataset import Dataset
from offline_data.rows import samplers
from offline_data.rows.samplers import RandomSampler, Sampler
from offline_data.testing.toy import toy_batch, write_toy
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.ensembles.buffer import ReplayBufferEnsemble
from offline_data.torchrl.ensembles.parts import SamplerEnsemble, StorageEnsemble, WriterEnsemble
from offline_data.torchrl.storages import LazyTensorStorage, TensorStorage
from offline_data.torchrl.writers import RoundRobinWriter
from tests.refusals import Refusals

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))


class Some(Sampler):
    """Draws so many rows, whatever it is asked for."""

    ran_out = True

    def __init__(self, count: int) -> None:
        self.count = count

    def sample(self, *_: Any) -> tuple[torch.Tensor, dict[Any, Any]]:
        return torch.zeros(self.count, dtype=torch.int64), {}

    def __repr__(self) -> str:
        return f"Some({self.count})"


def growing(rows: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(LazyTensorStorage(50))
    buffer.extend(rows)
    return buffer


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with datasets of three sources."""
    root, batch = tmp_path_factory.mktemp("root"), toy_batch([3, 5, 4])
    for name in ("d4rl:toy-medium-v2@r1", "atari_dqn:Pong/5@r1", "openx:toy@0.1.0"):
        write_toy(root / name.replace(":", "/").replace("@", "/"), [batch], dataset=name)
    return root


@pytest.fixture
def names(three: list[Dataset], steps: Any, root: Path) -> dict[str, Any]:
    """Whatever the texts name."""
    storages = StorageEnsemble(*(member.storage for member in three))
    ensemble, rows = ReplayBufferEnsemble(*three), steps([2])
    sources = ("AtariDQN", "D4RL", "LeRobot", "Minari", "OpenX")
    return {
        **{name: getattr(samplers, name) for name in samplers.__all__},
        **{s: partial(getattr(offline_data, f"{s}ExperienceReplay"), root=root) for s in sources},
        "torch": torch,
        "zeros": torch.zeros,
        "nan": math.nan,
        "Dataset": Dataset,
        "ReplayBufferEnsemble": ReplayBufferEnsemble,
        "SamplerEnsemble": SamplerEnsemble,
        "StorageEnsemble": StorageEnsemble,
        "WriterEnsemble": WriterEnsemble,
        "TensorStorage": TensorStorage,
        "RoundRobinWriter": RoundRobinWriter,
        "Some": Some,
        "three": three,
        "storages": storages,
        "ensemble": ensemble,
        "rows": rows,
        "drawn": ensemble.sample(6)["index"],
        "samplers": SamplerEnsemble(*(RandomSampler() for _ in three)),
        "of_three": partial(SamplerEnsemble, *(RandomSampler() for _ in three)),
        "writers": WriterEnsemble(RoundRobinWriter(), RoundRobinWriter()),
        "grown": ReplayBufferEnsemble(growing(rows), growing(rows)),
        "drawn_by": lambda sampler, size: SamplerEnsemble(sampler, num_buffer_sampled=1).sample(
            storages[[0]], size
        ),
    }


@REFUSALS.cases
def test_refusals(kind: str, text: str, names: dict[str, Any], root: Path) -> None:
    long: dict[object, str] = {repr(member.storage): "STORAGE" for member in names["three"]}
    REFUSALS.check(kind, text, lambda: eval(text, names), {root: "ROOT", **long})  # noqa: S307
    assert names["grown"].write_count == 4
