"""One episode of a dataset or view: transitions, observations and metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDictBase
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural, shorten
from offline_data.buffers.views.frames import features_table, strips
from offline_data.document.blocks import Field, Fields
from offline_data.document.html import as_html, render
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, join_key, next_of
from offline_data.rows.keys import KeyLike, as_key
from offline_data.rows.selection import whole_of
from offline_data.rows.trajectories import TrajectoryStorage


@pickled_by_name
@dataclass(frozen=True, eq=False, repr=False)
class Episode:
    """One episode, as a copy; returned by `ds.episode(number)` and `ds.iter_episodes()`.

    ```
    transitions                 0    1    2          T = 3 rows: ds[start : start + T]
    observations                s0   s1   s2   s3    T + 1 rows: the last one follows the last action
    ```

    Attributes:
        number: Its row in `ds.episodes`, from 0.
        transitions: TensorDict `[T]` in TED, including derived features and transforms of the
            buffer.
        return_: Sum of these transitions' stored rewards, NaN without any; see `whole_return`.
        final_observation: Whether the source has the observation after the last action. False: the
            last row of `observations` repeats the previous one.
        metadata: Its columns in `ds.episodes`, as Python values: `id`, `terminated`,
            `options/goal`, …; in a view those of the whole episode, except `start` and `length`.
    """

    number: int
    transitions: Any
    return_: float
    final_observation: bool
    metadata: Mapping[str, Any]
    _contiguous: bool = field(default=True)

    if not TYPE_CHECKING:  # type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            ways = "episode.transitions has the features, episode.to_numpy() arrays of D4RL's names"
            raise AttributeError(f"'Episode' object has no attribute {name!r}; {ways}")

    @property
    def length(self) -> int:
        """Number of steps, `T`."""
        return len(self.transitions)

    def __len__(self) -> int:
        return self.length

    @property
    def whole_return(self) -> float:
        """The return of the whole episode, `ds.episodes["return"]`, also if a view cuts it."""
        return float(self.metadata["return"])

    @property
    def id(self) -> Any:
        """The source's id of the episode, or None."""
        return self.metadata.get("id")

    @property
    def seed(self) -> Any:
        """The seed of the environment's reset, or None if unknown."""
        return self.metadata.get("seed")

    @cached_property
    def observations(self) -> Any:
        """All observations, `[T + 1, …]`, a tensor or a TensorDict; raises like `observed`."""
        return self.observed("observation")

    def observed(self, key: KeyLike) -> Any:
        """Return all `T + 1` rows of a feature, or parent, that exists at the root and in next.

        Raises:
            UsageError: No such feature at the root and under `next`; or, in a view, the rows of the
                episode are not contiguous.
        """
        name = as_key(key)
        if not self._contiguous:
            raise UsageError(
                f"The view's {plural(self.length, 'row')} of episode {self.number} are not "
                "contiguous, so there "
                "are no T + 1 observations",
                hint="use transitions; ds.filter and ds.episodes_at make views of whole episodes",
            )
        before, after = self.transitions.get(name, None), self.transitions.get(next_of(name), None)
        if before is None or after is None:
            known = {*self.transitions.keys()} & {*self.transitions.get("next", {}).keys()}
            raise UsageError(
                f"Episodes have no {join_key(name)!r} both at the root and under next",
                hint=f"episode.observed(key) supports {', '.join(sorted(known)) or 'no key'}; a "
                "dataset opened with keys= needs the feature under next, too",
            )
        if isinstance(before, TensorDictBase):  # one may have more leaves than the other
            return torch.cat([before, after[-1:].select(*before.keys())])
        return torch.cat([before, after[-1:]])

    def to_numpy(self, observation_key: KeyLike = "observation") -> dict[str, Any]:
        """Return the episode as arrays, with D4RL's names.

        | key | shape | dtype |
        |---|---|---|
        | `observations` | `[T + 1, …]`; a dict of such arrays if nested | as in `transitions` |
        | `actions` | `[T, …]` | as in `transitions` |
        | `rewards` | `[T]`; not there if the dataset has none | as in `transitions` |
        | `terminals` | `[T]` | bool |
        | `timeouts` | `[T]`, True in the last row unless it is terminated | bool |

        `observation_key` is the feature, or parent, of the observation. Raises `UsageError`: see
        `observed`, or a feature missing from `keys=`.
        """
        observations = self.observed(observation_key)
        leaves = {}
        for name, key in (("actions", ("action",)), ("rewards", REWARD), ("terminals", TERMINATED)):
            leaf = self.transitions.get(key, None)
            if leaf is None and key == REWARD and np.isnan(self.return_):
                continue
            if leaf is None:
                raise UsageError(f"The transitions have no feature {join_key(key)!r}")
            leaves[name] = _arrays(leaf)
        scalars = {
            name: leaves[name].reshape(self.length, -1)
            for name in ("rewards", "terminals")
            if name in leaves
        }
        leaves |= {name: array[:, 0] for name, array in scalars.items() if array.shape[1] == 1}
        truncated = self.transitions.get(TRUNCATED, None)
        timeouts = np.zeros(self.length, bool)
        if truncated is not None:
            timeouts |= _arrays(truncated).reshape(self.length)
        timeouts[-1] |= not leaves["terminals"][-1]
        return {"observations": _arrays(observations), **leaves, "timeouts": timeouts}

    def __repr__(self) -> str:
        known = {"id": self.id, "seed": self.seed}
        known_text = "".join(
            f", {name}={value!r}" for name, value in known.items() if value is not None
        )
        return (
            f"Episode({self.number}, length={self.length}, return={self.return_:.6g}{known_text})"
        )

    def _repr_html_(self) -> str:
        ends = [name for name in ("terminated", "truncated") if self.metadata.get(name)]
        fields = Fields(
            Field("length", self.length, "count"),
            Field("return", self.return_, "number"),
            Field("id", None if self.id is None else shorten(str(self.id))),
            Field("seed", self.seed),
            Field("ends", " and ".join(ends)),
            Field("final observation", None if self.final_observation else "not known"),
            title=f"Episode {self.number}",
        )
        leaves = render(features_table(self.transitions))
        return as_html((render(fields), strips(self.transitions), leaves))


