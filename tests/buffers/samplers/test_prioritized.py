from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from torch import Tensor

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.samplers import PrioritizedSampler, RandomSampler
from offline_data.errors import UsageError
from offline_data.testing.toy import toy_batch, write_toy
from tests.buffers.samplers.conftest import Episodes

pytestmark = pytest.mark.usefixtures("tree")
Follows = Callable[[ArrayLike, ArrayLike], bool]


def law_of(sampler: PrioritizedSampler, storage: Episodes) -> list[float]:
    """Return the weight of each row, to which its probability is in proportion."""
    sampler.sample(storage, 1)
    return sampler.state_dict()["weights"][: len(storage)].tolist()  # type: ignore[no-any-return]


def counts_of(sampler: PrioritizedSampler, storage: Episodes, draws: int = 60_000) -> Any:
    return np.bincount(sampler.sample(storage, draws)[0], minlength=len(storage))


def test_the_law_and_the_importance_weights(follows: Follows) -> None:
    storage = Episodes([50, 50], left_out=[49])
    priority = torch.rand(100, generator=torch.Generator().manual_seed(0)) + 0.02
    sampler = PrioritizedSampler(100, alpha=0.6, beta=0.4, eps=0.1, seed=0)
    sampler.sample(storage, 1)
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


def test_a_set_that_was_there_before_is_uniform_at_first(follows: Follows) -> None:
    sampler = PrioritizedSampler(40, alpha=0.7, beta=0.5, seed=0)
    storage = Episodes([20], left_out=[3])
    assert follows(counts_of(sampler, storage), np.arange(20) != 3)
    _, leaves = sampler.sample(storage, 9)
    assert leaves["priority_weight"].tolist() == [1.0] * 9


def test_transitions_without_a_known_next_observation_where_asked() -> None:
    storage = Episodes([20], left_out=[3])
    every = PrioritizedSampler(40, alpha=0.7, beta=0.5, seed=0, valid_only=False)
    assert counts_of(every, storage).min() > 0


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(["max", "min", "mean", "median", "sum"]), st.integers(0, 2**32 - 1))
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
    assert law_of(sampler, storage) == [0, 2, 2, 4, 4, 6]


@pytest.mark.parametrize(
    ("rows", "priority", "message"),
    [
        ([0, 6], [1.0, 1.0], "Row 6 cannot have a priority"),
        ([0, -1], [1.0, 1.0], "Row -1 cannot have a priority"),
        ([0, 1], [9.0, -1.0], "Row 1 cannot have the priority -1.0"),
        ([0, 1], [9.0, float("nan")], "Row 1 cannot have the priority nan"),
        ([0, 1], [9.0, float("inf")], "Row 1 cannot have the priority inf"),
        ([0, 1], [9.0, 1e30], "Row 1 cannot have the priority 1.0000"),
        ([0, 1], [9.0, 9.0, 9.0], "do not fit rows"),
        ([0.0, 1.0], [9.0, 9.0], "Rows are integers"),
        ([True, False], [9.0, 9.0], "Rows are integers"),
    ],
)
def test_what_cannot_be_a_priority_changes_nothing(
    rows: list[Any], priority: list[float], message: str
) -> None:
    storage = Episodes([6])
    sampler = PrioritizedSampler(6, 2.0, 0.5)
    before = law_of(sampler, storage)
    with pytest.raises(UsageError, match=message):
        sampler.update_priority(torch.tensor(rows), torch.tensor(priority))
    assert law_of(sampler, storage) == before
    assert sampler.default_priority == 1


def test_rows_that_are_new_get_the_highest_priority_ever() -> None:
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


def test_new_rows_that_are_not_valid_are_left_out_too() -> None:
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


def test_a_state_is_not_changed_by_what_comes_later() -> None:
    storage = Episodes([4])
    sampler = PrioritizedSampler(10, 1.0, 0.5, 0.0, torch.float64)
    law_of(sampler, storage)
    state = sampler.state_dict()
    storage.append(3)
    sampler.update_priority(torch.arange(7), 5.0)
    law_of(sampler, storage)
    other = PrioritizedSampler(10, 0.3, 0.5, 0.0, torch.float64)
    other.load_state_dict(state)
    other.update_priority(0, 3.0)
    assert law_of(other, storage) == [3, 1, 1, 1, 1, 1, 1]
    other.load_state_dict(state)
    assert law_of(other, Episodes([4])) == [1, 1, 1, 1]


