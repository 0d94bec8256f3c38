"""Digests of values, and of batches that samplers, buffers, mixtures and loaders give by seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

import offline_data as od
from offline_data.testing.toy import toy_batch, write_toy

Digests = dict[str, str]


def digest(values: Any) -> str:
    """Return dtype, shape and digest of an array, a tensor, or a list."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray) and values.dtype != object:
        content = np.ascontiguousarray(values).tobytes()
        kind = f"{values.dtype} {list(values.shape)}"
    else:
        listed = values.tolist() if hasattr(values, "tolist") else list(values)
        content, kind = repr(listed).encode(), f"list [{len(listed)}]"
    return f"{kind} {hashlib.sha256(content).hexdigest()[:16]}"


def of_batch(batch: Any) -> Digests:
    """Return the digest of each leaf of a TensorDict."""
    leaves = batch.items(include_nested=True, leaves_only=True)
    names = {"/".join((key,) if isinstance(key, str) else key): value for key, value in leaves}
    return {name: digest(_data(name, names[name])) for name in sorted(names)}


def _data(name: str, value: Any) -> Any:
    if name == "priority_weight":  # powers differ between processors in the last bit
        return value.round(decimals=4)
    return getattr(value, "data", value) if not isinstance(value, torch.Tensor) else value


def _toy(folder: Path, name: str = "toy", first: int = 0) -> Any:
    path = folder / "root" / "local" / name / "1"
    if not path.exists():
        lengths = [7, 3, 12, 1, 9, 5][first:]
        write_toy(path, [toy_batch(lengths)], dataset=f"local:{name}@1", audit="none")
    return path


def _loaded(
    folder: Path, sampler: Any = None, name: str = "toy", first: int = 0, **options: Any
) -> Any:
    _toy(folder, name, first)
    options.setdefault("batch_size", 6)
    return od.load_dataset(
        f"local:{name}", root=folder / "root", download=False, sampler=sampler, **options
    )


def _draws(buffer: Any, count: int = 4, **options: Any) -> Digests:
    """Return digests of batches drawn one after another from seed 5."""
    torch.manual_seed(5)
    found: Digests = {}
    for number in range(count):
        batch = buffer.sample(**options)
        batch = batch[0] if isinstance(batch, tuple) else batch
        found |= {f"{number} {name}": value for name, value in of_batch(batch).items()}
    return found


def samplers() -> dict[str, Callable[[], Any]]:
    """Return what makes each sampler."""
    return {
        "default": lambda: None,
        "RandomSampler": od.RandomSampler,
        "SamplerWithoutReplacement": od.SamplerWithoutReplacement,
        "SamplerWithoutReplacement, in order": lambda: od.SamplerWithoutReplacement(shuffle=False),
        "PrioritizedSampler": lambda: od.PrioritizedSampler(37, alpha=0.7, beta=0.9),
        "SliceSampler": lambda: od.SliceSampler(
            num_slices=2, end_key=("next", "done"), strict_length=False
        ),
        "SliceSamplerWithoutReplacement": lambda: od.SliceSamplerWithoutReplacement(
            num_slices=2, end_key=("next", "done"), strict_length=False
        ),
        "PrioritizedSliceSampler": lambda: od.PrioritizedSliceSampler(
            37, alpha=0.7, beta=0.9, num_slices=2, end_key=("next", "done"), strict_length=False
        ),
        "RandomSampler, seeded": lambda: od.RandomSampler(seed=3),
        "SamplerWithoutReplacement, drop_last": lambda: od.SamplerWithoutReplacement(
            drop_last=True, seed=3
        ),
        "SliceSampler over starts": lambda: od.SliceSampler(slice_len=3, over="starts", **_ENDS),
        "SliceSampler with a span": lambda: od.SliceSampler(slice_len=3, span=(1, 2), **_ENDS),
        "SliceSampler, padded": lambda: od.SliceSampler(
            slice_len=3, pad_output=True, strict_length=False, **_ENDS
        ),
        "SliceSamplerWithoutReplacement, in order": lambda: od.SliceSamplerWithoutReplacement(
            slice_len=3, shuffle=False, strict_length=False, **_ENDS
        ),
    }


_ENDS: dict[str, Any] = {"end_key": ("next", "done")}


def on_dataset(name: str, folder: Path) -> Digests:
    """Return the batches that a sampler draws from a dataset."""
    return _draws(_loaded(folder, samplers()[name]()))


def growing(name: str, folder: Path) -> Digests:
    """Return the batches that a sampler draws from a buffer that was written over once."""
    found = [_growing(name, storage, folder) for storage in STORAGES]
    assert found[1:] == found[:-1], f"{name} draws other rows from other storages"
    return found[0]


