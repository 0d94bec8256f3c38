"""Buffers of other packages become datasets: every transition, in the order of time, or an error.

TorchRL's are the real ones. Stable-Baselines3's and d3rlpy's are stand-ins, with the attributes, layouts
and ways to write of versions 2.9 and 2.8.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import offline_data
from offline_data.base.errors import FormatError
from offline_data.episode.notes import count_episodes
from offline_data.formats.buffer_rows import NOTE_CUT
from offline_data.store.library import entry_at
from offline_data.store.reader import open_reader
from tests.toys.buffers import BOX, Step, assert_episode, cut, play, ted

NESTED = spaces.Dict(a=BOX, b=spaces.Box(0, 255, (3, 4, 4), np.uint8))


class ReplayBuffer:
    """Stable-Baselines3's, also that of dicts."""

    def __init__(
        self, size: int, space: Any, action: Any, envs: int, sparing: bool, timeouts: bool
    ) -> None:
        self.buffer_size, self.n_envs = size, envs
        self.observation_space, self.action_space = space, action
        self.optimize_memory_usage, self.handle_timeout_termination = sparing, timeouts
        self.pos, self.full = 0, False
        self.observations = self._empty(space)
        if not sparing:
            self.next_observations = self._empty(space)
        width = 1 if isinstance(action, spaces.Discrete) else int(np.prod(action.shape))
        self.actions = np.zeros((size, envs, width), action.dtype)
        self.rewards, self.dones, self.timeouts = (
            np.zeros((size, envs), np.float32) for _ in range(3)
        )

    def _empty(self, space: Any) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self._empty(part) for key, part in space.spaces.items()}
        shape = space.shape or (1,)
        return np.zeros((self.buffer_size, self.n_envs, *shape), space.dtype)

    def add(self, steps: list[Step]) -> None:
        now, at = [list(column) for column in zip(*steps, strict=True)], self.pos
        self._put(self.observations, at, now[0])
        if self.optimize_memory_usage:
            self._put(self.observations, (at + 1) % self.buffer_size, now[5])
        else:
            self._put(self.next_observations, at, now[5])
        self.actions[at] = np.array(now[1]).reshape(self.actions.shape[1:])
        self.rewards[at], self.dones[at] = now[2], now[3]
        if self.handle_timeout_termination:
            self.timeouts[at] = now[4]
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def _put(self, into: Any, row: int, values: list[Any]) -> None:
        if isinstance(into, dict):
            for key, array in into.items():
                array[row] = np.stack([value[key] for value in values])
        else:
            into[row] = np.stack(values).reshape(into.shape[1:])


ReplayBuffer.__module__ = "stable_baselines3.common.buffers"


@pytest.mark.parametrize(("size", "count"), [(50, 30), (50, 50), (20, 77), (20, 40)])
@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize(
    ("space", "action", "sparing", "timeouts"),
    [
        (BOX, spaces.Discrete(3), False, True),
        (BOX, BOX, True, False),
        (NESTED, BOX, False, True),
        (spaces.Discrete(500), spaces.MultiDiscrete([2, 3]), False, False),
    ],
)
def test_stable_baselines(
    tmp_path: Path,
    size: int,
    count: int,
    envs: int,
    space: Any,
    action: Any,
    sparing: bool,
    timeouts: bool,
) -> None:
    buffer = ReplayBuffer(size, space, action, envs, sparing, timeouts)
    played = [play(space, action, count, seed) for seed in range(1, envs + 1)]
    for row in zip(*played, strict=True):
        buffer.add(list(row))
    stored = offline_data.convert(buffer, "buffer", root=tmp_path)
    reader, number = open_reader(stored.path), 0
    kept = min(count, size) - (sparing and count >= size)
    for steps in played:
        episodes = cut(steps[-kept:])
        for episode in episodes:
            batch = reader.episode_batch(number, number + 1)
            final = not sparing or episode is episodes[-1]
            assert_episode(batch, episode, space, final=final, timeouts=timeouts)
            number += 1
    assert reader.episode_count == number
    notes = " ".join(entry_at(stored.path).manifest.notes)
    for words, holds in (
        ("its oldest episodes", count >= size),
        ("optimize_memory_usage", sparing),
        ("does not tell time limits", not timeouts),
        ("scales those of a Box", action is BOX),
    ):
        assert (words in notes) == holds


def test_an_episode_that_was_left_without_a_flag_is_cut(tmp_path: Path) -> None:
    buffer = ReplayBuffer(50, BOX, spaces.Discrete(3), 1, False, True)
    steps = [(*one[:3], False, False, one[5]) for one in play(BOX, spaces.Discrete(3), 40, 1)]
    for step in steps:
        buffer.add([step])
    stored = offline_data.convert(buffer, "buffer", root=tmp_path)
    expected = cut(play(BOX, spaces.Discrete(3), 40, 1))
    reader = open_reader(stored.path)
    assert reader.lengths.tolist() == [len(episode) for episode in expected]
    assert reader.step(("next", "truncated")).sum() == len(expected)
    notes = entry_at(stored.path).manifest.notes
    assert count_episodes(len(expected) - 1, NOTE_CUT) in notes


def test_rows_in_another_order(tmp_path: Path) -> None:
    buffer = ReplayBuffer(50, BOX, spaces.Discrete(3), 1, False, True)
    steps = play(BOX, spaces.Discrete(3), 40, 1)
    for at in np.random.default_rng(0).permutation(40):
        buffer.add([steps[at]])
    with pytest.raises(FormatError, match=r"The order of episodes is lost: in \d+ rows of"):
        offline_data.convert(buffer, "buffer", root=tmp_path)


