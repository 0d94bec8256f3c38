"""One small dataset with every kind of leaf, and what must come out of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from offline_data.buffers.dataset import Dataset
from offline_data.episode.fields import next_of
from offline_data.rows.gather import native
from offline_data.rows.samplers import (
    PrioritizedSampler,
    RandomSampler,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
)
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.testing.toy import toy_batch, write_toy
from offline_data.torchrl.storages import LazyTensorStorage
from offline_data.torchrl.tensordict_buffer import TensorDictReplayBuffer

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch, Key

LENGTHS = (3, 1, 4, 2, 1)
UNKNOWN_FINAL = (3, 4)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Some tests fork, and torch's threads do not survive that."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def batch() -> EpisodeBatch:
    """Episodes of 3, 1, 4, 2 and 1 steps; row 9 is truncated and what came after is not known."""
    toy = toy_batch(LENGTHS, text=True, images=True, unknown_final=UNKNOWN_FINAL)
    step = -toy.steps["action",][:, 0].astype(np.int64)
    row = toy.observations["info", "code"]
    steps: dict[Key, NDArray[Any]] = {
        **toy.steps,
        ("info", "cost"): (step % 251).astype(np.uint8),
        ("info", "wave"): step[:, None] * np.array([1 + 2j, 3 - 1j]),
        ("none",): np.zeros((len(step), 0), np.float32),
        ("next", "bonus"): (step[:, None] + np.arange(6)).astype(np.int16).reshape(-1, 2, 3),
    }
    observations = {
        **toy.observations,
        ("info", "half"): (row % 2000).astype(np.float16),
        ("info", "pair"): row[:, None] * np.array([1, -1], np.int32),
    }
    names = np.array([f"episode {e}" for e in range(len(LENGTHS))], object)
    return replace(
        toy,
        steps=steps,
        observations=observations,
        episodes={**toy.episodes, ("name",): names},
    )


@pytest.fixture(scope="session")
def truth(batch: EpisodeBatch) -> dict[Key, NDArray[Any]]:
    """Every leaf of TED for all rows, text as `str`."""
    out: dict[Key, NDArray[Any]] = dict(batch.steps)
    for key, values in batch.observations.items():
        out[key] = values[batch.root_rows]
        out[next_of(key)] = values[batch.next_rows]
    out["next", "done"] = out["next", "terminated"] | out["next", "truncated"]
    for flag in ("done", "terminated", "truncated"):
        out[flag,] = np.zeros((batch.transitions, 1), bool)
    out["index",] = np.arange(batch.transitions)
    out["episode",] = batch.episode_of
    return out


@pytest.fixture(scope="session")
def folders_of_batch(
    tmp_path_factory: pytest.TempPathFactory, batch: EpisodeBatch
) -> dict[LayoutName, Path]:
    """The dataset directory in either layout, written once."""
    root = tmp_path_factory.mktemp("batch")
    for layout in LAYOUTS:
        write_toy(root / layout, [batch], layout=layout)
    return {layout: root / layout for layout in LAYOUTS}


@pytest.fixture(params=LAYOUTS)
def folder(request: pytest.FixtureRequest, folders_of_batch: dict[LayoutName, Path]) -> Path:
    """The dataset directory, in either layout, which tests only read."""
    return folders_of_batch[request.param]


@pytest.fixture
def compact(folders_of_batch: dict[LayoutName, Path]) -> Path:
    """The same in the default layout, for tests of what does not depend on it."""
    return folders_of_batch["compact"]


@pytest.fixture
def own_folder(folder: Path, tmp_path: Path) -> Path:
    """A copy that the test may change, in either layout."""
    return shutil.copytree(folder, tmp_path / "toy")


@pytest.fixture
def ds(compact: Path) -> Dataset:
    """The buffer over it, batches of 4."""
    return Dataset(compact, 4)


@pytest.fixture(params=["compiled", "torch"])
def gathering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with the compiled gather and without it."""
    if request.param == "torch":
        monkeypatch.setattr(native, "compiled", None)
    elif native.compiled is None:
        pytest.skip("the compiled gather was not built")


@pytest.fixture
def steps() -> Callable[..., TensorDict]:
    """Make self-identifying transitions: `steps([3, 2], first_episode=4)` has two episodes.

    The action at time `t` of episode `e` is `-(1000·(e + 1) + t + 1)`; see `toy_batch`.
    """

    def make(lengths: Sequence[int], *, first_episode: int = 0) -> TensorDict:
        toy = toy_batch(lengths, first_episode=first_episode)
        leaves: dict[Key, NDArray[Any]] = dict(toy.steps)
        for key, values in toy.observations.items():
            leaves[key] = values[toy.root_rows]
            leaves[next_of(key)] = values[toy.next_rows]
        leaves["next", "done"] = leaves["next", "terminated"] | leaves["next", "truncated"]
        made = TensorDict({}, batch_size=[toy.transitions])
        for key, values in leaves.items():
            made.set(key, torch.from_numpy(values))
        return made

    return make


class _Recording(Sampler):
    """Draws rows 0, 1, 2, …, and takes note of every call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.next = 0

    def sample(self, storage: Any, batch_size: int) -> tuple[torch.Tensor, dict[Any, torch.Tensor]]:
        rows = (torch.arange(batch_size) + self.next) % len(storage)
        self.next += batch_size
        return rows, {"weight": rows + 0.5}

    def extend(self, rows: torch.Tensor) -> None:
        self.calls.append(("extend", rows.tolist()))

    def empty(self) -> None:
        self.calls.append("empty")

    def update_priority(self, index: Any, priority: Any, *, storage: Any = None) -> None:  # noqa: ARG002
        self.calls.append(("priority", index.tolist(), priority.tolist()))

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


@pytest.fixture
def recording() -> Callable[[], Any]:
    """Make a sampler that draws rows 0, 1, 2, … and notes in `calls` what it was told."""
    return _Recording


@pytest.fixture
def growing() -> Callable[..., TensorDictReplayBuffer]:
    """Make a buffer of at most 8 rows, or as many as told, and other arguments."""

    def make(size: int = 8, **options: Any) -> TensorDictReplayBuffer:
        return TensorDictReplayBuffer(storage=LazyTensorStorage(size), **options)

    return make


@pytest.fixture(params=["random", "epochs", "slices", "priorities", "recording"])
def new_sampler(request: pytest.FixtureRequest, recording: Callable[[], Any]) -> Any:
    """Make samplers of each kind, with the same seed each time; call it for one."""
    makers: dict[str, Callable[[], Any]] = {
        "random": lambda: RandomSampler(seed=3),
        "epochs": lambda: SamplerWithoutReplacement(seed=3),
        "slices": lambda: SliceSampler(slice_len=2, seed=3),
        "priorities": lambda: PrioritizedSampler(16, 0.7, 0.5, seed=3),
        "recording": recording,
    }
    return makers[request.param]