STORAGES = ("LazyTensorStorage", "LazyMemmapStorage", "ListStorage")


def _growing(name: str, storage: str, folder: Path) -> Digests:
    make: dict[str, Callable[[], Any]] = {
        "LazyTensorStorage": lambda: od.LazyTensorStorage(29),
        "LazyMemmapStorage": lambda: od.LazyMemmapStorage(29, scratch_dir=str(folder / "memmap")),
        "ListStorage": lambda: od.ListStorage(29),
    }
    buffer = od.TensorDictReplayBuffer(
        storage=make[storage](), sampler=samplers()[name](), batch_size=6
    )
    data = _loaded(folder)[:].exclude("index")
    rows = TensorDict(data.to_dict(), [len(data)])
    for start in range(0, len(rows), 20):
        buffer.extend(rows[start : start + 20])
    return _draws(buffer)


_GOALS = ("current", "final", "future", "geometric", "episode", "random")


def _relabel(strategy: Any) -> Any:
    goal, achieved = ("observation", "goal"), ("observation", "state")
    goals = partial(od.relabel, strategy, 1.0, goal_key=goal, achieved_key=achieved)
    return goals(terminate=True, gamma=0.8, seed=4)


DERIVED: dict[str, Callable[[], Any]] = {
    "n_step": lambda: od.n_step(3, gamma=0.9),
    "frame_stack": lambda: od.frame_stack(3),
    "return_to_go": lambda: od.return_to_go(gamma=0.9),
    "timestep": lambda: od.timestep(),
    "normalize": lambda: od.normalize("observation"),
    "action_chunk": lambda: od.action_chunk(3),
    "return_to_go, undiscounted": lambda: od.return_to_go("rtg"),
    "normalize by quantile": lambda: od.normalize("observation", by="quantile"),
    "delta_timestamps": lambda: od.delta_timestamps(
        {"action": [-0.1, 0.0, 0.2], "observation.state": [0.0, 0.1]}, fps=10
    ),
    **{f"relabel {name}": partial(_relabel, name) for name in _GOALS},
    "relabel, mixed": lambda: _relabel({"future": 0.5, "random": 0.3, "current": 0.2}),
}
TOGETHER: dict[str, Callable[[], Any]] = {
    "n_step of 1, frames, chunks": lambda: [
        od.n_step(1),
        od.frame_stack(2, cat_dim=0, pad="zero"),
        od.action_chunk(4, pad="zero"),
    ],
    "normalize, then frames": lambda: [od.frame_stack(2), od.normalize("observation", eps=0.0)],
}
"""Functions that are applied one after another."""


def derived(name: str, folder: Path) -> Digests:
    """Return batches of a dataset with a derived leaf."""
    return _draws(_loaded(folder, derived={**DERIVED, **TOGETHER}[name]()), 2)


def _pair(folder: Path) -> list[Any]:
    return [_loaded(folder), _loaded(folder, name="other", first=2)]


def _iterated(batches: Any, count: int = 6) -> Digests:
    found: Digests = {}
    for number, batch in zip(range(count), batches, strict=False):
        found |= {f"{number} {name}": value for name, value in of_batch(batch).items()}
    return found


MIXED: dict[str, Callable[[Path], Digests]] = {
    "DatasetMixture": lambda to: _draws(
        od.DatasetMixture(*_pair(to), weights=[0.3, 0.7], batch_size=6)
    ),
    "ReplayBufferEnsemble": lambda to: _draws(
        od.ReplayBufferEnsemble(*_pair(to), batch_size=6, p=[0.4, 0.6])
    ),
    "ReplayBufferEnsemble of parts": lambda to: _draws(
        od.ReplayBufferEnsemble(*_pair(to), batch_size=6)
    ),
    "dataloader": lambda to: _iterated(_loaded(to).dataloader(5, seed=3)),
    "dataloader of a mixture": lambda to: _iterated(
        od.DatasetMixture(*_pair(to), weights=[0.3, 0.7], batch_size=6).dataloader(5, seed=3)
    ),
    "split": lambda to: {
        f"{part} {name}": value
        for part, view in _loaded(to).split(train=0.6, val=0.4, seed=3).items()
        for name, value in of_batch(view[:]).items()
    },
}
"""What draws from several datasets, or through a loader."""

CASES: dict[str, Callable[[Path], Digests]] = {
    **{f"dataset, {name}": partial(on_dataset, name) for name in samplers()},
    **{f"growing, {name}": partial(growing, name) for name in samplers()},
    **{f"derived, {name}": partial(derived, name) for name in (*DERIVED, *TOGETHER)},
    **{f"mixed, {name}": make for name, make in MIXED.items()},
}
"""What draws the batches of each name, in a folder of its own."""
