"""Codes of different vocabularies never stand in one leaf."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.ensembles import ReplayBufferEnsemble
from offline_data.errors import UsageError
from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MISSION = ("observation", "mission")
WORDS = (["open", "close"], ["close", "open"], ["open", "close"])
"""In the order of their codes, of each member: a code of the second means another word."""


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    for number, words in enumerate(WORDS):
        toy = toy_batch([4, 3], first_episode=10 * number)
        missions = np.array([words[row % 2] for row in range(9)], object)
        observations: Any = {**toy.observations, MISSION: missions}
        write_toy(tmp_path / str(number), [replace(toy, observations=observations)])
    return [tmp_path / str(number) for number in range(3)]


def test_codes_of_different_vocabularies_are_refused(folders: list[Path]) -> None:
    ensemble = ReplayBufferEnsemble(*map(BaseDatasetExperienceReplay, folders), batch_size=6)
    said = "'observation/mission' has codes of different vocabularies in members 0 and 1"
    takes: list[Callable[[], Any]] = [
        ensemble.sample,
        lambda: ensemble[:, 0],
        lambda: ensemble[:2].sample(6),
    ]
    for take in takes:
        with pytest.raises(UsageError, match=said) as error:
            take()
        assert "keys=" in str(error.value.hint)
    same = ensemble[[0, 2]]
    batch = same.sample(6)
    for part in range(2):
        member = same[int(batch["index", "buffer_ids"][part, 0])]
        texts = member.decode(MISSION, batch[MISSION][part])
        rows = member[batch["index", "index"][part]]
        assert texts == member.decode(MISSION, rows[MISSION])
    assert ensemble[1].sample(3).batch_size == (3,)


def test_strings_and_other_leaves_are_not(folders: list[Path]) -> None:
    texts = [BaseDatasetExperienceReplay(folder, decode_text=True) for folder in folders]
    batch = ReplayBufferEnsemble(*texts, batch_size=6).sample()
    for part in batch.unbind(0):
        member = texts[int(part["index", "buffer_ids"][0])]
        assert list(part[MISSION]) == list(member[part["index", "index"]][MISSION])
    keys = ["action", "observation.state"]
    some = [BaseDatasetExperienceReplay(folder, keys=keys) for folder in folders]
    assert ReplayBufferEnsemble(*some).sample(6)["action"].shape == (3, 2, 1)

    def without(batch: Any) -> Any:
        return batch.exclude(MISSION, ("next", *MISSION))

    dropped = [BaseDatasetExperienceReplay(folder, transform=without) for folder in folders]
    assert ReplayBufferEnsemble(*dropped).sample(6)["action"].shape == (3, 2, 1)
    lists = ReplayBufferEnsemble(*map(BaseDatasetExperienceReplay, folders), collate_fn=list)
    assert all(isinstance(part[MISSION], torch.Tensor) for part in lists.sample(6))
