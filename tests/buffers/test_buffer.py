"""A dataset as a buffer: rows by index, batches, text, episodes, and its directory."""

from __future__ import annotations

import itertools
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tensordict import NonTensorData, NonTensorStack

from offline_data.base.errors import NotFoundError
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.writers import ImmutableDatasetWriter
from offline_data.episode import EpisodeBatch, Key
from offline_data.rows.samplers import RandomSampler, Sampler, SamplerWithoutReplacement


def rows(batch: Any) -> list[int]:
    found: list[int] = batch["index"].tolist()
    return found


def test_transitions_without_a_known_next_are_not_drawn(compact: Path) -> None:
    one_epoch = SamplerWithoutReplacement(seed=0)
    ds = Dataset(compact, 4, sampler=one_epoch)
    assert sorted(row for batch in ds for row in rows(batch)) == [*range(9), 10]
    every = SamplerWithoutReplacement(seed=0, valid_only=False)
    ds = Dataset(compact, 4, sampler=every)
    assert sorted(row for batch in ds for row in rows(batch)) == list(range(11))


def test_iteration_ends_with_the_epoch_and_begins_the_next(compact: Path) -> None:
    sampler = SamplerWithoutReplacement(seed=1)
    ds = Dataset(compact, 4, sampler=sampler)
    first, second = ([rows(batch) for batch in ds] for _ in range(2))
    assert [len(batch) for batch in first] == [len(batch) for batch in second] == [4, 4, 2]
    assert first != second
    assert sampler.epoch == 2
    head = [rows(batch) for batch in itertools.islice(ds, 1)]  # left early, it goes on
    rest = [rows(batch) for batch in ds]
    assert sorted(itertools.chain(*head, *rest)) == [*range(9), 10]


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
    ds: Dataset, truth: dict[Key, NDArray[Any]], index: Any, want: Any
) -> None:
    batch = ds[index]
    assert batch["index"].tolist() == want
    shape = np.shape(want)
    assert batch.batch_size == shape
    assert batch["next", "bonus"].shape == (*shape, 2, 3)
    reward = truth["next", "reward"][np.array(want, dtype=int)]
    np.testing.assert_array_equal(batch["next", "reward"].numpy(), reward)


def test_a_leaf_that_is_not_there(ds: Dataset) -> None:
    for name in ("nothing", ("next", "nothing")):
        with pytest.raises(KeyError, match="nothing"):
            ds[name]


def test_a_leaf_of_all_rows_reads_no_other(toys: Callable[..., Path], tmp_path: Path) -> None:
    folder = shutil.copytree(toys([6, 2], layout="ted"), tmp_path / "copy")
    whole = Dataset(folder)[:]
    ds = Dataset(folder)
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

    ds = Dataset(compact, 2, collate_fn=step("collate"), transform=step("first"))
    assert ds.append_transform(step("last")) is ds
    ds.insert_transform(0, step("front"))
    ds.sample()
    ds[0]
    assert calls == ["collate", "front", "first", "last"] * 2


def test_samplers_and_writers_in_every_form(compact: Path) -> None:
    for given in (RandomSampler, RandomSampler(), lambda: SamplerWithoutReplacement(seed=1)):
        ds = Dataset(compact, 2, sampler=given)
        assert isinstance(ds.sampler, Sampler)
        ds.sample()
    writer = ImmutableDatasetWriter()
    assert Dataset(compact, writer=writer).writer is writer


def test_a_sampler_of_ones_own(compact: Path) -> None:
    class Evens(Sampler):
        def sample(self, storage: Any, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
            self.ran_out = True
            return torch.arange(0, len(storage), 2)[:batch_size], {"kind": "even"}

    ds = Dataset(compact, 3, sampler=Evens())
    assert [rows(batch) for batch in ds] == [[0, 2, 4]]
    assert ds.sample(return_info=True)[1]["kind"] == "even"


def test_batch_sizes(compact: Path) -> None:
    ds = Dataset(compact, 4)
    assert (ds.batch_size, len(ds), len(ds.sample()), len(ds.sample(7))) == (4, 11, 4, 7)
    ds = Dataset(compact, 3, prefetch=2)
    assert ds.sample().batch_size == ds.sample(3).batch_size == (3,)


MISSION = ("observation", "mission")


def test_text_is_codes_that_decode(ds: Dataset, truth: dict[Key, NDArray[Any]]) -> None:
    batch = ds[[0, 9, 4]]
    for key in (MISSION, ("next", *MISSION)):
        assert batch[key].dtype == torch.int32
        assert ds.decode(key, batch[key]) == truth[key][[0, 9, 4]].tolist()
    assert ds.decode("observation.mission", int(batch[MISSION][0])) == truth[MISSION][0]
    assert ds.decode(MISSION, [[-1, 0]]) == [[None, ds.decode(MISSION, 0)]]


def test_text_as_strings(compact: Path, truth: dict[Key, NDArray[Any]]) -> None:
    ds = Dataset(compact, 3, decode_text=True)
    batch = ds[[0, 9, 4]]
    for key in (MISSION, ("next", *MISSION)):
        assert isinstance(batch.get(key), NonTensorStack)
        assert list(batch[key]) == truth[key][[0, 9, 4]].tolist()
    assert isinstance(ds[4].get(MISSION), NonTensorData)
    assert ds[4][MISSION] == truth[MISSION][4]
    grid = ds[[[0, 1], [2, 3]]]
    assert [list(row) for row in grid[MISSION]] == truth[MISSION][:4].reshape(2, 2).tolist()
    assert len(ds.sample()[MISSION]) == 3


def test_episodes_are_columns(ds: Dataset, batch: EpisodeBatch) -> None:
    table = ds.episodes
    assert len(table) == 5
    assert table.start.tolist() == [0, 3, 4, 8, 10]
    assert table["length"].tolist() == [3, 1, 4, 2, 1]
    np.testing.assert_allclose(table["return"], batch.returns)
    assert torch.equal(table.return_, table["return"])
    assert table.terminated.tolist() == [True, False, True, False, True]
    assert table.final_observation.tolist() == [True, True, True, False, False]
    assert table[("seed",)].tolist() == [1, 8, 15, 22, 29]
    assert table.name == [f"episode {e}" for e in range(5)]
    assert "length" in table
    assert "size" not in table
    assert "name" in dir(table)
    assert table.length[ds[[0, 9]]["episode"]].tolist() == [3, 2]
    assert "5 episodes: start" in repr(table)
    with pytest.raises(AttributeError, match="size"):
        _ = table.size


def test_delete_removes_the_directory_and_nothing_else(own_folder: Path) -> None:
    folder, ds = own_folder, Dataset(own_folder, 4)
    assert ds.manifest.id == "local:toy@1"
    assert ds.data_path == ds.data_path_root == folder
    assert ds.metadata["environment"] == {}
    other = Dataset(folder)
    kept, want = ds[:3], other[:]
    beside = folder.parent / "beside"
    beside.mkdir()
    ds.delete()
    assert not folder.exists()
    assert beside.exists()
    assert kept["action"].shape == (3, 1)
    copy = pickle.loads(pickle.dumps(ds))  # noqa: S301
    uses: list[Callable[[], Any]] = [ds.sample, lambda: ds[0], lambda: copy.sample()]
    for use in uses:
        with pytest.raises(NotFoundError, match="deleted"):
            use()
    with pytest.raises(NotFoundError):
        ds.delete()
    with pytest.raises(NotFoundError):
        Dataset(folder)
    assert torch.equal(other[:]["next", "reward"], want["next", "reward"])
