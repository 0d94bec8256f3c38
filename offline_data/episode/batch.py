"""`EpisodeBatch`: concatenated whole episodes, the one shape that all layers exchange.

```
episode with T = 3            row of steps:          0     1     2
                              row of observations:   s0    s1    s2    s3      T + 1 rows
                              action                 a0    a1    a2
                              next reward, flags     r1    r2    r3
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural
from offline_data.episode.fields import (
    ACTION_ROOTS,
    EPISODE_COLUMNS,
    RESERVED_ROOTS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Dropped,
    Key,
    Skipped,
    check_key,
    join_key,
)


@dataclass(frozen=True)
class EpisodeBatch:
    """`E` whole episodes of `T_e` steps each, `N = ΣT_e`; checked on construction.

    Text features are object arrays of `str` (None for missing values); all others are numeric or
    bool arrays with any strides. Images that stay JPEG or PNG are an `EncodedColumn`
    (`offline_data.store.encoded`). Nothing is copied; arrays must not change afterwards.

    Raises:
        FormatError: Numbers of rows that do not match, a missing action or flag, an invalid name or
            dtype.

    Example:
        >>> batch = EpisodeBatch(
        ...     lengths=np.array([2]),
        ...     steps={
        ...         ("action",): np.zeros((2, 1)),
        ...         ("next", "reward"): np.ones((2, 1)),
        ...         ("next", "terminated"): np.array([[False], [True]]),
        ...         ("next", "truncated"): np.zeros((2, 1), bool),
        ...     },
        ...     observations={("observation",): np.arange(3.0).reshape(3, 1)},
        ...     final_observation=np.array([True]),
        ... )
        >>> batch.transitions, batch.next_rows.tolist()
        (2, [1, 2])
    """

    lengths: NDArray[np.int64]
    """`[E]` steps of each episode, at least 1."""
    steps: Mapping[Key, NDArray[np.generic]]
    """`[N, …]` columns by TED key: `("action", …)` or tokens, and results of the action under `"next"`;
    `("next", "terminated")` and `("next", "truncated")` bool `[N, 1]` are required;
    `("next", "reward")` real `[N, 1]`, unless the source has no rewards."""
    observations: Mapping[Key, NDArray[np.generic]]
    """`[N + E, …]` columns by root key: `("observation", …)`, `("state", …)`, `("info", …)`."""
    final_observation: NDArray[np.bool_]
    """`[E]` whether the row after the last action is the source's own; if False, it repeats the
    last known observation."""
    episodes: Mapping[Key, NDArray[np.generic]] = field(default_factory=dict)
    """`[E, …]` columns the source gives per episode: `("id",)`, `("seed",)`, …"""
    dropped: tuple[Dropped, ...] = ()
    """Features of these episodes that could not be kept."""
    notes: tuple[str, ...] = ()
    """Rules that had to be applied to these episodes, as sentences for the manifest."""
    skipped: tuple[Skipped, ...] = ()
    """Episodes that were left out before or after these; a batch with nothing else has no columns."""
    warnings: tuple[str, ...] = ()
    """Notes that are also shown while converting, on what a user would not expect."""

    def __post_init__(self) -> None:
        _check_lengths(self)
        if not len(self.lengths):
            return
        for what, columns, rows in (
            ("step", self.steps, self.transitions),
            ("observation", self.observations, self.transitions + len(self.lengths)),
            ("episode", self.episodes, len(self.lengths)),
        ):
            for key, column in columns.items():
                _check_column(key, column, rows, what)
        for key in (REWARD, TERMINATED, TRUNCATED):
            if key == REWARD and key not in self.steps:
                continue
            if key not in self.steps:
                raise FormatError(f"Step feature {join_key(key)!r} is missing")
            column = self.steps[key]
            if column.shape[1:] != (1,):
                raise FormatError(f"{join_key(key)!r} must be [N, 1], not {list(column.shape)}")
            if key != REWARD and column.dtype != np.bool_:
                raise FormatError(f"{join_key(key)!r} must be bool, not {column.dtype}")
        if not any(key[0] in ACTION_ROOTS for key in self.steps):
            raise FormatError("No step feature 'action'")

    @classmethod
    def without_episodes(cls, *skipped: Skipped, warnings: tuple[str, ...] = ()) -> EpisodeBatch:
        """Return a batch without episodes that only lists skipped ones, and warnings."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, {}, {}, nothing.astype(bool), skipped=skipped, warnings=warnings)

    def part(self, first: int, stop: int) -> EpisodeBatch:
        """Return episodes `[first, stop)` of the batch, as views; the batch if it has no others."""
        if first == 0 and stop >= len(self.lengths):
            return self
        lengths = self.lengths[first:stop]
        begin = int(self.lengths[:first].sum())
        rows = slice(begin, begin + int(lengths.sum()))
        observed = slice(rows.start + first, rows.stop + first + len(lengths))
        return replace(
            self,
            lengths=lengths,
            steps={key: column[rows] for key, column in self.steps.items()},
            observations={key: column[observed] for key, column in self.observations.items()},
            final_observation=self.final_observation[first:stop],
            episodes={key: column[first:stop] for key, column in self.episodes.items()},
        )

    @cached_property
    def transitions(self) -> int:
        """`N`, the number of step rows."""
        return int(self.lengths.sum())

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """`[E]` first step row of each episode."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def last_rows(self) -> NDArray[np.int64]:
        """`[E]` last step row of each episode."""
        return np.cumsum(self.lengths) - 1

    @cached_property
    def episode_of(self) -> NDArray[np.int64]:
        """`[N]` number, in this batch, of the episode of each step row."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def root_rows(self) -> NDArray[np.int64]:
        """`[N]` observation row before each action: `i + e`."""
        return np.arange(self.transitions) + self.episode_of

    @cached_property
    def next_rows(self) -> NDArray[np.int64]:
        """`[N]` observation row after each action: `i + e + 1`."""
        return self.root_rows + 1

    @cached_property
    def returns(self) -> NDArray[np.float64]:
        """`[E]` undiscounted sum of rewards of each episode, added up in float64; NaN without them."""
        if REWARD not in self.steps:
            return np.full(len(self.lengths), np.nan)
        rewards = self.steps[REWARD][:, 0].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, as it should be
            return np.add.reduceat(rewards, self.starts) if len(rewards) else np.zeros(0)

    @property
    def nbytes(self) -> int:
        """Bytes of all columns (for text, of the references only)."""
        columns = (*self.steps.values(), *self.observations.values(), *self.episodes.values())
        return sum(column.nbytes for column in columns)


