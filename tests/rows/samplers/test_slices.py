from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from tensordict import TensorDict

from offline_data.buffers.dataset import Dataset
from offline_data.rows.samplers import SliceSampler, SliceSamplerWithoutReplacement
from offline_data.rows.samplers.slices import MASK
from tests.rows.samplers.conftest import Episodes

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=20)
TRUNCATED = ("next", "truncated")


@settings(deadline=None, max_examples=40)
@given(LENGTHS, st.integers(1, 8), st.integers(1, 6), st.sampled_from("sep"), st.integers(0, 99))
def test_slices_follow_their_episode(
    lengths: list[int], slice_len: int, count: int, short: str, seed: int
) -> None:
    """Short episodes are left out (s), taken whole, so that batches are shorter (e), or padded."""
    if short == "s" and max(lengths) < slice_len:
        return
    sampler = SliceSampler(
        slice_len=slice_len, strict_length=short == "s", pad_output=short == "p", seed=seed
    )
    rows, leaves = sampler.sample(Episodes(lengths), count * slice_len)
    assert rows.dtype == torch.int64
    place = [(episode, time) for episode, length in enumerate(lengths) for time in range(length)]
    mask, at = leaves.get(MASK, torch.ones(len(rows), dtype=torch.bool)).tolist(), 0
    for _ in range(count):
        episode, begin = place[int(rows[at])]
        length = min(slice_len, lengths[episode])
        width = slice_len if short == "p" else length
        one = slice(at, at + width)
        steps = [min(step, length - 1) for step in range(width)]
        assert [place[row] for row in rows[one].tolist()] == [(episode, begin + s) for s in steps]
        assert mask[one] == [step < length for step in range(width)]
        assert leaves[TRUNCATED][one].tolist() == [[step == length - 1] for step in range(width)]
        assert leaves["is_init"][one].tolist() == [[step == 0] for step in range(width)]
        at += width
    assert at == len(rows) == len(leaves[TRUNCATED])


def test_starts_are_drawn_as_told(follows: Callable[[ArrayLike, ArrayLike], bool]) -> None:
    storage = Episodes([6, 2, 3, 4])
    by_episode = [1 / 12] * 4 + [0] * 4 + [1 / 3, 0, 0] + [1 / 6] * 2 + [0] * 2
    for over, law in (("episodes", by_episode), ("starts", np.array(by_episode) > 0)):
        sampler = SliceSampler(slice_len=3, seed=0, over=over)  # type: ignore[arg-type]
        starts = sampler.sample(storage, 90_000)[0].reshape(-1, 3)[:, 0]
        assert follows(np.bincount(starts, minlength=15), law)
    # 24 random bits would leave out all but every 64th start of these
    rows, _ = SliceSampler(slice_len=1, seed=0).sample(Episodes([2**30]), 1000)
    assert len(set((rows % 64).tolist())) == 64


def test_episodes_are_looked_at_again_only_when_they_have_changed() -> None:
    storage, sampler = Episodes([3]), SliceSampler(slice_len=3, seed=0)
    sampler.sample(storage, 300)
    assert set(sampler.sample(storage, 300)[0].tolist()) == {0, 1, 2}
    storage.append(50)
    assert int(sampler.sample(storage, 300)[0].max()) > 40
    assert sampler.sampleable(storage, 3) == 49
    assert SliceSampler(slice_len=60).sampleable(storage, 60) == 0


@pytest.mark.parametrize(
    ("options", "truncated", "done"),
    [
        ({}, [0, 1, 1, 1], [1, 1, 1, 1]),
        ({"truncated_key": None}, [0, 0, 1, 0], [1, 0, 1, 1]),
    ],
)
def test_marks_are_added_to_flags(
    options: dict[str, Any], truncated: list[int], done: list[int]
) -> None:
    """Of two slices, `[0, 1]` and `[2, 3]`."""
    flags = {"terminated": [1, 0, 0, 1], "truncated": [0, 0, 1, 0], "done": [1, 0, 1, 1]}
    after = {name: torch.tensor(flag, dtype=torch.bool)[:, None] for name, flag in flags.items()}
    begins = torch.tensor([False, True, False, False])
    sampler = SliceSampler(slice_len=2, seed=0, **options)
    _, leaves = sampler.sample(Episodes([2]), 4)
    batch = TensorDict({"next": after, "is_init": begins}, [4])
    sampler.complete(batch, leaves)
    assert batch["next", "terminated"][:, 0].tolist() == flags["terminated"]
    assert batch["next", "truncated"][:, 0].tolist() == truncated
    assert batch["next", "done"][:, 0].tolist() == done
    assert batch["is_init"].tolist() == [True, True, True, False]


