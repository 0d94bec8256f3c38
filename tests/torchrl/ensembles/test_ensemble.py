from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict

from offline_data.base.errors import ImmutableError, UsageError
from offline_data.buffers.dataset import Dataset
from offline_data.rows.derived import n_step
from offline_data.rows.gather import native
from offline_data.rows.samplers import (
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
)
from offline_data.store.layout import LAYOUTS
from offline_data.testing.toy import toy_batch, write_toy
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.ensembles.buffer import ReplayBufferEnsemble
from offline_data.torchrl.ensembles.parts import SamplerEnsemble
from offline_data.torchrl.storages import LazyTensorStorage, ListStorage
from tests.buffers.mixtures.conftest import action, assert_rows, assert_same, leaves

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch


def assert_true(batch: Any) -> None:
    """Every row is that of the member and the row that it names."""
    assert_rows(batch, batch["index", "buffer_ids"], batch["index", "index"])


def growing(rows: TensorDict | None = None) -> ReplayBuffer:
    buffer = ReplayBuffer(LazyTensorStorage(50))
    if rows is not None:
        buffer.extend(rows)
    return buffer


@pytest.mark.usefixtures("gathering")
def test_a_batch_is_sub_batches_of_members(three: list[Dataset]) -> None:
    ensemble = ReplayBufferEnsemble(*three)
    seen = set()
    for _ in range(12):
        batch = ensemble.sample(12)
        assert type(batch) is TensorDict
        assert batch.batch_size == batch["next"].batch_size == batch["index"].batch_size == (3, 4)
        members = batch["index", "buffer_ids"]
        assert (members == members[:, :1]).all()
        seen |= set(members[:, 0].tolist())
        assert_true(batch)
    assert seen == {0, 1, 2}
    found = leaves(batch)
    assert all(leaf.is_contiguous() for leaf in found.values())
    spans = sorted((leaf.data_ptr(), leaf.data_ptr() + leaf.nbytes) for leaf in found.values())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    own = {("index", "buffer_ids"), ("index", "index")}
    assert found.keys() - own == leaves(three[0].sample(2)).keys() - {"index"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_with_and_without_the_compiled_gather_a_batch_is_the_same(
    tmp_path: Path, batch: EpisodeBatch, monkeypatch: pytest.MonkeyPatch, layout: Any
) -> None:
    """With every kind of leaf, for datasets, views, and both."""
    write_toy(tmp_path / "one", [batch], layout=layout)
    write_toy(tmp_path / "other", [batch], layout=layout)

    def batches() -> list[Any]:
        torch.manual_seed(0)
        one, other = Dataset(tmp_path / "one"), Dataset(tmp_path / "other")
        views = [one.subset([7, 3, 1, 2]), other.episodes_at([2, 0])]
        kinds = ([one, other], views, [one, views[1]], [views[0], other])
        return [ReplayBufferEnsemble(*kind).sample(140, return_info=True) for kind in kinds]

    together = batches()
    monkeypatch.setattr(native, "compiled", None)
    for (batch_, info), (apart, other_info) in zip(together, batches(), strict=True):
        assert_same(batch_, apart)
        assert_same(info, other_info)
        batch_["index", "index"].fill_(-1)
        assert (info["index", "index"] >= 0).all()


def test_slices_and_single_rows_and_what_samplers_say_of_them(folders: list[Path]) -> None:
    def slices(number: int) -> Dataset:
        return Dataset(folders[number], sampler=SliceSampler(slice_len=2))

    batch, info = ReplayBufferEnsemble(slices(0), slices(1)).sample(8, return_info=True)
    assert batch.batch_size == info.batch_size == (2, 4)
    assert_same(info["index"], batch["index"])
    ends = torch.tensor([False, True, False, True]).reshape(4, 1).expand(2, 4, 1)
    assert torch.equal(info["next", "truncated"], ends)
    assert (batch["next", "truncated"] | ~ends).all()
    assert_true(batch)
    ensemble = ReplayBufferEnsemble(slices(0), Dataset(folders[1]), sample_from_all=True)
    batch, info = ensemble.sample(8, return_info=True)
    assert_true(batch)
    rows = batch["index", "index"][0].reshape(2, 2)
    assert (rows[:, 1] == rows[:, 0] + 1).all()
    assert isinstance(info, LazyStackedTensorDict)
    assert ("next", "truncated") in info[0].keys(include_nested=True)
    assert list(info[1].keys()) == ["index"]


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
    member = Dataset(folders[1], **options)
    batch = ReplayBufferEnsemble(Dataset(folders[0]), member, sample_from_all=True).sample(6)[1]
    want = member[batch["index", "index"]]
    for key, leaf in leaves(want.exclude("index")).items():
        assert torch.equal(batch[key], leaf), key
    stored = Dataset(folders[1])[batch["index", "index"]]
    changed = [("next", "reward"), "action"]
    assert not all(torch.equal(batch[key], stored[key]) for key in changed)


def test_the_ensembles_own_transforms_and_collate_function(three: list[Dataset]) -> None:
    ensemble = ReplayBufferEnsemble(*three, transform=lambda batch: batch["action"] + 1)
    assert ensemble.append_transform(lambda actions: actions.sum()) is ensemble
    assert ensemble.sample(6).shape == ()
    batch = ReplayBufferEnsemble(*three, collate_fn=torch.cat).sample(12)
    assert batch.batch_size == (12,)
    assert_true(batch)


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b.set("action", b["action"].double()),
        lambda b: b.set("action", b["action"].repeat(1, 2)),
        lambda b: b.exclude(("next", "reward")),
        lambda b: b.set("text", NonTensorStack("a", "b", "c")),
        lambda b: b[:2],
    ],
    ids=["dtype", "wider", "fewer", "text", "rows"],
)
def test_other_leaves_make_a_lazy_stack(folders: list[Path], change: Any) -> None:
    members = [Dataset(folders[0]), Dataset(folders[1], transform=change)]
    batch = ReplayBufferEnsemble(*members, sample_from_all=True).sample(6)
    assert isinstance(batch, LazyStackedTensorDict)
    assert len(batch) == 2
    plain = members[0].sample(2)
    parts = [members[number].batch_of(batch[number]["index", "index"], {}) for number in range(2)]
    assert set(batch.keys()) == {*plain.keys()} & {*parts[1].keys()}
    for number, part in enumerate(parts):
        assert batch[number]["index", "buffer_ids"].unique().tolist() == [number]
        for key, leaf in leaves(part.exclude("index")).items():
            assert (batch[number].get(key) == leaf).all()
            assert batch[number].get(key).dtype == leaf.dtype


