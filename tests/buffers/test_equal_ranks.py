"""Streams of several ranks: equal numbers of batches, whatever their shards, workers and form."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed

from offline_data.base.config import Settings
from offline_data.base.errors import NotFoundError
from offline_data.buffers.streaming import StreamingDataset, dataset
from offline_data.rows.derived import action_chunk, n_step, return_to_go
from tests.slow import every, slow_but
from tests.toys.sharded import write_toy_shards

from .conftest import assert_goes_on, in_processes

pytestmark = pytest.mark.usefixtures("shardtoy")

FORMS: dict[str, dict[str, Any]] = {
    "transitions": {"batch_size": 2},
    "full batches": {"batch_size": 3, "drop_last": True},
    "slices": {"batch_size": 4, "slice_len": 2, "strict_length": False},
    "episodes": {},
}
RESUMED = {
    **FORMS,
    "padded": {"batch_size": 6, "num_slices": 3, "pad": True},
    "derived": {"batch_size": 4, "derived": [n_step(3, 0.5), action_chunk(2), return_to_go()]},
    "in order": {"batch_size": 5, "drop_last": True, "shuffle": False, "window_bytes": 1},
}
COUNTED: dict[str, dict[str, Any]] = {
    "counted0": {},
    "counted1": {"rank": 1, "world": 3},
    "counted2": {"batches_per_epoch": 30},
}
QUICK = {
    "derived": "counted0",
    "padded": "counted1",
    "transitions": "counted2",
}
"""What is counted in the default run, for some forms."""
NAME = "sharded-7x3"  # of 6 to 9 rows


@pytest.fixture
def stream(tmp_path: Path) -> Callable[..., StreamingDataset]:
    def make(name: str = NAME, **options: Any) -> StreamingDataset:
        if not (tmp_path / name).exists():
            write_toy_shards(tmp_path / name, name)
        options = {"window_bytes": 300, "source": "shardtoy", **options}
        return StreamingDataset(tmp_path / name, settings=Settings(tmp_path / "root"), **options)

    return make


def read(
    make: Callable[..., StreamingDataset],
    monkeypatch: pytest.MonkeyPatch,
    world: int,
    workers: int,
    **options: Any,
) -> list[list[list[int]]]:
    """Return the rows of each batch of an epoch, for each rank, whose workers take turns."""
    shares = []
    for rank in range(world):
        batches: list[list[int]] = []
        for worker in range(max(workers, 1)):
            info = SimpleNamespace(id=worker, num_workers=workers, seed=worker) if workers else None
            monkeypatch.setattr(dataset, "get_worker_info", lambda info=info: info)
            with make(rank=rank, world=world, **options) as one:
                batches += [batch["index"].tolist() for batch in one]
        shares.append(batches)
    return shares


@pytest.mark.parametrize(("world", "workers", "form"), every(4, [2, 3], [0, 2, 3], FORMS))
@pytest.mark.filterwarnings("ignore:.*the others have nothing to do")
def test_all_ranks_have_as_many_batches_as_the_longest(
    stream: Any, monkeypatch: pytest.MonkeyPatch, form: str, workers: int, world: int
) -> None:
    options = {**FORMS[form], "shuffle": form != "transitions"}
    alone = read(stream, monkeypatch, world, workers, equal=False, **options)
    shares = read(stream, monkeypatch, world, workers, **options)
    assert {len(share) for share in shares} == {max(map(len, alone))}
    for own, share in zip(alone, shares, strict=True):
        assert set(map(tuple, own)) <= set(map(tuple, share))  # each row once, then some again
        assert set(chain(*share)) == set(chain(*own)) or form in {"slices", "full batches"}


@pytest.mark.parametrize(("count", "workers", "form"), every(4, [1, 5, 40], [0, 2], FORMS))
def test_batches_per_epoch(
    stream: Any, monkeypatch: pytest.MonkeyPatch, form: str, workers: int, count: int
) -> None:
    """Also where the rows of shards are not known, and of a single rank."""
    for world in (1, 2):
        options = {"name": f"{NAME}-unknown", "batches_per_epoch": count, **FORMS[form]}
        shares = read(stream, monkeypatch, world, workers, **options)
        assert [len(share) for share in shares] == [count] * world


def values(batches: Iterable[Any]) -> list[dict[Any, Any]]:
    """Return the values of all leaves of each batch."""
    return [{key: batch[key].tolist() for key in batch.keys(True, True)} for batch in batches]


@pytest.mark.parametrize(
    ("counted", "form"),
    slow_but(lambda counted, form: counted == QUICK.get(form), COUNTED, RESUMED),
)
def test_a_state_gives_the_same_rest(stream: Any, form: str, counted: str) -> None:
    options = {**RESUMED[form], **COUNTED[counted], "seed": 4}
    with ExitStack() as opened:

        def make() -> Any:
            return opened.enter_context(stream(**options))

        length = len(values(make()))
        taken = sorted({*range(0, length, 3), length - 1, length, length + 1})
        whole, other = assert_goes_on(make, values, *taken)
        assert other.state_dict() == whole.state_dict()
        older = make()
        state = {name: value for name, value in whole.state_dict().items() if name != "batches"}
        older.load_state_dict(json.loads(json.dumps(state)))  # of versions that did not count them


def test_what_is_not_known_is_a_warning_under_ddp(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases: dict[bool, list[dict[str, Any]]] = {
        True: [{"name": f"{NAME}-unknown"}, {"name": f"{NAME}-unknown", "slice_len": 1}],
        False: [
            {},
            {"name": f"{NAME}-unknown", "batches_per_epoch": 3},
            {"name": f"{NAME}-unknown", "equal": False},
        ],
    }
    for initialized in (True, False):
        monkeypatch.setattr(
            distributed, "is_initialized", lambda initialized=initialized: initialized
        )
        for expected, several in cases.items():
            for options in several:
                one = stream(batch_size=2, rank=0, world=2, **options)
                with one, warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    list(one), list(one)
                said = [str(warning.message) for warning in caught]
                assert len(said) == (expected and initialized)
                assert all("set batches_per_epoch=" in text for text in said)


def test_ranks_without_rows(stream: Any) -> None:
    options = {"batch_size": 2, "shuffle": False, "rank": 0, "world": 2}
    with (
        stream("sharded-2x3-empty0", **options) as empty,
        pytest.raises(NotFoundError, match="has no batch in an epoch"),
    ):
        next(iter(empty))
    with stream("sharded-2x3-empty0", equal=False, **options) as empty:
        assert list(empty) == []


def train_in_rank(store: str, one: StreamingDataset, rank: int) -> int:
    limit = timedelta(seconds=30)
    distributed.init_process_group("gloo", store, timeout=limit, rank=rank, world_size=2)
    model, steps = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1)), 0
    for _ in range(2):
        for batch in one:
            model(batch["action"]).square().mean().backward()
            steps += 1
    distributed.barrier()
    distributed.destroy_process_group()
    return steps


@pytest.mark.slow  # by default, ranks are counted one after the other, in this process
@pytest.mark.parametrize("options", [{}, {"name": f"{NAME}-unknown", "batches_per_epoch": 7}])
def test_two_ranks_of_ddp_end_together(stream: Any, tmp_path: Path, options: Any) -> None:
    one = stream(batch_size=2, **options)
    work = partial(train_in_rank, f"file://{tmp_path / 'store'}", one)
    first, second = in_processes(2, work)
    assert first == second >= 14
