"""What datasets, views, mixtures, loaders and buffers that grow refuse: the cases are the lines of `refusals.json`.

A case is an expression in the public names of this package, those of `names` below, and fixtures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from offline_data import Dataset, DatasetMixture, OfflineToOnlineReplayBuffer, ReplayBuffer
from offline_data.base.errors import BufferUsageError
from offline_data.buffers.bridges.schema import from_schema
from offline_data.buffers.load import open_view
from offline_data.store.manifest import dump_manifest
from offline_data.testing.toy import toy_batch, write_toy
from offline_data.torchrl.storages import LazyTensorStorage
from offline_data.torchrl.tensordict_buffer import TensorDictReplayBuffer
from offline_data.torchrl.writers import TensorDictMaxValueWriter
from tests.refusals import Refusals

from .conftest import PUBLIC
from .mixtures.conftest import members
from .views.conftest import LENGTHS, UNKNOWN

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))


def rows(count: int = 3, **leaves: torch.Tensor) -> TensorDict:
    return TensorDict(leaves or {"action": torch.arange(count)}, [count])


def grown(**given: Any) -> TensorDictReplayBuffer:
    """A buffer of a few rows, with other options, or with other leaves."""
    leaves = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    options = {name: value for name, value in given.items() if name not in leaves}
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), **options)
    buffer.extend(rows(len(next(iter(leaves.values()), range(3))), **leaves))
    return buffer


def cast(value: float, dtype: torch.dtype, other: torch.dtype) -> DatasetMixture:
    both = grown(action=torch.full((5,), value, dtype=dtype)), grown(action=torch.ones(5).to(other))
    return DatasetMixture(*both, cast=True, weights=[1, 0.0001], seed=0)


@pytest.fixture
def names(toys: Callable[..., Path], compact: Path, tmp_path: Path) -> dict[str, Any]:
    three = members(toys)

    def written(**changes: Any) -> Dataset:
        """A dataset of five rows, other in steps, observations or columns of episodes."""
        toy, folder = toy_batch([3, 2]), tmp_path / f"written{len(list(tmp_path.iterdir()))}"
        changed: dict[str, Any] = {
            name: {**getattr(toy, name), **values}
            for name, values in changes.items()
            if name != "about"
        }
        manifest = write_toy(folder, [replace(toy, **changed)])
        text = dump_manifest(replace(manifest, about=changes.get("about", {})))
        (folder / "manifest.json").write_text(text)
        return Dataset(folder)

    def fed(offline: Any, *, without: Any = (), **options: Any) -> OfflineToOnlineReplayBuffer:
        """A buffer of a dataset and of new rows, some of which lack a leaf."""
        both = OfflineToOnlineReplayBuffer(
            offline, batch_size=8, **{"online_capacity": 9, **options}
        )
        both.extend(three[0][:5].exclude("index", "episode", *without))
        return both

    own = {
        "Dataset": Dataset,
        "compact": compact,
        "ds": Dataset(compact, 4),
        "three": three,
        "many": Dataset(toys(LENGTHS, unknown_final=UNKNOWN), 16),
        "changed": lambda member, **options: Dataset(three[member].data_path, **options),
        "texts": lambda first: toys([3, 2], first_episode=first, text=True),
        "scored": lambda *values: DatasetMixture(
            *(written(episodes={("score",): np.repeat(value, 2)}) for value in values)
        ),
        "acting": lambda value: written(steps={("action",): np.full((5, 1), value)}),
        "doubles": lambda value: written(
            observations={("observation", "state"): np.full((7, 3), value)}
        ),
        "rated": lambda low: written(about={"ref_min_score": low, "ref_max_score": 110.0}),
        "named": lambda *ids: written(episodes={("id",): np.array(ids, object)}),
        "empty": lambda: TensorDictReplayBuffer(storage=LazyTensorStorage(100)),
        "ranked": lambda **options: ReplayBuffer(writer=TensorDictMaxValueWriter(), **options),
        "both": lambda **options: OfflineToOnlineReplayBuffer(ReplayBuffer(), **options),
        "schema": lambda leaf, **options: from_schema(
            {"a": leaf}, **{"rows": 1, "path": tmp_path / "made", **options}
        ),
    }
    imported = [open_view, rows, grown, cast, fed]
    given = {"toys": toys, "tmp_path": tmp_path, "torch": torch, "np": np, "TensorDict": TensorDict}
    return {**PUBLIC, **given, **own, **{one.__name__: one for one in imported}}


@REFUSALS.cases
def test_refusals(kind: str, text: str, names: dict[str, Any], tmp_path: Path) -> None:
    case = lambda: eval(text, dict(names))  # noqa: S307 - of this repository
    REFUSALS.check(kind, text, case, {tmp_path: "FOLDER", names["compact"]: "COMPACT"})
    assert not (tmp_path / "made").exists()


def test_a_refusal_of_a_buffer_is_a_runtime_error_as_torchrls() -> None:
    assert issubclass(BufferUsageError, RuntimeError)
    assert issubclass(BufferUsageError, ValueError)
