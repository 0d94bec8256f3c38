from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from offline_data.buffers import native
from offline_data.buffers.buffer import TensorDictReplayBuffer
from offline_data.buffers.dataset import BaseDatasetExperienceReplay as Dataset
from offline_data.buffers.mixture.mixture import DatasetMixture
from offline_data.buffers.samplers import (
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
)
from offline_data.buffers.storages import LazyTensorStorage
from offline_data.errors import UsageError

from .conftest import SIZES, action, assert_rows_are_theirs, chi_square

if TYPE_CHECKING:
    from pathlib import Path


def counts_of(batch: Any, members: int = 3) -> list[int]:
    found: list[int] = torch.bincount(batch["source"], minlength=members).tolist()
    return found


def rows_in(batch: Any) -> list[tuple[int, int]]:
    return list(zip(batch["source"].tolist(), batch["index"].tolist(), strict=True))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_every_row_is_the_members(
    three: list[Dataset],
    monkeypatch: pytest.MonkeyPatch,
    compiled: bool,
    shuffle: bool,
    exact: bool,
) -> None:
    if not compiled:
        monkeypatch.setattr(native, "compiled", None)
    mixture = DatasetMixture(*three, exact=exact, shuffle=shuffle, seed=0)
    for size in (256, 1, 7, 100):
        batch = mixture.sample(size)
        assert batch.batch_size == (size,)
        assert_rows_are_theirs(batch)
        plain = three[0][:1]
        for key in plain.keys(include_nested=True, leaves_only=True):
            assert batch[key].dtype == plain[key].dtype
            assert batch[key].shape[1:] == plain[key].shape[1:]
            assert batch[key].is_contiguous()
        ascending = batch["source"].tolist() == sorted(batch["source"].tolist())
        assert ascending or shuffle
        assert not (ascending and shuffle and size >= 100)


def test_members_of_every_kind(three: list[Dataset]) -> None:
    growing = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
    growing.extend(three[0][:].exclude("index"))
    members: list[Any] = [
        three[0],
        three[1].subset([5, 7, 29]),
        three[2].append_transform(lambda batch: batch),
        growing,
        DatasetMixture(three[1], three[2], weights="equal"),
    ]
    mixture = DatasetMixture(*members, weights="equal", seed=0)
    assert mixture.sources == (*members[:4], three[1], three[2])
    batch = mixture.sample(1000)
    dataset = torch.tensor([0, 1, 2, 0, 1, 2])[batch["source"]]
    assert set(batch["source"].tolist()) == set(range(6))
    view = batch["source"] == 1
    assert set(batch["index"][view].tolist()) == {0, 1, 2}
    batch["index"][view] = members[1].rows[batch["index"][view]]
    assert_rows_are_theirs(batch.set("source", dataset))


def test_weights_by_steps_are_uniform_over_the_concatenation(three: list[Dataset]) -> None:
    for seed, dataset in enumerate(three):
        dataset.set_sampler(RandomSampler(seed=seed))
    mixture = DatasetMixture(*three, batch_size=1000, seed=0)
    assert mixture.shares == (0.1, 0.3, 0.6)
    first = np.cumsum([0, *SIZES])
    seen = np.zeros(first[-1])
    for _ in range(50):
        for source, index in rows_in(mixture.sample()):
            seen[first[source] + index] += 1
    assert chi_square(seen, np.full(100, 500)) < 149  # 99 degrees of freedom, p = 0.001


def test_rows_of_a_member_are_as_its_sampler_draws_them(folders: list[Path]) -> None:
    members = [Dataset(folder, sampler=RandomSampler(seed=9)) for folder in folders]
    mixture = DatasetMixture(*members, weights=[5, 0, 1], exact=True, seed=1)
    batch = mixture.sample(6000)
    rows = batch["index"][batch["source"] == 0]
    alone = Dataset(folders[0], sampler=RandomSampler(seed=9)).sample(5000)
    assert torch.equal(rows, alone["index"])
    assert chi_square(torch.bincount(rows, minlength=10), np.full(10, 500)) < 28  # p = 0.001


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ("equal", [1 / 3, 1 / 3, 1 / 3]),
        ("episodes", [2 / 11, 3 / 11, 6 / 11]),
        ([1, 0, 3], [0.25, 0, 0.75]),
        ({0: 2, "local:d1@1": 1, "local:d2": 1}, [0.5, 0.25, 0.25]),
    ],
)
def test_proportions_row_by_row(three: list[Dataset], weights: Any, shares: list[float]) -> None:
    mixture = DatasetMixture(*three, weights=weights, seed=0)
    assert mixture.shares == pytest.approx(shares)
    many = counts_of(mixture.sample(20_000))
    present = [m for m, share in enumerate(shares) if share]
    assert all(many[m] == 0 for m in range(3) if m not in present)
    expected = [20_000 * shares[m] for m in present]
    assert chi_square([many[m] for m in present], expected) < 13.8  # 2 degrees of freedom, p = .001
    assert len({tuple(counts_of(mixture.sample(30))) for _ in range(20)}) > 1


