"""Datasets of random episodes, and a storage that grows, to derive leaves from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from offline_data.episode import EpisodeBatch, Key
from offline_data.rows.keys import KeyLike, select_keys
from offline_data.rows.samplers import EpisodeIndex, ValidRows
from offline_data.rows.storage import DatasetStorage
from offline_data.store.layout import LayoutName
from offline_data.testing.toy import toy_batch, write_toy


@dataclass(frozen=True)
class Episode:
    """What an episode of a test is like."""

    length: int
    end: str = "terminated"
    """`terminated`, `truncated`, `both` or `neither`."""
    known: bool = True
    """Whether its final observation is known."""
    middle: int | None = None
    """A step within it that is terminated, although the episode goes on."""


@dataclass
class Set:
    """A dataset, and all that is in it."""

    path: Path
    storage: DatasetStorage
    episodes: list[Episode]
    truth: EpisodeBatch

    def __post_init__(self) -> None:
        self.place = [(e, t) for e, one in enumerate(self.episodes) for t in range(one.length)]
        """Episode and time of each row."""
        self.reward = self.truth.steps["next", "reward"][:, 0]
        self.terminated = self.truth.steps["next", "terminated"][:, 0]
        self.truncated = self.truth.steps["next", "truncated"][:, 0]
        self.known = [one.known for one in self.episodes]
        self.valid = [
            row
            for row, (e, t) in enumerate(self.place)
            if t < self.episodes[e].length - 1 or self.known[e] or self.terminated[row]
        ]
        """Rows whose next observation is known, or terminal."""
        stops = np.cumsum([one.length for one in self.episodes]).tolist()
        self.bounds = list(zip([0, *stops[:-1]], stops, strict=True))
        """First and last row of each episode, as `tests/oracles_derived.py` takes them."""

    @property
    def rows(self) -> int:
        """Number of transitions."""
        return len(self.place)

    def leaf(self, key: tuple[str, ...]) -> Any:
        """What is stored under a key, of all rows, also under `next`."""
        if key in self.truth.steps:
            return self.truth.steps[key]
        if key[0] == "next":
            return self.truth.observations[key[1:]][self.truth.next_rows]
        return self.truth.observations[key][self.truth.root_rows]

    def state(
        self, episode: int, time: int, key: tuple[str, ...] = ("observation", "state")
    ) -> Any:
        """The observation at a time from 0 to `T`."""
        column: NDArray[Any] = self.truth.observations[key]
        return column[int(self.truth.starts[episode]) + episode + time]

    def shuffled(self) -> list[int]:
        """List all rows in another order, and the first one twice."""
        order: list[int] = np.random.default_rng(0).permutation(self.rows).tolist()
        return [*order, 0]

    def gather(self, rows: Any = None) -> tuple[Any, torch.Tensor]:
        """Give a batch of rows (all of them), and the rows."""
        wanted = torch.arange(self.rows) if rows is None else torch.tensor(rows)
        return self.storage.gather(wanted.clone()), wanted

    def derive(self, derived: Any, rows: Any = None) -> Any:
        """Give a batch of rows with what is derived."""
        batch, index = self.gather(rows)
        return derived(batch, index, self.storage)


def _flags(episodes: list[Episode], name: str) -> NDArray[np.bool_]:
    flags = [np.zeros((one.length, 1), bool) for one in episodes]
    for one, column in zip(episodes, flags, strict=True):
        column[-1] = one.end in {name, "both"}
        if name == "terminated" and one.middle is not None:
            column[one.middle % one.length] = True
    return np.concatenate(flags)


def _batch(episodes: list[Episode]) -> EpisodeBatch:
    unknown = [e for e, one in enumerate(episodes) if not one.known]
    toy = toy_batch([one.length for one in episodes], unknown_final=unknown)
    codes = toy.observations["info", "code"].astype(np.float64)
    goals = np.repeat(np.arange(len(episodes)), toy.lengths + 1)
    flags: dict[Key, NDArray[Any]] = {
        ("next", name): _flags(episodes, name) for name in ("terminated", "truncated")
    }
    extra: dict[Key, NDArray[Any]] = {
        ("observation", "achieved_goal"): (codes[:, None] * np.array([1, -1])).astype(np.float32),
        ("observation", "desired_goal"): np.stack([goals + 7e6, goals - 7e6], 1).astype(np.float32),
        ("image",): (codes[:, None, None, None] % 251 * np.ones((2, 3, 4))).astype(np.uint8),
    }
    bonus = toy.steps["next", "reward"].astype(np.int64) * np.array([1, 2])
    steps: dict[Key, NDArray[Any]] = {**toy.steps, **flags, ("next", "bonus"): bonus}
    return replace(toy, steps=steps, observations={**toy.observations, **extra})


EVERY = tuple(
    Episode(length, end, known, middle)
    for length, end, known, middle in product(
        (1, 2, 4), ("terminated", "truncated", "both", "neither"), (True, False), (None, 0)
    )
)
"""Short and long episodes that end in every way, with and without a final observation."""


@dataclass
class Sets:
    """Makes datasets in a folder, each once."""

    folder: Path
    written: dict[Any, Path] = field(default_factory=dict)

    def write(
        self, episodes: Iterable[Episode] = EVERY, layout: LayoutName = "compact", **options: Any
    ) -> Set:
        """Open a dataset of these episodes, with a storage of its own."""
        listed = list(episodes)
        truth = _batch(listed)
        name = (*listed, layout)
        if name not in self.written:
            self.written[name] = self.folder / str(len(self.written))
            write_toy(self.written[name], [truth], layout=layout, audit="none")
        path = self.written[name]
        return Set(path, DatasetStorage(path, **options), listed, truth)


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return Sets(tmp_path_factory.mktemp("derived"))


@pytest.fixture(scope="session")
def episode() -> Callable[..., Episode]:
    return Episode


class Grown:
    """A storage in memory whose leaves a test may change; `only` gives a view of it."""

    def __init__(self, content: Any, runs: Any, keys: Any = None, of: Any = None) -> None:
        self._of: Grown = self if of is None else of
        self.content, self._runs, self.keys = content, runs, keys
        self.gathered = 0

    def __len__(self) -> int:
        return len(self._of.content)

    def rows(self, *, valid_only: bool) -> ValidRows:  # noqa: ARG002
        return ValidRows(len(self), np.zeros(0, np.int64))

    def runs(self) -> Any:
        return self._runs

    def only(self, keys: Iterable[KeyLike]) -> Grown:
        content = self._of.content.keys(include_nested=True, leaves_only=True)
        known = [key if isinstance(key, tuple) else (key,) for key in content]
        return Grown(None, self._runs, select_keys(known, keys), self._of)

    def gather(self, rows: torch.Tensor) -> Any:
        self._of.gathered += len(rows)
        batch = self._of.content[rows].clone()
        batch = batch if self.keys is None else batch.select(*self.keys)
        return batch.set("index", rows)


@pytest.fixture
def grown() -> Callable[[Any], Grown]:
    """Make such a storage of the rows of a dataset."""

    def make(of: Any) -> Grown:
        content = of.gather()[0].exclude("index", "episode")
        starts, stops = torch.tensor(of.bounds).T
        runs = EpisodeIndex(starts.contiguous(), stops - starts)
        return Grown(TensorDict(content.to_dict(), [of.rows]), runs)

    return make