def read_episode(buffer: Any, number: int, read: Callable[[Tensor], Any] | None = None) -> Episode:
    """Return an episode of a buffer; `read` returns the transitions of rows, None: the buffer's."""
    rows = _rows_of(buffer, number)  # raises if there is no such episode
    return _episode_of(buffer, int(number) % len(buffer.episodes), rows, read)


def read_episodes(buffer: Any) -> Iterator[Episode]:
    """Yield the episodes of a buffer in order, prefetching the next one."""
    count, storage = len(buffer.episodes), buffer.storage
    following = _rows_of(buffer, 0) if count else torch.zeros(0, dtype=torch.int64)
    for number in range(count):
        rows = following
        if number + 1 < count:
            following = _rows_of(buffer, number + 1)
            if getattr(storage, "needs_io", False):
                storage.prefetch_rows(torch.cat([rows, following]))
        yield _episode_of(buffer, number, rows)


def _rows_of(buffer: Any, number: int) -> Tensor:
    if isinstance(whole_of(buffer.storage)[0], TrajectoryStorage):
        raise UsageError(
            "With split_trajs=True rows are whole episodes already: ds[number]",
            hint="open the dataset without split_trajs=True",
        )
    rows: Tensor = buffer.episodes.rows(number)
    return rows


def _episode_of(
    buffer: Any, number: int, rows: Tensor, read: Callable[[Tensor], Any] | None = None
) -> Episode:
    row_map, runs = whole_of(buffer.storage)[1], buffer._steps_storage.runs()
    stored = row_map.at(rows)
    run = int(runs.of(stored[-1:]))
    metadata = buffer.episodes.row(number)
    whole = len(stored) == int(runs.lengths[run])
    contiguous = bool((torch.diff(stored) == 1).all())
    reader = buffer._steps_storage.reader
    if (whole and contiguous) or REWARD not in reader.step_leaves:
        total = metadata["return"]
    else:
        reward = reader.step(REWARD)[stored.numpy()]
        total = reward.astype(np.float64).sum().item()
    continues = int(stored[-1]) + 1 < int(runs.starts[run] + runs.lengths[run])
    known = continues or runs.final is None or bool(runs.final[run])
    transitions = buffer[rows] if read is None else read(rows)
    return Episode(number, transitions, float(total), known, metadata, contiguous)


def _arrays(leaf: Any) -> Any:
    if isinstance(leaf, NonTensorStack):  # text
        return np.array(leaf.tolist(), dtype=object)
    if isinstance(leaf, TensorDictBase):
        return {name: _arrays(inner) for name, inner in leaf.items()}
    return leaf.detach().cpu().numpy()
