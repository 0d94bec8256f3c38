"""CartPole with a camera, a player of it, and a policy cloned from its episodes, for `demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.formats.environments import import_gymnasium, make_environment

CARTPOLE = {"id": "CartPole-v1"}
HEIGHT, WIDTH = 64, 96
BATCH, STEPS, PLAYED = 256, 200, 5  # of behaviour cloning; episodes of each evaluation

_TRACK, _TOP = 46, 37  # rows of pixels between which the cart is
_SCALE = WIDTH / 4.8  # pixels per unit of length: the track is from -2.4 to 2.4
_SKY, _GROUND, _CART, _POLE = (236, 240, 244), (200, 206, 212), (32, 84, 120), (202, 110, 58)
_ROWS, _COLUMNS = (part.astype(np.float32) for part in np.ogrid[:_TRACK, :WIDTH])


@dataclass(frozen=True)
class Cloning:
    """Mean returns of a policy in the environment, before and after behaviour cloning."""

    steps: int
    batch: int
    episodes: int
    return_before: float
    return_after: float


def make() -> Any:
    """Make CartPole whose observation is its `state`, and the image of a `camera` next to the track."""
    gymnasium = import_gymnasium("the demo")
    spaces = gymnasium.spaces

    class CartPoleCamera(gymnasium.ObservationWrapper):  # type: ignore[misc, name-defined] # of Any
        def __init__(self, env: Any) -> None:
            super().__init__(env)
            image = spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
            self.observation_space = spaces.Dict({"camera": image, "state": env.observation_space})

        def observation(self, observation: NDArray[Any]) -> dict[str, NDArray[Any]]:
            image = draw(float(observation[0]), float(observation[2]))
            return {"camera": image, "state": observation}

    return CartPoleCamera(make_environment(CARTPOLE))


def draw(position: float, angle: float) -> NDArray[np.uint8]:
    """Return an image `[64, 96, 3]` of a cart at a position, with its pole at an angle in radians."""
    image = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    image[:_TRACK], image[_TRACK:] = _SKY, _GROUND
    x = WIDTH / 2 + position * _SCALE
    image[_TOP:_TRACK, max(0, round(x) - 8) : max(0, round(x) + 8)] = _CART
    # the pole: pixels within 1.5 of the line from the top of the cart to its end, 32 away
    across, up = _COLUMNS - x, _TOP - _ROWS
    sine, cosine = np.sin(angle), np.cos(angle)
    along = np.clip(across * sine + up * cosine, 0, 32)
    near = (across - along * sine) ** 2 + (up - along * cosine) ** 2 < 1.5**2
    image[:_TRACK][near] = _POLE
    return image


def lean(state: NDArray[Any], noise: np.random.Generator) -> int:
    """Return the push towards the side to which the pole leans and falls; one time in four, the other."""
    push = int(state[2] + state[3] > 0)
    return push if noise.random() > 0.25 else 1 - push


def train(path: Path) -> Cloning:
    """Train a small network to act as in the dataset at `path`, and play it before and after."""
    import offline_data

    data = offline_data.load_arrays(
        path, observation_key="observation/state", names=("observations", "actions")
    )
    random = np.random.default_rng(0)
    inner = random.uniform(-0.5, 0.5, (4, 64))  # the layers: 4 numbers of a state, 64, and 1,
    outer = random.uniform(-0.1, 0.1, 64)  # which is positive for a push to the right

    def play() -> float:
        """Return the mean return of the network in episodes that are not among those recorded."""
        env, returns = make_environment(CARTPOLE), 0.0
        for seed in range(1000, 1000 + PLAYED):
            state, _ = env.reset(seed=seed)
            ended = False
            while not ended:
                push = int(np.tanh(state @ inner) @ outer > 0)
                state, reward, terminated, truncated, _ = env.step(push)
                returns, ended = returns + float(reward), terminated or truncated
        env.close()
        return returns / PLAYED

    before = play()
    for _ in range(STEPS):
        rows = random.integers(len(data["actions"]), size=BATCH)
        states, pushes = data["observations"][rows], data["actions"][rows]
        hidden = np.tanh(states @ inner)
        # gradients of the mean cross-entropy, by hand: torch takes longer to import than the rest
        error = (1 / (1 + np.exp(-hidden @ outer)) - pushes) / BATCH
        slope = np.outer(error, outer) * (1 - hidden**2)
        outer -= hidden.T @ error
        inner -= states.T @ slope
    return Cloning(STEPS, BATCH, PLAYED, before, play())
