"""Updates of four algorithms in plain torch, as their papers have them, for `benchmarks.training`.

Each class has networks and optimizers, and `update(batch)` does one gradient step. Leaves of a batch are
`[B, …]`, for Decision Transformer `[B, K, …]`, and frames `[B, 4, height, width, channels]`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

Batch = Mapping[str, Tensor]
DISCOUNT, AVERAGE = 0.99, 0.005


def mlp(inputs: int, outputs: int, *end: nn.Module) -> nn.Sequential:
    """Return two hidden layers of 256."""
    hidden = (nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(256, outputs), *end)


class Twins(nn.Module):
    """Two critics, whose values are `[2, B, 1]`."""

    def __init__(self, state: int, action: int) -> None:
        super().__init__()
        self.critics = nn.ModuleList(mlp(state + action, 1) for _ in range(2))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        both = torch.cat([state, action], 1)
        return torch.stack([critic(both) for critic in self.critics])


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@torch.no_grad()
def _follow(slow: nn.Module, fast: nn.Module) -> None:
    for old, new in zip(slow.parameters(), fast.parameters(), strict=True):
        old.lerp_(new, AVERAGE)


def _adam(*nets: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam([one for net in nets for one in net.parameters()], 3e-4)


class TD3BC:
    """Fujimoto and Gu, 2021: twin critics, smoothed target actions, a policy step every second time."""

    def __init__(self, state: int, action: int, device: torch.device) -> None:
        self.policy = mlp(state, action, nn.Tanh()).to(device)
        self.critics = Twins(state, action).to(device)
        self.slow_policy, self.slow_critics = copy.deepcopy((self.policy, self.critics))
        self.policy_adam, self.critic_adam = _adam(self.policy), _adam(self.critics)
        self.count = 0

    def update(self, batch: Batch) -> None:
        state, action, after = batch["observation"], batch["action"], batch["next_observation"]
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(action)).clamp(-0.5, 0.5)
            following = (self.slow_policy(after) + noise).clamp(-1, 1)
            value = self.slow_critics(after, following).amin(0)
            target = batch["reward"] + DISCOUNT * ~batch["terminated"] * value
        loss = (self.critics(state, action) - target).square().mean((1, 2)).sum()
        _step(self.critic_adam, loss)
        self.count += 1
        if self.count % 2 == 0:
            chosen = self.policy(state)
            value = self.critics.critics[0](torch.cat([state, chosen], 1))
            scale = 2.5 / value.abs().mean().detach()
            loss = (chosen - action).square().mean() - scale * value.mean()
            _step(self.policy_adam, loss)
            _follow(self.slow_policy, self.policy)
            _follow(self.slow_critics, self.critics)


class IQL:
    """Kostrikov et al., 2022: expectile regression of the value, advantage-weighted regression."""

    def __init__(self, state: int, action: int, device: torch.device) -> None:
        self.policy = mlp(state, action, nn.Tanh()).to(device)
        self.deviation = nn.Parameter(torch.zeros(action, device=device))
        self.value, self.critics = mlp(state, 1).to(device), Twins(state, action).to(device)
        self.slow_critics = copy.deepcopy(self.critics)
        self.value_adam, self.critic_adam = _adam(self.value), _adam(self.critics)
        self.policy_adam = _adam(self.policy)
        self.policy_adam.add_param_group({"params": [self.deviation]})

    def update(self, batch: Batch) -> None:
        state, action, after = batch["observation"], batch["action"], batch["next_observation"]
        with torch.no_grad():
            best = self.slow_critics(state, action).amin(0)
            target = batch["reward"] + DISCOUNT * ~batch["terminated"] * self.value(after)
        advantage = best - self.value(state)
        weight = (0.7 - (advantage < 0).float()).abs()
        _step(self.value_adam, (weight * advantage.square()).mean())
        loss = (self.critics(state, action) - target).square().mean((1, 2)).sum()
        _step(self.critic_adam, loss)
        weight = (3 * advantage.detach()).exp().clamp(max=100)
        normal = torch.distributions.Normal(
            self.policy(state), self.deviation.exp(), validate_args=False
        )
        likelihood = normal.log_prob(action).sum(1, keepdim=True)  # type: ignore[no-untyped-call]
        _step(self.policy_adam, -(weight * likelihood).mean())
        _follow(self.slow_critics, self.critics)


class DecisionTransformer:
    """Chen et al., 2021: actions from returns to go, states and earlier actions; 3 layers of 128."""

    def __init__(self, state: int, action: int, device: torch.device) -> None:
        width = 128
        inputs = (nn.Linear(size, width) for size in (1, state, action))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True)
        self.nets = nn.ModuleDict(
            {
                "inputs": nn.ModuleList(inputs),
                "time": nn.Embedding(1000, width),
                "body": nn.TransformerEncoder(layer, 3, enable_nested_tensor=False),
                "action": nn.Sequential(nn.Linear(width, action), nn.Tanh()),
            }
        ).to(device)
        self.adam = torch.optim.AdamW(self.nets.parameters(), 1e-4)

    def update(self, batch: Batch) -> None:
        nets: Any = self.nets
        action, mask = batch["action"], batch["mask"]
        leaves = (batch["return_to_go"] / 1000, batch["observation"], action)
        inputs = [net(leaf) for net, leaf in zip(nets["inputs"], leaves, strict=True)]
        tokens = torch.stack(inputs, 2) + nets["time"](batch["timestep"])[:, :, None]
        tokens = tokens.flatten(1, 2)
        # Padding follows all steps of an episode, which therefore do not attend to it.
        length = tokens.shape[1]
        ahead = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        chosen = nets["action"](nets["body"](tokens, ahead, is_causal=True)[:, 1::3])
        _step(self.adam, (chosen - action)[mask].square().mean())


class Cloning:
    """Actions from four frames of 84 × 84: the convolutions of Mnih et al., 2015."""

    def __init__(self, channels: int, action: int, device: torch.device) -> None:
        layers: list[nn.Module] = []
        for sizes in ((4 * channels, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)):
            layers += [nn.Conv2d(*sizes), nn.ReLU()]
        layers += [nn.Flatten(), nn.Linear(64 * 7 * 7, 256), nn.ReLU()]
        self.policy = nn.Sequential(*layers, nn.Linear(256, action), nn.Tanh()).to(device)
        self.adam = _adam(self.policy)

    def update(self, batch: Batch) -> None:
        frames = batch["observation"].permute(0, 1, 4, 2, 3).flatten(1, 2).float() / 255
        _step(self.adam, (self.policy(frames) - batch["action"]).square().mean())
