from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from tensordict import TensorDict

from offline_data import open_dataset
from offline_data.base.errors import UsageError
from offline_data.rows.samplers import (
    PrioritizedSampler,
    PrioritizedSliceSampler,
    SliceSampler,
)
from offline_data.torchrl.storages import LazyTensorStorage, ListStorage
from offline_data.torchrl.tensordict_buffer import TensorDictReplayBuffer
from tests.rows.samplers.conftest import Episodes

pytestmark = pytest.mark.usefixtures("tree")
Follows = Callable[[ArrayLike, ArrayLike], bool]
REDUCTIONS = ["max", "min", "mean", "median", "sum"]
LENGTHS = [6, 2, 3, 5]


def law_of(sampler: PrioritizedSampler, storage: Episodes) -> list[float]:
    """Return the weight of each row, to which its probability is in proportion."""
    sampler.sample(storage, 1)
    return sampler.state_dict()["weights"][: len(storage)].tolist()  # type: ignore[no-any-return]


def counts_of(sampler: PrioritizedSampler, storage: Episodes, draws: int = 30_000) -> Any:
    return np.bincount(sampler.sample(storage, draws)[0], minlength=len(storage))


def test_the_law_and_the_importance_weights(follows: Follows) -> None:
    storage = Episodes([50, 50], left_out=[49])
    priority = torch.rand(100, generator=torch.Generator().manual_seed(0)) + 0.02
    sampler = PrioritizedSampler(100, alpha=0.6, beta=0.4, eps=0.1, seed=0)
    assert follows(counts_of(sampler, storage), np.arange(100) != 49)
    assert sampler.sample(storage, 9)[1]["priority_weight"].tolist() == [1.0] * 9
    sampler.update_priority(torch.arange(100), priority)
    law = (priority.numpy().astype(float) + 0.1) ** 0.6
    law[49] = 0
    assert follows(counts_of(sampler, storage), law)
    rows, leaves = sampler.sample(storage, 500)
    weight = leaves["priority_weight"]
    assert weight.dtype == torch.float32
    expected = (law[rows] / law[law > 0].min()) ** -0.4
    np.testing.assert_allclose(weight, expected, rtol=1e-5)
    assert float(weight.max()) <= 1
    every = PrioritizedSampler(100, alpha=0.7, beta=0.5, seed=0, valid_only=False)
    assert counts_of(every, storage).min() > 0


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(REDUCTIONS), st.integers(0, 2**32 - 1))
def test_updates_are_those_of_a_list(reduction: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 80))
    sampler = PrioritizedSampler(count, 1.0, 0.5, 0.0, torch.float64, reduction)
    plain = [1.0] * count
    storage = Episodes([count])
    for _ in range(4):
        rows = random.integers(0, count, random.integers(1, 60))
        priority = random.integers(1, 50, len(rows)).astype(float)
        law_of(sampler, storage)
        sampler.update_priority(torch.from_numpy(rows), torch.from_numpy(priority))
        for row in set(rows.tolist()):
            given = sorted(priority[rows == row].tolist())
            plain[row] = {
                "max": given[-1],
                "min": given[0],
                "mean": sum(given) / len(given),
                "median": given[(len(given) - 1) // 2],
                "sum": sum(given),
            }[reduction]
        np.testing.assert_allclose(law_of(sampler, storage), plain, rtol=1e-12)


def test_forms_of_an_update() -> None:
    storage = Episodes([6])
    sampler = PrioritizedSampler(6, 1.0, 0.5, 0.0, seed=0)
    sampler.update_priority(5, 6.0)
    sampler.update_priority(torch.tensor([0, 1], dtype=torch.int32), 2)
    sampler.update_priority(torch.tensor([[2], [3]]), torch.tensor([3.0, 4.0]).requires_grad_())
    sampler.update_priority(torch.tensor([4]), torch.tensor([[5, 1, 2]]))
    assert law_of(sampler, storage) == [2, 2, 3, 4, 5, 6]
    rows = torch.arange(12)[::2]
    sampler.update_priority(rows[:3], torch.arange(6.0)[::2])
    assert law_of(sampler, storage) == [0, 2, 2, 4, 4, 6]
    sampler.update_priority(torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    sampler.update_priority(torch.tensor([0, 1]), torch.tensor([[7.0]]))
    assert law_of(sampler, storage) == [7, 7, 2, 4, 4, 6]


def test_new_rows_get_the_highest_priority_ever() -> None:
    storage = Episodes([3])
    sampler = PrioritizedSampler(10, 1.0, 0.5, 0.0)
    assert law_of(sampler, storage) == [1, 1, 1]
    sampler.update_priority(torch.arange(3), torch.tensor([0.5, 4, 0.25]))
    storage.append(2)
    assert law_of(sampler, storage) == [0.5, 4, 0.25, 4, 4]
    sampler.update_priority(torch.arange(5), 0.5)
    sampler.extend(torch.tensor([1, 5]))
    storage.append(1)
    assert law_of(sampler, storage) == [0.5, 4, 0.5, 0.5, 0.5, 4]
    sampler.add(0)
    assert law_of(sampler, storage)[0] == 4
    sampler.empty()
    assert sampler.default_priority == 1
    assert law_of(sampler, Episodes([2])) == [1, 1]


def test_or_the_highest_that_a_row_has_now() -> None:
    storage = Episodes([4])
    sampler = PrioritizedSampler(10, 1.0, 0.5, 0.0, max_priority_within_buffer=True)
    law_of(sampler, storage)
    sampler.update_priority(torch.arange(4), torch.tensor([2.0, 8, 4, 1]))
    assert sampler.default_priority == 8
    sampler.update_priority(torch.tensor([1, 1]), torch.tensor([3.0, 0.5]))
    assert sampler.default_priority == 4
    sampler.extend(torch.tensor([2]))
    assert law_of(sampler, storage) == [2, 3, 3, 1]
    sampler.extend(torch.arange(4))
    assert law_of(sampler, storage) == [1, 1, 1, 1]
    with pytest.raises(UsageError, match="Row 10 cannot have a priority"):
        sampler.extend(torch.tensor([3, 10]))


def test_rows_that_become_valid_or_invalid() -> None:
    storage = Episodes([4], left_out=[1])
    sampler = PrioritizedSampler(10, 1.0, 0.5, 0.0)
    assert law_of(sampler, storage) == [1, 0, 1, 1]
    storage.append(3)
    storage.left_out = np.array([1, 5])
    assert law_of(sampler, storage) == [1, 0, 1, 1, 1, 0, 1]
    storage.left_out = np.array([0])
    assert law_of(sampler, storage) == [0, 1, 1, 1, 1, 1, 1]
    assert law_of(sampler, Episodes([2])) == [1, 1]
    assert sum(sampler.state_dict()["weights"]) == 2


def test_alpha_and_beta_may_change_at_any_time() -> None:
    storage = Episodes([20], left_out=[7])
    priority = torch.rand(20, generator=torch.Generator().manual_seed(1)) * 3
    sampler = PrioritizedSampler(20, 0.0, 0.0, seed=0)
    sampler.update_priority(torch.arange(20), priority)
    assert sampler.sample(storage, 5)[1]["priority_weight"].tolist() == [1.0] * 5
    sampler.alpha, sampler.beta = 0.7, 0.5
    fresh = PrioritizedSampler(20, 0.7, 0.5)
    fresh.update_priority(torch.arange(20), priority)
    np.testing.assert_allclose(law_of(sampler, storage), law_of(fresh, storage), rtol=1e-6)
    sampler.beta = 1.0
    rows, leaves = sampler.sample(storage, 50)
    law = np.array(law_of(sampler, storage))
    np.testing.assert_allclose(leaves["priority_weight"], law[law > 0].min() / law[rows], rtol=1e-6)
    sampler.update_priority(3, 1e20)
    with pytest.raises(UsageError, match="the weight of row 3 would not be finite"):
        sampler.alpha = 3.0
    with pytest.raises(UsageError, match="alpha must be greater or equal"):
        sampler.alpha = -1
    assert sampler.alpha == 0.7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loaded_state_has_the_same_weights_to_the_bit(dtype: torch.dtype) -> None:
    one, other = (PrioritizedSampler(999, 0.7, 0.4, dtype=dtype, seed=0) for _ in range(2))
    storage, priority = Episodes([999]), torch.arange(1, 1000, dtype=dtype) / 7
    one.sample(storage, 1)
    one.update_priority(torch.arange(999), priority)
    one.alpha = 0.5  # weights by torch, of the others by the extension
    one.update_priority(torch.arange(500), priority[:500])
    other.load_state_dict(one.state_dict())
    for found, expected in zip(other.sample(storage, 999), one.sample(storage, 999), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def slices(capacity: int = 16, **options: Any) -> PrioritizedSliceSampler:
    """Make a sampler where row `i` has priority `i + 1`."""
    sampler = PrioritizedSliceSampler(capacity, 1.0, 0.5, 0.0, torch.float64, seed=0, **options)
    sampler.update_priority(torch.arange(capacity), torch.arange(1.0, capacity + 1))
    return sampler


@pytest.mark.parametrize("strict", [True, False])
def test_priorities_choose_the_starts_of_slices(follows: Follows, strict: bool) -> None:
    sampler = slices(slice_len=3, strict_length=strict)
    starts = np.isin(np.arange(16), [0, 1, 2, 3, 8, 11, 12, 13] + ([] if strict else [6]))
    rows, leaves = sampler.sample(Episodes(LENGTHS), 18_000)
    first = leaves["is_init"][:, 0]
    seen = rows[first]
    assert len(seen) == 6_000
    assert follows(np.bincount(seen, minlength=16), starts * np.arange(1.0, 17))
    weight = leaves["priority_weight"]
    np.testing.assert_allclose(weight[first], (seen.double() + 1) ** -0.5, rtol=1e-12)
    begins = first.nonzero()[:, 0]
    lengths = torch.diff(begins, append=torch.tensor([len(rows)]))
    assert torch.equal(weight, weight[first].repeat_interleave(lengths))
    assert torch.equal(
        rows, seen.repeat_interleave(lengths) + torch.cat([*map(torch.arange, lengths)])
    )
    assert set(lengths[seen == 6].tolist()) <= {2}
    assert set(lengths[seen != 6].tolist()) == {3}


def test_slices_of_other_lengths_begin_at_other_rows() -> None:
    sampler, storage = slices(20, num_slices=200), Episodes(LENGTHS)
    for length, expected in ((5, {0, 1, 11}), (6, {0}), (2, {*range(5), 6, 8, 9, *range(11, 15)})):
        for _ in range(2):
            rows, _ = sampler.sample(storage, 200 * length)
            assert set(rows.reshape(200, length)[:, 0].tolist()) == expected
    storage.append(4)
    sampler.update_priority(torch.tensor([19]), 1e15)  # no slice of 6 begins there
    sampler.sample(storage, 1200)
    assert set(sampler.sample(storage, 200)[0].tolist()) == {19}


def test_a_dataset_trains_on_what_it_is_told(toys: Callable[..., Path]) -> None:
    toy = toys([40, 30], unknown_final=[1])
    ds = open_dataset(toy, 500, sampler=PrioritizedSampler(70, 1.0, 1.0, seed=0))
    batch = ds.sample()
    assert set(batch["index"].tolist()) == set(range(69))
    ds.update_priority(batch["index"], (batch["action"][:, 0] < -2000).double())
    batch = ds.sample()
    assert (batch["action"] < -2000).all()
    assert batch["priority_weight"].shape == (500,)
    sampler = PrioritizedSliceSampler(70, 1.0, 1.0, slice_len=3, seed=0)
    ds = open_dataset(toy, 60, sampler=sampler)
    ds.update_priority(torch.tensor([37]), 1e6)
    batch = ds.sample().reshape(20, 3)
    assert (batch["action"][:, :, 0] == torch.tensor([-1038.0, -1039, -1040])).all()
    for flag in ("truncated", "terminated"):
        assert batch["next", flag][:, :, 0].tolist() == [[False, False, True]] * 20


@pytest.mark.parametrize(
    ("reduction", "shape"),
    [("max", ()), ("min", (2,)), ("mean", (2,)), ("median", ()), ("median", (2,)), ("sum", (2,))],
)
def test_the_errors_of_its_steps_make_a_trajectorys_priority(
    reduction: str, shape: tuple[int, ...]
) -> None:
    code, ends = torch.arange(20).reshape(5, 4), torch.zeros(5, 4, 1, dtype=torch.bool)
    sampler = PrioritizedSampler(6, 1.0, 1.0, reduction=reduction, seed=0)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(6), sampler=sampler, batch_size=2)
    buffer.extend(TensorDict({"code": code, "next": {"truncated": ends}}, [5, 4]))
    buffer.update_priority(torch.arange(5), torch.arange(5) + 1.0)
    batch = buffer.sample(8)
    assert batch.batch_size == batch["index"].shape == (8, 4)
    assert (batch["code"] // 4 == batch["index"]).all()
    torch.testing.assert_close(batch["priority_weight"], 1 / (batch["index"] + 1.0))
    uncut = TensorDictReplayBuffer(storage=buffer.storage, sampler=SliceSampler(slice_len=1))
    assert not uncut.sample(3)["next", "truncated"].any()
    batch = buffer[torch.tensor([3, 1])]
    batch["td_error"] = torch.rand(2, 4, *shape, generator=torch.Generator().manual_seed(0))
    for count in (4, 2):  # all steps, and those of a mask
        batch["mask"] = torch.arange(4).expand(2, 4) < count
        buffer.update_tensordict_priority(batch)
        steps = batch["td_error"][:, :count].flatten(1).numpy()
        lower = np.sort(steps)[:, (steps.shape[1] - 1) // 2]
        want = lower if reduction == "median" else getattr(np, reduction)(steps, 1)
        found = sampler.state_dict()["priorities"][[3, 1]]
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-6)


@pytest.mark.parametrize("sliced", [False, True])
def test_without_a_capacity_it_grows_with_the_storage(
    sliced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_data.rows.samplers.prioritized._FIRST_CAPACITY", 16)

    def make(capacity: int | None) -> Any:
        if sliced:
            sampler: Any = PrioritizedSliceSampler(capacity, 0.7, 0.5, slice_len=2, seed=0)
        else:
            sampler = PrioritizedSampler(capacity, 0.7, 0.5, seed=0)
        return TensorDictReplayBuffer(storage=ListStorage(), sampler=sampler, batch_size=8)

    def rows(start: int, stop: int) -> Any:
        done = torch.zeros(stop - start, 1, dtype=torch.bool)
        return TensorDict({"a": torch.arange(start, stop), "next": {"done": done}}, [stop - start])

    given, growing = make(90), make(None)
    for buffer in (given, growing):
        buffer.extend(rows(0, 15))
        buffer.update_priority(torch.arange(15), torch.arange(15).float())
        buffer.sample()
        buffer.extend(rows(15, 50))
        buffer.update_priority([49], 7.0)
    batches = [(given.sample(), growing.sample()) for _ in range(5)]
    assert all(one["index"].equal(other["index"]) for one, other in batches)
    assert all(one["priority_weight"].equal(other["priority_weight"]) for one, other in batches)
    assert 50 <= growing.sampler.max_capacity < 100
    assert "max_capacity=None" in repr(growing.sampler)
    later = make(None)
    later.load_state_dict(growing.state_dict())
    assert later.sample()["index"].equal(growing.sample()["index"])
    with pytest.raises(UsageError, match="Row 9999 cannot have a priority"):
        growing.update_priority([9999], 1.0)


def test_rows_of_a_dataset_get_priorities_before_any_batch(toys: Any) -> None:
    sampler = PrioritizedSampler(None, 1.0, 1.0, eps=0.0, seed=0)
    ds = open_dataset(toys([1500, 3]), batch_size=4, sampler=sampler)
    ds.update_priority(torch.arange(1503), 0.0)
    ds.update_priority(1501, 1.0)
    assert ds.sample()["index"].tolist() == [1501] * 4
