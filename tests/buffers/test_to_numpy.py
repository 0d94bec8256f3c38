from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.episodes import Key
from offline_data.errors import NotFoundError, UsageError
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.testing.toy import toy_batch, write_toy

STATE = "observation/state"
LEFT_OUT = 9
NAMES = {
    "observations": ("observation", "state"),
    "actions": ("action",),
    "rewards": ("next", "reward"),
    "next_observations": ("next", "observation", "state"),
    "terminals": ("next", "terminated"),
    "timeouts": ("next", "truncated"),
}


def assert_rows(
    arrays: dict[str, NDArray[Any]], truth: dict[Key, NDArray[Any]], rows: list[int]
) -> None:
    assert list(arrays) == list(NAMES)
    for name, key in NAMES.items():
        want = truth[key][rows]
        want = want[:, 0] if name in {"rewards", "terminals", "timeouts"} else want
        assert arrays[name].dtype == want.dtype, name
        np.testing.assert_array_equal(arrays[name], want, name)


def test_rows_are_those_with_a_known_next(
    ds: BaseDatasetExperienceReplay, truth: dict[Key, NDArray[Any]]
) -> None:
    every = list(range(11))
    assert_rows(ds.to_numpy(observation_key=STATE, valid_only=False), truth, every)
    every.remove(LEFT_OUT)
    assert_rows(ds.to_numpy(observation_key=STATE), truth, every)


VIEWS: dict[str, tuple[Callable[[Any], Any], list[int]]] = {
    "an episode": (lambda ds: ds.episodes_at([2]), [4, 5, 6, 7]),
    "in another order": (lambda ds: ds.episodes_at([2, 0]), [4, 5, 6, 7, 0, 1, 2]),
    "without what is unknown": (lambda ds: ds.episodes_at([3, 4]), [8, 10]),
    "out of order": (lambda ds: ds.subset([4, 6, 5, 7]), [4, 6, 5, 7]),
    "rows": (lambda ds: ds.subset([6, 6, 1]), [6, 6, 1]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(ds: BaseDatasetExperienceReplay, truth: dict[Key, NDArray[Any]], name: str) -> None:
    make, rows = VIEWS[name]
    assert_rows(make(ds).to_numpy(observation_key=STATE), truth, rows)


def copies(arrays: dict[str, NDArray[Any]]) -> set[str]:
    return {name for name, array in arrays.items() if array.flags.writeable}


OBSERVATIONS = {"observations", "next_observations"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_can_be_a_view_is_one(tmp_path: Path, layout: LayoutName) -> None:
    write_toy(tmp_path / "toy", [toy_batch([5, 4, 3])], layout=layout)
    ds = BaseDatasetExperienceReplay(tmp_path / "toy")
    whole = ds.to_numpy()
    assert copies(whole) == (OBSERVATIONS if layout == "compact" else set())
    reader = ds._steps_storage.reader
    assert np.shares_memory(whole["actions"], reader.step(("action",)))
    assert copies(ds.episodes_at([1]).to_numpy()) == set()
    assert ds.episodes_at([1]).to_numpy()["observations"][:, 0].tolist() == [2001, 2002, 2003, 2004]
    assert copies(ds.episodes_at([0, 2]).to_numpy()) == set(NAMES)
    assert copies(ds.to_numpy(copy=True)) == set(NAMES)
    with pytest.raises(ValueError, match="read-only"):
        whole["actions"][0] = 1


def test_no_row_at_all(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy", [toy_batch([1, 1], first_episode=1, unknown_final=(1,))])
    ds = BaseDatasetExperienceReplay(tmp_path / "toy").episodes_at([0])
    arrays = ds.to_numpy()
    assert {name: array.shape for name, array in arrays.items()} == {
        "observations": (0, 3),
        "actions": (0, 1),
        "rewards": (0,),
        "next_observations": (0, 3),
        "terminals": (0,),
        "timeouts": (0,),
    }


def test_which_observation(ds: BaseDatasetExperienceReplay) -> None:
    with pytest.raises(UsageError, match="observation is 3 leaves") as error:
        ds.to_numpy()
    assert "observation_key=… names one of observation/state" in str(error.value.hint)
    with pytest.raises(UsageError, match="goal is 0 leaves"):
        ds.to_numpy(observation_key="goal")
    assert ds.to_numpy(observation_key="info/code")["observations"][:3].tolist() == [
        1001,
        1002,
        1003,
    ]


def test_refusals(folder: Path) -> None:
    with pytest.raises(UsageError, match="whole episodes"):
        BaseDatasetExperienceReplay(folder, split_trajs=True).to_numpy(observation_key=STATE)
    ds = BaseDatasetExperienceReplay(folder)
    ds.delete()
    with pytest.raises(NotFoundError):
        ds.to_numpy(observation_key=STATE)
