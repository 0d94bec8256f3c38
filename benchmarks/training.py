"""Training: updates a second, and the share of them that waits for data, with different loaders.

Networks, updates and shapes of batches are the same for all, and every loader's batches are compared with
the arrays by row. All read files in the page cache, as their documentation says:

- this package: `keys` of the update alone, `SliceSampler`, `frame_stack`;
- TorchRL: a `LazyMemmapStorage` with the leaves of the update alone, and its `SliceSampler`. Returns to go
  and time steps are stored, since a slice does not tell them;
- Minari: a `DataLoader` of 2 workers over episodes, padded by the `collate_fn` of its tutorial. Of 8
  episodes, all steps are drawn once, in random order: rows of a batch are less independent than others';
- rows, as LeRobot's: a `DataLoader` of 2 workers over single rows of memory maps, with windows as of
  `delta_timestamps`.

Buffers, this package's and TorchRL's, prefetch images alone: with threads, small batches took longer.

`no loader` repeats one batch: what remains of the others' time is loading, or processes that load on
the cores that the update needs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from benchmarks.sampling import setting
from benchmarks.sampling_data import OURS, touch
from benchmarks.timing import Row, interleaved
from benchmarks.training_updates import IQL, TD3BC, Batch, Cloning, DecisionTransformer
from offline_data import frame_stack, open_dataset, return_to_go, timestep
from offline_data.episode import EpisodeBatch, Key
from offline_data.raw.npy import read_header
from offline_data.rows.samplers import SliceSampler
from offline_data.testing.toy import write_toy
from tests.toys.minari import ToyEpisode, write_minari

Arrays = Mapping[str, NDArray[Any]]
Batches = Generator[dict[str, Tensor], None, None]
Loader = Callable[[], Batches]

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
WORKERS: dict[str, Any] = {"num_workers": 2, "pin_memory": CUDA, "shuffle": True}
WORKERS["multiprocessing_context"] = "fork"  # importing torchrl makes `spawn` the default
EPISODES = 8
"""Episodes that a worker of Minari's loader reads at a time."""


@dataclass(frozen=True)
class Task:
    """An algorithm, its data, and the batches that it takes."""

    title: str
    algorithm: Callable[..., Any]
    leaves: tuple[str, ...]
    updates: int
    """Measured in a round; a fifth as many come before."""
    batch: int = 256
    offsets: tuple[int, ...] = ()
    """Steps of a window, relative to a row of the batch; empty: the row alone."""
    windowed: tuple[str, ...] = ()
    """Leaves that are windows."""
    shape: tuple[int, ...] = (11,)
    """Shape of an observation."""
    action: int = 3
    rows: int = 1_000_000
    longest: int = 1000
    """Most steps of an episode."""
    prefetch: int | None = None
    """Batches that buffers prepare ahead."""

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """`offsets` as an array."""
        return np.array(self.offsets, np.int64)

    @property
    def padded(self) -> bool:
        """Whether windows begin at any step, and a mask says where they go beyond the episode."""
        return "mask" in self.windowed