@pytest.mark.usefixtures("gathering")
def test_datasets_with_other_leaves(
    tmp_path: Path, folders: list[Path], three: list[Dataset]
) -> None:
    write_toy(tmp_path / "wide", [toy_batch([10], width=5)])
    write_toy(tmp_path / "ted", [toy_batch([4, 6])], layout="ted")
    narrow, wide = Dataset(folders[0], keys=["action", "next"]), Dataset(tmp_path / "wide")
    for member in (narrow, wide):
        batch = ReplayBufferEnsemble(member, three[1], sample_from_all=True).sample(6)
        assert isinstance(batch, LazyStackedTensorDict)
        assert batch.batch_size == (2, 3)
        assert batch["action"][..., 0].tolist() == [
            [member[row]["action"].item() for row in batch[0]["index", "index"].tolist()],
            [action(1, row) for row in batch[1]["index", "index"].tolist()],
        ]
    ted = ReplayBufferEnsemble(Dataset(tmp_path / "ted"), three[1], sample_from_all=True)
    assert type(ted.sample(6)) is TensorDict
    assert_true(ted.sample(6))


def test_without_index_there_is_none(three: list[Dataset]) -> None:
    for member in three:
        member.append_transform(lambda batch: batch["action"])
    batch = ReplayBufferEnsemble(*three, sample_from_all=True).sample(6)
    assert batch.shape == (3, 2, 1)
    lists = [ReplayBuffer(ListStorage(4)) for _ in range(2)]
    for number, buffer in enumerate(lists):
        buffer.extend([torch.tensor([float(number), row]) for row in range(3)])
    batch = ReplayBufferEnsemble(*lists, sample_from_all=True).sample(6)
    assert batch[..., 0].tolist() == [[0.0] * 3, [1.0] * 3]
    other = [ReplayBuffer(ListStorage(4)) for _ in range(2)]
    other[0].extend(["a"] * 3)
    other[1].extend(["b"] * 3)
    for members in ([lists[0], three[0]], other):
        with pytest.raises(UsageError, match="cannot be stacked") as caught:
            ReplayBufferEnsemble(*members, sample_from_all=True).sample(4)
        assert "collate_fn" in str(caught.value.hint)


