"""One episode of a dataset, or of a view of it: its transitions, its observations, what it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDictBase

from offline_data.buffers.keys import KeyLike, as_key
from offline_data.buffers.trajectories import TrajectoryStorage
from offline_data.buffers.views.html import fields_html, leaves_html, leaves_of
from offline_data.buffers.views.rows import whole_of
from offline_data.episodes.fields import REWARD, TERMINATED, TRUNCATED, join_key, next_of
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Episode:
    """One episode, in memory of its own; made by `ds.episode(number)` and `ds.iter_episodes()`.

    ```
    transitions                 0    1    2          T = 3 rows, as ds[start : start + T] gives them
    observations                s0   s1   s2   s3    T + 1 rows: the last one follows the last action
    ```

    Attributes:
        number: Its row of `ds.episodes`, from 0.
        transitions: TensorDict `[T]` in TED, with what the buffer derives and transforms.
        return_: Sum of the stored rewards of these transitions.
        final_observation: Whether the source has the observation after the last action. False: the
            last row of `observations` repeats the one before.
        metadata: All columns of `ds.episodes` for it, as Python values, numbers and lists: `id`,
            `seed`, `terminated`, `options/goal`, …. Those of a view tell of the whole episode, but for
            `start` and `length`.
    """

    number: int
    transitions: Any
    return_: float
    final_observation: bool
    metadata: Mapping[str, Any]
    _in_a_row: bool = field(default=True)

    @property
    def length(self) -> int:
        """Transitions, `T`."""
        return len(self.transitions)

    def __len__(self) -> int:
        """Return the number of transitions, `T`."""
        return self.length

    @property
    def id(self) -> Any:
        """What the source calls it; None: nothing."""
        return self.metadata.get("id")

    @property
    def seed(self) -> Any:
        """The seed that its environment was reset with; None: not known."""
        return self.metadata.get("seed")

    @cached_property
    def observations(self) -> Any:
        """What was seen before and after each action: a tensor `[T + 1, …]`, or a TensorDict `[T + 1]`.

        Raises `UsageError`: see `observed`.
        """
        return self.observed("observation")

    def observed(self, key: KeyLike) -> Any:
        """Return all `T + 1` rows of a leaf, or a parent of leaves, that exist before and after actions.

        Raises:
            UsageError: There is no such leaf here and under `next`; or a view has parts of the
                episode that do not follow each other, so that there are more than `T + 1`.
        """
        name = as_key(key)
        if not self._in_a_row:
            raise UsageError(
                f"The view's {self.length} rows of episode {self.number} do not follow each other, so "
                "that they have no T + 1 observations",
                hint="transitions has them all; ds.filter and ds.episodes_at make views of whole "
                "episodes",
            )
        before, after = self.transitions.get(name, None), self.transitions.get(next_of(name), None)
        if before is None or after is None:
            known = {*self.transitions.keys()} & {*self.transitions.get("next", {}).keys()}
            raise UsageError(
                f"Episodes have no {join_key(name)!r} before and after actions",
                hint=f"episode.observed(key) gives {', '.join(sorted(known)) or 'nothing here'}; a "
                "dataset opened with keys= needs the leaf under next, too",
            )
        if isinstance(before, TensorDictBase):  # one may have more leaves than the other
            return torch.cat([before, after[-1:].select(*before.keys())])
        return torch.cat([before, after[-1:]])

    def to_numpy(self, observation_key: KeyLike = "observation") -> dict[str, Any]:
        """Return the episode as arrays, under D4RL's names.

        | key | shape | dtype |
        |---|---|---|
        | `observations` | `[T + 1, …]`; a dict of such arrays where they have parts | as in `transitions` |
        | `actions` | `[T, …]` | as in `transitions` |
        | `rewards` | `[T]` | as in `transitions` |
        | `terminals` | `[T]` | bool |
        | `timeouts` | `[T]`, set in the last row unless that is terminated | bool |

        `observation_key` names the leaf, or parent, that is the observation. Raises `UsageError`: see
        `observed`, or a leaf that `keys=` left out.
        """
        observations = self.observed(observation_key)
        leaves = {}
        for name, key in (("actions", ("action",)), ("rewards", REWARD), ("terminals", TERMINATED)):
            leaf = self.transitions.get(key, None)
            if leaf is None:
                raise UsageError(f"The transitions have no leaf {join_key(key)!r}")
            leaves[name] = _arrays(leaf)
        scalars = {name: leaves[name].reshape(self.length, -1) for name in ("rewards", "terminals")}
        leaves |= {name: one[:, 0] for name, one in scalars.items() if one.shape[1] == 1}
        truncated = self.transitions.get(TRUNCATED, None)
        timeouts = np.zeros(self.length, bool)
        if truncated is not None:
            timeouts |= _arrays(truncated).reshape(self.length)
        timeouts[-1] |= not leaves["terminals"][-1]
        return {"observations": _arrays(observations), **leaves, "timeouts": timeouts}

    def __repr__(self) -> str:
        known = {"id": self.id, "seed": self.seed}
        told = "".join(f", {name}={value!r}" for name, value in known.items() if value is not None)
        return f"Episode({self.number}, length={self.length}, return={self.return_:.6g}{told})"

    def _repr_html_(self) -> str:
        """Show what it is, and its leaves, in a notebook."""
        ends = [name for name in ("terminated", "truncated") if self.metadata.get(name)]
        fields = {
            "length": self.length,
            "return": self.return_,
            "id": self.id,
            "seed": self.seed,
            "ends": " and ".join(ends),
            "final observation": "" if self.final_observation else "not known",
        }
        return fields_html(f"Episode {self.number}", fields) + leaves_html(
            leaves_of(self.transitions)
        )


def read_episode(buffer: Any, number: int) -> Episode:
    """Make an episode of a buffer; see `BaseDatasetExperienceReplay.episode`."""
    rows = _rows_of(buffer, number)  # raises where there is none
    return _made(buffer, int(number) % len(buffer.episodes), rows)


def read_episodes(buffer: Any) -> Iterator[Episode]:
    """Make all episodes of a buffer, one after the other, and read the next one ahead."""
    count, storage = len(buffer.episodes), buffer.storage
    following = _rows_of(buffer, 0) if count else torch.zeros(0, dtype=torch.int64)
    for number in range(count):
        rows = following
        if number + 1 < count:
            following = _rows_of(buffer, number + 1)
            if getattr(storage, "needs_io", False):
                storage.prefetch_rows(torch.cat([rows, following]))
        yield _made(buffer, number, rows)


def _rows_of(buffer: Any, number: int) -> Tensor:
    if isinstance(whole_of(buffer.storage)[0], TrajectoryStorage):
        raise UsageError(
            "With split_trajs=True rows are whole episodes already: ds[number]",
            hint="open the dataset without split_trajs=True",
        )
    rows: Tensor = buffer.episodes.rows(number)
    return rows


def _made(buffer: Any, number: int, rows: Tensor) -> Episode:
    row_map, runs = whole_of(buffer.storage)[1], buffer._steps_storage.runs()
    stored = row_map.at(rows)
    run = int(runs.of(stored[-1:]))
    metadata = buffer.episodes.row(number)
    whole = len(stored) == int(runs.lengths[run])
    in_a_row = bool((torch.diff(stored) == 1).all())
    if whole and in_a_row:
        total = metadata["return"]
    else:
        reward = buffer._steps_storage.reader.step(REWARD)[stored.numpy()]
        total = reward.astype(np.float64).sum().item()
    inside = int(stored[-1]) + 1 < int(runs.starts[run] + runs.lengths[run])
    known = inside or runs.final is None or bool(runs.final[run])
    return Episode(number, buffer[rows], float(total), known, metadata, in_a_row)


def _arrays(leaf: Any) -> Any:
    """Return a leaf as an array, a TensorDict as a dict of them."""
    if isinstance(leaf, NonTensorStack):  # text
        return np.array(leaf.tolist(), dtype=object)
    if isinstance(leaf, TensorDictBase):
        return {name: _arrays(inner) for name, inner in leaf.items()}
    return leaf.detach().cpu().numpy()
