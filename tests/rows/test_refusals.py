"""What rows, samplers, storages and derived features refuse: the cases are the lines of `refusals.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from offline_data.buffers.dataset import Dataset
from offline_data.rows import derived, samplers
from offline_data.rows.state import load_tree, save_tree
from offline_data.rows.storage import DatasetStorage
from offline_data.torchrl import storages
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.tensordict_buffer import TensorDictReplayBuffer
from offline_data.torchrl.trajectories import split_trajs
from tests.buffers.test_damaged_checkpoints import sealed
from tests.refusals import Refusals
from tests.rows.derived.conftest import Episode, Sets
from tests.rows.samplers.conftest import Episodes

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))
STATE = ("observation", "state")


def batch(count: int = 3, **more: Any) -> TensorDict:
    return TensorDict({"action": torch.arange(count), **more}, batch_size=[count])


def filled(kind: Any, **leaves: Any) -> Any:
    """Make a storage of three rows, of which the last ends an episode."""
    storage, done = kind(9), torch.tensor([[False], [False], [True]])
    storage.set(slice(0, 3), batch(**{"next": {"done": done}, **leaves}))
    return storage


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Whatever the texts name; `toy` is a dataset of one episode of three steps."""
    toy = Sets(tmp_path_factory.mktemp("refusals")).write([Episode(3)]).path
    exported = {name: vars(m)[name] for m in (samplers, derived, storages) for name in m.__all__}
    two = {"observation/0": (1, 2), "observation/1/x": (0, 4)}
    return exported | {
        "np": np,
        "torch": torch,
        "nan": math.nan,
        "inf": math.inf,
        "STATE": STATE,
        "toy": toy,
        **{name: getattr(torch, name) for name in ("arange", "rand", "zeros")},
        "batch": batch,
        "filled": filled,
        "split_trajs": split_trajs,
        "Episodes": Episodes,
        "TensorDict": TensorDict,
        "NonTensorStack": NonTensorStack,
        "Dataset": Dataset,
        "DatasetStorage": DatasetStorage,
        "ReplayBuffer": ReplayBuffer,
        "TensorDictReplayBuffer": TensorDictReplayBuffer,
        "pair": derived.normalize("observation", two, eps=0),
        "fitted": derived.normalize("observation").fit(DatasetStorage(toy)),
    }


def priorities(given: Any, _: Any) -> None:
    """A row that is refused changes nothing."""
    storage, sampler = Episodes([6]), samplers.PrioritizedSampler(6, 2.0, 0.5)
    sampler.sample(storage, 1)
    before = sampler.state_dict()["weights"].clone()
    try:
        sampler.update_priority(*map(torch.tensor, given))
    finally:
        sampler.sample(storage, 1)
        assert sampler.state_dict()["weights"].equal(before)
        assert sampler.default_priority == 1


def rows(given: Any, _: Any, *, stored: int, assigned: bool = False) -> None:
    """Nothing is written, neither to an empty buffer nor to one with rows."""
    storage, wrong = given
    buffer = TensorDictReplayBuffer(storage=storage)
    if stored:
        buffer.extend(batch(stored))
    try:
        if assigned:
            buffer[0:stored] = wrong
        else:
            buffer.extend(wrong)
    finally:
        assert (len(buffer), buffer.write_count) == (stored, stored)
        assert not stored or buffer[:]["action"].tolist() == [*range(stored)]


def state(given: dict[str, Any], place: Path) -> None:
    """Load a state of which one value was changed."""
    save_tree(torch.ones(3), place)
    file = place / "state.json"
    content = json.loads(file.read_text())
    for name, value in given.items():
        (content if name in content else content["tree"])[name] = value
    file.write_bytes(sealed(content))
    load_tree(place)


KINDS: dict[str, Callable[[Any, Path], object]] = {
    "priorities": priorities,
    "first rows": partial(rows, stored=0),
    "more rows": partial(rows, stored=3),
    "assigned rows": partial(rows, stored=3, assigned=True),
    "state": state,
}
FORMS = {"derived": "Dataset(toy, 2, derived={})[:]", "state": "dict({})"}
"""What a kind's text stands in; otherwise it is the whole expression."""


@REFUSALS.cases
def test_refusals(kind: str, text: str, names: dict[str, Any], tmp_path: Path) -> None:
    def call() -> None:
        given = eval(FORMS.get(kind, "{}").format(text), dict(names))  # noqa: S307
        if kind in KINDS:
            KINDS[kind](given, tmp_path / "state")

    REFUSALS.check(kind, text, call, {tmp_path: "FOLDER", torch.__version__: "VERSION"})