def test_batches_are_in_random_order_where_proportions_are_exact(three: list[Dataset]) -> None:
    mixture = DatasetMixture(*three, weights=[1, 1, 2], exact=True, seed=0)
    place = torch.stack([mixture.sample(40)["source"] for _ in range(2000)])
    assert (place.sort(dim=1).values == place[0].sort().values).all()
    first = (place == 0).sum(0)
    assert chi_square(first, np.full(40, 500)) < 73  # 39 degrees of freedom, p = 0.001


def test_the_seed_decides_the_order_and_samplers_the_rows(folders: list[Path]) -> None:
    def batches(seed: int | None, rows: int) -> list[list[tuple[int, int]]]:
        members = [Dataset(folder, sampler=RandomSampler(seed=rows)) for folder in folders]
        mixture = DatasetMixture(*members, batch_size=8, seed=seed)
        return [rows_in(mixture.sample()) for _ in range(3)]

    assert batches(1, 1) == batches(1, 1)
    assert batches(1, 1) != batches(2, 1)
    assert batches(1, 1) != batches(1, 2)
    torch.manual_seed(4)
    once = batches(None, 1)
    torch.manual_seed(4)
    assert batches(None, 1) == once


def test_epochs_of_members_run_on(folders: list[Path]) -> None:
    members = [Dataset(f, sampler=SamplerWithoutReplacement(seed=0)) for f in folders[:2]]
    mixture = DatasetMixture(*members, weights="equal", exact=True, seed=0)
    rows = rows_in(mixture.sample(120))  # 60 of each: 6 and 2 epochs
    for member, size in enumerate(SIZES[:2]):
        mine = [row for source, row in rows if source == member]
        for begin in range(0, 60, size):
            assert sorted(mine[begin : begin + size]) == list(range(size))
    assert_rows_are_theirs(mixture.sample(120))


def test_slices_stay_together_unshuffled(folders: list[Path]) -> None:
    members = [Dataset(f, sampler=SliceSampler(slice_len=4, seed=0)) for f in folders]
    mixture = DatasetMixture(*members, weights="equal", exact=True, shuffle=False, batch_size=24)
    batch = mixture.sample()
    slices = batch["index"].reshape(6, 4)
    assert torch.equal(slices - slices[:, :1], torch.arange(4).expand(6, 4))
    assert batch["next", "truncated"].reshape(6, 4)[:, -1].all()
    assert_rows_are_theirs(batch)


def test_a_member_that_grows_is_taken_up(three: list[Dataset]) -> None:
    growing = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
    mixture = DatasetMixture(three[0], growing, seed=0)
    assert mixture.shares == (1.0, 0.0)
    assert set(mixture.sample(50)["source"].tolist()) == {0}
    growing.extend(three[2][:30].exclude("index"))
    assert mixture.shares == (0.25, 0.75)
    batch = mixture.sample(400)
    assert 200 < counts_of(batch, 2)[1] < 380
    assert len(mixture) == 40
    assert_rows_are_theirs(batch.set("source", batch["source"] * 2))
    equal = DatasetMixture(
        three[0], TensorDictReplayBuffer(storage=LazyTensorStorage(9)), weights="equal"
    )
    with pytest.raises(UsageError, match="nothing to sample"):
        equal.sample()
    nothing = DatasetMixture(TensorDictReplayBuffer(storage=LazyTensorStorage(9)))
    with pytest.raises(UsageError, match="No member"):
        nothing.sample()


