"""Opening datasets: by id and path, with all options, and what people give in another form: one key, one function."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import offline_data
from offline_data.buffers.load import load_dataset, open_dataset
from offline_data.testing.toy import toy_batch
from tests.toys.stored import write_stored


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with two revisions of a dataset, of 3 and 5 transitions."""
    root = tmp_path_factory.mktemp("root")
    for revision, lengths in (("a1", [3]), ("b2", [3, 2])):
        write_stored(root, f"local:toy@{revision}", toy_batch(lengths))
    return root


def test_by_id_and_revision(root: Path) -> None:
    ds = load_dataset("local:toy@a1", 2, root=root, download=False)
    assert len(ds) == 3
    assert ds.sample().batch_size == (2,)
    ds = load_dataset("local:toy", root=root, revision="b2", download=False)
    assert len(ds) == 5
    assert ds.data_path == root / "local" / "toy" / "b2"


def test_by_path_in_every_form(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "local" / "toy" / "a1"
    monkeypatch.chdir(root)
    for form in (path, str(path), "./local/toy/a1", os.path.relpath(path)):
        assert len(load_dataset(form, download=False)) == 3
        assert len(open_dataset(form)) == 3


def test_all_options_arrive(root: Path) -> None:
    ds = load_dataset(
        "local:toy@b2",
        2,
        root=root,
        download=False,
        sampler=offline_data.SamplerWithoutReplacement(shuffle=False, drop_last=True),
        writer=offline_data.ImmutableDatasetWriter(),
        collate_fn=lambda batch: batch.set("seen", torch.ones(2, 3)),
        transform=lambda batch: batch.set("seen", 2 * batch["seen"]),
        prefetch=1,
        split_trajs=True,
        device="cpu",
        keys=["next.reward"],
        decode_text=True,
    )
    batch = ds.sample()
    assert batch["next", "reward"].shape == (2, 3, 1)
    assert batch["traj_ids"][:, 0].tolist() == [0, 1]
    assert (batch["seen"] == 2).all()


STATE = ("observation", "state")


@pytest.fixture
def folder(toys: Callable[..., Path]) -> Path:
    return toys([5, 3, 4])


def load(folder: Path, **options: Any) -> Any:
    return offline_data.load_dataset(folder, **{"batch_size": 4, **options})


def stream(folder: Path, **options: Any) -> Any:
    return offline_data.StreamingDataset(folder, **{"batch_size": 4, "source": "local", **options})


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


def test_derived_takes_one_function_or_several(folder: Path) -> None:
    one = load(folder, derived=offline_data.timestep())
    several = load(folder, derived=[offline_data.timestep(), offline_data.n_step(2)])
    assert "timestep" in one[:]
    assert one[:]["timestep"].tolist() == several[:]["timestep"].tolist()


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
