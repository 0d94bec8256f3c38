from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from offline_data.base.errors import IntegrityError, UsageError
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.mixtures.allocation import exact_members
from offline_data.buffers.mixtures.dataset_mixture import DatasetMixture
from offline_data.buffers.mixtures.members import GatherMany
from offline_data.rows.gather import native
from offline_data.rows.samplers import (
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
)
from offline_data.testing.toy import toy_batch, write_toy
from offline_data.torchrl.storages import LazyTensorStorage
from offline_data.torchrl.tensordict_buffer import TensorDictReplayBuffer

from .conftest import CRITICAL, SIZES, action, assert_rows, assert_same, chi_square

REWARD = ("next", "reward")


def assert_true(batch: Any) -> None:
    """Every row is that of the dataset and the row that it names."""
    assert_rows(batch, batch["source"], batch["index"])


def counts_of(batch: Any, members: int = 3) -> list[int]:
    found: list[int] = torch.bincount(batch["source"], minlength=members).tolist()
    return found


def rows_in(batch: Any) -> list[tuple[int, int]]:
    return list(zip(batch["source"].tolist(), batch["index"].tolist(), strict=True))


def keys_of(batch: Any) -> set[Any]:
    return set(batch.keys(include_nested=True, leaves_only=True))


def empty() -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(100))


def growing(**leaves: torch.Tensor) -> TensorDictReplayBuffer:
    """A buffer of five rows with these leaves."""
    buffer = empty()
    buffer.extend(TensorDict(dict(leaves), [5]))
    return buffer


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=12
)
@given(
    shares=st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=3, max_size=3).filter(
        any
    ),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    exact=st.booleans(),
)
def test_batches_have_the_proportions_asked_for(
    three: list[Dataset], shares: list[float], sizes: list[int], exact: bool
) -> None:
    mixture = DatasetMixture(*three, weights=shares, exact=exact, keys=["action"])
    expected, total = np.array(shares) / sum(shares), np.zeros(3)
    for number, size in enumerate(sizes):
        found = np.array(counts_of(mixture.sample(size)))
        assert found.sum() == size
        assert not found[np.array(shares) == 0].any()
        total += found
        if exact:
            assert number or (abs(found - size * expected) < 1 + 1e-9).all()
            assert (abs(total - sum(sizes[: number + 1]) * expected) < 2).all()


def test_what_a_batch_rounds_away_goes_to_the_member_with_most_due(three: list[Dataset]) -> None:
    owed: list[float] = []
    batches = [exact_members((0.5, 0.3, 0.2), 4, None, owed) for _ in range(3)]
    counts = [torch.bincount(batch, minlength=3).tolist() for batch in batches]
    assert counts == [[2, 1, 1], [2, 1, 1], [2, 2, 0]]
    mixture = DatasetMixture(*three, weights=[5, 3, 2], exact=True)
    total = np.sum([counts_of(mixture.sample(4)) for _ in range(10)], 0)
    assert total.tolist() == [20, 12, 8]


def test_valid_rows_are_what_steps_count(tmp_path: Path) -> None:
    write_toy(tmp_path / "d", [toy_batch([2, 2], unknown_final=(1,))])
    for valid_only, share in ((True, 3 / 7), (False, 0.5)):
        samplers = [RandomSampler(valid_only=valid_only), RandomSampler(valid_only=False)]
        members = [Dataset(tmp_path / "d", sampler=sampler) for sampler in samplers]
        assert DatasetMixture(*members).shares[0] == pytest.approx(share)