def test_valid_rows_are_what_steps_count(tmp_path: Path) -> None:
    from offline_data.testing.toy import toy_batch, write_toy

    write_toy(tmp_path / "d", [toy_batch([2, 2], unknown_final=(1,))])
    for valid_only, share in ((True, 3 / 7), (False, 0.5)):
        members = [
            Dataset(tmp_path / "d", sampler=RandomSampler(valid_only=valid_only)),
            Dataset(tmp_path / "d", sampler=RandomSampler(valid_only=False)),
        ]
        assert DatasetMixture(*members).shares[0] == pytest.approx(share)


def test_transforms_of_members_and_of_the_mixture(three: list[Dataset]) -> None:
    three[1].append_transform(lambda batch: batch.set("action", batch["action"] - 0.5))
    mixture = DatasetMixture(
        *three, seed=0, transform=lambda batch: batch.set("twice", 2 * batch["action"])
    )
    assert mixture.append_transform(lambda batch: batch["twice"]) is mixture
    found = mixture.sample(50)
    assert sum((row.item() % 2) == 1 for row in found.flatten()) > 5
    kept = DatasetMixture(*three, seed=0).sample(50)
    for (source, index), value in zip(rows_in(kept), kept["action"][:, 0].tolist(), strict=True):
        assert value == action(source, index) - (0.5 if source == 1 else 0)


def test_gradients_of_a_members_transform_are_kept(three: list[Dataset]) -> None:
    scale = torch.nn.Parameter(torch.tensor(2.0))
    three[0].append_transform(lambda batch: batch.set("action", batch["action"] * scale))
    batch = DatasetMixture(*three, weights="equal", seed=0).sample(30)
    batch["action"].sum().backward()
    rows = [action(0, index) for source, index in rows_in(batch) if source == 0]
    assert scale.grad is not None
    assert scale.grad.item() == pytest.approx(sum(rows))


def test_writing_to_a_batch_changes_nothing_else(three: list[Dataset]) -> None:
    mixture = DatasetMixture(*three, seed=0)
    batch, info = mixture.sample(9, return_info=True)
    assert torch.equal(info["source"], batch["source"])
    before = {key: leaf.clone() for key, leaf in batch.items(True, True)}
    batch["next", "reward"].zero_()
    for key, leaf in batch.items(True, True):
        assert torch.equal(leaf, before[key]) != (key == ("next", "reward"))
    assert_rows_are_theirs(mixture.sample(100))


def test_priorities_go_to_the_buffer_that_a_row_is_from(folders: list[Path]) -> None:
    def prioritized(number: int) -> Dataset:
        sampler = PrioritizedSampler(100, alpha=1.0, beta=1.0, eps=0.0, seed=number)
        return Dataset(folders[number], sampler=sampler)

    first, second = prioritized(0), prioritized(1).episodes_at([2])
    second.set_sampler(PrioritizedSampler(100, alpha=1.0, beta=1.0, eps=0.0, seed=1))
    plain = Dataset(folders[2])
    inner = DatasetMixture(plain, second, weights="equal", keys=["action", "observation"])
    mixture = DatasetMixture(first, inner, weights="equal", keys=["action", "observation"], seed=0)
    batch = mixture.sample(400)
    chosen = {0: 3, 1: 17, 2: 4}  # one row of each, the last row 24 of dataset 1
    priority = torch.tensor([float(chosen[s] == i) for s, i in rows_in(batch)])
    mixture.update_priority(batch, priority)
    again = mixture.sample(400)
    assert {i for s, i in rows_in(again) if s == 0} == {3}
    assert {i for s, i in rows_in(again) if s == 2} == {4}
    assert again["action"][again["source"] == 2].unique().tolist() == [-103005.0]
    assert len({i for s, i in rows_in(again) if s == 1}) > 20
    with pytest.raises(UsageError, match="Sources are 0 to 2"):
        mixture.update_priority({"source": torch.tensor([3]), "index": torch.tensor([0])}, 1.0)


def test_iteration_has_no_end(three: list[Dataset]) -> None:
    mixture = DatasetMixture(*three, batch_size=5)
    sizes = [len(batch) for batch in itertools.islice(mixture, 60)]
    assert sizes == [5] * 60
    assert len(next(mixture)) == 5
    assert len(mixture) == sum(SIZES)
    assert mixture.batch_size == 5
    assert "100 rows" in repr(mixture)