TRANSITION = ("observation", "action", "next_observation", "reward", "terminated")
SEQUENCE = ("observation", "action", "return_to_go", "timestep", "mask")
TASKS = (
    Task("TD3+BC, batch 256", TD3BC, TRANSITION, 100),
    Task("IQL, batch 256", IQL, TRANSITION, 100),
    Task(
        *("Decision Transformer, batch 64 × 20 steps", DecisionTransformer, SEQUENCE, 10),
        batch=64,
        offsets=tuple(range(20)),
        windowed=SEQUENCE,
    ),
    Task(
        *("cloning, batch 64 × 4 frames of 84 × 84 × 3", Cloning, ("observation", "action"), 20),
        batch=64,
        offsets=(-3, -2, -1, 0),
        windowed=("observation",),
        shape=(84, 84, 3),
        action=6,
        rows=20_000,
        longest=200,
        prefetch=3,
    ),
)


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Train by every algorithm with every loader; `scale` shrinks data and numbers of updates."""
    print(f"training: {setting()}, device {DEVICE}")
    for whole in TASKS:
        rows = int(whole.rows * max(scale, 0.01))  # enough for batches of whole episodes
        task = replace(whole, rows=rows, updates=max(int(whole.updates * min(scale, 1)), 2))
        place = folder / f"{task.shape[0]}-{rows}"
        if not place.exists():
            write(place, task)
        yield from _rows(task, loaders(place, task), _read(place), repeats)


def _rows(task: Task, opened: Mapping[str, Loader], arrays: Arrays, repeats: int) -> Iterator[Row]:
    first: dict[str, dict[str, Tensor]] = {}
    for name, loader in opened.items():
        first[name] = next(loader())
        check(task, first[name], arrays)

    def repeated() -> Batches:
        while True:
            yield first[OURS]

    torch.manual_seed(0)
    model = task.algorithm(task.shape[-1], task.action, DEVICE)
    every = {**opened, "no loader": repeated}
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in every}
    jobs = {
        name: lambda name=name, loader=loader: seen[name].append(_train(task, model, loader()))
        for name, loader in every.items()
    }
    interleaved(jobs, repeats=repeats, warmup=0)
    seconds = {name: median(took for took, _ in each) for name, each in seen.items()}
    for name, each in seen.items():
        share = median(waited / took for took, waited in each)
        note = f"{1 / seconds[name]:,.1f} updates/s, {share:.1%} waiting"
        yield Row(task.title, name, f"{seconds[name] / seconds[OURS]:.2f}×", note)
    if "Minari" not in opened:
        yield Row(task.title, "Minari", "", "not installed: pip install minari")


def _train(task: Task, model: Any, batches: Batches) -> tuple[float, float]:
    """Return the seconds of an update, and those of them spent in the loader."""
    begin = waited = 0.0
    for count in range(-max(task.updates // 5, 1), task.updates):
        if count == 0:
            begin, waited = perf_counter(), 0.0
        asked = perf_counter()
        batch = next(batches)
        waited += perf_counter() - asked
        model.update({name: leaf.to(DEVICE, non_blocking=True) for name, leaf in batch.items()})
        if CUDA:
            torch.cuda.synchronize()
    took = perf_counter() - begin
    batches.close()  # ends workers, which would load during others' updates
    return took / task.updates, waited / task.updates


def write(folder: Path, task: Task) -> None:
    """Write random episodes in the formats of all loaders but TorchRL's."""
    rng = np.random.default_rng(0)
    ends = np.cumsum(rng.integers(task.longest // 5, task.longest + 1, task.rows))
    ends = np.append(ends[ends < task.rows], task.rows)
    lengths = np.diff(ends, prepend=0)
    episode = np.repeat(np.arange(len(ends)), lengths)
    row, first, last = np.arange(task.rows), (ends - lengths)[episode], ends[episode] - 1
    shape = (task.rows + len(ends), *task.shape)  # each episode has an observation after its end
    images = len(task.shape) == 3
    seen = rng.integers(0, 256, shape, np.uint8) if images else rng.random(shape, np.float32)
    reward = rng.integers(0, 256, (task.rows, 1)).astype(np.float32) / 256  # sums are exact
    sums = np.append(0, reward.cumsum(dtype=np.float64))
    flags = np.stack([row == last, row == last])[..., None]
    flags &= np.stack([lengths < task.longest, lengths == task.longest])[:, episode, None]
    arrays: dict[str, NDArray[Any]] = {
        "observation": seen[row + episode],
        "next_observation": seen[row + episode + 1],
        "action": rng.random((task.rows, task.action), np.float32),
        "reward": reward,
        "terminated": flags[0],
        "return_to_go": (sums[last + 1] - sums[row])[:, None].astype(np.float32),
        "timestep": row - first,
        "episode": episode,
        "first": first,
        "last": last,
    }
    steps: dict[Key, NDArray[Any]] = {
        ("action",): arrays["action"],
        ("next", "reward"): reward,
        ("next", "terminated"): flags[0],
        ("next", "truncated"): flags[1],
    }
    whole = EpisodeBatch(lengths, steps, {("observation",): seen}, np.ones(len(ends), bool))
    write_toy(folder / "ours", [whole], audit="none")
    if images:
        del arrays["next_observation"]
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    columns = (steps["action",], *(leaf[:, 0] for leaf in (reward, *flags)))
    episodes = [
        ToyEpisode(seen[begin + e : end + e + 1], *(column[begin:end] for column in columns))
        for e, (begin, end) in enumerate(zip(ends - lengths, ends, strict=True))
    ]
    spaces = {}
    for name, leaf in (("observation", seen), ("action", steps["action",])):
        low, high = np.zeros(leaf.shape[1:]), np.full(leaf.shape[1:], 255)
        box = {"dtype": leaf.dtype.name, "shape": low.shape, "low": low.tolist()}
        spaces[name] = {"type": "Box", **box, "high": high.tolist()}
    raw = {"jpeg_encoding": False, "minari_version": "0.5.2"}  # older ones read no newer files
    write_minari(folder / "train-v0", episodes, metadata=raw, **spaces)  # type: ignore[arg-type]


def _read(folder: Path) -> dict[str, NDArray[Any]]:
    """Map the arrays of a folder; writable, as torch demands of an array that a tensor views."""
    found = {}
    for path in folder.glob("*.npy"):
        with path.open("rb") as file:
            header = read_header(file, where=path.name)
        mapped = np.memmap(path, header.dtype, "c", header.size, header.shape)
        found[path.stem] = np.asarray(mapped)
    return found


def window(offsets: Any, rows: Any, first: Any, last: Any) -> tuple[Any, Any]:
    """Return the rows of windows around `rows` (numpy or torch), and whether they are in the episode.

    Those that are not are the first or last row of the episode.
    """
    wanted = rows[..., None] + offsets
    around = wanted.clip(first[..., None], last[..., None])
    return around, wanted == around


def check(task: Task, batch: Batch, arrays: Arrays) -> None:
    """Raise unless a batch has the leaves of the rows in its `index`."""
    rows = batch["index"].numpy()
    around, inside = window(task.steps, rows, arrays["first"][rows], arrays["last"][rows])
    if task.padded and (batch["mask"].numpy() != inside).any():
        raise AssertionError("mask differs")
    if not task.padded:
        inside[:] = True
    for name in task.leaves:
        if name != "mask":
            wide = name in task.windowed
            wanted = arrays[name][around if wide else rows]
            found = batch[name].numpy()
            if found.dtype != wanted.dtype or found.shape != wanted.shape:
                raise AssertionError(f"{name}: {found.dtype} {found.shape}, not {wanted.shape}")
            kept = inside if wide else slice(None)
            np.testing.assert_array_equal(found[kept], wanted[kept], name)
    if len(rows) != task.batch:
        raise AssertionError(f"{len(rows)} rows, not {task.batch}")


def loaders(folder: Path, task: Task) -> dict[str, Loader]:
    """Open the files of a folder in each way; each call of a loader starts its batches."""
    made = {OURS: _ours(folder / "ours", task), "TorchRL": _torchrl(folder, task)}
    if find_spec("minari"):
        made["Minari"] = partial(_minari, folder, task)
    return {**made, "rows, as LeRobot's": partial(_single_rows, folder, task)}


KEYS = {
    "next_observation": ("next", "observation"),
    "reward": ("next", "reward"),
    "terminated": ("next", "terminated"),
    "mask": ("collector", "mask"),
}
"""Where leaves are in a batch of this package, if not at their name."""


def _ours(path: Path, task: Task) -> Loader:
    derived: list[Any] = []
    options: dict[str, Any] = {"prefetch": task.prefetch, "pin_memory": CUDA}
    keys = [KEYS.get(name, name) for name in task.leaves]
    size = task.batch
    if task.padded:
        size *= len(task.offsets)
        options["sampler"] = SliceSampler(slice_len=len(task.offsets), pad="zero", over="starts")
        derived += [return_to_go(), timestep()]
        keys = ["observation", "action"]
    elif task.offsets:
        derived += [frame_stack("observation", len(task.offsets))]
    ds = open_dataset(path, size, keys=keys, derived=derived, **options)
    touch(ds, len(ds))

    def batches() -> Batches:
        for batch in ds:
            slices = batch.reshape(task.batch, -1) if task.padded else batch
            leaves = {name: slices[KEYS.get(name, name)] for name in task.leaves}
            index = slices["index"]
            yield {**leaves, "index": index[:, 0] if task.padded else index}

    return batches


def _torchrl(folder: Path, task: Task) -> Loader:
    from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
    from torchrl.data import SliceSampler as TorchRLs

    arrays = _read(folder)
    options: dict[str, Any] = {"prefetch": task.prefetch, "pin_memory": CUDA}
    stored = [name for name in task.leaves if name != "mask"]
    names = [*stored, "episode"] if task.offsets else stored
    length = max(len(task.offsets), 1)
    if task.offsets:
        options["sampler"] = TorchRLs(slice_len=length, traj_key="episode", cache_values=True)
    storage = LazyMemmapStorage(task.rows, scratch_dir=folder / task.algorithm.__name__)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=task.batch * length, **options)
    data = {name: torch.from_numpy(arrays[name]) for name in names}
    buffer.extend(TensorDict(data, [task.rows]))
    touch(buffer, task.rows)
    mask = torch.ones(task.batch, length, dtype=torch.bool)  # all slices are in an episode

    def batches() -> Batches:
        while True:
            batch = buffer.sample()
            leaves = {name: batch[name] for name in stored}
            leaves["index"] = batch["index"].flatten()
            if task.offsets:
                for name, leaf in leaves.items():
                    slices = leaf.unflatten(0, (-1, length))
                    wide = name in task.windowed
                    leaves[name] = slices if wide else slices[:, task.offsets.index(0)]
            yield {**leaves, "mask": mask} if task.padded else leaves

    return batches


def collate(episodes: list[Any]) -> dict[str, Tensor]:
    """Pad episodes to the longest, as Minari's tutorial on behavioral cloning does."""
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    padded = {
        name: pad_sequence([torch.as_tensor(getattr(one, name)) for one in episodes], True)
        for name in names
    }
    facts = {"id": [one.id for one in episodes], "length": [len(one) for one in episodes]}
    return {**padded, **{name: torch.tensor(fact) for name, fact in facts.items()}}


def _minari(folder: Path, task: Task) -> Batches:
    from minari import MinariDataset

    begins = torch.from_numpy(np.flatnonzero(_read(folder)["timestep"] == 0))
    episodes: Any = MinariDataset(folder / "train-v0" / "data")
    offsets = torch.from_numpy(task.steps)
    loader = DataLoader(episodes, EPISODES, collate_fn=collate, **WORKERS)
    while True:
        for group in loader:
            rewards, steps = group["rewards"], torch.arange(group["rewards"].shape[1])
            padded = {
                "observation": group["observations"],
                "next_observation": group["observations"][:, 1:],
                "action": group["actions"],
                "reward": rewards[..., None],
                "terminated": group["terminations"][..., None],
                "timestep": steps.expand_as(rewards),
            }
            if task.padded:
                padded["return_to_go"] = rewards.flip(1).cumsum(1).flip(1)[..., None]
            drawn = (steps < group["length"][:, None]).nonzero()
            # As many windows as hold all steps once, or all rows.
            count = len(drawn) // len(task.offsets) if task.padded else len(drawn)
            drawn = drawn[torch.randperm(len(drawn))[: count - count % task.batch]]
            for rows in drawn.split(task.batch) if len(drawn) else ():
                which, step = rows.unbind(1)
                last = group["length"][which] - 1
                around, inside = window(offsets, step, torch.zeros_like(step), last)
                batch = {"index": begins[group["id"][which]] + step, "mask": inside}
                for name in task.leaves:
                    if name != "mask":
                        wide = name in task.windowed
                        at = (which[:, None], around) if wide else (which, step)
                        batch[name] = padded[name][at]
                yield batch


class Rows(Dataset[dict[str, Any]]):
    """Rows of memory-mapped arrays, with windows that end with the episode."""

    def __init__(self, folder: Path, task: Task) -> None:
        self.task, self.arrays = task, _read(folder)

    def __len__(self) -> int:
        return self.task.rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        task, arrays = self.task, self.arrays
        item: dict[str, Any] = {"index": row}
        if task.offsets:
            around, inside = window(
                task.steps, np.int64(row), arrays["first"][row], arrays["last"][row]
            )
        for name in task.leaves:
            if name == "mask":
                item[name] = inside
            else:
                rows = around if name in task.windowed else row
                item[name] = torch.from_numpy(arrays[name][rows])
        return item


def _single_rows(folder: Path, task: Task) -> Batches:
    loader = DataLoader(Rows(folder, task), task.batch, drop_last=True, **WORKERS)
    while True:
        yield from loader
