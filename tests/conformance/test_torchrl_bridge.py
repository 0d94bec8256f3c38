"""`to_torchrl` is TorchRL's buffer, and its samplers and registry work with it."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import offline_data
from offline_data import RandomSampler, load_dataset, open_dataset
from offline_data.base.errors import (
    ImmutableError,
    MissingDependencyError,
    NotFoundError,
    UsageError,
)
from offline_data.buffers import load
from offline_data.buffers.bridges.torchrl import to_torchrl
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.load import register_dataset
from offline_data.rows.derived import n_step
from offline_data.store.layout import LAYOUTS

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data as theirs
    import torchrl.data.datasets as their_datasets
    from torchrl.data.replay_buffers import samplers
    from torchrl.envs.transforms import RewardScaling

LENGTHS = (30, 1, 44, 25, 8)
UNKNOWN = 99
"""The last row of episode 3: truncated, and what came after is not known."""


@pytest.fixture(params=LAYOUTS)
def folder(request: pytest.FixtureRequest, toys: Callable[..., Path]) -> Path:
    return toys(LENGTHS, layout=request.param, unknown_final=(3,))


@pytest.fixture
def compact(toys: Callable[..., Path]) -> Path:
    """In the default layout alone, for tests of what does not depend on it."""
    return toys(LENGTHS, unknown_final=(3,))


@pytest.fixture
def ds(folder: Path) -> Dataset:
    return open_dataset(folder, 16)


def assert_rows(batch: Any, ds: Dataset, rows: Any) -> None:
    want = ds[rows]
    assert set(batch.keys(True, True)) >= set(want.keys(True, True))
    for key in set(want.keys(True, True)) - {"index"}:
        assert batch[key].dtype == want[key].dtype, key
        np.testing.assert_array_equal(batch[key].numpy(), want[key].numpy(), str(key))


def test_a_plain_buffer_of_torchrl_draws_the_same_rows(toys: Callable[..., Path]) -> None:
    """Over the files of layout `ted`, which it opens by itself."""
    folder = toys(LENGTHS, layout="ted", images=True)
    storage = theirs.TensorStorage(TensorDict.load_memmap(folder / "ted"))
    options: dict[str, Any] = {"writer": theirs.ImmutableDatasetWriter(), "batch_size": 16}
    rb, ds = (
        theirs.TensorDictReplayBuffer(storage=storage, **options),
        open_dataset(folder),
    )
    torch.manual_seed(3)
    batches = [rb.sample() for _ in range(3)]
    torch.manual_seed(3)
    for batch in batches:
        assert ds.sample(16)["index"].tolist() == batch["index"].tolist()
        assert_rows(batch, ds, batch["index"])


def test_it_is_torchrls_class_with_our_rows(ds: Dataset) -> None:
    rb = ds.to_torchrl(batch_size=64)
    assert type(rb) is theirs.TensorDictReplayBuffer
    assert not isinstance(ds, theirs.ReplayBuffer)
    assert len(rb) == len(ds) - 1
    batch = rb.sample()
    assert_rows(batch, ds, rb.storage.rows(batch["index"]))
    every = ds.to_torchrl(sampler=samplers.SamplerWithoutReplacement(), batch_size=20)
    rows = torch.cat([every.storage.rows(batch["index"]) for batch in every])
    assert sorted(rows.tolist()) == [row for row in range(len(ds)) if row != UNKNOWN]
    assert len(ds.to_torchrl(valid_only=False)) == len(ds)


def test_what_stands_between_brackets(ds: Dataset) -> None:
    rb = ds.to_torchrl()
    valid = [row for row in range(len(ds)) if row != UNKNOWN]
    assert isinstance(rb[:], TensorDict)
    assert_rows(rb[:], ds, valid)
    assert_rows(rb[98:101], ds, [98, 100, 101])
    assert_rows(rb[[3, -1]], ds, [3, 107])
    assert rb[5].batch_size == ()
    assert float(rb[5]["action"]) == -1006


def make_samplers() -> dict[str, Any]:
    return {
        "found by episode": samplers.SliceSampler(slice_len=8),
        "found by flags": samplers.SliceSampler(num_slices=5, end_key=("next", "done")),
        "looked for once": samplers.SliceSampler(slice_len=8, cache_values=True),
        "without replacement": samplers.SliceSamplerWithoutReplacement(slice_len=8),
    }


@pytest.mark.parametrize("name", make_samplers())
def test_slices_stay_in_their_episode(ds: Dataset, name: str) -> None:
    rb = ds.to_torchrl(sampler=make_samplers()[name], batch_size=40)
    for _ in range(6):
        batch = rb.sample()
        rows = rb.storage.rows(batch["index"])
        assert torch.equal(batch["action"], ds[rows]["action"])
        slices = rows.reshape(-1, 8)
        assert (slices.diff(dim=1) == 1).all()
        assert (batch["episode"].reshape(-1, 8).diff(dim=1) == 0).all()
        assert batch["next", "truncated"].reshape(-1, 8)[:, -1].all()


@pytest.mark.parametrize("end_key", [None, ("next", "done")])
def test_pieces_of_an_episode_are_apart(compact: Path, end_key: Any) -> None:
    view = open_dataset(compact).subset([*range(40, 46), *range(50, 56)])
    sampler = samplers.SliceSampler(slice_len=4, end_key=end_key)
    rb = view.to_torchrl(sampler=sampler, batch_size=4)
    firsts = {int(rb.sample()["index"][0]) for _ in range(80)}
    assert firsts == {0, 1, 2, 6, 7, 8}


def test_keys_derived_transforms_and_collate_come_along(folder: Path) -> None:
    def doubled(batch: Any) -> Any:
        return batch.set("twice", batch["action"] * 2)

    ds = open_dataset(folder, 8, derived=[n_step(2, 0.5)], transform=doubled)
    scaling = RewardScaling(loc=0.0, scale=3.0, in_keys=[("next", "reward")])

    def collate(batch: Any) -> Any:
        return batch.set("collated", batch["action"] + 1)

    rb = ds.to_torchrl(transform=scaling, collate_fn=collate)
    batch = rb.sample()
    assert torch.equal(batch["collated"], batch["action"] + 1)
    rows = rb.storage.rows(batch["index"])
    want = ds[rows]
    assert torch.equal(batch["twice"], want["twice"])
    torch.testing.assert_close(batch["next", "reward"], want["next", "reward"] * 3)
    few = open_dataset(folder, keys=["action"]).to_torchrl(
        sampler=samplers.SliceSampler(slice_len=4)
    )
    batch = few.sample(16)
    numbers = batch["action"].reshape(4, 4)
    assert (numbers.diff(dim=1) == -1).all()


def test_it_cannot_be_written(compact: Path) -> None:
    ds = open_dataset(compact, 16)
    rb = ds.to_torchrl()
    with pytest.raises(RuntimeError, match="doesn't allow writing"):
        rb.extend(rb[:3])
    with pytest.raises(ImmutableError) as error:
        rb.storage.set(0, rb[0])
    assert "LazyMemmapStorage" in str(error.value.hint)

    with pytest.raises(UsageError, match="sampler of this package"):
        ds.to_torchrl(sampler=RandomSampler())
    for name in ("storage", "writer"):
        with pytest.raises(UsageError, match=f"{name} cannot be set"):
            to_torchrl(ds, **{name: None})  # type: ignore[arg-type]


def test_state_and_pickles(compact: Path, tmp_path: Path) -> None:
    ds = open_dataset(compact, 16)
    rb = ds.to_torchrl(sampler=samplers.SliceSampler(slice_len=8))
    rb.sample()
    again = pickle.loads(pickle.dumps(rb))  # noqa: S301
    assert (len(rb.storage[:]._known), len(again.storage[:]._known)) == (1, 0)
    assert torch.equal(again[:]["action"], rb[:]["action"])
    rb.dumps(tmp_path / "state")
    again.loads(tmp_path / "state")
    again.load_state_dict(rb.state_dict())
    with pytest.raises(UsageError, match="has 107 rows; expected 108"):
        ds.to_torchrl(valid_only=False).loads(tmp_path / "state")
    assert rb.storage.contains(106)
    assert not rb.storage.contains(107)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registries as they were, and as they will be again."""
    monkeypatch.setattr(load, "_FACTORIES", {})
    theirs_before = dict(their_datasets.utils._DATASET_REGISTRY)
    yield
    their_datasets.utils._DATASET_REGISTRY.clear()
    their_datasets.utils._DATASET_REGISTRY.update(theirs_before)


