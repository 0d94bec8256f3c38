"""Batches of a dataset and of new experience: derived leaves and priorities are those of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from offline_data.buffers.dataset import Dataset
from offline_data.buffers.mixtures.dataset_mixture import DatasetMixture
from offline_data.rows.derived import n_step, normalize
from offline_data.rows.samplers import PrioritizedSampler
from offline_data.torchrl.offline_to_online import OfflineToOnlineReplayBuffer
from tests import oracles_derived as oracle

from .conftest import ACTIONS, LENGTHS

STATE = ("observation", "state")
GAMMA = 0.5


def n_step_of(member: int) -> tuple[Any, Any]:
    """Return the 3-step rewards of a member's rows, and the numbers of the states that follow."""
    code, lengths = -np.array(ACTIONS[member]), LENGTHS[member]
    bounds = [(stop - n, stop) for n, stop in zip(lengths, np.cumsum(lengths), strict=True)]
    none, known = np.zeros(len(code), bool), [True] * len(lengths)
    found = oracle.n_step((code + 1) / 10, none, none, bounds, known, n=3, gamma=GAMMA)
    return found, code[found.end] + 1


def write(both: OfflineToOnlineReplayBuffer, folder: Path) -> None:
    """Write the rows of a dataset one by one, as an actor does."""
    rows = Dataset(folder)[:].exclude("index", "episode")
    for row in range(len(rows)):
        both.extend(rows[row : row + 1])


def test_n_step_priorities_and_statistics_of_both(folders: list[Path]) -> None:
    """Rainbow's leaves while fine-tuning: offline rows of dataset 1, online rows as of dataset 2."""
    scale = normalize("observation", eps=0)
    offline = Dataset(
        folders[1],
        sampler=PrioritizedSampler(30, alpha=1.0, beta=1.0, eps=0.0, seed=0),
        derived=[n_step(3, GAMMA), scale],
    )
    both = OfflineToOnlineReplayBuffer(
        offline,
        online_capacity=60,
        online_sampler=lambda: PrioritizedSampler(60, alpha=1.0, beta=1.0, eps=0.0, seed=1),
        batch_size=80,
    )
    alone = both.sample()
    assert alone["index", "buffer_ids"].tolist() == [0] * 80
    write(both, folders[2])
    batch = both.sample()
    assert batch["index", "buffer_ids"].tolist() == [0] * 40 + [1] * 40
    assert set(batch.keys(True, True)) <= set(alone.keys(True, True))
    code = -np.array(ACTIONS[1])
    for number, member in ((0, 1), (1, 2)):
        own = batch["index", "buffer_ids"] == number
        rows = batch["index", "index"][own].numpy()
        want, after = n_step_of(member)
        np.testing.assert_allclose(batch["next", "reward"][own][:, 0], want.reward[rows], rtol=1e-5)
        np.testing.assert_allclose(batch["gamma"][own], want.gamma[rows], rtol=1e-6)
        assert batch["steps_to_next_obs"][own].tolist() == want.steps[rows].tolist()
        for key, values in ((STATE, -np.array(ACTIONS[member])), (("next", *STATE), after)):
            scaled = (values[rows] - code.mean()) / code.std()
            np.testing.assert_allclose(batch[key][own][:, 0], scaled, rtol=1e-3, atol=1e-4)
    assert (batch["priority_weight"] == 1).all()
    chosen = {0: 17, 1: 4}
    for number, row in chosen.items():
        index = torch.arange(len((both.offline_buffer, both.online_buffer)[number]))
        every = batch["index"][:1].expand(len(index)).clone()
        every["buffer_ids"], every["index"] = torch.full_like(index, number), index
        both.update_priority(every, (index == row).float())
    again = both.sample()["index"]
    pairs = set(zip(again["buffer_ids"].tolist(), again["index"].tolist(), strict=True))
    assert pairs == set(chosen.items())
    both.anneal(1, 1)
    assert {*both.sample(9)["index", "buffer_ids"].tolist()} == {1}


def test_plain_rows_of_both(folders: list[Path]) -> None:
    both = OfflineToOnlineReplayBuffer(Dataset(folders[0]), online_capacity=9, batch_size=8)
    write(both, folders[0])
    batch = both.sample()
    assert "episode" not in batch.keys()  # noqa: SIM118 - which new rows lack
    both.update_priority(batch["index"], 1.0)  # without any prioritized sampler: nothing to do
    mixed = DatasetMixture(Dataset(folders[0]), Dataset(folders[1]))
    both = OfflineToOnlineReplayBuffer(mixed, online_capacity=60, batch_size=8)
    write(both, folders[0])
    assert (both.sample()["action"][4:] > -3000).all()


def test_rows_without_flags_are_normalized(folders: list[Path]) -> None:
    """What new rows may not lack is in `refusals.json`."""
    dataset = Dataset(folders[0], derived=normalize())
    both = OfflineToOnlineReplayBuffer(dataset, online_capacity=9, batch_size=8)
    flags = [("next", "done"), ("next", "truncated")]
    both.extend(Dataset(folders[0])[:5].exclude("index", "episode", *flags))
    assert len(both.sample()) == 8