def test_a_batch_without_flags_gets_marks() -> None:
    sampler = SliceSampler(slice_len=2, truncated_key="cut", init_key=None)
    batch = TensorDict({"next": {"terminated": torch.tensor([1, 0, 0, 0]).bool()[:, None]}}, [4])
    sampler.complete(batch, sampler.sample(Episodes([2]), 4)[1])
    assert batch["cut"].tolist() == batch["done"].tolist() == [[False], [True], [False], [True]]
    assert batch["cut"].data_ptr() != batch["done"].data_ptr()
    assert set(batch.keys()) == {"next", "cut", "done"}
    sampler = SliceSampler(slice_len=2)
    sampler.complete(batch, sampler.sample(Episodes([2]), 4)[1])
    assert batch["next", "truncated"][:, 0].tolist() == [False, True, False, True]
    assert batch["next", "done"][:, 0].tolist() == [True, True, False, True]
    sampler = SliceSampler(slice_len=2, truncated_key=("deep", "cut"))
    sampler.complete(batch, sampler.sample(Episodes([2]), 4)[1])
    assert batch["deep", "cut"][:, 0].tolist() == [False, True, False, True]


@settings(deadline=None, max_examples=40)
@given(LENGTHS, st.integers(1, 6), st.integers(1, 5), st.booleans(), st.booleans())
def test_each_episode_that_is_long_enough_once_an_epoch(
    lengths: list[int], slice_len: int, count: int, drop_last: bool, shuffle: bool
) -> None:
    storage = Episodes(lengths)
    enough = [episode for episode, length in enumerate(lengths) if length >= slice_len]
    if not enough or (drop_last and count > len(enough)):
        return
    sampler = SliceSamplerWithoutReplacement(
        slice_len=slice_len, drop_last=drop_last, shuffle=shuffle, seed=0
    )
    full, rest = divmod(len(enough), count)
    sizes = [count * slice_len] * full + [rest * slice_len] * (rest > 0 and not drop_last)
    for epoch in range(3):
        batches = [sampler.sample(storage, count * slice_len)[0].tolist()]
        while not sampler.ran_out:
            batches.append(sampler.sample(storage, count * slice_len)[0].tolist())
        assert [len(batch) for batch in batches] == sizes
        slices = np.concatenate(batches).reshape(-1, slice_len)
        seen = np.searchsorted(np.cumsum([0, *lengths[:-1]]), slices, side="right") - 1
        assert (seen == seen[:, :1]).all()
        assert (np.diff(slices, axis=1) == 1).all()
        assert len(set(seen[:, 0])) == len(seen)
        assert set(seen[:, 0]) <= set(enough)
        assert drop_last or sorted(seen[:, 0]) == enough
        assert shuffle or seen[:, 0].tolist() == enough[: len(seen)]
        assert (sampler.epoch, sampler.position) == (epoch + 1, 0)


def test_an_epochs_slices_do_not_depend_on_the_batches(
    follows: Callable[[ArrayLike, ArrayLike], bool],
) -> None:
    one, other = (SliceSamplerWithoutReplacement(slice_len=2, seed=1) for _ in range(2))
    storage = Episodes([5] * 50)
    in_tens = [row for _ in range(5) for row in one.sample(storage, 20)[0].tolist()]
    in_sevens = [row for _ in range(8) for row in other.sample(storage, 14)[0].tolist()]
    assert in_tens == in_sevens
    storage = Episodes([2, 4, 3])
    sampler = SliceSamplerWithoutReplacement(num_slices=3, seed=0)
    drawn = np.array([sampler.sample(storage, 6)[0].reshape(3, 2)[:, 0] for _ in range(1500)])
    assert follows(np.bincount(drawn.ravel(), minlength=9), [6, 0, 2, 2, 2, 0, 3, 3, 0])
    order = np.searchsorted([0, 2, 6], drawn, side="right") @ [9, 3, 1]
    assert follows(np.unique(order, return_counts=True)[1], [1] * 6)


@pytest.fixture
def folder(toys: Callable[..., Path]) -> Path:
    """Episodes of 5, 1 and 3 steps; what came after the last step of the second is not known."""
    return toys([5, 1, 3], unknown_final=[1])


