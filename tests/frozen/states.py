"""States of samplers, buffers, mixtures, loaders and streams, saved by an earlier version, and what follows.

`python -m tests.frozen.states FOLDER` writes datasets and states of the present version: what changes of
them gets a folder `formatN`, beside those of earlier versions, which stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import offline_data as od
from offline_data.testing.toy import toy_batch
from tests.frozen.loading import epochs, mixture_of
from tests.frozen.values import Digests, digest, samplers
from tests.frozen.values import _draws as draws
from tests.toys.stored import write_stored

LENGTHS = (7, 3, 12, 1, 9, 5)


@dataclass(frozen=True)
class Kind:
    """What has a state: how it is made in a root, used before it is saved, and used after."""

    make: Callable[[Path], Any]
    use: Callable[[Any], Digests]


def stored(root: Path, name: str = "compact", **options: Any) -> Any:
    """Return a dataset of the root."""
    options = {"batch_size": 6, "root": root, "download": False, **options}
    return od.load_dataset(f"local:{name}", **options)


def _pair(root: Path) -> list[Any]:
    return [stored(root), stored(root, "ted")]


def _grown(root: Path, name: str) -> Any:
    buffer = od.TensorDictReplayBuffer(
        storage=od.LazyTensorStorage(29), sampler=samplers()[name](), batch_size=6
    )
    rows = stored(root, keys=["action", ("next", "reward"), ("next", "done")])[:]
    buffer.extend(rows.exclude("index"))
    return buffer


def _two(batches: Any) -> Digests:
    """Use two batches of an iterable."""
    for _ in islice(iter(batches), 2):
        pass
    return {}


def _stream(root: Path, **options: Any) -> Any:
    return od.StreamingDataset("local:compact", 4, seed=2, window_bytes=300, root=root, **options)


def _loader(data: Any, **options: Any) -> Any:
    return data.dataloader(5, seed=3, **options)


SAMPLERS = [name for name in samplers() if "," not in name and " " not in name]
KINDS: dict[str, Kind] = {
    **{
        f"dataset, {name}": Kind(
            partial(lambda to, of: stored(to, sampler=samplers()[of]()), of=name), draws
        )
        for name in SAMPLERS
    },
    **{f"growing, {name}": Kind(partial(_grown, name=name), draws) for name in SAMPLERS},
    "mixture": Kind(lambda to: mixture_of(_pair(to), weights=[0.3, 0.7]), draws),
    "mixture, exact": Kind(lambda to: mixture_of(_pair(to), exact=True, seed=1), draws),
    "ensemble": Kind(lambda to: od.ReplayBufferEnsemble(*_pair(to), batch_size=6), draws),
    "loader": Kind(lambda to: _loader(stored(to)), epochs),
    "loader, rank 1 of 2": Kind(lambda to: _loader(stored(to), rank=1, world=2), epochs),
    "loader of a mixture": Kind(lambda to: _loader(mixture_of(_pair(to))), epochs),
    "stream": Kind(_stream, epochs),
    "stream, slices": Kind(lambda to: _stream(to, slice_len=2, strict_length=False), epochs),
}
"""What is saved in the middle of its use: by `dumps`, or by `torch.save` of its `state_dict()`."""


def resume(name: str, folder: Path) -> dict[str, Any]:
    """Load a state that was saved; return the same as it is saved now, and the batches that follow."""
    kind = KINDS[name]
    one = kind.make(folder / "root")
    if isinstance(one, od.TensorDictReplayBuffer):
        one.loads(place(folder, name))
    else:
        one.load_state_dict(torch.load(place(folder, name), weights_only=True))
    torch.manual_seed(5)
    return {"state": _plain(one.state_dict()), "batches": kind.use(one)}


def _plain(state: Any) -> Any:
    """Return a state with digests in place of tensors."""
    if isinstance(state, Mapping):
        return {str(key): _plain(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [_plain(value) for value in state]
    return digest(state) if isinstance(state, torch.Tensor) else state


def place(folder: Path, name: str) -> Path:
    """Return the file, or folder, of a state."""
    return folder / "states" / name.replace(", ", "-").replace(" ", "_")


def write(folder: Path) -> None:
    """Write datasets, a saved view and states; what follows them is the same here and where they are loaded."""
    for name in ("compact", "ted"):
        batch = toy_batch(LENGTHS, text=True)
        write_stored(folder / "root", f"local:{name}@1", batch, layout=name)
    stored(folder / "root").filter("length > 4").save("long")
    (folder / "states").mkdir()
    for name, kind in KINDS.items():
        one = kind.make(folder / "root")
        (draws if kind.use is draws else _two)(one)
        if isinstance(one, od.TensorDictReplayBuffer):
            one.dumps(place(folder, name))
        else:
            torch.save(one.state_dict(), place(folder, name))
        if kind.use is not draws:  # an iteration ended: `loading.resumed` compares these
            continue
        assert kind.use(one) == resume(name, folder)["batches"], (
            f"{name} gives other batches where it is resumed"
        )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
