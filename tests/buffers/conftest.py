"""One small dataset with every kind of leaf, and what must come out of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from offline_data.buffers import native
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.episodes.fields import next_of
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.episodes import EpisodeBatch, Key

LENGTHS = (3, 1, 4, 2, 1)
UNKNOWN_FINAL = (3, 4)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Some tests fork, and torch's threads do not survive that."""
    torch.set_num_threads(1)


@pytest.fixture
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


@pytest.fixture
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


@pytest.fixture(params=LAYOUTS)
def folder(request: pytest.FixtureRequest, tmp_path: Path, batch: EpisodeBatch) -> Path:
    """The dataset directory, in either layout."""
    layout: LayoutName = request.param
    write_toy(tmp_path / "toy", [batch], layout=layout)
    return tmp_path / "toy"


@pytest.fixture
def ds(folder: Path) -> BaseDatasetExperienceReplay:
    """The buffer over it, batches of 4."""
    return BaseDatasetExperienceReplay(folder, 4)


@pytest.fixture(params=["compiled", "torch"])
def gathering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with the compiled gather and without it."""
    if request.param == "torch":
        monkeypatch.setattr(native, "compiled", None)
    elif native.compiled is None:
        pytest.skip("the compiled gather was not built")
