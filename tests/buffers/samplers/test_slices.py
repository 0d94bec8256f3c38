from __future__ import annotations

import pickle
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

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.samplers import SliceSampler, SliceSamplerWithoutReplacement
from offline_data.buffers.samplers.slices import MASK
from offline_data.errors import UsageError
from offline_data.testing.toy import toy_batch, write_toy
from tests.buffers.samplers.conftest import Episodes

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=20)
TRUNCATED = ("next", "truncated")


def place_of(lengths: list[int]) -> list[tuple[int, int]]:
    """Return episode and time of every row."""
    return [(episode, time) for episode, length in enumerate(lengths) for time in range(length)]


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 8), st.integers(1, 6), st.booleans(), st.integers(0, 99))
def test_slices_follow_their_episode(
    lengths: list[int], slice_len: int, count: int, strict: bool, seed: int
) -> None:
    if strict and max(lengths) < slice_len:
        return
    sampler = SliceSampler(slice_len=slice_len, strict_length=strict, seed=seed)
    rows, leaves = sampler.sample(Episodes(lengths), count * slice_len)
    assert rows.dtype == torch.int64
    place = place_of(lengths)
    at = 0
    for _ in range(count):
        episode, begin = place[int(rows[at])]
        length = min(slice_len, lengths[episode])
        expected = [(episode, begin + step) for step in range(length)]
        assert [place[row] for row in rows[at : at + length].tolist()] == expected
        marks = [[step == length - 1] for step in range(length)]
        assert leaves[TRUNCATED][at : at + length].tolist() == marks
        assert leaves["is_init"][at : at + length].tolist() == marks[::-1]
        at += length
    assert at == len(rows) == len(leaves[TRUNCATED])


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 8), st.integers(1, 6), st.integers(0, 99))
def test_padding_repeats_the_last_row(
    lengths: list[int], slice_len: int, count: int, seed: int
) -> None:
    sampler = SliceSampler(num_slices=count, strict_length=False, pad_output=True, seed=seed)
    rows, leaves = sampler.sample(Episodes(lengths), count * slice_len)
    assert leaves[MASK].shape == rows.shape == (count * slice_len,)
    place = place_of(lengths)
    for number in range(count):
        one = slice(number * slice_len, (number + 1) * slice_len)
        episode, begin = place[int(rows[one][0])]
        room = min(slice_len, lengths[episode])
        steps = [min(step, room - 1) for step in range(slice_len)]
        assert [place[row] for row in rows[one].tolist()] == [(episode, begin + s) for s in steps]
        assert leaves[MASK][one].tolist() == [step < room for step in range(slice_len)]
        last = [[step == room - 1] for step in range(slice_len)]
        assert leaves[TRUNCATED][one].tolist() == last
        assert leaves["is_init"][one, 0].tolist() == [True] + [False] * (slice_len - 1)


def starts_drawn(sampler: SliceSampler, storage: Episodes, slices: int, length: int) -> Any:
    rows, _ = sampler.sample(storage, slices * length)
    return np.bincount(rows.reshape(slices, length)[:, 0], minlength=len(storage))


def test_by_default_episodes_are_drawn_uniformly_then_starts(
    follows: Callable[[ArrayLike, ArrayLike], bool],
) -> None:
    law = [1 / 3 / 4] * 4 + [0] * 2 + [0] * 2 + [1 / 3] + [0] * 2 + [1 / 3 / 2] * 2 + [0] * 2
    counts = starts_drawn(SliceSampler(slice_len=3, seed=0), Episodes([6, 2, 3, 4]), 30_000, 3)
    assert follows(counts, law)
    uniform = starts_drawn(
        SliceSampler(slice_len=3, seed=0, over="starts"), Episodes([6, 2, 3, 4]), 30_000, 3
    )
    assert follows(uniform, np.array(law) > 0)
    assert not follows(uniform, law)


def test_a_start_in_a_very_long_episode_may_be_any() -> None:
    """24 random bits would leave out all but every 64th start of these."""
    rows, _ = SliceSampler(slice_len=1, seed=0).sample(Episodes([2**30]), 1000)
    assert len(set((rows % 64).tolist())) == 64


def test_seeds_states_and_copies() -> None:
    storage = Episodes([9, 3, 12])

    def draws(sampler: SliceSampler) -> list[int]:
        return [row for _ in range(5) for row in sampler.sample(storage, 12)[0].tolist()]

    assert draws(SliceSampler(slice_len=3, seed=1)) == draws(SliceSampler(slice_len=3, seed=1))
    assert draws(SliceSampler(slice_len=3, seed=1)) != draws(SliceSampler(slice_len=3, seed=2))
    sampler = SliceSampler(slice_len=3, seed=4)
    draws(sampler)
    copy = pickle.loads(pickle.dumps(sampler))  # noqa: S301
    other = SliceSampler(slice_len=3, seed=9)
    other.load_state_dict(sampler.state_dict())
    rest = draws(sampler)
    assert draws(copy) == draws(other) == rest
    torch.manual_seed(0)
    rest = draws(SliceSampler(slice_len=3))
    torch.manual_seed(0)
    assert draws(SliceSampler(slice_len=3)) == rest


def test_episodes_are_looked_at_once_and_again_when_they_have_changed() -> None:
    storage = Episodes([3])
    sampler = SliceSampler(slice_len=3, seed=0)
    where = sampler.windows_in(storage, 3)
    assert sampler.windows_in(storage, 3) is where
    assert sampler.windows_in(storage, 2) is not where
    sampler.sample(storage, 300)
    storage.append(50)
    rows, _ = sampler.sample(storage, 300)
    assert int(rows.max()) > 40