def test_batches_of_a_dataset(folder: Path) -> None:
    sampler = SliceSampler(slice_len=3, seed=0)
    ds = Dataset(folder, 6, sampler=sampler)
    for _ in range(20):
        batch = ds.sample().reshape(2, 3)
        code = -batch["action"][:, :, 0]
        assert (code.diff(dim=1) == 1).all()
        assert (code // 1000 == code[:, :1] // 1000).all()
        assert (batch["observation", "state"][:, :, 0] == code).all()
        assert batch["next", "done"][:, :, 0].tolist() == [[False, False, True]] * 2
        assert batch["next", "truncated"][:, :, 0].tolist() == [[False, False, True]] * 2
        ended = torch.isin(code, torch.tensor([1005.0, 3003.0]))
        assert (batch["next", "terminated"][:, :, 0] == ended).all()
        assert "is_init" not in batch.keys()  # noqa: SIM118 - a TensorDict
    epochs = SliceSamplerWithoutReplacement(slice_len=3, seed=0)
    ds = Dataset(folder, 3, sampler=epochs)
    for _ in range(2):
        assert sorted(batch["episode"][0].item() for batch in ds) == [0, 2]


def test_the_transition_without_a_known_next_observation(folder: Path) -> None:
    for options, expected in (({}, set(range(9))), ({"valid_only": True}, set(range(9)) - {5})):
        sampler = SliceSampler(slice_len=1, seed=0, **options)  # type: ignore[arg-type]
        rows, _ = sampler.sample(Dataset(folder).storage, 500)
        assert set(rows.tolist()) == expected
    sampler = SliceSampler(slice_len=2, valid_only=True, seed=0)
    starts = sampler.sample(Episodes([3, 1, 4], left_out=[2, 3]), 200)[0].reshape(-1, 2)[:, 0]
    assert set(starts.tolist()) == {0, 4, 5, 6}


ROWS = {
    "one, two and three runs": [*range(9), *range(10, 14), *range(16, 20), 20, 21, 24, 25, 26, 28],
    "in another order": [*range(26, 29), *range(10, 20), *range(20, 25), *range(3, 9), 0, 1],
    "one run each": [*range(2, 9), *range(10, 15), *range(25, 30)],
    "short runs": [0, 2, 4, 5, 6, *range(10, 20), 20, 22, 24, 25, 26],
    "whole, the first twice": [*range(10), *range(10, 20), *range(20, 30), *range(10)],
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("strict", "span"), [(True, 0), (False, 0), (True, 1)])
@pytest.mark.parametrize("valid_only", [True, False])
def test_episodes_of_a_view_of_rows_are_drawn_alike(
    toys: Callable[..., Path],
    follows: Callable[[ArrayLike, ArrayLike], bool],
    rows: str,
    strict: bool,
    valid_only: bool,
    span: int,
) -> None:
    """However many runs they are in; each start of an episode is as likely as its others."""
    ds = Dataset(toys([10, 10, 10], unknown_final=[1, 2]))
    view = ds.subset(ROWS[rows])
    options: dict[str, Any] = {"strict_length": strict, "valid_only": valid_only}
    sampler = SliceSampler(slice_len=2, span=span, seed=1, **options)
    drawn, leaves = sampler.sample(view.storage, 12_000)
    first = drawn[leaves["is_init"][:, 0]]
    episodes = view.storage.episode_rows(view[first]["dataset_episode"])
    pairs = [*zip(episodes.tolist(), drawn_lengths(leaves), first.tolist(), strict=True)]
    known = sorted(set(pairs))
    twice = rows.startswith("whole")
    weights = {0: 2 if twice else 1, 1: 1, 2: 1}
    shares = [sum(w == e for w, *_ in pairs) for e in range(3)]
    assert follows(shares, [weights[e] for e in range(3)])
    if not span:  # else several starts may give the same rows
        for episode in range(3):
            own = [one for one in known if one[0] == episode]
            assert follows([pairs.count(one) for one in own], [1] * len(own))
        once = SliceSamplerWithoutReplacement(slice_len=2, seed=1, **options)
        for _ in range(3):
            drawn, leaves = once.sample(view.storage, 100)
            starts = view[drawn[leaves["is_init"][:, 0]]]["dataset_episode"].tolist()
            assert sorted(starts) == ([0, 0, 1, 2] if twice else [0, 1, 2])


def drawn_lengths(leaves: dict[Any, Any]) -> list[int]:
    begins = leaves["is_init"][:, 0].nonzero()[:, 0]
    lengths: list[int] = np.diff([*begins.tolist(), len(leaves["is_init"])]).tolist()
    return lengths
