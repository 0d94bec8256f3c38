"""Episodes of a small linear system with actions, rewards and a camera, and shifts of their leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offline_data.episode import EpisodeBatch
from offline_data.testing.toy import write_toy


def world(
    seed: int, episodes: int = 30, length: int = 40, *, feedback: float = 0.0, camera: bool = False
) -> EpisodeBatch:
    """Return episodes of a point that accelerates: position and velocity of two axes.

    Actions are noise, plus `feedback` times what would bring the point back. The camera shows the point
    as a bright spot.
    """
    draw = np.random.default_rng(seed)
    seen, acted, rewards, frames = [], [], [], []
    for _ in range(episodes):
        state = draw.normal(size=4)
        states = [state]
        for _ in range(length):
            action = draw.normal(size=2) - feedback * (state[:2] + state[2:])
            state = np.concatenate([state[:2] + 0.4 * state[2:], 0.5 * state[2:] + 0.4 * action])
            states.append(state)
            acted.append(action)
            x, y = action.tolist()  # the product of BLAS differs between processors in its last bit
            rewards.append([-(x * x + y * y) - abs(float(state[0]))])
        seen += states
        frames += [_spot(one[:2]) for one in states] if camera else []
    rows = episodes * length
    truncated = np.zeros((rows, 1), bool)
    truncated[length - 1 :: length] = True
    observations: dict[tuple[str, ...], NDArray[np.generic]] = {
        ("observation", "state"): np.array(seen)
    }
    if camera:
        observations["observation", "camera"] = np.array(frames)
    return EpisodeBatch(
        np.full(episodes, length),
        {
            ("action",): np.array(acted),
            ("next", "reward"): np.array(rewards),
            ("next", "terminated"): np.zeros((rows, 1), bool),
            ("next", "truncated"): truncated,
        },
        observations,
        np.ones(episodes, bool),
    )


def _spot(at: NDArray[np.float64]) -> NDArray[np.uint8]:
    x, y = np.meshgrid(np.linspace(-3, 3, 32), np.linspace(-3, 3, 32))
    bright = np.exp(-((x - at[0]) ** 2) - (y - at[1]) ** 2)
    return np.asarray((255 * bright).astype(np.uint8)[..., None])


def shifted(batch: EpisodeBatch, leaf: tuple[str, ...], by: int) -> EpisodeBatch:
    """Return the batch with a leaf stored `by` rows late; at the ends of episodes values repeat."""
    extra = 0 if leaf in batch.steps else 1
    columns = dict(batch.observations if extra else batch.steps)
    parts: list[NDArray[np.int64]] = []
    for start, length in zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True):
        count = length + extra
        first = start + extra * len(parts)
        parts.append(first + np.clip(np.arange(count) - by, 0, count - 1))
    columns[leaf] = columns[leaf][np.concatenate(parts)]
    return replace(batch, observations=columns) if extra else replace(batch, steps=columns)


def write(folder: Path, batch: EpisodeBatch) -> Path:
    """Write the batch as a dataset directory."""
    write_toy(folder, [batch])
    return folder