def test_torchrls_load_dataset_finds_ours(registry: None, compact: Path) -> None:
    folder = compact
    options: dict[str, Any] = {"batch_size": 12, "keys": ["action", "episode"], "prefetch": 2}
    rb = their_datasets.load_dataset(f"offline_data:{folder}", **options, valid_only=False)
    assert type(rb) is theirs.TensorDictReplayBuffer
    assert len(rb) == 108
    batch = rb.sample()
    assert batch.batch_size == (12,)
    assert batch.get("observation", None) is None
    with pytest.raises(TypeError):
        their_datasets.load_dataset(f"offline_data:{folder}", no_such_option=1)
    with pytest.raises(NotFoundError):
        their_datasets.load_dataset("offline_data:local:none", download=False, root=folder)


def open_it(name: str, **options: Any) -> tuple[str, dict[str, Any]]:
    return name, options


def test_a_registered_function_gets_what_was_given(
    registry: None, compact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_dataset("Mine", lambda name, **options: open_dataset(compact / name, **options))
    assert len(load_dataset("mine:.", batch_size=5).sample()) == 5
    assert len(their_datasets.load_dataset("offline_data:mine:.", batch_size=3).sample()) == 3
    monkeypatch.setitem(sys.modules, "their_module", sys.modules[__name__])
    register_dataset("named", "their_module:open_it")
    assert load_dataset("named:a:b", keys=["x"]) == ("a:b", {"keys": ["x"]})  # type: ignore[comparison-overlap]
    register_dataset("gone", "no_such_module:open_it")
    with pytest.raises(NotFoundError, match="no_such_module"):
        load_dataset("gone:a")


@pytest.mark.parametrize(
    ("prefix", "dataset", "words"),
    [
        ("minari", open_it, "'minari' already exists"),
        ("mine", open_it, "'mine' already exists"),
        ("a:b", open_it, "without ':'"),
        (" ", open_it, "without ':'"),
        ("other", "no colon", "cannot load datasets"),
    ],
)
def test_prefixes_that_cannot_be(registry: None, prefix: str, dataset: Any, words: str) -> None:
    register_dataset("mine", open_it)
    with pytest.raises(UsageError, match=words):
        register_dataset(prefix, dataset)
    register_dataset("mine", lambda name: name.upper(), replace=True)
    assert load_dataset("mine:a") == "A"  # type: ignore[comparison-overlap]


def test_without_torchrl(compact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = open_dataset(compact, 16)
    monkeypatch.setitem(sys.modules, "offline_data.buffers.bridges.torchrl", None)
    with pytest.raises(MissingDependencyError) as error:
        ds.to_torchrl()
    assert "offline-data[torchrl]" in str(error.value.hint)


def test_a_torchrl_without_a_registry() -> None:
    offline_data._register_datasets(SimpleNamespace())  # type: ignore[attr-defined] # which is no error
