"""Whatever tensors and arrays users are given may be written to: nothing ends, nothing on disk changes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
import faulthandler, sys, warnings
import numpy as np, torch
from tensordict import TensorDictBase
from offline_data import (
    BaseDatasetExperienceReplay, DatasetMixture, ReplayBufferEnsemble, ReplayDataset, SliceSampler,
)
from offline_data.buffers.bridges.agile import to_transition
from offline_data.buffers.derived import action_chunk, frame_stack, n_step, return_to_go
from offline_data.buffers.load import open_view

faulthandler.enable()
warnings.filterwarnings("error", message="The given NumPy array is not writable")
(path,) = sys.argv[1:]
STATE = "observation/state"
written = 0

def wreck(value):
    global written
    if isinstance(value, torch.Tensor):
        if not torch._debug_has_internal_overlap(value):
            value.zero_()
            written += 1
    elif isinstance(value, np.ndarray):
        if value.dtype != object:
            wreck(torch.from_numpy(value))
    elif isinstance(value, TensorDictBase):
        for key in value.keys(include_nested=True, leaves_only=True):
            wreck(value.get(key))
    elif isinstance(value, dict):
        for one in value.values():
            wreck(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            wreck(one)

def make(**options):
    return BaseDatasetExperienceReplay(path, 4, **options)

def buffers():
    yield make()
    yield make(in_memory=True)
    yield make(split_trajs=True)
    yield make(sampler=SliceSampler(slice_len=2))
    yield make(derived=[n_step(2), frame_stack(2, STATE), action_chunk(2), return_to_go()])
    yield make().episodes_at([2, 0])
    yield make().subset([3, 1, 5, 6, 7])
    make().subset(slice(2, 9)).save(path + ".npz")
    yield open_view(path + ".npz")

def batches():
    for ds in buffers():
        for index in (0, -1, slice(None), slice(1, 3), [0, 1], torch.tensor([[0, 1]])):
            wreck(ds[index])
        wreck(ds.sample(4, return_info=True))
        wreck(next(iter(ds)) if ds.batch_size else None)
        wreck(ds.storage.gather(torch.arange(2)))
        wreck(ds.storage.only(["action"]).gather(torch.arange(2)))
    wreck(to_transition(make().sample(4), observation_key=STATE).to_tensordict())
    wreck(next(iter(ReplayDataset(make(), 4))))
    members = [make(), make()]
    wreck(DatasetMixture(*members).sample(6))
    wreck(ReplayBufferEnsemble(*members, batch_size=4).sample())
    wreck(DatasetMixture(make().episodes_at([1]), make().episodes_at([2])).sample(6))
def columns():
    for ds in buffers():
        for key in ds.episodes.columns:
            wreck(ds.episodes[key])
        wreck(ds.valid_rows)
        wreck(ds.rows if hasattr(ds, "rows") else None)
        wreck(ds.state_dict())
        runs = ds.storage.runs()
        wreck([runs.starts, runs.lengths, runs.final])
        wreck(ds.storage.rows(valid_only=True).left_out)
def arrays():
    for ds in buffers():
        for style in ("transitions", "episodes", "qlearning"):
            for copy in (True, False):
                if ds[0].batch_dims == 0:
                    wreck(ds.to_numpy(style, observation_key=STATE, copy=copy))
def torchrl():
    for ds in (make(), make().episodes_at([2, 0])):
        theirs = ds.to_torchrl()
        wreck(theirs.sample(4))
        wreck(theirs[:])
        columns = theirs.storage[:]
        for key in ("episode", ("next", "done"), "action", ("next", "reward")):
            wreck(columns[key])
        wreck(theirs.state_dict())
for kind in (batches, columns, arrays, torchrl):
    written = 0
    kind()
    assert written > 20, (kind, written)
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_everything_can_be_written_to(tmp_path: Path, layout: LayoutName) -> None:
    folder = tmp_path / "toy"
    write_toy(folder, [toy_batch([4, 3, 5, 2], images=True, unknown_final=[1])], layout=layout)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
