"""Digests of what loaders, streams, views, arrays and text give by seed, in each process and place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch.utils.data import DataLoader

import offline_data as od
from offline_data.store.arrays import STYLES
from offline_data.testing.toy import write_tokens
from tests.frozen.values import Digests, digest, of_batch, samplers
from tests.frozen.values import _draws as draws
from tests.frozen.values import _loaded as loaded
from tests.frozen.values import _pair as pair
from tests.frozen.values import _toy as toy
from tests.pipeline.record.games import BOX, Game
from tests.toys.rlds import write_toy_rlds


def named(values: dict[str, Any]) -> Digests:
    """Return digests of arrays and batches by name."""
    found: Digests = {}
    for name, value in values.items():
        if hasattr(value, "keys"):
            batch = named(value) if isinstance(value, dict) else of_batch(value)
            found |= {f"{name} {key}": one for key, one in batch.items()}
        else:
            found[name] = digest(value)
    return found


def epochs(loader: Any, count: int = 2) -> Digests:
    """Return the batches of two epochs, a digest for each leaf of all."""
    return joined(batch for _ in range(count) for batch in loader)


def joined(batches: Iterable[Any]) -> Digests:
    """Return how many batches there are, and a digest of each leaf of all of them."""
    found: dict[str, list[str]] = {}
    number = 0
    for number, batch in enumerate(batches, 1):
        for leaf, value in of_batch(batch).items():
            found.setdefault(leaf, []).append(f"{number} {value}")
    return {"batches": str(number)} | {leaf: digest(values) for leaf, values in found.items()}


def resumed(make: Callable[[], Any]) -> Digests:
    """Return the rest of an epoch, and the next one, after a state in its middle."""
    first, second = make(), make()
    batches = iter(first)
    for _ in range(2):
        next(batches)
    second.load_state_dict(first.state_dict())
    found = epochs(second)
    expected = joined(batch for epoch in (batches, first) for batch in epoch)
    assert found == expected, "a loader that resumes gives other batches"
    return found


def replayed(folder: Path, name: str, workers: int) -> Digests:
    """Return two epochs of a `ReplayDataset`, in processes or none."""
    dataset = od.ReplayDataset(loaded(folder, samplers()[name]()), 4, seed=4)
    return epochs(parallel(dataset, workers))


def parallel(dataset: Any, workers: int) -> Any:
    """Return a loader with workers, or the dataset alone."""
    if not workers:
        return dataset
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork"}
    return DataLoader(dataset, batch_size=None, collate_fn=torch.nn.Identity(), **options)


def stream(folder: Path, **options: Any) -> Any:
    """Return a stream of raw files in three shards, whose windows have few episodes."""
    raw = folder / "raw"
    if not raw.exists():
        write_toy_rlds(raw)
    options = {"batch_size": 3, "seed": 2, "window_bytes": 4000, "split": "all", **options}
    return od.StreamingDataset(raw, root=folder / "root", **options)


def streamed(folder: Path, workers: int = 0, count: int = 2, **options: Any) -> Digests:
    """Return two epochs of a stream, pictures as they were read from their files apart."""
    with stream(folder, decode=False, **options) as one:
        return epochs(parallel(one, workers), count)


def saved_view(folder: Path) -> Digests:
    ds = loaded(folder)
    ds.filter("length > 4").save("long")
    return draws(loaded(folder).saved_view("long")) | named({"rows": ds.saved_view("long").rows})


def episodes(folder: Path) -> Digests:
    ds = loaded(folder)
    one = ds.episode(2)
    columns = {f"column {key}": ds.episodes[key] for key in ("length", "return")}
    return named({**columns, "observations": one.observations, **one.to_numpy("observation")})


def arrays(folder: Path, style: Any) -> Digests:
    """Return the arrays of a style; `load_arrays` and `to_numpy` give the same."""
    ds = loaded(folder)
    found = named(od.load_arrays(ds.data_path, style, observation_key="observation/state"))
    assert found == named(ds.to_numpy(style, observation_key=("observation", "state")))
    return found


def prioritized(folder: Path, name: str) -> Digests:
    """Return batches after priorities of some rows were set."""
    ds = loaded(folder, samplers()[name]())
    ds.update_priority(torch.arange(0, 37, 3), torch.arange(13) + 0.5)
    return draws(ds)


def online(folder: Path) -> Digests:
    """Return batches of a dataset and of rows that were written."""
    ds = loaded(folder, derived=od.n_step(2, 0.9))
    both = od.OfflineToOnlineReplayBuffer(
        ds, online_capacity=20, offline_fraction=0.4, batch_size=8
    )
    both.extend(loaded(folder, name="other", first=2)[:].exclude("index", "episode"))
    both.anneal(1, 4)
    return draws(both)


def prefilled(folder: Path) -> Digests:
    buffer = od.TensorDictReplayBuffer(storage=od.LazyTensorStorage(40), batch_size=6)
    return draws(od.prefill_replay_buffer(buffer, loaded(folder), 30, chunk_size=7))


def best(folder: Path) -> Digests:
    """Return what a writer keeps that has a place for the largest values only."""
    writer = od.TensorDictMaxValueWriter(rank_key=("next", "reward"))
    buffer = od.TensorDictReplayBuffer(storage=od.LazyTensorStorage(9), writer=writer, batch_size=6)
    buffer.extend(_rows(folder))
    return draws(buffer)


def _rows(folder: Path) -> TensorDict:
    data = loaded(folder)[:].exclude("index")
    return TensorDict(data.to_dict(), [len(data)])


def flat(folder: Path) -> Digests:
    """Return trajectories split, and flat storage and back."""
    rows = _rows(folder)
    to_flat, to_ted = od.TED2Flat(), od.Flat2TED()
    stored = to_flat(rows.exclude("episode", "info", ("next", "info")))
    split = od.split_trajs(rows, done_key="done")
    return named({"flat": stored, "ted": to_ted(stored), "split": split})


def words(folder: Path) -> Digests:
    """Return documents of tokens, padded, packed, and in a loader."""
    path = write_tokens(folder / "tokens", [[5, 6, 7], [8], [9, 10, 11, 12]], prompts=[1, 0, 2])
    ds = od.open_dataset(path)
    found = {"padded": od.Documents(ds, pad_token=0)[[0, 2]]}
    found["packed"] = od.Documents(ds, packed=True)[[2, 1]]
    leaves = {f"{way} {key}": one[key] for way, one in found.items() for key in one.keys()}  # noqa: SIM118
    return named({name: np.asarray(leaf) for name, leaf in leaves.items()})


def recorded(folder: Path) -> Digests:
    """Return the rows that a recorder wrote."""
    game = Game(observation=BOX, action=spaces.Discrete(4))
    with od.Recorder(game, "mine", root=folder / "root", progress=False) as env:
        env.reset(seed=1)
        for step in range(9):
            *_, terminated, truncated, _ = env.step(step % 4)
            if terminated or truncated:
                env.reset()
    return of_batch(od.open_dataset(env.stored.path)[:])


def mixture(folder: Path, **options: Any) -> Any:
    """Return a mixture of two datasets."""
    return mixture_of(pair(folder), **options)


def mixture_of(members: list[Any], **options: Any) -> Any:
    return od.DatasetMixture(*members, batch_size=6, **options)


def nested(folder: Path) -> Digests:
    inner = mixture(folder, weights=[0.5, 0.5])
    return draws(od.DatasetMixture(inner, loaded(folder), weights=[0.7, 0.3], batch_size=6, seed=2))


def _at_epoch(loader: Any) -> Digests:
    loader.set_epoch(7)
    return epochs(loader, 1)


def _seeded(value: Any) -> Any:
    torch.manual_seed(5)
    return value


def _in_ted(folder: Path) -> Digests:
    path = toy(folder)
    od.convert(path, "ted", layout="ted", root=folder / "root", progress=False)
    return draws(loaded(folder, name="ted"))


CASES: dict[str, Callable[[Path], Digests]] = {
    **{f"arrays, {style}": partial(arrays, style=style) for style in STYLES},
    "loader, in order": lambda to: epochs(loaded(to).dataloader(5, shuffle=False, drop_last=True)),
    "loader, 2 workers": lambda to: epochs(loaded(to).dataloader(5, seed=3, num_workers=2)),
    **{
        f"loader, rank {rank} of 2": partial(
            lambda to, rank: epochs(loaded(to).dataloader(4, seed=3, rank=rank, world=2)), rank=rank
        )
        for rank in (0, 1)
    },
    "loader, resumed": lambda to: resumed(lambda: loaded(to).dataloader(5, seed=3)),
    "loader, set_epoch": lambda to: _at_epoch(loaded(to).dataloader(5, seed=3)),
    "loader of a mixture, rank 1 of 2": lambda to: epochs(
        mixture(to, weights=[0.3, 0.7]).dataloader(4, seed=3, rank=1, world=2)
    ),
    "loader of a mixture, resumed": lambda to: resumed(
        lambda: mixture(to, weights="steps", exact=True).dataloader(5, seed=3)
    ),
    "loader of a view": lambda to: epochs(loaded(to).filter("length > 4").dataloader(5, seed=3)),
    **{
        f"ReplayDataset, {name}, {workers} workers": partial(replayed, name=name, workers=workers)
        for name in ("SamplerWithoutReplacement", "SliceSamplerWithoutReplacement")
        for workers in (0, 2)
    },
    "mixture, exact": lambda to: draws(mixture(to, weights=[0.3, 0.7], exact=True, seed=1)),
    "mixture, episodes": lambda to: draws(mixture(to, weights="episodes", seed=1)),
    "mixture, in order": lambda to: draws(mixture(to, shuffle=False, seed=1)),
    "mixture, derived": lambda to: draws(mixture(to, derived=od.normalize("observation"))),
    "mixture, nested": nested,
    "mixture, arrays": lambda to: named(
        mixture(to).to_numpy("episodes", observation_key=("observation", "state"))
    ),
    "mixture, split": lambda to: named(
        {
            k: part.sample()
            for k, part in _seeded(mixture(to).split(train=0.5, val=0.5, seed=3)).items()
        }
    ),
    "offline to online": online,
    "prefill": prefilled,
    "prefetch": lambda to: draws(loaded(to, prefetch=2)),
    "keys": lambda to: draws(loaded(to, keys=["action", ("next", "reward")])),
    "split_trajs": lambda to: draws(loaded(to, split_trajs=True, batch_size=2)),
    "from the other layout": lambda to: _in_ted(to),
    "views, episodes_at": lambda to: draws(loaded(to).episodes_at([4, 0])),
    "views, subset": lambda to: draws(loaded(to).subset([3, 1, 36, 8])),
    "views, saved": saved_view,
    "views, slices": lambda to: draws(
        loaded(to).filter("length > 4", sampler=samplers()["SliceSampler"]())
    ),
    **{
        f"priorities, {name}": partial(prioritized, name=name)
        for name in ("PrioritizedSampler", "PrioritizedSliceSampler")
    },
    "writer of largest values": best,
    "episodes": episodes,
    "flat": flat,
    "documents": words,
    "recorder": recorded,
    "stream": streamed,
    "stream, in order": partial(streamed, shuffle=False),
    "stream, slices": partial(streamed, slice_len=2, batch_size=4, strict_length=False),
    "stream, whole episodes": partial(streamed, batch_size=None),
    "stream, derived": partial(streamed, derived=od.n_step(2, 0.9)),
    "stream, 2 workers": partial(streamed, workers=2),
    "stream, rank 0 of 2": partial(streamed, rank=0, world=2),
    "stream, rank 1 of 2": partial(streamed, rank=1, world=2, equal=False),
    "stream, resumed": lambda to: resumed(lambda: stream(to, decode=False)),
}
"""What gives the values of each name, in a folder of its own."""
