from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tensordict import NonTensorData, NonTensorStack

from offline_data.base.errors import NotFoundError, UsageError
from offline_data.buffers.dataset import BaseDatasetExperienceReplay

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch, Key

MISSION = ("observation", "mission")


def test_text_is_codes_that_decode(
    ds: BaseDatasetExperienceReplay, truth: dict[Key, NDArray[Any]]
) -> None:
    batch = ds[[0, 9, 4]]
    for key in (MISSION, ("next", *MISSION)):
        assert batch[key].dtype == torch.int32
        assert ds.decode(key, batch[key]) == truth[key][[0, 9, 4]].tolist()
    assert ds.decode("observation.mission", int(batch[MISSION][0])) == truth[MISSION][0]
    assert ds.decode(MISSION, [[-1, 0]]) == [[None, ds.decode(MISSION, 0)]]


def test_decoding_what_is_no_text_or_no_code(ds: BaseDatasetExperienceReplay) -> None:
    with pytest.raises(UsageError, match="text leaves: observation/mission"):
        ds.decode("action", 0)
    for code in (-2, 10_000):
        with pytest.raises(UsageError, match="codes from -1"):
            ds.decode(MISSION, torch.tensor([0, code]))


def test_text_as_strings(compact: Path, truth: dict[Key, NDArray[Any]]) -> None:
    ds = BaseDatasetExperienceReplay(compact, 3, decode_text=True)
    batch = ds[[0, 9, 4]]
    for key in (MISSION, ("next", *MISSION)):
        assert isinstance(batch.get(key), NonTensorStack)
        assert list(batch[key]) == truth[key][[0, 9, 4]].tolist()
    assert isinstance(ds[4].get(MISSION), NonTensorData)
    assert ds[4][MISSION] == truth[MISSION][4]
    grid = ds[[[0, 1], [2, 3]]]
    assert [list(row) for row in grid[MISSION]] == truth[MISSION][:4].reshape(2, 2).tolist()
    assert len(ds.sample()[MISSION]) == 3


def test_episodes_are_columns(ds: BaseDatasetExperienceReplay, batch: EpisodeBatch) -> None:
    table = ds.episodes
    assert len(table) == 5
    assert table.start.tolist() == [0, 3, 4, 8, 10]
    assert table["length"].tolist() == [3, 1, 4, 2, 1]
    np.testing.assert_allclose(table["return"], batch.returns)
    assert torch.equal(table.return_, table["return"])
    assert table.terminated.tolist() == [True, False, True, False, True]
    assert table.final_observation.tolist() == [True, True, True, False, False]
    assert table[("seed",)].tolist() == [1, 8, 15, 22, 29]
    assert table.name == [f"episode {e}" for e in range(5)]
    assert "length" in table
    assert "size" not in table
    assert "name" in dir(table)
    assert table.length[ds[[0, 9]]["episode"]].tolist() == [3, 2]
    assert "5 episodes: start" in repr(table)
    with pytest.raises(NotFoundError, match="no column 'size'; there are start"):
        table["size"]
    with pytest.raises(AttributeError, match="size"):
        _ = table.size


def test_delete_removes_the_directory_and_nothing_else(own_folder: Path) -> None:
    folder, ds = own_folder, BaseDatasetExperienceReplay(own_folder, 4)
    assert ds.manifest.id == "local:toy@1"
    assert ds.data_path == ds.data_path_root == folder
    assert ds.metadata["environment"] == {}
    other = BaseDatasetExperienceReplay(folder)
    kept, want = ds[:3], other[:]
    beside = folder.parent / "beside"
    beside.mkdir()
    ds.delete()
    assert not folder.exists()
    assert beside.exists()
    assert kept["action"].shape == (3, 1)
    copy = pickle.loads(pickle.dumps(ds))  # noqa: S301
    uses: list[Callable[[], Any]] = [ds.sample, lambda: ds[0], lambda: copy.sample()]
    for use in uses:
        with pytest.raises(NotFoundError, match="deleted"):
            use()
    with pytest.raises(NotFoundError):
        ds.delete()
    with pytest.raises(NotFoundError):
        BaseDatasetExperienceReplay(folder)
    assert torch.equal(other[:]["next", "reward"], want["next", "reward"])
