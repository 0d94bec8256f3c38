from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from offline_data.base.errors import ImmutableError, NotFoundError, UsageError
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.writers import ImmutableDatasetWriter
from offline_data.episode import Key
from offline_data.rows.samplers import RandomSampler, Sampler, SamplerWithoutReplacement

INVALID = 9


def rows(batch: Any) -> list[int]:
    found: list[int] = batch["index"].tolist()
    return found


def test_transitions_without_a_known_next_are_not_drawn(compact: Path) -> None:
    one_epoch = SamplerWithoutReplacement(seed=0)
    ds = BaseDatasetExperienceReplay(compact, 4, sampler=one_epoch)
    assert sorted(row for batch in ds for row in rows(batch)) == [*range(9), 10]
    every = SamplerWithoutReplacement(seed=0, valid_only=False)
    ds = BaseDatasetExperienceReplay(compact, 4, sampler=every)
    assert sorted(row for batch in ds for row in rows(batch)) == list(range(11))


def test_iteration_ends_with_the_epoch_and_begins_the_next(compact: Path) -> None:
    sampler = SamplerWithoutReplacement(seed=1)
    ds = BaseDatasetExperienceReplay(compact, 4, sampler=sampler)
    first, second = ([rows(batch) for batch in ds] for _ in range(2))
    assert [len(batch) for batch in first] == [len(batch) for batch in second] == [4, 4, 2]
    assert first != second
    assert sampler.epoch == 2
    head = [rows(batch) for batch in itertools.islice(ds, 1)]  # left early, it goes on
    rest = [rows(batch) for batch in ds]
    assert sorted(itertools.chain(*head, *rest)) == [*range(9), 10]


def test_prefetching_needs_one_batch_size(compact: Path) -> None:
    with pytest.raises(UsageError, match="prefetch needs a batch_size"):
        BaseDatasetExperienceReplay(compact, prefetch=2)
    ds = BaseDatasetExperienceReplay(compact, 3, prefetch=2)
    assert ds.sample().batch_size == ds.sample(3).batch_size == (3,)
    with pytest.raises(UsageError, match="batches of 3 are prefetched"):
        ds.sample(4)


EVERY = list(range(11))


@pytest.mark.parametrize(
    ("index", "want"),
    [
        (3, 3),
        (-1, 10),
        (np.int32(3), 3),
        (torch.tensor(-2), 9),
        (slice(None), EVERY),
        (..., EVERY),
        (slice(8, None), [8, 9, 10]),
        (slice(-2, None), [9, 10]),
        (slice(None, None, -1), EVERY[::-1]),
        (slice(4, 0, -2), [4, 2]),
        (slice(20, 30), []),
        ([], []),
        ([0, -2], [0, 9]),
        ((1, 1), [1, 1]),
        (range(2, 4), [2, 3]),
        ([[0, 1], [4, -5]], [[0, 1], [4, 6]]),
        (torch.tensor([2, -3], dtype=torch.int16), [2, 8]),
        (np.array([4, 0], np.uint8), [4, 0]),
        ([True, *[False] * 9, True], [0, 10]),
        (torch.arange(11) % 5 == 0, [0, 5, 10]),
        (np.zeros(11, bool), []),
    ],
)
def test_an_index_means_what_it_means_to_numpy(
    ds: BaseDatasetExperienceReplay, truth: dict[Key, NDArray[Any]], index: Any, want: Any
) -> None:
    batch = ds[index]
    assert batch["index"].tolist() == want
    shape = np.shape(want)
    assert batch.batch_size == shape
    assert batch["next", "bonus"].shape == (*shape, 2, 3)
    reward = truth["next", "reward"][np.array(want, dtype=int)]
    np.testing.assert_array_equal(batch["next", "reward"].numpy(), reward)


def test_an_index_that_is_none(ds: BaseDatasetExperienceReplay) -> None:
    missing: list[Any] = [11, -12, [0, 11], torch.tensor([-12]), np.array([99]), [True, False]]
    for index in missing:
        with pytest.raises(IndexError, match="11"):
            ds[index]
    for name in ("nothing", ("next", "nothing")):
        with pytest.raises(KeyError, match="nothing"):
            ds[name]
    wrong: list[Any] = [None, 1.5, [0.5], object()]
    for index in wrong:
        with pytest.raises(UsageError):
            ds[index]
    mine = torch.tensor([1, 2])
    ds[mine]["index"].fill_(0)
    assert mine.tolist() == [1, 2]


