"""CartPole with a camera, and a player of it: what `demo` records. It needs gymnasium, and no display."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

HEIGHT, WIDTH = 64, 96
_TRACK, _TOP = 46, 37  # rows of pixels between which the cart is
_SCALE = WIDTH / 4.8  # pixels per unit of length: the track is from -2.4 to 2.4
_SKY, _GROUND, _CART, _POLE = (236, 240, 244), (200, 206, 212), (32, 84, 120), (202, 110, 58)
_ROWS, _COLUMNS = (part.astype(np.float32) for part in np.ogrid[:_TRACK, :WIDTH])


class CartPoleCamera(gymnasium.ObservationWrapper[Any, Any, Any]):  # type: ignore[misc] # of Any
    """CartPole whose observation is its `state`, and the image of a `camera` beside the track."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        image = gymnasium.spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
        parts = {"camera": image, "state": env.observation_space}
        self.observation_space = gymnasium.spaces.Dict(parts)

    def observation(self, observation: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the state and its image."""
        return {"camera": draw(float(observation[0]), float(observation[2])), "state": observation}


def make() -> CartPoleCamera:
    """Make the environment, of at most 500 steps an episode."""
    return CartPoleCamera(gymnasium.make("CartPole-v1"))


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
