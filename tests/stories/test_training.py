"""Training as users do it: behaviour cloning, and offline-to-online updates from a mixture."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import offline_data
from offline_data.config import resolve_settings
from offline_data.ids import parse_id
from offline_data.ingest import Options, download

recording = importlib.import_module("offline_data_cli.commands.demo")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset of `offline-data demo`: CartPole pushed as its pole leans, in nine of ten steps."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "minari").mkdir()
    recording.record(folder / "minari")
    environ = {**os.environ, "MINARI_DATASETS_PATH": str(folder / "minari")}
    environ["OFFLINE_DATA_HOME"] = str(folder / "root")
    settings = resolve_settings(offline=True, environ=environ)
    return download(parse_id(f"minari:{recording.RECORDED}"), settings, Options()).path


def test_behaviour_cloning_learns_what_was_played(demo: Path) -> None:
    torch.manual_seed(0)
    scaled = offline_data.normalize("observation")
    whole = offline_data.open_dataset(demo, 512, derived=[scaled])
    parts = whole.split(train=0.8, val=0.2, seed=0)
    train, held_out = parts["train"], parts["val"]
    policy = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)

    def loss_of(batch: Any) -> torch.Tensor:
        logits = policy(batch["observation"].float())
        return torch.nn.functional.cross_entropy(logits, batch["action"].long().view(-1))

    before = float(loss_of(held_out[:]).detach())
    for _ in range(500):
        optimizer.zero_grad()
        loss_of(train.sample()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    held = held_out[:]
    after = float(loss_of(held).detach())
    right = (
        (policy(held["observation"].float()).argmax(1) == held["action"].view(-1)).float().mean()
    )
    # one action in ten is the other one: on average nothing gets below
    # -0.9·ln 0.9 - 0.1·ln 0.1 = 0.325, and a few hundred steps are ±0.1 of it
    assert before > 0.6
    assert float(loss_of(train[:]).detach()) < 0.38
    assert after < 0.5
    assert float(right) > 0.8


def td3_bc_update(
    actor: torch.nn.Module, critic: torch.nn.Module, batch: Any, optimizers: list[Any]
) -> tuple[float, float]:
    """One update of TD3+BC (Fujimoto and Gu, 2021) with one critic, on actions in [-1, 1]."""
    state, action = batch["observation"].float(), batch["action"].float()
    following = batch["next", "observation"].float()
    with torch.no_grad():
        noise = (torch.randn_like(action) * 0.2).clamp(-0.5, 0.5)
        at_next = (actor(following) + noise).clamp(-1, 1)
        value = critic(torch.cat([following, at_next], 1))
        alive = 1 - batch["next", "terminated"].float()
        target = batch["next", "reward"].float() + 0.99 * alive * value
    critic_loss = torch.nn.functional.mse_loss(critic(torch.cat([state, action], 1)), target)
    optimizers[1].zero_grad()
    critic_loss.backward()  # type: ignore[no-untyped-call]
    optimizers[1].step()
    played = actor(state)
    value = critic(torch.cat([state, played], 1))
    weight = 2.5 / value.abs().mean().detach()
    actor_loss = torch.nn.functional.mse_loss(played, action) - weight * value.mean()
    optimizers[0].zero_grad()
    actor_loss.backward()
    optimizers[0].step()
    return float(critic_loss.detach()), float(actor_loss.detach())


def test_td3_bc_updates_from_a_dataset_beside_a_buffer_that_grows(demo: Path) -> None:
    torch.manual_seed(1)
    keys = [
        "observation",
        "action",
        "next/observation",
        "next/reward",
        "next/terminated",
        "next/done",
    ]

    def continuous(batch: Any) -> Any:
        return batch.set("action", batch["action"].float().view(-1, 1) * 2 - 1)

    known = offline_data.open_dataset(demo, keys=keys, transform=continuous)
    online = offline_data.TensorDictReplayBuffer(
        storage=offline_data.LazyTensorStorage(500), batch_size=32
    )
    mixture = offline_data.DatasetMixture(
        known, online, weights=[1, 1], exact=True, batch_size=64, keys=keys, cast=True, seed=0
    )
    actor = torch.nn.Sequential(
        torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1), torch.nn.Tanh()
    )
    critic = torch.nn.Sequential(torch.nn.Linear(5, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizers = [torch.optim.Adam(net.parameters(), 1e-3) for net in (actor, critic)]
    losses = []
    for step in range(60):
        online.extend(rollout(actor, step))
        batch = mixture.sample()
        assert (batch["source"] == 0).sum() == (batch["source"] == 1).sum() == 32
        fresh = batch[batch["source"] == 1]
        assert (fresh["next", "reward"] == 5.0).all()
        losses.append(td3_bc_update(actor, critic, batch, optimizers))
    assert len(online) == 480
    assert all(torch.isfinite(torch.tensor(losses)).flatten())
    assert sum(c for c, _ in losses[-10:]) < sum(c for c, _ in losses[:10])


def rollout(actor: torch.nn.Module, step: int) -> TensorDict:
    """Eight transitions as an environment gives them, of a reward that tells whose they are."""
    generator = torch.Generator().manual_seed(step)
    state = torch.rand(9, 4, generator=generator, dtype=torch.float32) - 0.5
    with torch.no_grad():
        action = actor(state[:-1])
    ended = torch.zeros(8, 1, dtype=torch.bool)
    ended[-1] = True
    following = {
        "observation": state[1:],
        "reward": torch.full((8, 1), 5.0),
        "terminated": ended,
        "done": ended.clone(),
    }
    return TensorDict({"observation": state[:-1], "action": action, "next": following}, [8])
