from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from offline_data.buffers import native
from offline_data.buffers.ensembles.stacking import stacked
from offline_data.buffers.ensembles.together import gather_together
from offline_data.buffers.samplers import RandomSampler
from offline_data.buffers.storage import DatasetStorage
from offline_data.buffers.storages import TensorStorage
from offline_data.episodes import EpisodeBatch
from offline_data.episodes.fields import TERMINATED, TRUNCATED
from offline_data.store.layout import LAYOUTS
from offline_data.testing.toy import toy_batch, write_toy

pytestmark = pytest.mark.skipif(native.compiled is None, reason="the compiled gather was not built")


@pytest.fixture(params=LAYOUTS)
def storages(
    request: pytest.FixtureRequest, tmp_path: Path, batch: EpisodeBatch
) -> list[DatasetStorage]:
    """Two datasets with every kind of leaf, and other values in them."""
    steps = {key: values[::-1].copy() for key, values in batch.steps.items()}
    flags = {key: batch.steps[key] for key in (TERMINATED, TRUNCATED)}
    other = replace(batch, steps={**steps, **flags})
    for name, one in (("one", batch), ("other", other)):
        write_toy(tmp_path / name, [one], layout=request.param)
    return [DatasetStorage(tmp_path / name) for name in ("one", "other")]


def test_it_is_what_stacking_gives(storages: list[DatasetStorage]) -> None:
    members = torch.tensor([1, 0, 0, 1])
    index = torch.randint(11, (4, 70))
    parts = [
        storages[member].gather(rows.clone())
        for member, rows in zip(members.tolist(), index, strict=True)
    ]
    want = stacked(parts, members)
    batch = gather_together(storages, members, index)
    assert batch is not None
    keys = list(batch.keys(include_nested=True, leaves_only=True))
    assert set(keys) == set(want.keys(include_nested=True, leaves_only=True))
    assert batch.batch_size == batch["next"].batch_size == batch["index"].batch_size == (4, 70)
    assert batch.device == want.device
    for key in keys:
        assert batch[key].dtype == want[key].dtype, key
        assert batch[key].is_contiguous(), key
        assert torch.equal(batch[key], want[key]), key
    batch["index", "index"].zero_()
    assert index.any()


def test_other_leaves_are_left_to_stacking(
    storages: list[DatasetStorage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_toy(tmp_path / "wide", [toy_batch([3], width=5)])
    write_toy(tmp_path / "narrow", [toy_batch([3])])
    wide, narrow = DatasetStorage(tmp_path / "wide"), DatasetStorage(tmp_path / "narrow")
    rows = torch.tensor([0, 1]), torch.tensor([[0], [1]])
    assert wide.slots == narrow.slots
    assert gather_together([wide, narrow], *rows) is None
    assert gather_together([wide, storages[0]], *rows) is None
    assert gather_together([wide, wide.only(["action"])], *rows) is None
    before, after = wide.only([("observation", "state")]), wide.only(["next/observation/state"])
    assert gather_together([before, after], *rows) is None
    memory = TensorStorage(wide.gather(torch.arange(3)))
    assert gather_together([wide, memory], *rows) is None
    assert gather_together([memory, wide], *rows) is None
    monkeypatch.setattr(native, "compiled", None)
    assert gather_together([wide, DatasetStorage(tmp_path / "wide")], *rows) is None


@pytest.mark.parametrize("row", [-1, 11])
def test_a_row_that_is_not_there_is_an_error(storages: list[DatasetStorage], row: int) -> None:
    for number in range(2):
        index = torch.zeros(2, 40, dtype=torch.int64)
        index[number, 39] = row
        with pytest.raises(IndexError):
            gather_together(storages, torch.tensor([0, 1]), index)


def test_rows_of_a_sampler_serve(storages: list[DatasetStorage]) -> None:
    rows, _ = RandomSampler().sample(storages[0], 6)
    batch = gather_together(storages, torch.tensor([1]), rows[None])
    assert batch is not None
    assert torch.equal(batch["action"][0], storages[1].gather(rows)["action"])