def test_the_last_member_with_weight_is_not_passed_by(
    three: list[Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = torch.full((3,), 1 - 2.0**-53, dtype=torch.float64)
    for shares, last in (((0.1, 0.1, 0.1), 2), ((0.3, 0.4, 0.0), 1), ((1e-9, 1.0, 0.0), 1)):
        mixture = DatasetMixture(*three, weights=shares, batch_size=3)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "rand", lambda *_, **__: largest)
            assert mixture.sample()["source"].tolist() == [last] * 3


@pytest.mark.usefixtures("gathering")
@pytest.mark.parametrize(("shuffle", "exact"), [(True, False), (True, True), (False, True)])
def test_every_row_is_the_members(three: list[Dataset], shuffle: bool, exact: bool) -> None:
    mixture = DatasetMixture(*three, exact=exact, shuffle=shuffle, seed=0)
    plain = three[0][:1]
    for size in (256, 1):
        batch, info = mixture.sample(size, return_info=True)
        assert torch.equal(info["source"], batch["source"])
        assert batch.batch_size == (size,)
        assert_true(batch)
        for key in keys_of(plain):
            assert batch[key].dtype == plain[key].dtype
            assert batch[key].shape[1:] == plain[key].shape[1:]
            assert batch[key].is_contiguous()
        ascending = batch["source"].tolist() == sorted(batch["source"].tolist())
        assert ascending or shuffle
        assert not (ascending and shuffle and size >= 100)
    assert len(next(iter(mixture))) == mixture.batch_size == 256
    assert len(mixture) == sum(SIZES)
    assert "100 rows" in repr(mixture)


def test_with_and_without_the_compiled_gather_a_batch_is_the_same(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches() -> list[Any]:
        torch.manual_seed(0)
        one, other = Dataset(folders[1]), Dataset(folders[2])
        views = [one.subset([9, 3, 29]), other.episodes_at([5, 4]).subset(slice(3, 40))]
        same = [views[1], other.subset(slice(0, 9))]  # of one dataset, with other numbers
        members = ([one, other], views, [one, views[1]], [views[0], other], same)
        plain = [DatasetMixture(*some).sample(140) for some in members]
        return [*plain, *(DatasetMixture(*some, shuffle=False).sample(90) for some in members)]

    together = batches()
    monkeypatch.setattr(native, "compiled", None)
    for batch, apart in zip(together, batches(), strict=True):
        assert_same(batch, apart)


@pytest.mark.skipif(native.compiled is None, reason="no compiled gather")
def test_members_of_one_layout_are_gathered_by_one_call(
    three: list[Dataset], folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    gather = GatherMany.__call__

    def watched(*given: Any) -> Any:
        made.append(gather(*given))
        return made[-1]

    monkeypatch.setattr(GatherMany, "__call__", watched)
    keys = ["action", "observation", "next"]
    whole, part = Dataset(folders[1]), Dataset(folders[2], keys=keys)
    for members, together in ((three, True), ([whole, part], False), ([part, whole], False)):
        made.clear()
        batch = DatasetMixture(*members, keys=keys).sample(90)
        assert [one is not None for one in made] == [together]
        numbers = torch.tensor([folders.index(one.data_path) for one in members])
        assert_rows(batch, numbers[batch["source"]], batch["index"])


@pytest.mark.usefixtures("gathering")
@pytest.mark.parametrize(("shuffle", "transformed"), [(True, True), (True, False), (False, False)])
def test_rows_of_views(three: list[Dataset], shuffle: bool, transformed: bool) -> None:
    views = [three[1].subset([9, 3, 29]), three[2].episodes_at([5, 4]).subset(slice(3, 40))]
    if transformed:
        views[0].append_transform(lambda batch: batch)
    batch = DatasetMixture(*views, weights="equal", shuffle=shuffle).sample(200)
    mixed = DatasetMixture(three[0], *views, weights="equal", shuffle=shuffle).sample(300)
    assert not {"dataset_index", "dataset_episode"} & {*mixed.keys()}  # a dataset has none
    for number, view in enumerate(views):
        for one, source in ((batch, number), (mixed, number + 1)):
            own = one["source"] == source
            index = one["index"][own]
            assert len(index)
            for leaf in ("action", "episode", "dataset_episode", "dataset_index"):
                if leaf in one.keys():  # noqa: SIM118 - a TensorDict holds leaves
                    assert torch.equal(view[index][leaf], one[leaf][own])
        own = batch["source"] == number
        assert torch.equal(view.rows[batch["index"][own]], batch["dataset_index"][own])


def test_members_of_every_kind(three: list[Dataset]) -> None:
    buffer = empty()
    buffer.extend(three[0][:].exclude("index"))
    members: list[Any] = [
        three[0],
        three[1].subset([5, 7, 29]),
        three[2].append_transform(lambda batch: batch),
        buffer,
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
    assert_true(batch.set("source", dataset))


def test_weights_by_steps_are_uniform_over_the_concatenation(three: list[Dataset]) -> None:
    for seed, dataset in enumerate(three):
        dataset.set_sampler(RandomSampler(seed=seed))
    mixture = DatasetMixture(*three, seed=0)
    assert mixture.shares == (0.1, 0.3, 0.6)
    batch = mixture.sample(50_000)
    row = torch.tensor([0, *SIZES]).cumsum(0)[batch["source"]] + batch["index"]
    seen = torch.bincount(row, minlength=100)
    assert chi_square(seen, np.full(100, 500)) < 149  # 99 degrees of freedom, p = 0.001


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
    assert chi_square([many[m] for m in present], [shares[m] for m in present]) < CRITICAL
    assert len({tuple(counts_of(mixture.sample(30))) for _ in range(20)}) > 1


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
    assert_true(mixture.sample(120))


def test_slices_stay_together_unshuffled(folders: list[Path]) -> None:
    members = [Dataset(f, sampler=SliceSampler(slice_len=4, seed=0)) for f in folders]
    mixture = DatasetMixture(*members, weights="equal", exact=True, shuffle=False, batch_size=24)
    batch = mixture.sample()
    slices = batch["index"].reshape(6, 4)
    assert torch.equal(slices - slices[:, :1], torch.arange(4).expand(6, 4))
    assert batch["next", "truncated"].reshape(6, 4)[:, -1].all()
    assert_true(batch)


def test_a_member_that_grows_is_taken_up(three: list[Dataset]) -> None:
    buffer = empty()
    mixture = DatasetMixture(three[0], buffer, seed=0)
    assert mixture.shares == (1.0, 0.0)
    assert set(mixture.sample(50)["source"].tolist()) == {0}
    buffer.extend(three[2][:30].exclude("index"))
    assert mixture.shares == (0.25, 0.75)
    batch = mixture.sample(400)
    assert 200 < counts_of(batch, 2)[1] < 380
    assert len(mixture) == 40
    assert_true(batch.set("source", batch["source"] * 2))


def test_transforms_of_members_and_of_the_mixture(three: list[Dataset]) -> None:
    scale = torch.nn.Parameter(torch.tensor(2.0))
    three[1].append_transform(lambda batch: batch.set("action", batch["action"] * scale))
    mixture = DatasetMixture(
        *three, seed=0, transform=lambda batch: batch.set("third", 3 * batch["action"])
    )
    assert mixture.append_transform(lambda batch: batch["third"]) is mixture
    assert mixture.sample(50).abs().min() >= 3000
    batch = DatasetMixture(*three, weights="equal", seed=0).sample(30)
    for (source, index), value in zip(rows_in(batch), batch["action"][:, 0].tolist(), strict=True):
        assert value == action(source, index) * (2 if source == 1 else 1)
    batch["action"].sum().backward()
    rows = [action(1, index) for source, index in rows_in(batch) if source == 1]
    assert scale.grad is not None
    assert scale.grad.item() == pytest.approx(sum(rows))


def test_priorities_go_to_the_buffer_that_a_row_is_from(folders: list[Path]) -> None:
    def sampler(seed: int) -> PrioritizedSampler:
        return PrioritizedSampler(100, alpha=1.0, beta=1.0, eps=0.0, seed=seed)

    first, plain = Dataset(folders[0], sampler=sampler(0)), Dataset(folders[2])
    view = Dataset(folders[1]).episodes_at([2])
    view.set_sampler(sampler(1))
    inner = DatasetMixture(plain, view, weights="equal", keys=["action", "observation"])
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


def mixed(folders: list[Path], *, exact: bool, prefetch: int | None) -> DatasetMixture:
    samplers = [RandomSampler(seed=1), SamplerWithoutReplacement(seed=2), RandomSampler(seed=3)]
    members = [Dataset(f, sampler=s) for f, s in zip(folders, samplers, strict=True)]
    inner = DatasetMixture(*members[1:], seed=5)
    return DatasetMixture(
        members[0], inner, batch_size=7, exact=exact, seed=4, prefetch=prefetch, weights=[1, 2]
    )


@pytest.mark.parametrize(
    ("exact", "prefetch", "way"),
    [(True, None, "state"), (True, 3, "disk"), (False, 3, "state"), (True, 3, "pickle")],
)
def test_it_resumes_where_it_was(
    folders: list[Path], tmp_path: Path, exact: bool, prefetch: int | None, way: str
) -> None:
    mixture = mixed(folders, exact=exact, prefetch=prefetch)
    plain = mixed(folders, exact=exact, prefetch=None)
    for _ in range(5):
        assert rows_in(mixture.sample()) == rows_in(plain.sample())
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
    for _ in range(8):
        batch = other.sample()
        assert rows_in(batch) == rows_in(mixture.sample()) == rows_in(plain.sample())
        assert_true(batch)


@pytest.mark.parametrize(
    "owed", [[0.5], ["1", 0.0, 0.0], [2.0**40, 0.0, 0.0], {"a": 0.0}, [1, 2, 3]]
)
def test_states_that_owe_no_rows_are_refused(three: list[Dataset], owed: Any) -> None:
    mixture = DatasetMixture(*three, seed=0, exact=True)
    state = mixture.state_dict()
    with pytest.raises(IntegrityError, match="rows owed to each member"):
        mixture.load_state_dict({**state, "dealing": {**state["dealing"], "owed": owed}})
    mixture.load_state_dict({**state, "dealing": {**state["dealing"], "owed": [0.5, -0.5, 0.0]}})


def test_leaves_that_some_members_lack(three: list[Dataset], folders: list[Path]) -> None:
    """They are listed, and `keys` leaves them out."""
    fewer = Dataset(folders[1], keys=["action", "observation", "next.reward", "next.observation"])
    extra = three[2].append_transform(lambda b: b.set("goal", b["action"]))
    keys: list[Any] = ["observation", "action", REWARD, "index", "next.observation"]
    batch = DatasetMixture(three[0], fewer, extra, keys=keys).sample()
    state = ("observation", "state")
    assert keys_of(batch) == {"index", "source", "action", state, REWARD, ("next", *state)}
    assert_true(batch)
    for member in three[:2]:
        member.set_sampler(PrioritizedSampler(100, alpha=0.5, beta=0.5))
    batch = DatasetMixture(*three[:2], weights="equal").sample()
    assert torch.equal(batch["priority_weight"], torch.ones(256))


def test_leaves_are_renamed(three: list[Dataset]) -> None:
    def other_names(batch: Any) -> Any:
        batch.set(("obs", "x"), batch.get(("observation", "state")))
        batch.set(("next", "obs", "x"), batch.get(("next", "observation", "state")))
        batch.set("act", batch.get("action"))
        return batch.exclude("observation", ("next", "observation"), "action")

    three[1].append_transform(other_names)
    names: dict[Any, Any] = {"observation.state": ("obs", "x"), "action": "act"}
    batch = DatasetMixture(*three, rename=[None, names, None], seed=0).sample(200)
    assert keys_of(batch) == keys_of(three[0][:1]) | {"source"}
    assert_true(batch)
    names = {"now": "observation", ("next", "then"): ("next", "observation")}
    keys = keys_of(DatasetMixture(three[0], rename=[names]).sample(4))
    assert {("now", "state"), ("next", "then", "state")} <= keys


def test_dtypes_are_promoted(three: list[Dataset]) -> None:
    values = [torch.arange(5.0) + 0.5, torch.arange(5, dtype=torch.float64) + 100.25]
    values.append(torch.arange(5, dtype=torch.int32) + 1000)
    mixture = DatasetMixture(*(growing(action=value) for value in values), cast=True, seed=0)
    for _ in range(30):  # also where one row is of a member that was not cast
        batch = mixture.sample(2)
        assert batch["action"].dtype == torch.float64
        first = torch.tensor([0.5, 100.25, 1000.0], dtype=torch.float64)[batch["source"]]
        assert torch.equal(batch["action"], first + batch["index"])
    three[1].append_transform(lambda batch: batch.set("action", batch["action"].double()))
    batch = DatasetMixture(*three, cast=True, weights="equal", seed=0).sample(100)
    assert batch["action"].dtype == torch.float64
    pairs = rows_in(batch)
    assert batch["action"][:, 0].tolist() == [action(source, row) for source, row in pairs]


@pytest.mark.parametrize(
    ("dtype", "other", "value"),
    [
        (torch.int32, torch.float64, 2**31 - 1),
        (torch.int64, torch.float64, 2**53),
        (torch.uint8, torch.float16, 255),
        (torch.int64, torch.int32, 2**63 - 1),
        (torch.float64, torch.float32, 1e300),
    ],
)
def test_a_common_dtype_holds_a_value(dtype: torch.dtype, other: torch.dtype, value: Any) -> None:
    first = growing(action=torch.full((5,), value, dtype=dtype))
    members = first, growing(action=torch.ones(5, dtype=other))
    mixture = DatasetMixture(*members, cast=True, weights=[1, 0.0001], seed=0)
    assert mixture.sample(8)["action"].tolist().count(value) > 0


@pytest.mark.parametrize("whole", [np.int64(2**53), np.int32(2**31 - 1)])
def test_columns_of_episodes_of_several_dtypes(whole: Any, tmp_path: Path) -> None:
    members, values = [], (whole, np.float64(0.5))
    for number, value in enumerate(values):
        toy = toy_batch([3])
        facts = {**toy.episodes, ("score",): np.array([value])}
        write_toy(tmp_path / str(number), [replace(toy, episodes=facts)])
        members.append(Dataset(tmp_path / str(number)))
    found = DatasetMixture(*members).episodes["score"]
    assert found.tolist() == [float(value) for value in values]


def test_leaves_that_come_and_go(folders: list[Path]) -> None:
    changing = iter([1, 1, 2])
    fickle = Dataset(folders[0], transform=lambda b: b.set(f"leaf{next(changing)}", b["action"]))
    mixture = DatasetMixture(fickle)
    mixture.sample(4)
    with pytest.raises(UsageError, match="member 0 come and go: leaf1, leaf2"):
        mixture.sample(4)


def test_codes_of_one_vocabulary_are_mixed_and_of_others_left_out(toys: Any) -> None:
    """What is refused is in `refusals.json`."""
    one, other = (Dataset(toys([3, 2], first_episode=first, text=True)) for first in (0, 1))
    same = Dataset(toys([3, 2], text=True, dataset="local:same@1"))
    mission = ("observation", "mission")
    batch = DatasetMixture(one, same).sample(50)
    assert one.decode(mission, batch[mission][0]) == same.decode(mission, batch[mission][0])
    for second in (other, DatasetMixture(other), other.episodes_at([0])):
        DatasetMixture(one, second, keys=["action"]).sample()
    different = [{"a": mission}, {"b": mission}]
    DatasetMixture(one, other, rename=different, keys=["action"]).sample()


def test_whole_episodes_of_one_length_can_be_mixed(tmp_path: Path) -> None:
    for name in "ab":
        write_toy(tmp_path / name, [toy_batch([3, 1])])
    members = [Dataset(tmp_path / name, split_trajs=True) for name in "ab"]
    for some in (members, [member.subset([1, 0]) for member in members]):
        batch = DatasetMixture(*some, seed=0).sample(6)
        assert batch.batch_size == (6, 3)
        assert batch["source"].shape == (6,)


@pytest.mark.usefixtures("gathering")
def test_leaves_that_lie_elsewhere(three: list[Dataset], tmp_path: Path) -> None:
    """Datasets of the other layout, with other leaves, or with other names at the same places."""
    write_toy(tmp_path / "images", [toy_batch([4, 6], images=True)])
    write_toy(tmp_path / "ted", [toy_batch([4, 6])], layout="ted")
    keys = ["action", "observation.state", "next.observation.state", "next.reward"]
    for other in (Dataset(tmp_path / "images"), Dataset(tmp_path / "ted")):
        mixture = DatasetMixture(other, *three[1:], keys=keys, weights="equal", seed=0)
        assert_true(mixture.sample(200))
    for number, names in enumerate(("ab", "bc")):
        toy = toy_batch([4, 6], first_episode=100 * number)
        own: dict[Any, Any] = {("x", name): (ord(name) + toy.steps["action",]) for name in names}
        write_toy(tmp_path / names, [replace(toy, steps={**toy.steps, **own})])
    members = [Dataset(tmp_path / names) for names in ("ab", "bc")]
    batch = DatasetMixture(*members, keys=["action", "x.b"], seed=0).sample(50)
    assert torch.equal(batch["x", "b"], batch["action"] + ord("b"))


@pytest.mark.skipif(native.compiled is None, reason="the gather was not built")
def test_rows_that_are_not_there(three: list[Dataset]) -> None:
    for dataset in three:
        dataset.sample(1)
    gathers: list[Any] = [dataset.storage._leaves_of for dataset in three]  # type: ignore[attr-defined]
    for source, rows in (([0, 3], [0, 0]), ([0, -1], [0, 0]), ([0, 0], [9, 10]), ([1, 0], [-1, 0])):
        with pytest.raises(IndexError):
            native.gather_mixed(gathers, torch.tensor(source), torch.tensor(rows))
    found = native.gather_mixed(gathers, torch.tensor([2, 0]), torch.tensor([59, 9]))
    assert found is not None
    assert found[three[0].storage.slots[("index",)]].tolist() == [59, 9]  # type: ignore[attr-defined]
