"""Training as users do it: behaviour cloning, and values of a dataset beside a buffer that grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

import offline_data

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of CartPole, pushed as its pole leans in nine of ten steps."""
    root = tmp_path_factory.mktemp("root")
    made = gymnasium.make("CartPole-v1")
    with offline_data.Recorder(made, "lean", root=root, progress=False) as env:
        for seed in range(20):
            noise, ended = np.random.default_rng(seed), False
            observation, _ = env.reset(seed=seed)
            while not ended:
                lean = int(observation[2] + observation[3] > 0)
                action = lean if noise.random() > 0.1 else 1 - lean
                observation, _, terminated, truncated, _ = env.step(action)
                ended = terminated or truncated
    return env.stored.path


def test_behaviour_cloning_learns_what_was_played(demo: Path) -> None:
    torch.manual_seed(0)
    scaled = offline_data.normalize("observation")
    whole = offline_data.open_dataset(demo, 512, derived=[scaled])
    train, held_out = whole.split(train=0.8, val=0.2, seed=0).values()
    policy = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)

    def loss_of(batch: Any) -> torch.Tensor:
        logits = policy(batch["observation"].float())
        return torch.nn.functional.cross_entropy(logits, batch["action"].long().view(-1))

    held = held_out[:]
    before = float(loss_of(held).detach())
    for _ in range(500):
        optimizer.zero_grad()
        loss_of(train.sample()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    after = float(loss_of(held).detach())
    played = policy(held["observation"].float()).argmax(1)
    right = (played == held["action"].view(-1)).float().mean()
    # one action in ten is the other one: on average nothing gets below
    # -0.9·ln 0.9 - 0.1·ln 0.1 = 0.325, and a few hundred steps are ±0.1 of it
    assert before > 0.6
    assert float(loss_of(train[:]).detach()) < 0.38
    assert after < 0.5
    assert float(right) > 0.8


def test_values_are_learnt_from_a_dataset_beside_a_buffer_that_grows(demo: Path) -> None:
    torch.manual_seed(1)
    keys = ["observation", "action", "next/observation", "next/reward", "next/terminated"]

    def continuous(batch: Any) -> Any:
        return batch.set("action", batch["action"].float().view(-1, 1) * 2 - 1)

    known = offline_data.open_dataset(demo, keys=keys, transform=continuous)
    online = offline_data.TensorDictReplayBuffer(
        storage=offline_data.LazyTensorStorage(500), batch_size=32
    )
    mixture = offline_data.DatasetMixture(
        known, online, weights=[1, 1], exact=True, batch_size=64, keys=keys, cast=True, seed=0
    )
    critic = torch.nn.Sequential(torch.nn.Linear(5, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(critic.parameters(), 1e-3)
    losses = []
    for _ in range(60):
        online.extend(rollout())
        batch = mixture.sample()
        assert (batch["source"] == 0).sum() == (batch["source"] == 1).sum() == 32
        assert (batch[batch["source"] == 1]["next", "reward"] == 5.0).all()
        value = critic(torch.cat([batch["observation"].float(), batch["action"].float()], 1))
        loss = torch.nn.functional.mse_loss(value, batch["next", "reward"].float())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert len(online) == 480
    assert sum(losses[-10:]) < sum(losses[:10])


def rollout() -> TensorDict:
    """Eight transitions as an environment gives them, of a reward that tells whose they are."""
    state = torch.rand(9, 4) - 0.5
    following = {
        "observation": state[1:],
        "reward": torch.full((8, 1), 5.0),
        "terminated": torch.arange(8)[:, None] == 7,
    }
    action = torch.rand(8, 1) * 2 - 1
    return TensorDict({"observation": state[:-1], "action": action, "next": following}, [8])
