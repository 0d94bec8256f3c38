"""Whatever users are given may be written to and kept: nothing ends, nothing on disk or elsewhere changes."""

from __future__ import annotations

import gc
import multiprocessing
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from offline_data import (
    Dataset,
    DatasetMixture,
    ReplayBufferEnsemble,
    ReplayDataset,
    SliceSampler,
)
from offline_data.agilerl import to_transition
from offline_data.buffers.load import open_view
from offline_data.rows.derived import action_chunk, frame_stack, n_step, return_to_go
from offline_data.store.layout import LAYOUTS, LayoutName

STATE = "observation/state"


def overwrite(value: Any) -> int:
    """Write zeros to all that a value holds, and return how many tensors and arrays that were."""
    if isinstance(value, torch.Tensor):
        if torch._debug_has_internal_overlap(value):
            return 0
        value.zero_()
        return 1
    if isinstance(value, np.ndarray):
        return 0 if value.dtype == object else overwrite(torch.from_numpy(value))
    if isinstance(value, TensorDictBase):
        keys = value.keys(include_nested=True, leaves_only=True)
        return sum(overwrite(value.get(key)) for key in keys)
    if isinstance(value, dict):
        return sum(map(overwrite, value.values()))
    return sum(map(overwrite, value)) if isinstance(value, (list, tuple)) else 0


def make(folder: Path, **options: Any) -> Dataset:
    return Dataset(folder, 4, **options)


def buffers(folder: Path) -> Iterator[Any]:
    yield make(folder)
    yield make(folder, in_memory=True)
    yield make(folder, split_trajs=True)
    yield make(folder, sampler=SliceSampler(slice_len=2))
    derived = [n_step(2), frame_stack(2, STATE), action_chunk(2), return_to_go()]
    yield make(folder, derived=derived)
    yield make(folder).episodes_at([2, 0])
    yield make(folder).subset([3, 1, 5, 6, 7])
    yield open_view(make(folder).subset(slice(2, 9)).save(folder.parent / "view.npz"))


def batches(folder: Path) -> Iterator[Any]:
    for ds in buffers(folder):
        for index in (0, -1, slice(None), slice(1, 3), [0, 1], torch.tensor([[0, 1]])):
            yield ds[index]
        yield ds.sample(4, return_info=True)
        yield next(iter(ds)) if ds.batch_size else None
        yield ds.storage.gather(torch.arange(2))
        yield ds.storage.only(["action"]).gather(torch.arange(2))
    ds = make(folder)
    yield to_transition(ds.sample(4), observation_key=STATE).to_tensordict()
    yield next(iter(ReplayDataset(make(folder), 4)))
    yield DatasetMixture(ds, make(folder)).sample(6)
    yield ReplayBufferEnsemble(ds, make(folder), batch_size=4).sample()
    yield DatasetMixture(ds.episodes_at([1]), ds.episodes_at([2])).sample(6)


def columns(folder: Path) -> Iterator[Any]:
    for ds in buffers(folder):
        yield from (ds.episodes[key] for key in ds.episodes.columns)
        yield ds.valid_rows
        yield getattr(ds, "rows", None)
        yield ds.state_dict()
        runs = ds.storage.runs()
        yield [runs.starts, runs.lengths, runs.final]
        yield ds.storage.rows(valid_only=True).left_out


def arrays(folder: Path) -> Iterator[Any]:
    for ds in buffers(folder):
        if ds[0].batch_dims:
            continue
        for style in ("transitions", "episodes", "qlearning", "ogbench"):
            for copy in (True, False):
                yield ds.to_numpy(style, observation_key=STATE, copy=copy)


def torchrl(folder: Path) -> Iterator[Any]:
    for ds in (make(folder), make(folder).episodes_at([2, 0])):
        theirs = ds.to_torchrl()
        yield theirs.sample(4)
        yield theirs[:]
        whole = theirs.storage[:]
        for key in ("episode", ("next", "done"), "action", ("next", "reward")):
            yield whole[key]
        yield theirs.state_dict()


def write_to_everything(folder: Path) -> None:
    warnings.filterwarnings("error", message="The given NumPy array is not writable")
    for kind in (batches, columns, arrays, torchrl):
        assert sum(map(overwrite, kind(folder))) > 20, kind


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_everything_can_be_written_to(
    tmp_path: Path, toys: Callable[..., Path], layout: LayoutName
) -> None:
    """In a process of its own, which a write to memory that is not writable would end."""
    toy = toys([4, 3, 5, 2], layout=layout, images=True, unknown_final=[1])
    folder = shutil.copytree(toy, tmp_path / "toy")
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    context: Any = multiprocessing.get_context("fork")
    child = context.Process(target=write_to_everything, args=(folder,))
    child.start()
    child.join(300)
    assert child.exitcode == 0
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


LENGTHS = (10, 1, 9, 4)


@pytest.fixture(params=LAYOUTS)
def toy(request: pytest.FixtureRequest, toys: Callable[..., Path], gathering: None) -> Path:
    """24 transitions with images, in either layout."""
    return toys(LENGTHS, layout=request.param, images=True, width=17)


@pytest.fixture
def buffer(toy: Path) -> Dataset:
    return Dataset(toy, 24)


@pytest.fixture
def batch(buffer: Dataset) -> TensorDict:
    sampled: TensorDict = buffer.sample()
    return sampled


def leaves_of(batch: TensorDict) -> dict[Any, Tensor]:
    return dict(batch.items(include_nested=True, leaves_only=True))


def test_leaves_are_contiguous_and_of_their_own_memory(batch: TensorDict) -> None:
    seen: dict[int, Any] = {}
    for key, leaf in leaves_of(batch).items():
        assert leaf.is_contiguous(), key
        assert leaf.storage_offset() == 0, key
        assert leaf.untyped_storage().nbytes() == leaf.numel() * leaf.itemsize, key
        assert not leaf.requires_grad
        assert not leaf.is_shared()  # type: ignore[no-untyped-call]
        assert seen.setdefault(leaf.untyped_storage().data_ptr(), key) == key
        assert leaf.data_ptr() % leaf.itemsize == 0


def test_writing_to_rows_asked_for_leaves_the_index_alone(
    buffer: Dataset,
) -> None:
    rows = torch.tensor([3, 4])
    batch = buffer[rows]
    batch["index"].fill_(9)
    assert rows.tolist() == [3, 4]
    drawn, info = buffer.sample(return_info=True)
    drawn["action"].zero_()
    assert torch.equal(info["index"], drawn["index"])


@pytest.mark.slow
def test_batches_outlive_later_ones_and_their_buffer(toy: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(toy, tmp_path / "toy")
    buffer = Dataset(copy, 24)
    batch = buffer.sample()
    want = {key: leaf.clone() for key, leaf in leaves_of(batch).items()}
    for _ in range(20):
        buffer.sample()
    del buffer
    gc.collect()
    for file in copy.rglob("*.memmap"):
        file.write_bytes(b"")
    for key, leaf in leaves_of(batch).items():
        assert torch.equal(leaf, want[key]), key