def test_a_leaf_of_all_rows_reads_no_other(toys: Callable[..., Path], tmp_path: Path) -> None:
    folder = shutil.copytree(toys([6, 2], layout="ted"), tmp_path / "copy")
    whole = BaseDatasetExperienceReplay(folder)[:]
    ds = BaseDatasetExperienceReplay(folder)
    shutil.rmtree(folder / "ted" / "observation")
    for key in ("action", ("next", "reward")):
        assert torch.equal(ds[key], whole[key])
    with pytest.raises(NotFoundError):
        ds["observation"]


def test_collate_then_transforms_in_order(compact: Path) -> None:
    calls: list[str] = []

    def step(name: str) -> Any:
        def called(batch: Any) -> Any:
            calls.append(name)
            return batch

        return called

    ds = BaseDatasetExperienceReplay(
        compact, 2, collate_fn=step("collate"), transform=step("first")
    )
    assert ds.append_transform(step("last")) is ds
    ds.insert_transform(0, step("front"))
    ds.sample()
    ds[0]
    assert calls == ["collate", "front", "first", "last"] * 2
    with pytest.raises(UsageError, match="immutable"):
        ds.append_transform(len, invert=True)
    with pytest.raises(UsageError, match="is not callable"):
        ds.append_transform("scale")  # type: ignore[arg-type]


def test_samplers_and_writers_in_every_form(compact: Path) -> None:
    for given in (RandomSampler, RandomSampler(), lambda: SamplerWithoutReplacement(seed=1)):
        ds = BaseDatasetExperienceReplay(compact, 2, sampler=given)
        assert isinstance(ds.sampler, Sampler)
        ds.sample()
    writer = ImmutableDatasetWriter()
    assert BaseDatasetExperienceReplay(compact, writer=writer).writer is writer
    for wrong in ("random", 3, dict):
        with pytest.raises(UsageError, match="not a sampler of this package"):
            BaseDatasetExperienceReplay(compact, sampler=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not a writer of this package"):
        BaseDatasetExperienceReplay(compact, writer=object())  # type: ignore[arg-type]


def test_a_sampler_of_ones_own(compact: Path) -> None:
    class Evens(Sampler):
        def sample(self, storage: Any, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
            self.ran_out = True
            return torch.arange(0, len(storage), 2)[:batch_size], {"kind": "even"}

    ds = BaseDatasetExperienceReplay(compact, 3, sampler=Evens())
    assert [rows(batch) for batch in ds] == [[0, 2, 4]]
    assert ds.sample(return_info=True)[1]["kind"] == "even"


def test_batch_sizes(compact: Path) -> None:
    ds = BaseDatasetExperienceReplay(compact, 4)
    assert (ds.batch_size, len(ds), len(ds.sample()), len(ds.sample(7))) == (4, 11, 4, 7)
    ds = BaseDatasetExperienceReplay(compact)
    calls: list[Callable[[], Any]] = [ds.sample, lambda: next(iter(ds))]
    for call in calls:
        with pytest.raises(UsageError, match=r"(?i)batch_size (was )?not specified"):
            call()
    with pytest.raises(UsageError, match="at least 1"):
        BaseDatasetExperienceReplay(compact, -1)
    with pytest.raises(UsageError, match="at least 1"):
        ds.sample(0)
    with pytest.raises(UsageError, match="prefetch"):
        BaseDatasetExperienceReplay(compact, 2, prefetch=-1)


def test_nothing_can_be_written(ds: BaseDatasetExperienceReplay) -> None:
    batch = ds[:2]
    attempts: list[Callable[[], Any]] = [
        lambda: ds.add(batch[0]),
        lambda: ds.extend(batch),
        lambda: ds.__setitem__(0, batch[0]),
        lambda: ds.writer.add(batch),
    ]
    for attempt in attempts:
        with pytest.raises(ImmutableError) as caught:
            attempt()
        assert "transform=" in str(caught.value.hint)
