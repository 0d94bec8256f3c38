from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tensordict import TensorDict

from offline_data.base.errors import IntegrityError, UsageError
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.rows import fields
from offline_data.rows.samplers import Sampler, SamplerWithoutReplacement
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.storages import LazyMemmapStorage, LazyTensorStorage
from offline_data.torchrl.writers import TensorDictMaxValueWriter


def actions(batch: Any) -> list[float]:
    found: list[float] = batch["action"][..., 0].tolist()
    return found


def batches(buffer: Any, count: int = 6) -> list[Any]:
    return [
        (one["index"].tolist(), actions(one)) for one in (buffer.sample() for _ in range(count))
    ]


@pytest.mark.parametrize("prefetch", [None, 3])
def test_the_batches_after_loading_are_those_that_would_have_come(
    steps: Any, tmp_path: Path, new_sampler: Any, prefetch: int | None, growing: Any
) -> None:
    def new(ahead: int | None) -> Any:
        return growing(16, sampler=new_sampler(), batch_size=4, prefetch=ahead)

    buffer = new(prefetch)
    buffer.extend(steps([5, 4, 4, 6]))
    batches(buffer, 5)
    buffer.extend(steps([2], first_episode=7))
    state = tmp_path / "state"
    buffer.dumps(state)
    copy, other, plain = new(prefetch), new(2), new(None)
    for one in (copy, other, plain):
        one.loads(state)
    picked = pickle.loads(pickle.dumps(buffer))  # noqa: S301
    want = batches(buffer)
    assert batches(copy) == batches(other) == batches(plain) == batches(picked) == want
    buffer.extend(steps([3], first_episode=9))
    for one in (copy, other, plain):
        assert (len(one), one.write_count) == (16, 21)
        one.extend(steps([3], first_episode=9))
        assert actions(one[:]) == actions(buffer[:])
        assert one.storage.runs().starts.tolist() == buffer.storage.runs().starts.tolist()


@pytest.mark.parametrize("prefetch", [None, 2])
def test_a_dataset_goes_on_without_its_rows_in_the_state(
    compact: Path, tmp_path: Path, prefetch: int | None
) -> None:
    def new() -> BaseDatasetExperienceReplay:
        sampler = SamplerWithoutReplacement(seed=3)
        return BaseDatasetExperienceReplay(compact, 3, sampler=sampler, prefetch=prefetch)

    ds, copy = new(), new()
    for _ in range(5):
        ds.sample()
    ds.dumps(tmp_path / "state")
    assert (tmp_path / "state" / "state.bin").stat().st_size < 1000
    copy.loads(tmp_path / "state")
    want = [batch["index"].tolist() for _ in range(2) for batch in ds]
    assert [batch["index"].tolist() for _ in range(2) for batch in copy] == want
    picked = pickle.loads(pickle.dumps(ds))  # noqa: S301
    assert [batch["index"].tolist() for batch in picked] == [b["index"].tolist() for b in ds]


def test_a_state_of_other_parts_is_refused(
    steps: Any, compact: Path, tmp_path: Path, growing: Any
) -> None:
    buffer = growing(batch_size=2)
    buffer.extend(steps([3]))
    buffer.dumps(tmp_path / "state")
    others = [
        growing(sampler=SamplerWithoutReplacement()),
        growing(writer=TensorDictMaxValueWriter("action")),
        BaseDatasetExperienceReplay(compact),
    ]
    for other in others:
        with pytest.raises(UsageError, match=r"The state (is of|has)"):
            other.loads(tmp_path / "state")
    with pytest.raises(UsageError, match="3 rows; this storage has space for 2"):
        growing(2).loads(tmp_path / "state")
    (tmp_path / "state" / "state.json").write_text("[]")
    with pytest.raises(IntegrityError):
        growing().loads(tmp_path / "state")


class Counting(Sampler):
    """Draws rows 0, 1, 2, … and declares where it is."""

    STATE: ClassVar = {**Sampler.STATE, "place": fields.COUNT}
    place = 0

    def sample(self, storage: Any, batch_size: int) -> Any:
        self.place += batch_size
        return (torch.arange(batch_size) + self.place - batch_size) % len(storage), {}


def test_a_sampler_that_declares_its_state(steps: Any, growing: Any, tmp_path: Path) -> None:
    buffer, copy = (growing(sampler=Counting(), batch_size=2) for _ in range(2))
    buffer.extend(steps([7]))
    batches(buffer, 2)
    buffer.dumps(tmp_path / "state")
    copy.loads(tmp_path / "state")
    assert copy.sampler.place == 4
    assert batches(copy) == batches(buffer)
    state = buffer.state_dict()
    state["sampler"]["place"] = -1
    with pytest.raises(IntegrityError, match="state of Counting is damaged: place is -1"):
        copy.load_state_dict(state)


def test_the_state_says_whether_an_epoch_is_over(steps: Any, growing: Any) -> None:
    buffer, copy = (
        growing(sampler=SamplerWithoutReplacement(seed=0), batch_size=2) for _ in range(2)
    )
    buffer.extend(steps([2]))
    next(buffer)
    copy.load_state_dict(buffer.state_dict())
    for one in (buffer, copy):
        with pytest.raises(StopIteration):
            next(one)


def test_transforms_keep_their_state(steps: Any) -> None:
    def new(bias: float) -> Any:
        layer = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(layer.bias, bias)
        return ReplayBuffer(storage=LazyTensorStorage(4), transform=layer)

    first, second = new(3.0), new(4.0)
    second.load_state_dict(first.state_dict())
    assert second._chain.links[0].transform.bias.item() == 3.0
    with pytest.raises(UsageError, match="1 transform; this buffer has 2"):
        first.append_transform(len).load_state_dict(second.state_dict())


def test_a_pickle_of_a_memmap_has_its_path() -> None:
    buffer = ReplayBuffer(storage=LazyMemmapStorage(4))
    buffer.extend(TensorDict({"a": torch.arange(200_000).reshape(2, -1)}, [2]))
    data = pickle.dumps(buffer)
    assert len(data) < 50_000
    assert pickle.loads(data)[1]["a"][-1] == 199_999  # noqa: S301
