"""A mixture as a dataset: loaders that draw by its weights, and every member's episodes once."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.base.errors import UsageError
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.mixtures.dataset_mixture import DatasetMixture
from offline_data.rows.derived import n_step, normalize, return_to_go
from offline_data.rows.samplers import PrioritizedSampler, RandomSampler
from offline_data.store.manifest import dump_manifest
from offline_data.testing.toy import toy_batch, write_toy
from offline_data.torchrl.storages import LazyTensorStorage
from offline_data.torchrl.tensordict_buffer import TensorDictReplayBuffer
from tests import oracles_derived as oracle

from .conftest import ACTIONS, LENGTHS, SIZES, action, assert_rows, leaves

STATE = ("observation", "state")
REWARD = ("next", "reward")


def pairs(batches: Any) -> list[tuple[int, int]]:
    """List source and row of every row of some batches, each compared with its values."""
    found: list[tuple[int, int]] = []
    for batch in batches:
        assert_rows(batch, batch["source"], batch["index"])
        found += zip(batch["source"].tolist(), batch["index"].tolist(), strict=True)
    return found


EVERY = [(member, row) for member, size in enumerate(SIZES) for row in range(size)]


def test_an_epoch_by_steps_and_exact_has_every_row_once(three: list[Dataset]) -> None:
    mixture = DatasetMixture(*three, exact=True)
    loader = mixture.dataloader(7, seed=3)
    first, second = list(loader), list(loader)
    assert [len(batch) for batch in first] == [7] * 14 + [2]
    assert len(loader) == 15
    assert sorted(pairs(first)) == sorted(pairs(second)) == EVERY
    assert pairs(first) != pairs(second)
    for batch in first[:-1]:
        assert (
            abs(batch["source"].bincount(minlength=3) - torch.tensor([0.7, 2.1, 4.2])) <= 2
        ).all()
    ascending = list(mixture.dataloader(7, shuffle=False))
    for member in range(3):
        rows = [row for source, row in pairs(ascending) if source == member]
        assert rows == list(range(SIZES[member]))
    assert sum(map(len, mixture.dataloader(7, drop_last=True))) == 98


@pytest.mark.parametrize("exact", [False, True])
def test_an_epoch_leaves_out_rows_without_a_next_observation(tmp_path: Path, exact: bool) -> None:
    unknown: dict[str, tuple[int, ...]] = {"a": (0, 1), "b": (), "c": (1, 3)}
    for name, episodes in unknown.items():
        write_toy(tmp_path / name, [toy_batch([3, 2, 3, 1], unknown_final=episodes)])
    members = [Dataset(tmp_path / name) for name in unknown]
    loader = DatasetMixture(*members, exact=exact).dataloader(4, shuffle=False)
    rows = {(int(s), int(r)) for b in loader for s, r in zip(b["source"], b["index"], strict=True)}
    lost = [{4}, set(), {4, 8}]  # the last rows of these episodes that were truncated
    kept = {(member, row) for member in range(3) for row in range(9) if row not in lost[member]}
    assert rows == kept if exact else rows <= kept


@pytest.mark.parametrize("exact", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_members_are_drawn_by_the_weights(three: list[Dataset], exact: bool) -> None:
    inner = DatasetMixture(*three[1:], weights=[3, 1])
    mixture = DatasetMixture(three[0], inner, weights=[0.5, 0.5], exact=exact)
    assert mixture.source_shares() == (0.5, 0.375, 0.125)
    drawn = pairs(itertools.chain(*(mixture.dataloader(20, seed=seed) for seed in range(40))))
    counts = np.bincount([source for source, _ in drawn], minlength=3)
    assert counts.sum() == 4000
    assert (
        abs(counts - [2000, 1500, 500]) <= (40 if exact else 130)
    ).all()  # at most a row an epoch
    one = pairs(mixture.dataloader(20))
    for member in range(3):  # a member's rows are drawn again when all were
        seen = np.bincount([r for s, r in one if s == member], minlength=SIZES[member])
        assert seen.max() - seen.min() <= 1
    none = DatasetMixture(*three, weights=[1, 0, 1]).dataloader(10)
    assert len(none) == 7
    assert {source for source, _ in pairs(none)} == {0, 2}


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_batches_are_those_of_the_seed_whoever_makes_them(three: list[Dataset], start: str) -> None:
    inner = DatasetMixture(three[1], three[2].episodes_at([5, 1]), weights="equal")
    mixture = DatasetMixture(
        three[0], inner, weights=[1, 2], derived=[return_to_go(), normalize("observation")]
    )
    plain = mixture.dataloader(8, seed=1)
    workers = mixture.dataloader(8, seed=1, num_workers=2, multiprocessing_context=start)
    for _ in range(2):
        for one, other in zip(plain, workers, strict=True):
            assert leaves(one).keys() == leaves(other).keys()
            assert all(torch.equal(leaf, other[key]) for key, leaf in leaves(one).items())
    assert len(pickle.dumps(workers)) < 40_000


def test_a_loader_resumes_and_ranks_share(three: list[Dataset]) -> None:
    for exact in (True, False):
        mixture = DatasetMixture(*three, weights=[1, 2, 3], exact=exact)
        loader = mixture.dataloader(8, seed=5)
        whole = [pairs([batch]) for batch in itertools.chain(loader, loader)]
        before = mixture.dataloader(8, seed=5)
        for number, batch in enumerate(before):
            assert pairs([batch]) == whole[number]
            if number == 4:
                break
        after = mixture.dataloader(8, seed=5)
        after.load_state_dict(before.state_dict())
        assert [pairs([batch]) for batch in itertools.chain(after, after)] == whole[5:]
        ranks = [mixture.dataloader(4, seed=5, rank=rank, world=2) for rank in range(2)]
        for number, batches in enumerate(zip(*ranks, strict=True)):
            assert [len(batch) for batch in batches] in ([4, 4], [2, 2])
            assert sorted(pairs(batches)) == sorted(whole[number])
    mixture.dataloader(4).load_state_dict(before.state_dict() | {"batch": 0})


def test_unshuffled_batches_keep_members_together(three: list[Dataset]) -> None:
    for rank in range(2):
        loader = DatasetMixture(*three, shuffle=False).dataloader(9, rank=rank, world=2)
        for batch in loader:
            assert_rows(batch, batch["source"], batch["index"])
            assert batch["source"].tolist() == sorted(batch["source"].tolist())
            assert len(batch) < 9 or len(batch["source"].unique()) > 1


def test_samplers_and_rows_by_number(three: list[Dataset]) -> None:
    """A loader ignores priorities; rows by number have the leaves of all members."""
    three[0].set_sampler(PrioritizedSampler(100, alpha=0.5, beta=0.5))
    mixture = DatasetMixture(three[0], DatasetMixture(*three[1:], shuffle=False), shuffle=False)
    assert len(pairs(mixture.dataloader(10))) == 100
    source, index = torch.tensor([2, 0, 1, 2, 0]), torch.tensor([59, 3, 7, 0, 9])
    batch = mixture.batch_at(source, index)
    assert pairs([batch]) == list(zip(source.tolist(), index.tolist(), strict=True))
    for wrong in ((3, 0), (-1, 0), (0, 10)):
        with pytest.raises(IndexError):
            mixture.batch_at(*torch.tensor(wrong)[:, None])


def test_a_buffer_that_grows_is_read_by_number(three: list[Dataset]) -> None:
    grown = TensorDictReplayBuffer(LazyTensorStorage(9))
    grown.extend(three[0][:5].exclude("index"))
    mixture = DatasetMixture(three[0], DatasetMixture(grown))
    assert len(mixture.batch_at(torch.tensor([1, 0]), torch.tensor([4, 4]))) == 2


def test_derived_of_the_mixture(three: list[Dataset]) -> None:
    """Each member derives from its own rows, after its own functions; normalize has joint statistics."""
    grown = TensorDictReplayBuffer(LazyTensorStorage(60))
    grown.extend(three[2][:].exclude("index"))
    scale = normalize(["observation"], eps=0)
    inner = DatasetMixture(three[1], grown)
    mixture = DatasetMixture(
        three[0], inner, derived=[n_step(3, 0.5), scale], weights="equal", batch_size=400, seed=0
    )
    codes = np.concatenate([-np.array(ACTIONS[member]) for member in range(2)])
    batch = mixture.sample()
    found = scale.statistics["observation/state"]
    np.testing.assert_allclose(found.mean, [codes.mean()] * 3, rtol=1e-12)
    np.testing.assert_allclose(found.std, [codes.std()] * 3, rtol=1e-12)
    assert "gamma" not in inner.sample(4).keys()  # noqa: SIM118 - the member is as before
    for member, lengths in enumerate(LENGTHS):
        own = batch["source"] == member
        rows = batch["index"][own].numpy()
        bounds = [(stop - n, stop) for n, stop in zip(lengths, np.cumsum(lengths), strict=True)]
        code = -np.array(ACTIONS[member])
        none, known = np.zeros(len(code), bool), [True] * len(lengths)
        want = oracle.n_step((code + 1) / 10, none, none, bounds, known, n=3, gamma=0.5)
        np.testing.assert_allclose(batch[REWARD][own][:, 0], want.reward[rows], rtol=1e-5)
        for key, value in ((STATE, code[rows]), (("next", *STATE), code[want.end[rows]] + 1)):
            np.testing.assert_allclose(
                batch[key][own][:, 0], (value - codes.mean()) / codes.std(), rtol=1e-3, atol=1e-4
            )


def test_functions_of_nested_mixtures_apply_once_from_the_inside_out(three: list[Dataset]) -> None:
    def add(digit: int) -> Any:
        return lambda batch, *_: batch.set(
            "path", 10 * batch.get("path", 0 * batch["index"]) + digit
        )

    first = Dataset(three[0].data_path, derived=add(1))
    inner = DatasetMixture(DatasetMixture(three[1], derived=add(2)), derived=add(3))
    outer = DatasetMixture(first, inner, three[2], derived=add(4), weights="equal", seed=0)
    batch = outer.sample(90)
    assert batch["path"].tolist() == [[14, 234, 4][source] for source in batch["source"].tolist()]
    by_number = outer.batch_at(batch["source"], batch["index"])
    assert torch.equal(by_number["path"], batch["path"])
    assert set(inner.sample(9)["path"].tolist()) == {23}


def test_every_episode_once(three: list[Dataset]) -> None:
    view = three[2].episodes_at([4, 0])
    empty = three[1].episodes_at([])
    mixture = DatasetMixture(
        *(three[0], empty, view),
        weights=[1, 0, 0],
        rename=[{"seen": "observation"}] * 3,
        keys=["seen", "action", "next", "episode"],
        transform=lambda batch: batch.set("twice", 2 * batch["action"]),
    )
    table = mixture.episodes
    want = [(0, 0, 4), (0, 1, 6), (2, 4, 20), (2, 0, 1)]
    assert [*zip(table["source"].tolist(), table["length"].tolist(), strict=True)] == [
        (source, length) for source, _, length in want
    ]
    assert table["id"].tolist() == [100 * source + episode for source, episode, _ in want]
    assert table["return"].tolist() == [*three[0].episodes["return"], *view.episodes["return"]]
    assert table.first.tolist() == [0, 2, 2]
    assert table.where("length > 4 and source == 2").tolist() == [False, False, True, False]
    assert table.rows(3).tolist() == [20]
    assert table.row(-1)["source"] == 2
    for number, episode in enumerate(mixture.iter_episodes()):
        source, own, length = want[number]
        first = sum(LENGTHS[source][:own])
        expected = [action(source, first + step) for step in range(length)]
        assert episode.transitions["action"][:, 0].tolist() == expected
        assert episode.transitions["twice"][:, 0].tolist() == [2 * value for value in expected]
        seen = [*(-value for value in expected), 1 - expected[-1]]
        assert episode.observed("seen.state")[:, 0].tolist() == seen
        assert (episode.number, episode.metadata["source"], episode.length) == (
            number,
            source,
            length,
        )
        assert episode.return_ == pytest.approx(sum(1 - value for value in expected) / 10)
    assert mixture.episode(-2).id == 204


def test_columns_of_text(tmp_path: Path) -> None:
    toy = toy_batch([2, 3])
    extra: Any = {**toy.episodes, ("id",): np.array(["a", "b"], object)}
    write_toy(tmp_path / "d", [replace(toy, episodes=extra)])
    other = Dataset(tmp_path / "d")
    assert DatasetMixture(other, other).episodes["id"] == ["a", "b", "a", "b"]


def test_arrays_of_all_members(three: list[Dataset], tmp_path: Path) -> None:
    mixture = DatasetMixture(three[0], three[2].episodes_at([3]), weights=[9, 1])
    arrays = mixture.to_numpy("episodes")
    first = sum(LENGTHS[2][:3])
    want = [*ACTIONS[0], *ACTIONS[2][first : first + 4]]
    assert arrays["actions"][:, 0].tolist() == want
    assert arrays["observations"][:, 0].tolist() == [-value for value in want]
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"])
    assert ends.tolist() == [3, 9, 13]
    toy = toy_batch([2, 3])
    wide = {**toy.observations, STATE: toy.observations[STATE].astype(np.float64)}
    write_toy(tmp_path / "d", [replace(toy, observations=wide)])
    joined = DatasetMixture(three[0], Dataset(tmp_path / "d"), cast=True).to_numpy()
    assert joined["observations"].dtype == np.float64


def scored(folder: Path, low: float, **changes: Any) -> Dataset:
    """A dataset with reference scores and declared spaces."""
    manifest = write_toy(folder, [toy_batch([3, 2])], dataset=f"local:{folder.name}@1")
    about = {"ref_min_score": low, "ref_max_score": 110.0}
    changed = replace(manifest, about=about, **changes)
    (folder / "manifest.json").write_text(dump_manifest(changed))
    return Dataset(folder)


def test_scores_that_members_agree_on(tmp_path: Path) -> None:
    both = [scored(tmp_path / name, 10) for name in "ab"]
    assert DatasetMixture(*both).normalized_score(60.0) == 0.5


def test_specs_contain_every_member(three: list[Dataset], tmp_path: Path) -> None:
    pytest.importorskip("torchrl")
    box = {"type": "Box", "dtype": "float32", "shape": [1], "low": [-7000.0], "high": [5.0]}
    declared = scored(tmp_path / "a", 0, spaces={"action": box})
    mixture = DatasetMixture(declared, DatasetMixture(*three[1:]), rename=[None, None], seed=0)
    specs = mixture.specs
    assert specs.is_in(mixture.sample(500).exclude("source"))
    lowest, highest = min(min(ACTIONS[1]), min(ACTIONS[2])), 5.0
    assert specs.action.space.low.tolist() == [lowest]
    assert specs.action.space.high.tolist() == [highest]
    assert specs.spaces["action"].origin == "data"
    assert not declared.specs.is_in(three[2][:])
    names: dict[Any, Any] = {"seen": "observation"}
    renamed = DatasetMixture(*three, rename=[names] * 3, keys=["seen", "action", "next.seen"])
    assert set(renamed.specs.observation.keys(True, True)) == {("seen", "state")}
    assert renamed.specs.reward is None
    assert renamed.specs.is_in(renamed.sample(50))
    write_toy(tmp_path / "wide", [toy_batch([3, 2], width=5)])
    with pytest.raises(UsageError, match=r"'observation/state' differs .* \[3\], float32 \[5\]"):
        _ = DatasetMixture(three[0], Dataset(tmp_path / "wide")).specs


def test_split_keeps_proportions_and_leaks_nothing(three: list[Dataset]) -> None:
    long = three[2].filter("length > 1")
    inner = DatasetMixture(three[2], long, weights=[2, 1])
    mixture = DatasetMixture(three[1], inner, weights=[1, 3], exact=True, seed=0, batch_size=12)
    parts = mixture.split(train=0.67, val=0.33, seed=4, batch_size=8)
    numbers: dict[str, list[list[int]]] = {}
    for name, part in parts.items():
        assert (part.batch_size, part.shares) == (8, mixture.shares)
        assert part.members[1].shares == inner.shares
        numbers[name] = [source.episodes.numbers.tolist() for source in part.sources]
        batch = part.sample(12)
        assert batch["source"].bincount(minlength=3)[0] == 3
    own = three[1].split(train=0.67, val=0.33, seed=4)
    assert numbers["train"][0] == own["train"].episodes.numbers.tolist()
    for member, size in ((0, 3), (1, 6)):
        both = numbers["train"][member] + numbers["val"][member]
        assert sorted(both) == list(range(size))
    for name in parts:  # an episode of both members is in one part
        assert set(numbers[name][2]) == set(numbers[name][1]) - {0}
    again = mixture.split(train=0.67, val=0.33, seed=4)["train"]
    assert [source.episodes.numbers.tolist() for source in again.sources] == numbers["train"]
    seeds = mixture.split(train=0.5, val=0.5, sampler=lambda: RandomSampler(seed=1))
    assert all(source.sampler._generator is not None for source in seeds["val"].sources)
    seed = next(
        seed
        for seed in range(20)
        if 0 in three[2].split(a=0.84, b=0.16, seed=seed)["a"].episodes.numbers
    )
    with pytest.raises(UsageError, match=r"b=0.16 has no episode of member 1"):
        DatasetMixture(three[2], three[2].episodes_at([0])).split(a=0.84, b=0.16, seed=seed)
