"""What people give by mistake or in another form: one key as text, a number as text, one function or several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import offline_data
from offline_data.base.errors import UsageError
from offline_data.testing.toy import toy_batch, write_toy

STATE = ("observation", "state")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of three episodes."""
    write_toy(tmp_path / "toy", [toy_batch([5, 3, 4])])
    return tmp_path / "toy"


def load(folder: Path, **options: Any) -> Any:
    return offline_data.load_dataset(folder, **{"batch_size": 4, **options})


def stream(folder: Path, **options: Any) -> Any:
    return offline_data.StreamingDataset(folder, **{"batch_size": 4, "source": "local", **options})


def mixture(folder: Path, **options: Any) -> Any:
    return offline_data.DatasetMixture(load(folder), load(folder), **{"batch_size": 4, **options})


@pytest.mark.slow
@pytest.mark.parametrize("make", [load, stream])
def test_a_string_is_one_key(folder: Path, make: Any) -> None:
    one, listed = (make(folder, keys=keys) for keys in ("observation", ["observation"]))
    batch, same = next(iter(one)), next(iter(listed))
    found = {*batch.keys(include_nested=True, leaves_only=True)}
    assert found == {*same.keys(include_nested=True, leaves_only=True)}
    assert STATE in found
    assert not {"action", ("next", "reward")} & found


def test_a_string_is_one_key_of_a_list_of_rows() -> None:
    storage = offline_data.ListStorage(4)
    buffer = offline_data.ReplayBuffer(storage, collate_fn=list)
    buffer.extend([{"action": 1, "a": 2}])
    assert storage.only("action")._keys == (("action",),)  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", ["256", 2.0, True])
def test_a_batch_size_that_is_no_whole_number(folder: Path, size: Any) -> None:
    ds = load(folder)
    made = (
        lambda: load(folder, batch_size=size),
        lambda: stream(folder, batch_size=size),
        lambda: offline_data.ReplayBuffer(batch_size=size),
        lambda: offline_data.OfflineToOnlineReplayBuffer(ds, online_capacity=4, batch_size=size),
        lambda: offline_data.ReplayDataset(ds, size),
        lambda: ds.sample(size),
        lambda: ds.dataloader(size),
        lambda: ds.filter(lambda episodes: episodes["length"] > 0, batch_size=size),
    )
    for make in made:
        with pytest.raises(UsageError, match=f"^batch_size is {size!r}; expected a whole number$"):
            make()


def test_derived_takes_one_function_or_several(folder: Path) -> None:
    one = load(folder, derived=offline_data.timestep())
    several = load(folder, derived=[offline_data.timestep(), offline_data.n_step(2)])
    assert "timestep" in one[:]
    assert one[:]["timestep"].tolist() == several[:]["timestep"].tolist()
    for wrong in ("n_step", 3, [offline_data.timestep(), "n_step"]):
        with pytest.raises(UsageError, match=r"^derived is .*; expected a function of batches"):
            load(folder, derived=wrong)


def test_keys_come_first(folder: Path) -> None:
    state = "observation/state"
    stack, chunk = offline_data.frame_stack(state, 2), offline_data.action_chunk("action", 2)
    scale, left = offline_data.normalize(state), offline_data.return_to_go("left", 0.5)
    batch = load(folder, derived=[stack, chunk, left, scale])[:]
    assert batch[STATE].shape[1] == batch["action"].shape[1] == 2
    assert "left" in batch


def test_pin_memory_without_an_accelerator_warns_as_a_data_loader_does(folder: Path) -> None:
    ways: list[Callable[[], Any]] = [
        lambda: load(folder, pin_memory=True).sample(),
        lambda: next(iter(DataLoader(range(4), pin_memory=True))),  # type: ignore[arg-type]
        lambda: next(iter(load(folder).dataloader(2, pin_memory=True))),
    ]
    for make in ways:
        with pytest.warns(UserWarning, match="pin_memory"):
            make()