def test_a_member_that_grows_is_sampled_as_it_is_by_then(
    three: list[Dataset], steps: Callable[..., TensorDict]
) -> None:
    ensemble = ReplayBufferEnsemble(three[0], growing(), sample_from_all=True)
    with pytest.raises(UsageError, match="Member 1: Cannot sample from an empty storage") as caught:
        ensemble.sample(4)
    assert "extend" in str(caught.value.hint)
    data = steps([4], first_episode=30).exclude("info", ("next", "info"))
    ensemble[1].extend(data)
    batch = ensemble.sample(8)
    assert isinstance(batch, LazyStackedTensorDict)
    assert torch.equal(batch["action"][1], data["action"][batch["index", "index"][1]])


def test_a_member_with_another_sampler_or_storage_is_followed(three: list[Dataset]) -> None:
    ensemble = ReplayBufferEnsemble(*three, sample_from_all=True)
    ensemble.sample(3)
    ensemble[1].set_sampler(SamplerWithoutReplacement(shuffle=False))
    assert ensemble.sample(9)["index", "index"][1].tolist() == [0, 1, 2]
    three[2].set_storage(three[0].storage)
    assert ensemble.sample(30)["action"][2].min() >= -2006


def test_seeds_decide_everything(folders: list[Path]) -> None:
    def batches(seed: int, prefetch: int | None) -> list[Any]:
        members = [Dataset(folder) for folder in folders]
        torch.randint(9, (seed + 1,))
        generator = torch.Generator().manual_seed(seed)
        options: dict[str, Any] = {"generator": generator, "prefetch": prefetch}
        ensemble = ReplayBufferEnsemble(*members, batch_size=6, **options)
        return [ensemble.sample()["action"].tolist() for _ in range(8)]

    assert batches(1, None) == batches(1, None) == batches(1, 3)
    assert batches(1, None) != batches(2, None)