def test_d3rlpy(tmp_path: Path) -> None:
    steps = play(BOX, spaces.Discrete(3), 30, 1)

    class Episode:
        def __init__(self, episode: list[Step]) -> None:
            self.observations = np.stack([one[0] for one in episode])
            self.actions = np.array([[one[1]] for one in episode])
            self.rewards = np.array([[one[2]] for one in episode], np.float32)
            self.terminated = episode[-1][3]

    base = type("ReplayBufferBase", (), {"__module__": "d3rlpy.dataset.replay_buffer"})
    buffer = type("ReplayBuffer", (base,), {"episodes": [Episode(one) for one in cut(steps)]})()
    reader = open_reader(offline_data.convert(buffer, "buffer", root=tmp_path).path)
    for number, episode in enumerate(cut(steps)):
        batch = reader.episode_batch(number, number + 1)
        batch.steps[("action",)].shape = (-1,)
        assert_episode(batch, episode, BOX, final=False, timeouts=False)


torchrl = pytest.importorskip("torchrl.data")
torch = pytest.importorskip("torch")


@pytest.mark.parametrize("kind", ["LazyTensorStorage", "LazyMemmapStorage", "ListStorage"])
@pytest.mark.parametrize(("size", "count"), [(50, 30), (50, 50), (20, 77)])
def test_torchrl(tmp_path: Path, kind: str, size: int, count: int) -> None:
    steps = play(BOX, spaces.Discrete(3), count, 1)
    buffer = torchrl.ReplayBuffer(storage=getattr(torchrl, kind)(size))
    for first in range(0, count, 11):
        buffer.extend(ted(steps[first : first + 11]))
    reader = open_reader(offline_data.convert(buffer, "buffer", root=tmp_path).path)
    episodes = cut(steps[-min(count, size) :])
    assert reader.episode_count == len(episodes)
    for number, episode in enumerate(episodes):
        assert_episode(reader.episode_batch(number, number + 1), episode, BOX, final=True)


def test_trajectories_of_a_collector_are_put_together(tmp_path: Path) -> None:
    played = [play(BOX, spaces.Discrete(3), 24, seed) for seed in (1, 2)]
    buffer = torchrl.ReplayBuffer(storage=torchrl.LazyTensorStorage(100))
    numbers = [np.cumsum([0, *(step[3] for step in steps)])[:-1] for steps in played]
    for first in range(0, 24, 3):
        for lane, steps in enumerate(played):
            ids = (2 * numbers[lane][first : first + 3] + lane).tolist()
            buffer.extend(ted(steps[first : first + 3], ids))
    reader = open_reader(offline_data.convert(buffer, "buffer", root=tmp_path).path)
    rewards = {one[0][2]: one for steps in played for one in cut(steps)}
    assert reader.episode_count == len(rewards)
    for number in range(reader.episode_count):
        batch = reader.episode_batch(number, number + 1)
        assert_episode(batch, rewards.pop(batch.steps[("next", "reward")][0, 0]), BOX, final=True)


def test_order_that_torchrl_has_lost(tmp_path: Path) -> None:
    steps = play(BOX, spaces.Discrete(3), 40, 1)
    storage = torchrl.LazyTensorStorage(20)
    torchrl.ReplayBuffer(storage=storage).extend(ted(steps[:20]))
    with pytest.raises(FormatError, match="a full storage says no oldest row"):
        offline_data.convert(storage, "buffer", root=tmp_path)
    best = torchrl.TensorDictReplayBuffer(
        storage=torchrl.LazyTensorStorage(20),
        writer=torchrl.TensorDictMaxValueWriter(rank_key=("next", "reward")),
    )
    best.extend(ted(steps))
    with pytest.raises(FormatError, match="a TensorDictMaxValueWriter writes in no order of time"):
        offline_data.convert(best, "buffer", root=tmp_path)
    plain = torchrl.ReplayBuffer(storage=torchrl.LazyTensorStorage(20))
    plain.extend(torch.zeros(5, 2))
    with pytest.raises(FormatError, match="expected a TensorDict"):
        offline_data.convert(plain, "buffer", root=tmp_path)
    other = torchrl.ReplayBuffer(storage=torchrl.LazyTensorStorage(20))
    other.extend(ted(steps[:5]).select("observation"))
    with pytest.raises(FormatError, match="transitions as TED: it has observation"):
        offline_data.convert(other, "buffer", root=tmp_path)
    square = torchrl.ReplayBuffer(storage=torchrl.LazyTensorStorage(20, ndim=2))
    square.extend(ted(steps[:20]).reshape(4, 5))
    with pytest.raises(FormatError, match="has 2 dimensions; expected 1"):
        offline_data.convert(square, "buffer", root=tmp_path)
    lanes = torchrl.ReplayBuffer(storage=torchrl.LazyTensorStorage(20))
    lanes.extend(ted(steps[:20]).reshape(4, 5))
    with pytest.raises(FormatError, match=r"'next/done' is bool \[4, 5, 1\]; expected numbers"):
        offline_data.convert(lanes, "buffer", root=tmp_path)


@pytest.mark.parametrize("kind", ["LazyTensorStorage", "ListStorage"])
def test_text_of_torchrl(tmp_path: Path, kind: str) -> None:
    texts = [f"row {number}" for number in range(20)]
    buffer = torchrl.ReplayBuffer(storage=getattr(torchrl, kind)(20))
    rows = ted(play(BOX, spaces.Discrete(3), 20, 1)).set("text", texts)
    buffer.extend(rows.set("odd", [{"a": number} for number in range(20)]))
    reader = open_reader(offline_data.convert(buffer, "buffer", root=tmp_path).path)
    assert reader.as_text(("text",), reader.step(("text",))).tolist() == texts
    assert [leaf.key for leaf in reader.manifest.dropped_leaves] == ["odd"]
