"""Loaders in other people's loops: Accelerate, Hugging Face's Trainer, Lightning, Ray Train, torchdata."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader, SequentialSampler

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import UsageError
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.mixtures.dataset_mixture import DatasetMixture
from offline_data.buffers.streaming import StreamingDataset
from tests.toys.sharded import write_toy_shards

from .conftest import ROWS, assert_goes_on, flat, in_processes, rows

pytestmark = pytest.mark.filterwarnings("ignore")  # of those libraries


@pytest.fixture
def ds(forty: Path) -> Dataset:
    return Dataset(forty)


def numbers(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def as_torchrun_does(work: Callable[[], Any], world: int, port: int, rank: int) -> Any:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return work()


def in_ranks(world: int, work: Callable[[], Any]) -> list[Any]:
    """Run a function in processes as torchrun starts them; return what they returned."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return in_processes(world, partial(as_torchrun_does, work, world, port))


def check_epoch(shares: list[list[list[int]]], size: int) -> None:
    """All rows, each once but for what fills the ranks, in equal numbers of batches."""
    world = len(shares)
    assert {len(share) for share in shares} == {-(-ROWS // (size * world))}
    every = [row for share in shares for row in flat(share)]
    assert set(every) == set(range(ROWS))
    assert len(every) == -(-ROWS // world) * world


def with_accelerate(path: Path, folder: Path, *, stateful: bool) -> Any:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    def prepare() -> tuple[Any, Any]:
        config = DataLoaderConfiguration(use_stateful_dataloader=stateful)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        loader = Dataset(path).dataloader(6, device=accelerator.device)
        return accelerator, accelerator.prepare(loader)

    accelerator, loader = prepare()
    first, part = rows(loader), rows(islice(loader, 2))
    accelerator.save_state(str(folder))
    accelerator, other = prepare()
    accelerator.load_state(str(folder))
    return first, part + rows(other), rows(other)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("stateful", [False, True])
def test_accelerate(forty: Path, tmp_path: Path, world: int, stateful: bool) -> None:
    pytest.importorskip("accelerate")
    if stateful:
        pytest.importorskip("torchdata")
    work = partial(with_accelerate, forty, tmp_path / "state", stateful=stateful)
    epochs = list(zip(*in_ranks(world, work), strict=True))
    for shares in epochs:
        check_epoch(list(shares), 6)
    assert epochs[0] != epochs[1] != epochs[2]


def test_trainer_of_hugging_face(ds: Any, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    seen: list[int] = []

    class Policy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(3, 1)

        def forward(self, index: Any, observation: Any, action: Any, **_rest: Any) -> Any:
            seen.extend(index.tolist())
            loss = (self.net(observation["state"] / 1000) - action / 1000).square().mean()
            return {"loss": loss}

    class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
        def get_train_dataloader(self) -> Any:
            return ds.dataloader(8, collate_fn=offline_data.as_dict)

    arguments = transformers.TrainingArguments(
        str(tmp_path), num_train_epochs=2, use_cpu=True, report_to=[], save_strategy="no"
    )
    trainer = Trainer(Policy(), arguments, train_dataset=ds)
    assert trainer.train().global_step == 10
    assert sorted(seen) == sorted([*range(ROWS)] * 2)


def test_two_ranks_of_lightning(ds: Any, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Policy(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(3, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            place = tmp_path / f"{self.current_epoch}-{self.global_rank}-{number:03}"
            place.write_bytes(pickle.dumps(batch["index"].tolist()))
            return (self.net(batch["observation", "state"]) - batch["action"]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-9)

    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar"), False
    )
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=2, strategy="ddp_fork", **quiet
    )
    trainer.fit(Policy(), ds.dataloader(6))
    for epoch in range(2):
        places = [sorted(tmp_path.glob(f"{epoch}-{rank}-*")) for rank in range(2)]
        check_epoch([[pickle.loads(p.read_bytes()) for p in share] for share in places], 6)  # noqa: S301


def with_ray(config: dict[str, Any]) -> None:
    from ray import train
    from ray.train.torch import prepare_data_loader

    loader = prepare_data_loader(Dataset(config["path"]).dataloader(6))
    rank = train.get_context().get_world_rank()
    Path(config["out"], str(rank)).write_bytes(pickle.dumps(rows(loader)))


@pytest.mark.ray
@pytest.mark.slow
def test_two_workers_of_ray_train(forty: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray.train", exc_type=ImportError)
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    TorchTrainer(
        with_ray,
        train_loop_config={"path": str(forty), "out": str(tmp_path)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path / "ray")),
    ).fit()
    check_epoch([pickle.loads((tmp_path / str(rank)).read_bytes()) for rank in range(2)], 6)  # noqa: S301


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 1, 4, 7, 8], ids=str)
def test_stateful_loaders_of_torchdata(ds: Any, workers: int, taken: int) -> None:
    """`taken`: batches of 7 before the state is saved; 8: after the iteration has ended."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def make() -> Any:
        loader = ds.dataloader(6, multiprocessing_context="fork" if workers else None, num_workers=workers)  # fmt: skip
        return stateful(
            loader.dataset,
            batch_size=None,
            sampler=loader.sampler,
            collate_fn=partial(TensorDict.get, key="index"),
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )

    assert_goes_on(make, numbers, taken, count=3)


@pytest.mark.slow
@pytest.mark.usefixtures("shardtoy")
@pytest.mark.parametrize("left", [1, 7])
def test_stateful_loaders_over_a_stream(tmp_path: Path, left: int) -> None:
    """Of a rank whose workers end at different times and repeat rows."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    write_toy_shards(tmp_path / "shards", "sharded-7x3")

    def make() -> Any:
        settings = Settings(tmp_path / "root")
        ranks: dict[str, Any] = {"rank": 1, "world": 2, "seed": 2, "source": "shardtoy"}
        stream = StreamingDataset(
            tmp_path / "shards", 2, window_bytes=300, settings=settings, **ranks
        )
        workers: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
        return stateful(stream, batch_size=None, collate_fn=torch.nn.Identity(), **workers)

    assert_goes_on(make, rows, len(rows(make())) - left)


@pytest.mark.parametrize("kind", ["dataset", "mixture"])
@pytest.mark.parametrize("taken", [0, 1, 6, 7, 8])
def test_the_sampler_takes_its_own_state(ds: Any, kind: str, taken: int) -> None:
    def make() -> Any:
        buffer = ds if kind == "dataset" else DatasetMixture(ds, weights="steps", exact=True)
        return buffer.dataloader(6).sampler

    whole, other = assert_goes_on(make, numbers, taken)
    assert other.state_dict() == whole.state_dict()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [None, offline_data.as_dict, lambda batch: [batch["action"]]])
@pytest.mark.parametrize("device", [None, "meta"])
def test_collate_and_device(ds: Any, collate: Any, device: Any, workers: int) -> None:
    """`collate_fn` gets the batch, in the worker; then what it returns is moved."""
    loader = ds.dataloader(
        6, collate_fn=collate, device=device, num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )  # fmt: skip
    batch = next(iter(loader))
    expected = torch.device(device or "cpu")
    if collate is None:
        assert isinstance(batch, TensorDict)
        assert batch["action"].device == expected
    elif collate is offline_data.as_dict:
        assert type(batch) is type(batch["next"]) is dict
        assert batch["next"]["reward"].shape == (6, 1)
        assert batch["next"]["reward"].device == expected
    else:
        assert [leaf.device for leaf in batch] == [expected]


TAKEN_APART: dict[str, Callable[[Any], Any]] = {
    "rows": lambda loader: DataLoader(loader.dataset),
    "batches": lambda loader: DataLoader(loader.dataset, 6),
    "no batch size": lambda loader: DataLoader(loader.dataset, batch_size=loader.batch_size),
    "another sampler": lambda loader: DataLoader(
        loader.dataset, batch_size=None, sampler=SequentialSampler(loader.dataset)
    ),
    "workers": lambda loader: DataLoader(
        loader.dataset, 6, num_workers=1, multiprocessing_context="fork"
    ),
}


@pytest.mark.parametrize("way", TAKEN_APART)
@pytest.mark.parametrize("kind", ["dataset", "mixture"])
def test_a_loader_that_is_taken_apart(ds: Any, way: str, kind: str) -> None:
    buffer = ds if kind == "dataset" else DatasetMixture(ds, ds)
    batches = iter(TAKEN_APART[way](buffer.dataloader(6)))
    with pytest.raises(UsageError, match="made a loader of its own of"):
        next(batches)
    getattr(batches, "_shutdown_workers", int)()  # left to the garbage collector, it takes 5 s


def test_its_dataset_is_the_buffer_otherwise(ds: Any) -> None:
    loader = ds.dataloader(6)
    assert len(loader.dataset) == ROWS
    assert loader.dataset.metadata == ds.metadata
    parts = {"sampler": loader.sampler, "collate_fn": loader.collate_fn}
    again = DataLoader(loader.dataset, batch_size=None, **parts)
    assert sorted(flat(rows(again))) == list(range(ROWS))