def test_the_highest_priority_that_is_there() -> None:
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
    assert sampler.alpha == 0.7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_priorities(dtype: torch.dtype) -> None:
    storage = Episodes([2000])
    random = np.random.default_rng(0)
    priority = 10.0 ** random.uniform(-8, 8, 2000) * random.integers(0, 2, 2000)
    sampler = PrioritizedSampler(2000, 1.0, 1.0, 0.0, dtype, seed=0)
    sampler.update_priority(torch.arange(2000), torch.from_numpy(priority))
    rows, leaves = sampler.sample(storage, 20_000)
    assert (priority[rows] > 0).all()
    assert leaves["priority_weight"].dtype == dtype
    expected = priority[priority > 0].min() / priority[rows]
    np.testing.assert_allclose(leaves["priority_weight"], expected, rtol=1e-5)


def test_it_goes_on_where_it_was() -> None:
    storage = Episodes([100])
    sampler = PrioritizedSampler(200, 0.6, 0.4, seed=3)

    def train(one: PrioritizedSampler) -> list[Tensor]:
        seen = []
        for step in range(20):
            rows, leaves = one.sample(storage, 16)
            one.update_priority(rows, rows / 100.0 + 1 / (step + 1))
            seen += [rows, leaves["priority_weight"]]
        return seen

    train(sampler)
    copy = pickle.loads(pickle.dumps(sampler))  # noqa: S301
    state = sampler.state_dict()
    other = PrioritizedSampler(200, 0.9, 0.0, seed=8)
    rest = train(sampler)
    other.load_state_dict(state)
    for going in (copy, other):
        assert all(map(torch.equal, train(going), rest))
    assert repr(copy) == repr(other) == repr(sampler)
    with pytest.raises(UsageError, match="priorities of 200 rows, and the sampler was made for 3"):
        PrioritizedSampler(3, 0.6, 0.4).load_state_dict(state)


def test_without_a_seed_torch_decides() -> None:
    def drawn() -> list[int]:
        torch.manual_seed(0)
        return list(PrioritizedSampler(50, 1.0, 1.0).sample(Episodes([50]), 20)[0])

    assert drawn() == drawn()


def test_what_cannot_be_meant_says_so() -> None:
    for wrong, message in (
        ({"max_capacity": 0}, "max_capacity is 0"),
        ({"alpha": -0.1}, "alpha is -0.1"),
        ({"beta": float("nan")}, "beta is nan"),
        ({"eps": -1.0}, "eps is -1.0"),
        ({"dtype": torch.float16}, "dtype is torch.float16"),
        ({"reduction": "last"}, "reduction is 'last'"),
        ({"device": "cuda"}, "device is cuda"),
    ):
        given: Any = {"max_capacity": 5, "alpha": 1.0, "beta": 1.0, **wrong}
        with pytest.raises(UsageError, match=message):
            PrioritizedSampler(**given)
    sampler = PrioritizedSampler(5, 1.0, 1.0, eps=0.0)
    with pytest.raises(UsageError, match="has 6 transitions, and the sampler was made for 5"):
        sampler.sample(Episodes([6]), 1)
    with pytest.raises(UsageError, match="None of the 2 transitions"):
        sampler.sample(Episodes([2], left_out=[0, 1]), 1)
    sampler.update_priority(torch.arange(5), 0.0)
    with pytest.raises(UsageError, match="all priorities are zero"):
        sampler.sample(Episodes([5]), 1)
    with pytest.raises(UsageError, match="alpha is -1"):
        sampler.alpha = -1


def test_other_samplers_warn() -> None:
    with pytest.warns(UserWarning, match="RandomSampler has no priorities"):
        RandomSampler().update_priority(torch.tensor([0]), 1.0)


def test_a_buffer_trains_on_what_it_is_told(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy", [toy_batch([40, 30], unknown_final=[1])])
    sampler = PrioritizedSampler(70, 1.0, 1.0, seed=0)
    ds = BaseDatasetExperienceReplay(tmp_path / "toy", 500, sampler=sampler)
    batch = ds.sample()
    assert set(batch["index"].tolist()) == set(range(69))
    wanted = batch["action"][:, 0] < -2000
    ds.update_priority(batch["index"], wanted.double())
    batch = ds.sample()
    assert (batch["action"] < -2000).all()
    assert batch["priority_weight"].shape == (500,)