def mixed(folders: list[Path], *, exact: bool, prefetch: int | None) -> DatasetMixture:
    samplers = [RandomSampler(seed=1), SamplerWithoutReplacement(seed=2), RandomSampler(seed=3)]
    members = [Dataset(f, sampler=s) for f, s in zip(folders, samplers, strict=True)]
    inner = DatasetMixture(*members[1:], seed=5)
    return DatasetMixture(
        members[0], inner, batch_size=7, exact=exact, seed=4, prefetch=prefetch, weights=[1, 2]
    )


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_prefetching_changes_no_row(folders: list[Path], exact: bool, prefetch: int) -> None:
    plain = mixed(folders, exact=exact, prefetch=None)
    ahead = mixed(folders, exact=exact, prefetch=prefetch)
    for _ in range(20):
        batch = ahead.sample()
        assert rows_in(batch) == rows_in(plain.sample())
        assert_rows_are_theirs(batch)
    with pytest.raises(UsageError, match="batches of 7 are prefetched"):
        ahead.sample(8)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("prefetch", [None, 2])
@pytest.mark.parametrize("way", ["state", "disk", "pickle"])
def test_goes_on_where_it_was(
    folders: list[Path], tmp_path: Path, exact: bool, prefetch: int | None, way: str
) -> None:
    mixture = mixed(folders, exact=exact, prefetch=prefetch)
    for _ in range(5):
        mixture.sample()
    other = mixed(folders, exact=exact, prefetch=prefetch)
    if way == "state":
        other.load_state_dict(mixture.state_dict())
    elif way == "disk":
        mixture.dumps(tmp_path / "state")
        other.loads(tmp_path / "state")
    else:
        packed = pickle.dumps(mixture)
        assert len(packed) < 100_000
        other = pickle.loads(packed)  # noqa: S301
    for _ in range(20):
        assert rows_in(other.sample()) == rows_in(mixture.sample())


def test_states_of_other_mixtures_are_refused(three: list[Dataset]) -> None:
    state = DatasetMixture(*three, seed=0).state_dict()
    others = {
        "3 members; this mixture has 2": DatasetMixture(*three[:2], seed=0),
        "seed": DatasetMixture(*three),
        "exact": DatasetMixture(*three, seed=0, exact=True),
    }
    for words, other in others.items():
        with pytest.raises(UsageError, match=words):
            other.load_state_dict(state)


def test_drawing_ahead_of_the_first_batch_leaves_no_trace(folders: list[Path]) -> None:
    torch.manual_seed(0)
    members = [Dataset(folder) for folder in folders]
    mixture = DatasetMixture(*members, weights=[1, 0, 0], exact=True, shuffle=False)
    torch.randperm(20)  # as dealing does
    expected = [torch.randint(10, (20,)).tolist()]
    torch.manual_seed(0)
    assert [mixture.sample(20)["index"].tolist()] == expected


def test_arguments_that_cannot_be(three: list[Dataset]) -> None:
    wrong: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("at least one member", (), {}),
        ("Member 1 is a TensorDict", (three[0], TensorDict()), {}),
        ("expected steps, episodes", tuple(three), {"weights": "rows"}),
        ("2 weights for 3 members", tuple(three), {"weights": [1, 2]}),
        ("0 or more", tuple(three), {"weights": [1, 2, -1]}),
        ("0 or more", tuple(three), {"weights": [1, 2, float("nan")]}),
        ("not all 0", tuple(three), {"weights": [0, 0, 0]}),
        ("Member 2 has 0 weights", tuple(three), {"weights": {0: 1, 1: 1}}),
        ("Member 0 has 2 weights", tuple(three), {"weights": {0: 1, "local:d0": 1, 1: 1, 2: 1}}),
        ("no member for the weights of", tuple(three), {"weights": {0: 1, 1: 1, 2: 1, 3: 1}}),
        ("batch_size is 0", tuple(three), {"batch_size": 0}),
        ("rename has 1 items", tuple(three), {"rename": [None]}),
        ("cannot be called", tuple(three), {"transform": "scale"}),
        ("prefetch is -1", tuple(three), {"prefetch": -1}),
    ]
    for words, members, options in wrong:
        with pytest.raises(UsageError, match=words):
            DatasetMixture(*members, **options)
    with pytest.raises(UsageError, match="at least 1"):
        DatasetMixture(*three).sample(0)
