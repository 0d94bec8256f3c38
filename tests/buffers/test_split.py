from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tensordict import NonTensorStack

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.split import split_trajs
from offline_data.errors import UsageError

LENGTHS = [3, 1, 4, 2, 1]


def test_split_refuses_what_it_cannot_split(ds: BaseDatasetExperienceReplay) -> None:
    data = ds[:]
    with pytest.raises(UsageError, match="neither traj_ids nor next/ended"):
        split_trajs(data, done_key="ended")
    data["text"] = NonTensorStack(*["go"] * len(data))
    with pytest.raises(UsageError, match="text is NonTensorStack"):
        split_trajs(data)


def test_split_by_episode_is_the_split_dataset(folder: Path) -> None:
    """Also where the last episode has no observation after it, and flags of several parts."""
    data = BaseDatasetExperienceReplay(folder)[:]
    data["next", "done"] = data["next", "done"].repeat(1, 2)
    data["next", "done"][:, 0] = False
    found = split_trajs(data)
    assert found["mask"].sum(1).tolist() == LENGTHS
    assert found["traj_ids"][found["mask"]].tolist() == data["episode"].tolist()
    assert torch.equal(found["action"][found["mask"]], data["action"])
    assert (found["action"][~found["mask"]] == 0).all()
