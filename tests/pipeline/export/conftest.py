"""Datasets to export: flat, nested, with text, images, unknown final observations, and odd ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, Key
from offline_data.formats.writing.base import TARGETS, get_target
from offline_data.testing.toy import toy_batch, write_toy
from tests.pipeline.ingest.here import conversions_start_no_process, processes

__all__ = ["conversions_start_no_process", "processes"]

LENGTHS = (3, 1, 5, 2)


def flat_batch(*, rewards: bool = True, final: bool = True) -> EpisodeBatch:
    """Return episodes of one array of observations and one of actions."""
    batch = toy_batch(LENGTHS, unknown_final=() if final else range(len(LENGTHS)))
    steps = {key: column for key, column in batch.steps.items() if rewards or key != REWARD}
    observations: dict[Key, Any] = {("observation",): batch.observations["observation", "state"]}
    return replace(batch, steps=steps, observations=observations, episodes={})


def odd_ends() -> EpisodeBatch:
    """Return episodes with a flag within one, and both flags at the end of another."""
    batch = flat_batch()
    steps = {key: np.array(column) for key, column in batch.steps.items()}
    steps[TERMINATED][0] = True
    steps[TERMINATED][-1] = steps[TRUNCATED][-1] = True
    return replace(batch, steps=steps)


def discrete_batch() -> EpisodeBatch:
    """Return episodes with numbers as actions, float64 observations and several other leaves."""
    batch = flat_batch()
    rows = batch.transitions
    steps = {
        **batch.steps,
        ("action",): np.arange(rows, dtype=np.int64) % 4,
        ("extra", "weight"): np.arange(rows, dtype=np.float64) + 0.1,
        ("next", "info", "score"): np.arange(rows, dtype=np.int32)[:, None] + 1000,
    }
    observations: dict[Key, Any] = {
        ("observation",): batch.observations["observation",].astype(np.float64) + 1e-12,
        ("info", "q", "pos"): np.arange(rows + len(LENGTHS), dtype=np.float32) + 7,
    }
    return replace(batch, steps=steps, observations=observations)


def everything() -> EpisodeBatch:
    """Return episodes with every optional part: leaves of all roots, kinds and shapes, odd ends."""
    batch = toy_batch(LENGTHS, text=True, images=True, unknown_final=[2])
    rows, count = batch.transitions, len(LENGTHS)
    observed = np.arange(rows + count)
    observed[np.cumsum(np.array(LENGTHS) + 1)[2] - 1] -= 1  # of episode 2: the row before again
    words = np.array([None, "", "é", "go"], object)
    flags = odd_ends().steps
    steps: dict[Key, Any] = {
        **batch.steps,
        TERMINATED: flags[TERMINATED],
        TRUNCATED: flags[TRUNCATED],
        ("extra", "v1.0"): np.arange(rows) * 1.5,
        ("extra", "word"): words[np.arange(rows) % 4],
        ("next", "info", "grid"): np.arange(rows * 6.0).reshape(rows, 2, 3),
        ("next", "info", "said"): words[np.arange(rows) % 4],
        ("next", "cost"): np.arange(rows, dtype=np.int32) + 5,
    }
    observations: dict[Key, Any] = {
        **batch.observations,
        ("observation", "arm", "half"): (observed[:, None] + [0.5, 0.25]).astype(np.float16),
        ("observation", "grid"): (observed[:, None, None] + np.arange(6.0).reshape(2, 3)),
        ("observation", "big"): observed.astype(np.uint64) << np.uint64(40),
        ("info", "q", "pos"): observed[:, None].astype(np.float32) + 7,
        ("info", "word"): words[observed % 4],
        ("state",): observed[:, None] * 2.5,
    }
    episodes: dict[Key, Any] = {**batch.episodes, ("name", "v2.0"): words, ("split",): words[::-1]}
    return replace(batch, steps=steps, observations=observations, episodes=episodes)


BATCHES: dict[str, Callable[[], EpisodeBatch]] = {
    "flat": flat_batch,
    "without final": lambda: flat_batch(final=False),
    "without rewards": lambda: flat_batch(rewards=False),
    "nested": lambda: toy_batch(LENGTHS, text=True, images=True),
    "some final": lambda: toy_batch(LENGTHS, unknown_final=[1, 2]),
    "odd ends": odd_ends,
    "discrete": discrete_batch,
}


@pytest.fixture(autouse=True)
def _exports_start_no_process(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write HDF5 in this process, too, unless a test asks for `processes`."""
    if "processes" not in request.fixturenames:
        for name in TARGETS:
            monkeypatch.setattr(type(get_target(name)), "contained", False)


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[str], Path]:
    """Write one of `BATCHES` as a dataset directory, and return it."""

    def write(name: str) -> Path:
        folder = tmp_path / "stored" / name.replace(" ", "_")
        if not folder.exists():
            write_toy(folder, [BATCHES[name]()], dataset=f"local:{name.replace(' ', '_')}@1")
        return folder

    return write


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with a root of its own."""
    return Settings(tmp_path / "root")
