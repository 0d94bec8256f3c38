from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import PersistentTensorDict, TensorDict

from offline_data.base.errors import UsageError
from offline_data.buffers.bridges.schema import Backend, from_schema

SCHEMA: dict[Any, Any] = {
    "observation.image": ([4, 5], torch.uint8),
    ("next", "reward"): ((1,), "float32"),
    "action": ([2], np.float64),
    "done": ([], bool),
}
LEAVES = {
    ("observation", "image"): ((7, 4, 5), torch.uint8),
    ("next", "reward"): ((7, 1), torch.float32),
    ("action",): ((7, 2), torch.float64),
    ("done",): ((7,), torch.bool),
}


def make(backend: Backend, folder: Path) -> Any:
    path = None if backend == "shared" else folder / "made"
    return from_schema(SCHEMA, backend, path=path, rows=7)


@pytest.mark.parametrize("backend", ["memmap", "h5", "shared"])
def test_zeros_of_the_schema(backend: Backend, tmp_path: Path) -> None:
    made = make(backend, tmp_path)
    assert made.batch_size == (7,)
    for key, (shape, dtype) in LEAVES.items():
        assert made[key].shape == shape, key
        assert made[key].dtype == dtype, key
        assert not made[key].any(), key
        assert backend != "shared" or made[key].is_shared()
    assert len(list(made.keys(True, True))) == len(LEAVES)


def test_what_is_written_is_on_the_disk(tmp_path: Path) -> None:
    mapped = from_schema(SCHEMA, "memmap", path=tmp_path / "mapped", rows=7)
    stored = from_schema(SCHEMA, "h5", path=str(tmp_path / "stored.h5"), rows=7)
    row = {key: torch.full(shape[1:], 3).to(dtype) for key, (shape, dtype) in LEAVES.items()}
    mapped[6] = TensorDict(row, [])
    stored[6] = TensorDict(row, [])
    again = (
        TensorDict.load_memmap(tmp_path / "mapped"),
        PersistentTensorDict.from_h5(tmp_path / "stored.h5"),
    )
    for one in again:
        for key, value in row.items():
            assert torch.equal(one[key][6], value), key
            assert not one[key][:6].any(), key


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    from_schema(SCHEMA, "memmap", path=tmp_path / "empty", rows=1)
    for backend, path in (("memmap", "empty"), ("h5", "empty"), ("h5", "file")):
        (tmp_path / "file").write_text("mine")
        with pytest.raises(UsageError, match="already exists"):
            from_schema(SCHEMA, backend, path=tmp_path / path, rows=1)  # type: ignore[arg-type]
    assert (tmp_path / "file").read_text() == "mine"
