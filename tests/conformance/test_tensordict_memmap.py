"""The files of a dataset are tensordict memmaps that open without this package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict

from offline_data.store.reader import open_reader
from offline_data.testing.toy import toy_batch, write_toy

LENGTHS = [3, 1, 4, 2]
UNKNOWN = 3
ROWS = np.arange(sum(LENGTHS))


def write(folder: Path, layout: str) -> Path:
    batch = toy_batch(LENGTHS, text=True, images=True, unknown_final=[UNKNOWN])
    write_toy(folder, [batch], layout=layout)  # type: ignore[arg-type]
    return folder


def test_ted_is_a_whole_tensordict(tmp_path: Path) -> None:
    folder = write(tmp_path / "toy", "ted")
    found = TensorDict.load_memmap(folder / "ted")
    assert found.batch_size == (10,)
    want = open_reader(folder).transitions_at(ROWS)
    keys = found.keys(include_nested=True, leaves_only=True)
    assert {key if isinstance(key, tuple) else (key,) for key in keys} == set(want)
    for key, values in want.items():
        assert found[key].dtype == torch.from_numpy(values).dtype, key
        np.testing.assert_array_equal(found[key].numpy(), values, err_msg=str(key))
    state = found["next", "observation", "state"][:, 0].tolist()
    assert state == [1002, 1003, 1004, 2002, 3002, 3003, 3004, 3005, 4002, 4002]


def test_compact_tables_open_as_words_and_big_leaves(tmp_path: Path) -> None:
    folder = write(tmp_path / "toy", "compact")
    reader = open_reader(folder)
    steps = TensorDict.load_memmap(folder / "steps")
    leaf = reader.step_leaves["action",]
    raw = steps["rows"].numpy().view(np.uint8)[:, leaf.offset : leaf.offset + leaf.nbytes]
    want = reader.step(("action",))
    np.testing.assert_array_equal(np.ascontiguousarray(raw).view(leaf.dtype), want)
    images = TensorDict.load_memmap(folder / "observations")["observation", "image"]
    assert images.shape == (14, 48, 48, 3)
    np.testing.assert_array_equal(images, reader.leaf("observations", ("observation", "image")))
    episodes = TensorDict.load_memmap(folder / "episodes")
    assert episodes.batch_size == (4,)
