"""`n_step` gives what TorchRL's `MultiStep` gives, but for flags and unknown final observations."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from offline_data import open_dataset
from offline_data.rows.derived import n_step

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    from torchrl.data.postprocs import MultiStep
    from torchrl.envs.transforms import MultiStepTransform


LENGTHS = [7, 1, 4, 2, 9]

FLAGS = {("next", flag) for flag in ("done", "terminated", "truncated")}


@pytest.fixture
def folder(toys: Callable[..., Path]) -> Path:
    """Episodes of which every other one is truncated, each with its final observation."""
    return toys(LENGTHS, layout="ted")


def keys_of(batch: Any) -> set[Any]:
    return set(batch.keys(include_nested=True, leaves_only=True))


def trajectory(folder: Path) -> Any:
    """Load the same transitions without this package, as one stretch of time `[1, T]`."""
    return TensorDict.load_memmap(folder / "ted").to_tensordict()[None]


def assert_same(found: Any, want: Any) -> None:
    assert keys_of(found) - keys_of(want) == {"index"}
    assert keys_of(want) - keys_of(found) <= {"nonterminal"}
    for key in keys_of(want) - FLAGS - {"nonterminal"}:
        assert found[key].shape == want[key].shape, key
        assert found[key].dtype == want[key].dtype, key
        torch.testing.assert_close(found[key], want[key], msg=str(key))


@pytest.mark.parametrize(("n", "gamma"), [(1, 0.9), (3, 0.9), (20, 1.0)])
def test_multi_step_of_torchrl_is_ours(folder: Path, n: int, gamma: float) -> None:
    want = MultiStep(gamma, n)(trajectory(folder))[0]
    found = open_dataset(folder, derived=[n_step(n, gamma)])[:]
    assert_same(found, want)


def test_the_transform_of_torchrl_is_ours(folder: Path) -> None:
    want = MultiStepTransform(3, 0.9).inv(trajectory(folder))[0]
    # The transform keeps back the last steps, which may go on in the next data.
    found = open_dataset(folder, derived=[n_step(3, 0.9)])[: len(want)]
    assert len(want) == sum(LENGTHS) - 3
    assert_same(found, want)


def test_flags_are_those_of_the_observation_they_come_with(folder: Path) -> None:
    """There a target bootstraps from a terminal state that lies within the window."""
    stored = trajectory(folder)[0]
    theirs = MultiStep(0.9, 3)(trajectory(folder))[0]
    ours = open_dataset(folder, derived=[n_step(3, 0.9)])[:]
    steps = theirs["steps_to_next_obs"]
    for key in FLAGS:
        assert theirs[key].equal(stored[key])
        assert ours[key].equal(stored[key][torch.arange(len(steps)) + steps - 1])
    first = LENGTHS[0]
    end = stored["next", "observation", "state"][first - 1]
    assert theirs["next", "observation", "state"][first - 3].equal(end)
    assert not theirs["next", "terminated"][first - 3]
    assert ours["next", "terminated"][first - 3]


def test_no_window_ends_in_an_observation_that_is_not_known(toys: Callable[..., Path]) -> None:
    """There it is whatever stands in the row: here, the observation before."""
    toy = toys([5, 5], layout="ted", unknown_final=[1])
    theirs = MultiStep(1.0, 3)(trajectory(toy))[0]
    ours = open_dataset(toy, derived=[n_step(3, 1.0)])[:]
    assert theirs["steps_to_next_obs"].tolist() == [3, 3, 3, 2, 1, 3, 3, 3, 2, 1]
    assert ours["steps_to_next_obs"].tolist() == [3, 3, 3, 2, 1, 3, 3, 2, 1, 1]
    states = ours["next", "observation", "state"][:, 0].numpy()
    np.testing.assert_array_equal(states[5:8], [2004, 2005, 2005])