def test_what_cannot_be_meant_says_so() -> None:
    for wrong, message in (
        ({}, "either num_slices or slice_len"),
        ({"num_slices": 2, "slice_len": 2}, "either num_slices or"),
        ({"slice_len": 0}, "at least 1"),
        ({"slice_len": 2, "pad_output": True}, "pad_output=True"),
        ({"slice_len": 2, "over": "rows"}, "expected 'episodes' or 'starts'"),
        ({"slice_len": 2, "span": (True, False)}, "span"),
        ({"slice_len": 2, "fragmented": True}, "fragmented"),
        ({"slice_len": 2, "ends": torch.tensor([True])}, "ends"),
        ({"slice_len": 2, "slice_length": 3}, "no argument 'slice_length'"),
    ):
        options: dict[str, Any] = wrong
        with pytest.raises(UsageError, match=message):
            SliceSampler(**options)
    with pytest.raises(UsageError, match="must be a multiple of slice_len=4") as caught:
        SliceSampler(slice_len=4).sample(Episodes([9]), 10)
    assert caught.value.hint == "try a batch of 8"
    with pytest.raises(UsageError, match="the longest of 2 has 3"):
        SliceSampler(num_slices=2).sample(Episodes([2, 3]), 8)


def test_arguments_of_torchrl_that_change_nothing() -> None:
    options: dict[str, Any] = {
        "traj_key": "episode",
        "end_key": ("next", "done"),
        "cache_values": True,
    }
    options |= {"compile": True, "use_gpu": False, "span": False}
    plain = SliceSampler(slice_len=2, seed=0).sample(Episodes([9]), 8)[0]
    assert torch.equal(
        SliceSampler(slice_len=2, seed=0, **options).sample(Episodes([9]), 8)[0], plain
    )


def test_replacement_false_is_the_other_sampler() -> None:
    made: Any = SliceSampler(replacement=False, slice_len=2, drop_last=True, seed=3)
    assert isinstance(made, SliceSamplerWithoutReplacement)
    assert (made.drop_last, made.seed, made.slice_len) == (True, 3, 2)


def flags(*names: str, **values: list[bool]) -> TensorDict:
    leaves = {("next", name): torch.tensor(values[name])[:, None] for name in names}
    return TensorDict(leaves, [4])


def completed(batch: TensorDict, **options: Any) -> TensorDict:
    """Mark the two slices `[0, 1]` and `[2, 3]`."""
    sampler = SliceSampler(slice_len=2, seed=0, **options)
    _, leaves = sampler.sample(Episodes([2]), 4)
    sampler.complete(batch, leaves)
    return batch


def test_marks_are_added_to_flags() -> None:
    before = flags(
        "terminated",
        "truncated",
        "done",
        terminated=[True, False, False, True],
        truncated=[False, False, True, False],
        done=[True, False, True, True],
    )
    after = completed(before.clone())["next"]
    assert after["terminated"][:, 0].tolist() == [True, False, False, True]
    assert after["truncated"][:, 0].tolist() == [False, True, True, True]
    assert after["done"][:, 0].tolist() == [True, True, True, True]
    assert (completed(before.clone(), truncated_key=None) == before).all()


def test_a_batch_without_done_gets_one() -> None:
    after = completed(flags("terminated", terminated=[True, False, False, False]))
    assert after["next", "truncated"][:, 0].tolist() == [False, True, False, True]
    assert after["next", "done"][:, 0].tolist() == [True, True, False, True]
    bare = completed(TensorDict({}, [4]), truncated_key="cut")
    assert bare["cut"].tolist() == bare["done"].tolist() == [[False], [True], [False], [True]]
    assert bare["cut"].data_ptr() != bare["done"].data_ptr()
    assert set(bare.keys()) == {"cut", "done"}


def test_beginnings_are_marked_where_a_set_has_them() -> None:
    stored = torch.tensor([False, True, False, False])
    batch = TensorDict({"is_init": stored}, [4])
    assert completed(batch.clone())["is_init"].tolist() == [True, True, True, False]
    left = completed(batch.clone(), init_key=None)
    assert left["is_init"].tolist() == stored.tolist()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Episodes of 5, 1 and 3 steps; what came after the last step of the second is not known."""
    write_toy(tmp_path / "toy", [toy_batch([5, 1, 3], unknown_final=[1])])
    return tmp_path / "toy"


def test_batches_of_a_dataset(folder: Path) -> None:
    sampler = SliceSampler(slice_len=3, seed=0)
    for _ in range(20):
        batch = BaseDatasetExperienceReplay(folder, 6, sampler=sampler).sample().reshape(2, 3)
        code = -batch["action"][:, :, 0]
        assert (code.diff(dim=1) == 1).all()
        assert (code // 1000 == code[:, :1] // 1000).all()
        assert (batch["observation", "state"][:, :, 0] == code).all()
        assert batch["next", "done"][:, :, 0].tolist() == [[False, False, True]] * 2
        assert batch["next", "truncated"][:, :, 0].tolist() == [[False, False, True]] * 2
        ended = torch.isin(code, torch.tensor([1005.0, 3003.0]))
        assert (batch["next", "terminated"][:, :, 0] == ended).all()
        assert "is_init" not in batch.keys()  # noqa: SIM118 - a TensorDict


def test_the_transition_without_a_known_next_observation(folder: Path) -> None:
    def drawn(**options: Any) -> set[int]:
        sampler = SliceSampler(slice_len=1, seed=0, **options)
        return set(sampler.sample(BaseDatasetExperienceReplay(folder).storage, 500)[0].tolist())

    assert drawn() == set(range(9))
    assert drawn(valid_only=True) == set(range(9)) - {5}
