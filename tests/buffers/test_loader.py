"""torch's `DataLoader`, as people write it, and `ds.dataloader`: order, shares, epochs, resuming."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler, Subset, default_collate, random_split

from offline_data.base.errors import UsageError
from offline_data.buffers.dataset import Dataset
from offline_data.rows.derived import return_to_go
from offline_data.rows.storage import DatasetStorage
from offline_data.torchrl.storages import LazyTensorStorage
from offline_data.torchrl.tensordict_buffer import TensorDictReplayBuffer

from .conftest import flat, in_processes, rows

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:.*use of fork\\(\\)"),  # torch has one thread here
]


@pytest.fixture
def ds(forty: Path) -> Dataset:
    return Dataset(forty)


@pytest.fixture
def gaps(toys: Callable[..., Path]) -> Dataset:
    """Ten transitions; what follows rows 5 and 9, which are truncated, is not known."""
    return Dataset(toys([2, 4, 2, 2], unknown_final=(1, 3)))


def assert_true_rows(batch: Any) -> None:
    """Every value of a batch tells its row: see `toy_batch`."""
    code = batch["observation", "state"]
    assert torch.equal(batch["action"], -code[:, :1])
    after = batch["next", "observation", "state"]
    assert torch.equal(after, code + 1)
    assert torch.allclose(batch["next", "reward"], after[:, :1].double() / 10)


WAYS: dict[str, Callable[[Any], DataLoader[Any]]] = {
    "as people write it": lambda ds: DataLoader(ds, batch_size=7, shuffle=True),
    "in order": lambda ds: DataLoader(ds, 7),
    "workers": lambda ds: DataLoader(ds, 7, True, num_workers=2, multiprocessing_context="fork"),
    "their collate": lambda ds: DataLoader(ds, 7, True, collate_fn=torch.nn.Identity()),
    "their collate in workers": lambda ds: DataLoader(
        ds, 7, True, num_workers=2, multiprocessing_context="fork", collate_fn=torch.nn.Identity()
    ),
    "stacked": lambda ds: DataLoader(ds, 7, True, collate_fn=torch.stack),
    "a subset": lambda ds: DataLoader(Subset(ds, range(40)), 7, shuffle=True),
    "ours": lambda ds: ds.dataloader(7),
    "our workers": lambda ds: ds.dataloader(7, num_workers=2, multiprocessing_context="fork"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_row_once(ds: Any, way: str) -> None:
    loader = WAYS[way](ds)
    assert len(loader) == 6
    torch.manual_seed(0)
    first, second = list(loader), rows(loader)
    for batch in first:
        assert_true_rows(batch)
    for found in (rows(first), second):
        assert [len(batch) for batch in found] == [7] * 5 + [5]
        assert sorted(flat(found)) == list(range(40))
    assert (rows(first) != second) == (way != "in order")


def test_a_batch_is_one_gather(ds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = []
    gather = DatasetStorage.gather

    def counting(self: Any, numbers: torch.Tensor) -> Any:
        gathered.append(len(numbers))
        return gather(self, numbers)

    monkeypatch.setattr(DatasetStorage, "gather", counting)
    list(DataLoader(ds, batch_size=16, shuffle=True))
    assert gathered == [16, 16, 8]


def test_stacking_the_rows_of_a_batch_is_that_batch(ds: Any) -> None:
    rows = ds.__getitems__([3, 30, 3])
    ways: list[Any] = [torch.stack(rows), torch.stack(rows, 0), default_collate(rows)]
    for stacked in ways:
        assert type(stacked) is TensorDict
        assert stacked["index"].tolist() == [3, 30, 3]
        assert stacked["action"].data_ptr() == rows["action"].data_ptr()  # not row by row
    twice: Any = torch.stack([rows, rows], 1)
    assert twice["action"].shape == (3, 2, 1)
    one_by_one: Any = torch.stack([ds[3], ds[30], ds[3]])
    assert torch.equal(ways[0]["action"], one_by_one["action"])


def test_views_derived_leaves_and_transforms(ds: Any) -> None:
    parts = random_split(ds, [30, 10])
    assert len(flat(rows(DataLoader(parts[1], 4)))) == 10
    view: Any = Dataset(ds.data_path, derived=return_to_go()).episodes_at([2, 0])
    view.append_transform(lambda batch: batch.set("twice", 2 * batch["action"]))
    for loader in (DataLoader(view, 5), view.dataloader(5, shuffle=False)):
        batch = next(iter(loader))
        assert batch["dataset_index"].tolist() == [10, 11, 12, 13, 14]
        assert torch.equal(batch["twice"], 2 * batch["action"])
        assert batch["return_to_go"].shape == (5, 1)


def test_what_a_transform_makes_of_rows_is_collated_by_torch(ds: Any) -> None:
    ds.append_transform(lambda td: (td["observation", "state"][..., 0], td["action"]))
    codes, actions = next(iter(DataLoader(ds, batch_size=4)))
    assert codes.tolist() == [1001, 1002, 1003, 1004]
    assert actions.tolist() == [[-1001], [-1002], [-1003], [-1004]]


def test_growing_buffers_and_tensordicts_of_others(steps: Callable[..., TensorDict]) -> None:
    buffer: Any = TensorDictReplayBuffer(LazyTensorStorage(50))
    buffer.extend(steps([9, 3]))
    for batch in DataLoader(buffer, batch_size=6):
        assert_true_rows(batch)
    some = default_collate([TensorDict({"a": torch.tensor(one)}, []) for one in (3, 4)])
    assert some["a"].tolist() == [3, 4]


def test_rows_without_a_next_observation(gaps: Any) -> None:
    assert gaps.valid_rows.tolist() == [0, 1, 2, 3, 4, 6, 7, 8]
    assert sorted(flat(rows(gaps.dataloader(3)))) == gaps.valid_rows.tolist()
    with pytest.warns(UserWarning, match="for 2 of them the next observation"):
        assert len(flat(rows(DataLoader(gaps, 4)))) == 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        some = DataLoader(Subset(gaps, gaps.valid_rows.tolist()), 4, shuffle=True)
        assert sorted(flat(rows(some))) == gaps.valid_rows.tolist()


def epochs(loader: Any) -> Iterator[list[list[int]]]:
    while True:
        yield rows(loader)


@pytest.mark.slow
def test_epochs_differ_whatever_the_workers(ds: Any) -> None:
    alone = list(islice(epochs(ds.dataloader(8, seed=3)), 3))
    assert alone[0] != alone[1] != alone[2]
    assert alone != list(islice(epochs(ds.dataloader(8)), 3))
    for options in ({}, {"persistent_workers": True}):
        workers: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork", **options}
        loader = ds.dataloader(8, seed=3, **workers)
        torch.manual_seed(0)
        assert rows(loader) == alone[0]
        torch.manual_seed(0)
        assert rows(loader) == alone[1]
        loader.sampler.set_epoch(0)
        assert rows(loader) == alone[0]
    assert rows(ds.dataloader(8, shuffle=False)) == [
        list(range(n, min(n + 8, 40))) for n in range(0, 40, 8)
    ]


@pytest.mark.slow
def test_spawned_workers(ds: Any) -> None:
    alone = list(islice(epochs(ds.dataloader(8)), 2))
    spawned = ds.dataloader(8, num_workers=2, multiprocessing_context="spawn")
    assert list(islice(epochs(spawned), 2)) == alone
    plain = DataLoader(ds, 8, num_workers=1, multiprocessing_context="spawn")
    assert flat(rows(plain)) == list(range(40))
    assert len(pickle.dumps(ds.dataloader(8))) < 20_000


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_resuming(ds: Any, workers: int) -> None:
    def make() -> Any:
        context = "fork" if workers else None
        return ds.dataloader(7, num_workers=workers, multiprocessing_context=context)

    whole = list(islice(epochs(make()), 3))
    for taken in (0, 1, 4, 6):
        loader = make()
        rows(loader)
        began = rows(islice(loader, taken))
        assert began == whole[1][:taken]
        other = make()
        other.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))  # noqa: S301
        expected = [whole[1][taken:], whole[2]] if 0 < taken < 6 else [whole[1 + taken // 6]]
        assert list(islice(epochs(other), len(expected))) == expected
    other.load_state_dict(loader.state_dict() | {"epoch": 2, "batch": 3})
    other.set_epoch(2)  # as Lightning does after it has loaded the state
    assert rows(other) == whole[2][3:]


def test_a_state_brings_its_seed_and_fits_batches_that_begin_there(ds: Any) -> None:
    loader = ds.dataloader(6, seed=3)
    whole = flat(rows(loader))
    following = flat(rows(loader))

    def resumed(batch: int, size: int, **options: Any) -> list[int]:
        other = ds.dataloader(size, **options)
        other.load_state_dict(loader.state_dict() | {"epoch": 0, "batch": batch})
        found = flat(rows(other))
        assert flat(rows(other)) == following
        return found

    assert resumed(4, 6) == resumed(4, 8) == resumed(4, 12, seed=9) == whole[24:]
    assert resumed(0, 7, shuffle=False) == whole
    shares = []
    for rank in range(2):
        other = ds.dataloader(4, rank=rank, world=2)
        other.load_state_dict(loader.state_dict() | {"epoch": 0, "batch": 4})
        shares.append(rows(other))
    assert sorted(flat(shares[0]) + flat(shares[1])) == sorted(whole[24:])
    none_left = ds.dataloader(24, drop_last=True)
    none_left.load_state_dict(loader.state_dict() | {"epoch": 0, "batch": 4})
    assert flat(rows(none_left)) == following[:24]


@pytest.mark.parametrize("world", [1, 2, 3, 7, 45])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 3, 8, 50])
def test_shares_of_ranks(ds: Any, world: int, drop_last: bool, size: int) -> None:
    def loader(rank: int) -> Any:
        return ds.dataloader(size, drop_last=drop_last, rank=rank, world=world)

    if drop_last and size * world > 40:
        with pytest.raises(
            UsageError, match=rf"40 rows does not fill {world} batch(es)? of {size}"
        ):
            loader(0)
        return
    shares = [rows(loader(rank)) for rank in range(world)]
    lengths = [[len(batch) for batch in share] for share in shares]
    assert all(one == lengths[0] for one in lengths)
    assert len(lengths[0]) == len(loader(0))
    every = sorted(row for share in shares for row in flat(share))
    if drop_last:
        assert len(every) == len(set(every)) == 40 // (size * world) * size * world
        assert set(lengths[0]) == {size}
    else:
        assert set(every) == set(range(40))
        assert len(every) == -(-40 // world) * world
    together = rows(ds.dataloader(size * world))
    for number in range(40 // (size * world)):
        assert sorted(together[number]) == sorted(flat([share[number] for share in shares]))


def train_in_rank(path: Path, store: str, rank: int) -> Any:
    """Train as DDP users do: the loader asks `torch.distributed` which share this is."""
    ds = Dataset(path)
    loader = ds.dataloader(6)  # before the group is there, as Lightning's users have it
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    seen = []
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            (model(batch["observation", "state"]) - batch["action"]).square().mean().backward()
            optimizer.step()
            seen.append(batch["index"].tolist())
    plain: Any = DistributedSampler(ds, seed=4)  # type: ignore[arg-type]
    theirs = rows(DataLoader(ds, 6, sampler=plain))  # type: ignore[arg-type]
    found = len(loader), seen, theirs, [p.tolist() for p in model.parameters()]
    distributed.barrier()
    distributed.destroy_process_group()
    return found


@pytest.mark.slow
def test_two_ranks_of_ddp(ds: Any, tmp_path: Path) -> None:
    work = partial(train_in_rank, ds.data_path, f"file://{tmp_path / 'store'}")
    (count, one, one_plain, weights), (_, other, other_plain, same) = in_processes(2, work)
    assert weights == same
    assert count == 4
    assert list(map(len, one)) == list(map(len, other)) == [6, 6, 6, 2] * 2
    for epoch in (slice(4), slice(4, 8)):
        assert sorted(flat(one[epoch]) + flat(other[epoch])) == list(range(40))
    assert one[:4] != one[4:]
    assert sorted(flat(one_plain) + flat(other_plain)) == list(range(40))
