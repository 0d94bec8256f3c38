"""`to_numpy`: a dataset as the dict of arrays that CORL, IQL, D4RL and OGBench scripts train on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offline_data.base.errors import UsageError
from offline_data.rows.keys import KeyLike, as_key
from offline_data.rows.selection import SubsetStorage, whole_of
from offline_data.rows.storage import DatasetStorage
from offline_data.rows.trajectories import TrajectoryStorage
from offline_data.store.arrays import (
    BOOTSTRAPPED,
    DatasetArrays,
    Style,
    check_style,
    observation_leaf,
)


def to_numpy(
    storage: DatasetStorage | TrajectoryStorage | SubsetStorage,
    style: Style = "transitions",
    *,
    observation_key: KeyLike | None = None,
    copy: bool = True,
) -> dict[str, NDArray[Any]]:
    """Return a dataset or view as arrays; see `Dataset.to_numpy`."""
    check_style(style)
    steps = storage if isinstance(storage, DatasetStorage) else storage.steps
    steps.rows(valid_only=False)  # raises if the dataset was deleted
    whole, row_map = whole_of(storage)
    name = ("observation",) if observation_key is None else as_key(observation_key)
    key = observation_leaf(steps.reader, name)
    if not isinstance(whole, DatasetStorage):
        raise UsageError(
            "The rows of this buffer are whole episodes; arrays have one row per transition",
            hint="open the dataset without split_trajs=True",
        )
    own = torch.arange(len(storage))
    if style in BOOTSTRAPPED and len(storage):
        valid = storage.rows(valid_only=True)
        own = valid.at(torch.arange(valid.count))
    runs = storage.runs().of(own).numpy()
    last = np.flatnonzero(np.diff(runs, append=-1))
    view = None if copy else steps.reader.writable_leaf
    return dict(DatasetArrays(steps.reader, style, key, row_map.at(own).numpy(), last, view))