def _check_lengths(batch: EpisodeBatch) -> None:
    lengths = batch.lengths
    if lengths.ndim != 1 or lengths.dtype != np.int64:
        raise FormatError(f"Lengths must be int64 [E], not {lengths.dtype} {list(lengths.shape)}")
    if len(lengths) and lengths.min() < 1:
        raise FormatError(f"Episode {int(lengths.argmin())} of the batch has no transition")
    final = batch.final_observation
    if final.shape != lengths.shape or final.dtype != np.bool_:
        raise FormatError(
            f"final_observation must be bool {list(lengths.shape)}, "
            f"not {final.dtype} {list(final.shape)}"
        )


def _check_column(key: Key, column: NDArray[np.generic], rows: int, what: str) -> None:
    check_key(key)
    if what == "observation" and key[0] in RESERVED_ROOTS:
        raise FormatError(f"An observation feature cannot be named {join_key(key)!r}")
    if what == "episode" and key[0] in EPISODE_COLUMNS:
        raise FormatError(
            f"A column of episodes cannot be named {join_key(key)!r}: it has another use"
        )
    if column.ndim < 1 or len(column) != rows:
        found = plural(column.shape[0], "row") if column.ndim else "no rows"
        raise FormatError(f"{what} feature {join_key(key)!r} has {found}, expected {rows}")
    if column.dtype.kind not in "biufcO":
        found = f"has dtype {column.dtype}, which cannot be stored"
        raise FormatError(f"{what} feature {join_key(key)!r} {found}")
