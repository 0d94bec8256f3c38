from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from offline_data.buffers.buffer import ReplayBuffer
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.derived import n_step
from offline_data.buffers.ensembles import ReplayBufferEnsemble
from offline_data.buffers.samplers import RandomSampler, SamplerWithoutReplacement, SliceSampler
from offline_data.buffers.storages import LazyTensorStorage, ListStorage
from offline_data.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def leaves(batch: Any) -> dict[Any, Any]:
    return dict(batch.items(include_nested=True, leaves_only=True))


def assert_true(batch: Any, actions: Any) -> None:
    """Every row has the action, and the next observation, of the member and row it names."""
    want = actions(batch["index", "buffer_ids"], batch["index", "index"])
    np.testing.assert_array_equal(batch["action"][..., 0].numpy(), want)
    after = batch["next", "observation", "state"][..., 0]
    np.testing.assert_array_equal(after.numpy(), 1 - want)


@pytest.mark.usefixtures("gathering")
def test_a_batch_is_sub_batches_of_members(
    datasets: list[BaseDatasetExperienceReplay], actions: Any
) -> None:
    ensemble = ReplayBufferEnsemble(*datasets)
    seen = set()
    for _ in range(20):
        batch = ensemble.sample(12)
        assert type(batch) is TensorDict
        assert batch.batch_size == batch["next"].batch_size == batch["index"].batch_size == (3, 4)
        members = batch["index", "buffer_ids"]
        assert (members == members[:, :1]).all()
        seen |= set(members[:, 0].tolist())
        assert_true(batch, actions)
    assert seen == {0, 1, 2}


@pytest.mark.usefixtures("gathering")
def test_leaves_are_contiguous_and_in_memory_of_their_own(
    datasets: list[BaseDatasetExperienceReplay],
) -> None:
    batch = ReplayBufferEnsemble(*datasets).sample(12)
    found = leaves(batch)
    assert all(leaf.is_contiguous() for leaf in found.values())
    spans = sorted((leaf.data_ptr(), leaf.data_ptr() + leaf.nbytes) for leaf in found.values())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    assert found.keys() - {("index", "buffer_ids"), ("index", "index")} == {
        key for key in leaves(datasets[0].sample(2)) if key != "index"
    }