@pytest.mark.parametrize(
    ("index", "want"),
    [
        (slice(0, 2), [0, 1]),
        ([2, -3], [2, 0]),
        (torch.tensor([1, 1]), [1, 1]),
        ([True, False, True], [0, 2]),
        ((slice(1, 3),), [1, 2]),
    ],
)
def test_several_numbers_are_an_ensemble(three: list[Dataset], index: Any, want: list[int]) -> None:
    ensemble = ReplayBufferEnsemble(*three, p=[0.2, 0.3, 0.5], batch_size=60, prefetch=2)
    ensemble.sample()
    assert ensemble[-1] is ensemble[np.int64(2)] is three[2]
    part = ensemble[index]
    assert isinstance(part, ReplayBufferEnsemble)
    assert part.members == [three[number] for number in want]
    weights = torch.tensor([0.2, 0.3, 0.5])[want]
    torch.testing.assert_close(part.sampler.p, weights / weights.sum())
    batch = part.sample()
    assert batch.batch_size == (len(want), 60 // len(want))
    batch["index", "buffer_ids"].copy_(torch.tensor(want)[batch["index", "buffer_ids"]])
    assert_true(batch)
    assert len(part.writer) == len(part.storage) == len(want)
    assert len(ensemble) == len(ensemble.sampler) == 3
    assert ensemble.sample().batch_size == (3, 20)
    assert ensemble[:] is ensemble[...] is ensemble


def test_rows_of_members(three: list[Dataset]) -> None:
    """Their values are compared with TorchRL's in tests/conformance."""
    ensemble = ReplayBufferEnsemble(*three)
    assert ensemble[1, [0, 8]]["index"].tolist() == [0, 8]
    assert ensemble[..., -1]["index", "index"].tolist() == [9, 29, 59]
    batch = ensemble[[2, 0], [[1, 2], [3, 4]]]
    assert batch["index", "index"].tolist() == [[[1, 2], [3, 4]]] * 2
    assert batch["index", "buffer_ids"].flatten(1)[:, 0].tolist() == [2, 0]
    assert_true(batch)


def test_members_are_written_to(three: list[Dataset], steps: Callable[..., TensorDict]) -> None:
    ensemble = ReplayBufferEnsemble(growing(steps([2])), growing(steps([2])))
    assert ensemble.write_count == 4
    ensemble[1].extend(steps([2]))
    assert ensemble.write_count == ensemble.writer.write_count == 6
    with pytest.raises(ImmutableError, match="immutable"):
        ReplayBufferEnsemble(ensemble[0], three[0]).empty()
    assert len(ensemble[0]) == 2
    ensemble.empty()
    assert (len(ensemble[0]), len(ensemble[1]), ensemble.write_count) == (0, 0, 0)


def test_defaults_of_torchrl_and_the_text_of_an_ensemble(three: list[Dataset]) -> None:
    ReplayBufferEnsemble(*three, shared=False, routing_key=None, routing_dim=None).sample(3)
    assert ReplayBufferEnsemble(three[0]).sample(4).batch_size == (1, 4)
    text = repr(ReplayBufferEnsemble(*three, p=[1, 1, 2]))
    assert text.count("\n    10 steps in 2 episodes\n    features: ") == 1
    assert "p=[0.25, 0.25, 0.5]" in text


def test_samplers_are_replaced_in_members_too(three: list[Dataset]) -> None:
    ensemble = ReplayBufferEnsemble(*three, p=[1, 1, 1])
    before = ensemble.sampler
    old = list(before.samplers)
    samplers = [SamplerWithoutReplacement(shuffle=False) for _ in three]
    returned = ensemble.set_sampler(SamplerEnsemble(*samplers, sample_from_all=True))
    assert returned is before
    assert returned.samplers == old
    assert [member.sampler for member in three] == samplers
    assert ensemble.sample(6)["index", "index"].tolist() == [[0, 1]] * 3


def test_priorities_find_their_members(folders: list[Path]) -> None:
    torch.manual_seed(0)
    members = [
        Dataset(folder, sampler=PrioritizedSampler(99, alpha=1.0, beta=1.0))
        for folder in folders[:2]
    ]
    ensemble = ReplayBufferEnsemble(*members, sample_from_all=True)
    batch, info = ensemble.sample(400, return_info=True)
    assert torch.equal(batch["priority_weight"], info["priority_weight"])
    mine = batch["index", "index"] == torch.tensor([3, 11])[:, None]
    ensemble.update_priority(batch["index"], torch.where(mine, 1.0, 0.0))
    assert ensemble.sample(40)["index", "index"].unique(dim=1).tolist() == [[3], [11]]
    ensemble.update_priority(batch["index"], 1.0)
    assert len(ensemble.sample(400)["index", "index"].unique()) > 20
    with pytest.warns(UserWarning, match="RandomSampler has no priorities"):
        ReplayBufferEnsemble(Dataset(folders[0])).update_priority(batch["index"][:1], 1.0)


@pytest.mark.parametrize(("prefetch", "way"), [(None, "state"), (2, "disk"), (2, "pickle")])
def test_it_resumes_where_it_was(
    folders: list[Path],
    steps: Callable[..., TensorDict],
    tmp_path: Path,
    prefetch: int | None,
    way: str,
) -> None:
    def make() -> Any:
        dataset = Dataset(folders[0], sampler=SamplerWithoutReplacement(seed=1))
        buffer = ReplayBuffer(LazyTensorStorage(50), sampler=RandomSampler(seed=2))
        samplers = SamplerEnsemble(dataset.sampler, buffer.sampler, seed=3)
        ensemble = ReplayBufferEnsemble(dataset, buffer, batch_size=4, prefetch=prefetch)
        ensemble.set_sampler(samplers)
        return ensemble

    first, second = make(), make()
    first[1].extend(steps([4, 2], first_episode=40))
    for _ in range(3):
        first.sample()
    state = first.state_dict()
    assert set(state["sampler"]) == {"generator"}  # each part is in it once
    assert state["writer"] == {}
    assert len(state["members"]) == 2
    if way == "disk":
        first.dumps(tmp_path / "state")
        second.loads(tmp_path / "state")
    elif way == "state":
        second.load_state_dict(state)
    else:
        data = pickle.dumps(first)
        assert len(data) < 40_000
        second = pickle.loads(data)  # noqa: S301
        assert second.members[0].sampler is second.sampler[0]
    assert (len(second[1]), second.write_count) == (6, 6)
    for _ in range(6):
        one, other = first.sample(), second.sample()
        assert one["index", "buffer_ids"].tolist() == other["index", "buffer_ids"].tolist()
        assert one["action"].tolist() == other["action"].tolist()


MISSION = ("observation", "mission")
WORDS = (["open", "close"], ["close", "open"], ["open", "close"])
"""In the order of their codes, of each member: a code of the second means another word."""


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    for number, words in enumerate(WORDS):
        toy = toy_batch([4, 3], first_episode=10 * number)
        missions = np.array([words[row % 2] for row in range(9)], object)
        observations: Any = {**toy.observations, MISSION: missions}
        write_toy(tmp_path / str(number), [replace(toy, observations=observations)])
    return [tmp_path / str(number) for number in range(3)]


def test_codes_of_different_vocabularies_are_refused(texts: list[Path]) -> None:
    ensemble = ReplayBufferEnsemble(*map(Dataset, texts), batch_size=6)
    said = "'observation/mission' has codes of different vocabularies in members 0 and 1"
    views = ReplayBufferEnsemble(*(Dataset(folder).subset([0, 3]) for folder in texts))
    takes: list[Callable[[], Any]] = [
        ensemble.sample,
        lambda: ensemble[:, 0],
        lambda: ensemble[:2].sample(6),
        lambda: views.sample(6),
    ]
    for take in takes:
        with pytest.raises(UsageError, match=said) as error:
            take()
        assert "keys=" in str(error.value.hint)
    same = ensemble[[0, 2]]
    batch = same.sample(6)
    for part in range(2):
        member = same[int(batch["index", "buffer_ids"][part, 0])]
        rows = member[batch["index", "index"][part]]
        decoded = member.decode(MISSION, batch[MISSION][part])
        assert decoded == member.decode(MISSION, rows[MISSION])
    assert ensemble[1].sample(3).batch_size == (3,)
    decoded = [Dataset(folder, decode_text=True) for folder in texts]
    for part in ReplayBufferEnsemble(*decoded).sample(6).unbind(0):
        member = decoded[int(part["index", "buffer_ids"][0])]
        assert list(part[MISSION]) == list(member[part["index", "index"]][MISSION])
    some = [Dataset(folder, keys=["action", "observation.state"]) for folder in texts]
    assert ReplayBufferEnsemble(*some).sample(6)["action"].shape == (3, 2, 1)
    lists = ReplayBufferEnsemble(*map(Dataset, texts), collate_fn=list)
    assert all(isinstance(part[MISSION], torch.Tensor) for part in lists.sample(6))