def test_with_and_without_the_compiled_gather_a_batch_is_the_same(
    datasets: list[BaseDatasetExperienceReplay], monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble = ReplayBufferEnsemble(*datasets)
    torch.manual_seed(0)
    together = ensemble.sample(12)
    monkeypatch.setattr("offline_data.buffers.ensembles.reading.gather_together", lambda *_: None)
    torch.manual_seed(0)
    apart = ensemble.sample(12)
    assert list(leaves(together)) == list(leaves(apart))
    for key, leaf in leaves(together).items():
        assert leaf.dtype == apart[key].dtype
        assert torch.equal(leaf, apart[key]), key


def test_info_has_rows_and_what_samplers_say(folders: list[Path], actions: Any) -> None:
    slices = [
        BaseDatasetExperienceReplay(folder, sampler=SliceSampler(slice_len=2))
        for folder in folders[:2]
    ]
    batch, info = ReplayBufferEnsemble(*slices).sample(8, return_info=True)
    assert batch.batch_size == info.batch_size == (2, 4)
    assert torch.equal(info["index", "index"], batch["index", "index"])
    assert torch.equal(info["index", "buffer_ids"], batch["index", "buffer_ids"])
    ends = torch.tensor([False, True, False, True]).reshape(4, 1).expand(2, 4, 1)
    assert torch.equal(info["next", "truncated"], ends)
    assert (batch["next", "truncated"] | ~ends).all()
    assert_true(batch, actions)


def test_slices_and_single_rows_in_one_ensemble(folders: list[Path], actions: Any) -> None:
    slices = BaseDatasetExperienceReplay(folders[0], sampler=SliceSampler(slice_len=2))
    single = BaseDatasetExperienceReplay(folders[1])
    ensemble = ReplayBufferEnsemble(slices, single, sample_from_all=True)
    batch, info = ensemble.sample(8, return_info=True)
    assert_true(batch, actions)
    rows = batch["index", "index"][0].reshape(2, 2)
    assert (rows[:, 1] == rows[:, 0] + 1).all()
    assert isinstance(info, LazyStackedTensorDict)
    assert ("next", "truncated") in info[0].keys(include_nested=True)
    assert list(info[1].keys()) == ["index"]


def test_members_do_to_sub_batches_what_they_do_to_batches(folders: list[Path]) -> None:
    calls: list[Any] = []

    def step(name: str) -> Callable[[Any], Any]:
        def called(batch: Any) -> Any:
            calls.append((name, tuple(getattr(batch, "batch_size", [len(batch)]))))
            return batch

        return called

    members = [
        BaseDatasetExperienceReplay(
            folder,
            collate_fn=step(f"collate {number}"),
            transform=step(f"transform {number}"),
            derived=[n_step(2, 0.5)],
        )
        for number, folder in enumerate(folders[:2])
    ]
    ensemble = ReplayBufferEnsemble(
        *members,
        sample_from_all=True,
        collate_fns=[step("first's"), step("second's")],
        transform=step("last"),
    )
    batch = ensemble.sample(6)
    assert calls == [
        ("collate 0", (3,)),
        ("transform 0", (3,)),
        ("collate 1", (3,)),
        ("transform 1", (3,)),
        ("first's", (3,)),
        ("second's", (3,)),
        ("last", (2, 3)),
    ]
    for member, part in enumerate(batch.unbind(0)):
        want = members[member][part["index", "index"]]
        assert torch.equal(part["next", "reward"], want["next", "reward"])
        assert "steps_to_next_obs" in part.keys()  # noqa: SIM118 - a TensorDict holds leaves


@pytest.mark.parametrize(
    "options",
    [
        {"transform": lambda batch: batch.set("action", -batch["action"])},
        {"collate_fn": lambda batch: batch.set("action", -batch["action"])},
        {"derived": [n_step(2, 0.5)]},
    ],
    ids=["transform", "collate_fn", "derived"],
)
def test_one_thing_that_one_member_does_is_done(
    folders: list[Path], options: dict[str, Any]
) -> None:
    member = BaseDatasetExperienceReplay(folders[1], **options)
    plain = BaseDatasetExperienceReplay(folders[0])
    batch = ReplayBufferEnsemble(plain, member, sample_from_all=True).sample(6)[1]
    want = member[batch["index", "index"]]
    for key, leaf in leaves(want.exclude("index")).items():
        assert torch.equal(batch[key], leaf), key
    stored = BaseDatasetExperienceReplay(folders[1])[batch["index", "index"]]
    changed = [("next", "reward"), "action"]
    assert not all(torch.equal(batch[key], stored[key]) for key in changed)


def test_transforms_of_the_ensemble_see_and_change_whole_batches(
    datasets: list[BaseDatasetExperienceReplay],
) -> None:
    ensemble = ReplayBufferEnsemble(*datasets, transform=lambda batch: batch["action"] + 1)
    assert ensemble.append_transform(lambda actions: actions.sum()) is ensemble
    assert ensemble.sample(6).shape == ()


def test_collate_fn_gets_the_list_of_sub_batches(
    datasets: list[BaseDatasetExperienceReplay], actions: Any
) -> None:
    ensemble = ReplayBufferEnsemble(*datasets, collate_fn=torch.cat)
    batch = ensemble.sample(12)
    assert batch.batch_size == (12,)
    assert_true(batch, actions)


def test_members_with_other_leaves_make_a_lazy_stack(folders: list[Path], actions: Any) -> None:
    narrow = BaseDatasetExperienceReplay(folders[0], keys=["action", "next"])
    wide = BaseDatasetExperienceReplay(folders[1])
    batch = ReplayBufferEnsemble(narrow, wide, sample_from_all=True).sample(6)
    assert isinstance(batch, LazyStackedTensorDict)
    assert batch.batch_size == (2, 3)
    assert_true(batch, actions)
    assert "observation" not in batch.keys()  # noqa: SIM118
    assert "observation" in batch[1].keys()  # noqa: SIM118


def test_a_member_that_grows_is_sampled_as_it_is_by_then(
    datasets: list[BaseDatasetExperienceReplay], steps: Callable[..., TensorDict]
) -> None:
    growing = ReplayBuffer(LazyTensorStorage(50))
    ensemble = ReplayBufferEnsemble(datasets[0], growing, sample_from_all=True)
    with pytest.raises(UsageError, match="Member 1: There is nothing to sample") as caught:
        ensemble.sample(4)
    assert "extend" in str(caught.value.hint)
    data = steps([4], first_episode=30).exclude("info", ("next", "info"))
    ensemble[1].extend(data)
    batch = ensemble.sample(8)
    assert isinstance(batch, LazyStackedTensorDict)
    rows = batch["index", "index"][1]
    assert torch.equal(batch["action"][1], data["action"][rows])


def test_a_member_with_another_sampler_or_storage_is_followed(
    datasets: list[BaseDatasetExperienceReplay],
) -> None:
    ensemble = ReplayBufferEnsemble(*datasets, sample_from_all=True)
    ensemble.sample(3)
    ensemble[1].set_sampler(SamplerWithoutReplacement(shuffle=False))
    assert ensemble.sample(9)["index", "index"][1].tolist() == [0, 1, 2]
    datasets[2].set_storage(datasets[0].storage)
    assert ensemble.sample(30)["action"][2].min() >= -2002


def test_rows_of_other_kinds_are_stacked(datasets: list[BaseDatasetExperienceReplay]) -> None:
    lists = [ReplayBuffer(ListStorage(4)) for _ in range(2)]
    for number, member in enumerate(lists):
        member.extend([torch.tensor([float(number), row]) for row in range(3)])
    batch = ReplayBufferEnsemble(*lists, sample_from_all=True).sample(6)
    assert batch.shape == (2, 3, 2)
    assert batch[..., 0].tolist() == [[0.0] * 3, [1.0] * 3]
    mixed = ReplayBufferEnsemble(lists[0], datasets[0], sample_from_all=True)
    with pytest.raises(UsageError, match="cannot be stacked"):
        mixed.sample(4)


def test_iteration_and_sizes(datasets: list[BaseDatasetExperienceReplay]) -> None:
    ensemble = ReplayBufferEnsemble(*datasets, batch_size=6)
    assert len(ensemble) == 3
    assert ensemble.batch_size == 6
    drawn = [batch.batch_size for batch, _ in zip(ensemble, range(40), strict=False)]
    assert drawn == [(3, 2)] * 40
    assert next(ensemble).batch_size == ensemble.next().batch_size == (3, 2)
    assert ensemble.sample(9).batch_size == (3, 3)
    with pytest.raises(UsageError, match="A batch of 7 cannot be cut into 3") as caught:
        ensemble.sample(7)
    assert "DatasetMixture" in str(caught.value.hint)
    with pytest.raises(UsageError, match="No batch size"):
        ReplayBufferEnsemble(*datasets).sample()


def test_prefetching_changes_no_row(folders: list[Path]) -> None:
    def batches(prefetch: int | None) -> list[Any]:
        members = [
            BaseDatasetExperienceReplay(folder, sampler=RandomSampler(seed=number))
            for number, folder in enumerate(folders)
        ]
        torch.manual_seed(3)
        ensemble = ReplayBufferEnsemble(*members, batch_size=6, prefetch=prefetch)
        return [ensemble.sample()["action"].tolist() for _ in range(8)]

    assert batches(3) == batches(None)


def test_the_generator_decides_everything(folders: list[Path]) -> None:
    def batches(seed: int) -> list[Any]:
        members = [BaseDatasetExperienceReplay(folder) for folder in folders]
        generator = torch.Generator().manual_seed(seed)
        ensemble = ReplayBufferEnsemble(*members, generator=generator)
        torch.randint(9, (seed + 1,))
        return [ensemble.sample(6)["action"].tolist() for _ in range(4)]

    assert batches(1) == batches(1)
    assert batches(1) != batches(2)


def test_a_pickled_ensemble_goes_on_alike(folders: list[Path]) -> None:
    members = [
        BaseDatasetExperienceReplay(folder, sampler=SamplerWithoutReplacement(seed=number))
        for number, folder in enumerate(folders)
    ]
    ensemble = ReplayBufferEnsemble(*members, batch_size=6, p=[1, 1, 2])
    ensemble.sampler.set_rng(torch.Generator().manual_seed(5))
    ensemble.sample()
    data = pickle.dumps(ensemble)
    assert len(data) < 30_000
    copy = pickle.loads(data)  # noqa: S301
    assert copy.members[0].sampler is copy.sampler[0]
    want = [ensemble.sample()["action"].tolist() for _ in range(5)]
    assert [copy.sample()["action"].tolist() for _ in range(5)] == want


def test_a_deleted_member_is_named(datasets: list[BaseDatasetExperienceReplay]) -> None:
    ensemble = ReplayBufferEnsemble(*datasets, sample_from_all=True)
    ensemble.sample(3)
    datasets[1].delete()
    with pytest.raises(NotFoundError, match="was deleted"):
        ensemble.sample(3)


@pytest.mark.parametrize("index", [0, -1, np.int64(2), torch.tensor(1)])
def test_one_number_is_a_member(datasets: list[BaseDatasetExperienceReplay], index: Any) -> None:
    assert ReplayBufferEnsemble(*datasets)[index] is datasets[int(index)]


@pytest.mark.parametrize(
    ("index", "want"),
    [
        (slice(0, 2), [0, 1]),
        ([2, 0], [2, 0]),
        (torch.tensor([1, 1]), [1, 1]),
        (np.array([0]), [0]),
        (range(3), [0, 1, 2]),
        (slice(None, None, -1), [2, 1, 0]),
        ([True, False, True], [0, 2]),
        ((slice(1, 3),), [1, 2]),
    ],
)
def test_several_numbers_are_an_ensemble(
    datasets: list[BaseDatasetExperienceReplay], actions: Any, index: Any, want: list[int]
) -> None:
    ensemble = ReplayBufferEnsemble(*datasets, p=[0.2, 0.3, 0.5], batch_size=60)
    part = ensemble[index]
    assert isinstance(part, ReplayBufferEnsemble)
    assert part.members == [datasets[number] for number in want]
    shares = torch.tensor([0.2, 0.3, 0.5])[want]
    torch.testing.assert_close(part.sampler.p, shares / shares.sum())
    batch = part.sample()
    assert batch.batch_size == (len(want), 60 // len(want))
    batch["index", "buffer_ids"].copy_(torch.tensor(want)[batch["index", "buffer_ids"]])
    assert_true(batch, actions)
    assert len(part.writer) == len(part.storage) == len(want)
    assert len(ensemble) == len(ensemble.sampler) == 3


def test_a_part_prefetches_its_own_batches(datasets: list[BaseDatasetExperienceReplay]) -> None:
    ensemble = ReplayBufferEnsemble(*datasets, batch_size=6, prefetch=2)
    ensemble.sample()
    assert ensemble[[1]].sample().batch_size == (1, 6)
    assert ensemble.sample().batch_size == (3, 2)


def test_all_members_are_the_ensemble_itself(datasets: list[BaseDatasetExperienceReplay]) -> None:
    ensemble = ReplayBufferEnsemble(*datasets)
    assert ensemble[:] is ensemble
    assert ensemble[...] is ensemble


@pytest.mark.parametrize(
    ("index", "members", "rows"),
    [
        ((slice(None), 3), [0, 1, 2], 3),
        ((..., -1), [0, 1, 2], [4, 19, 15]),
        ((slice(None), [1, 2]), [0, 1, 2], [1, 2]),
        (([0, 1], [1, 2]), [0, 1], [1, 2]),
        (([2, 0], [[1, 2], [3, 4]]), [2, 0], [[1, 2], [3, 4]]),
        ((slice(0, 2), slice(0, 3)), [0, 1], [0, 1, 2]),
        ((torch.tensor([1]), torch.tensor([[5]])), [1], [[5]]),
    ],
)
def test_rows_of_members(
    datasets: list[BaseDatasetExperienceReplay], actions: Any, index: Any, members: Any, rows: Any
) -> None:
    batch = ReplayBufferEnsemble(*datasets)[index]
    if index[1] == -1:
        want = torch.tensor(rows)
    else:
        want = torch.stack([torch.tensor(rows)] * len(members))
    assert type(batch) is TensorDict
    assert batch.batch_size == want.shape
    assert torch.equal(batch["index", "index"], want)
    assert batch["index", "buffer_ids"].reshape(len(members), -1)[:, 0].tolist() == members
    assert_true(batch, actions)


def test_rows_of_one_member_are_as_it_gives_them(
    datasets: list[BaseDatasetExperienceReplay],
) -> None:
    datasets[1].append_transform(lambda batch: batch.set("action", -batch["action"]))
    ensemble = ReplayBufferEnsemble(*datasets, transform=lambda batch: batch.select("action"))
    assert ensemble[1, 7]["action"].tolist() == [12001.0]
    assert ensemble[1, [0, 8]]["index"].tolist() == [0, 8]
    batch = ensemble[:, 0]
    assert set(batch.keys()) == {"action", "index"}
    assert batch["action"][:, 0].tolist() == [-1001.0, 11001.0, -21001.0]


def test_all_rows_of_members_of_different_lengths(
    datasets: list[BaseDatasetExperienceReplay],
) -> None:
    batch = ReplayBufferEnsemble(*datasets)[:, :]
    assert isinstance(batch, LazyStackedTensorDict)
    assert [len(part) for part in batch.unbind(0)] == [5, 20, 16]


@pytest.mark.parametrize(
    ("index", "error", "match"),
    [
        (3, IndexError, "There are 3 members"),
        ([0, 5], IndexError, "There are 3 members"),
        ((0, 5), IndexError, "of 5"),
        ((slice(None), 10), IndexError, "of 5"),
        (torch.tensor([0.0]), UsageError, "not an index of members"),
        ([[0, 1], [1, 0]], UsageError, "not an index of members"),
        ("a", UsageError, "not an index of members"),
        (None, UsageError, "not an index of members"),
        ([], UsageError, "not an index of members"),
        (slice(1, 1), UsageError, "not an index of members"),
        ((0, 1, 2), UsageError, "3 indices"),
        ((), UsageError, "0 indices"),
    ],
)
def test_indices_that_cannot_be(
    datasets: list[BaseDatasetExperienceReplay],
    index: Any,
    error: type[Exception],
    match: str,
) -> None:
    with pytest.raises(error, match=match):
        ReplayBufferEnsemble(*datasets)[index]


def test_repr_names_the_members(datasets: list[BaseDatasetExperienceReplay]) -> None:
    text = repr(ReplayBufferEnsemble(*datasets, p=[1, 1, 2]))
    assert "5 rows" in text
    assert "p=[0.25, 0.25, 0.5]" in text
