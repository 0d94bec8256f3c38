"""A function of whole episodes as a step: it may change their length, and drop them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from offline_data.buffers.assemble import assemble, tree_of
from offline_data.episodes import EpisodeBatch
from offline_data.episodes.fields import (
    DONE,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Key,
    join_key,
    split_key,
)
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions.per_row import CPU
from offline_data.preprocess.functions.randomness import own_randomness, seed_all
from offline_data.preprocess.functions.results import (
    Schema,
    called,
    conform,
    leaves_of,
    schema_of,
    to_array,
)
from offline_data.preprocess.functions.ted import INDEX, TwoCopies, from_ted, to_ted
from offline_data.preprocess.steps.base import Revision, Step
from offline_data.store.layout import EPISODE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from typing_extensions import Self

    from offline_data.preprocess.functions.ted import Table
    from offline_data.preprocess.piece import Piece


@dataclass(frozen=True)
class EpisodeStep(Step):
    """A function called with every episode.

    `fn` gets a TensorDict `[T]` of the transitions of one episode in TED, with `index` and
    `episode`, and returns one of `[T']`, or None: the episode is left out. Rows it returns are in
    order; an episode that it ends earlier is truncated there, unless its last row is terminated.
    """

    name: ClassVar[str] = "fn"
    keeps_rows: ClassVar[bool] = False

    fn: Callable[[Any], Any] = field(default=lambda td: td, repr=False)
    """From the TensorDict of an episode to that of an episode, or to None."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest says of it: name and digests."""
    seed: int = 0
    """What random numbers of an episode depend on, beside its number."""
    two_copies: tuple[str, ...] = field(default=(), metadata={"state": True})
    """Leaves whose value after an action is not the one before the next; parts joined by `/`."""
    schema: Schema | None = field(default=None, metadata={"state": True}, repr=False)
    """Leaves of the first result, with dtype and shape of a row."""

    @property
    def per_row(self) -> bool:
        """Whether it calls Python again and again: for every episode."""
        return True

    def describe(self) -> dict[str, Any]:
        """Return what it is and what was asked for, as JSON values."""
        return {"step": self.name, **self.about, "by": "episode", "seed": self.seed}

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes that are left, with what `fn` made of them.

        Raises:
            StepError: `fn` failed, or returned what cannot be stored.
            Revision: The data show that leaves must be stored otherwise.
        """
        parts, schema = self._parts(piece)
        known = {split_key(key) for key in self.two_copies}
        try:
            return _assembled(piece, parts or [_no_rows(schema)], known)
        except TwoCopies as found:
            names = {*self.two_copies, *map(join_key, found.keys)}
            step = replace(self, two_copies=tuple(sorted(names)), schema=schema)
            reason = f"{found} after an action is not what stands before the next"
            raise Revision(step, reason) from found

    def settled(self, probe: Piece) -> Self:
        """Learn what it returns."""
        parts, schema = replace(self, schema=None)._parts(probe)
        if not parts:
            raise StepError(
                f"The function leaves out all of the {len(probe.episodes)} episodes it was tried on",
                hint="if that is meant, choose episodes first: --step filter:…",
            )
        kept = _missing(parts[0][1])
        if kept:
            raise StepError(
                f"The function's result lacks {', '.join(kept)}, which every dataset has",
                hint="return the TensorDict that it was given, with what is to be changed",
            )
        return replace(self, schema=schema)

    def state(self) -> dict[str, Any]:
        """Return what it returns; nothing before it has learnt that."""
        if self.schema is None:
            return {}
        schema = [[list(k), dtype, list(shape)] for k, (dtype, shape) in self.schema.items()]
        return {"two_copies": list(self.two_copies), "schema": schema}

    def with_state(self, state: Mapping[str, Any]) -> Self:
        """Return it as `state` says."""
        if not state:
            return self
        schema = {tuple(key): (dtype, tuple(shape)) for key, dtype, shape in state["schema"]}
        return replace(self, two_copies=tuple(state["two_copies"]), schema=schema or None)

    def notes(self) -> tuple[str, ...]:
        """Say what is stored twice."""
        if not self.two_copies:
            return ()
        listed, name = ", ".join(self.two_copies), self.about.get("name", "the function")
        return (f"{listed}: stored before and after every action, for {name} tells them apart",)

    def _parts(self, piece: Piece) -> tuple[list[tuple[int, Table]], Schema | None]:
        """Call `fn` with every episode; its place in the piece and the result, if there is one."""
        table, batch, schema = to_ted(piece), piece.batch, self.schema
        tree = tree_of({key: slot for slot, key in enumerate(table)})
        parts: list[tuple[int, Table]] = []
        with own_randomness(), torch.no_grad():
            for at, (start, length) in enumerate(zip(batch.starts, batch.lengths, strict=True)):
                place = _Here(int(piece.episodes[at]), int(length))
                seed_all(self.seed, int(piece.episodes[at]))
                rows = [torch.from_numpy(v[start : start + length]) for v in table.values()]
                result = called(
                    self.fn, assemble(tree, rows, torch.Size((int(length),)), CPU), place
                )
                if result is not None:
                    leaves = leaves_of(result, place)
                    found = schema_of(leaves, _rows_of(leaves, place))
                    conform(schema := schema or found, found, place)
                    parts.append((at, {key: to_array(v).copy() for key, v in leaves.items()}))
        return parts, schema


class _Here:
    def __init__(self, episode: int, length: int) -> None:
        self._episode, self._length = episode, length

    def __call__(self) -> str:
        return f"episode {self._episode} ({self._length} transitions)"


def _rows_of(leaves: Mapping[Any, torch.Tensor], place: _Here) -> int:
    counts = {len(value) if value.ndim else -1 for value in leaves.values()}
    if len(counts) != 1 or min(counts) < 1:
        found = ", ".join(f"{join_key(k)} {list(v.shape)}" for k, v in leaves.items())
        raise StepError(
            f"The function's result for {place()} has leaves of different or no rows: {found}",
            hint="return None to leave an episode out",
        )
    return counts.pop()


def _missing(table: Table) -> list[str]:
    missing = [join_key(key) for key in (REWARD, TERMINATED, TRUNCATED) if key not in table]
    return missing + ([] if any(key[0] == "action" for key in table) else ["action"])


def _assembled(piece: Piece, parts: list[tuple[int, Table]], two_copies: set[Key]) -> Piece:
    """Lay the results end to end as episodes."""
    tables = [_ended(piece, at, table) for at, table in parts]
    leaves = {key: np.concatenate([table[key] for table in tables]) for key in tables[0]}
    frame = _frame(piece, [at for at, table in parts if len(table[TERMINATED])], tables)
    given = {key: values for key, values in leaves.items() if key not in (INDEX, EPISODE)}
    return from_ted(frame, given, two_copies)[0]


def _frame(piece: Piece, places: list[int], tables: list[Table]) -> Piece:
    """Return the chosen episodes of a piece with their new lengths and what `_required` needs."""
    chosen = np.array(places, np.int64)
    lengths = np.array([len(t[TERMINATED]) for t in tables if len(t[TERMINATED])], np.int64)
    steps = {
        key: np.concatenate([table[key] for table in tables])
        for key in tables[0]
        if key[0] == "action" or key in (REWARD, TERMINATED, TRUNCATED)
    }
    extras = {key: column[chosen] for key, column in piece.batch.episodes.items()}
    batch = EpisodeBatch(lengths, steps, {}, _final(piece, chosen, lengths, tables), extras)
    rows, steps_before = piece.rows[chosen], piece.steps[chosen]
    return replace(
        piece, batch=batch, episodes=piece.episodes[chosen], rows=rows, steps=steps_before
    )


def _final(
    piece: Piece, chosen: NDArray[np.int64], lengths: NDArray[np.int64], tables: list[Table]
) -> NDArray[np.bool_]:
    """Tell whose last next observation is known: the parent's, or that of a row before its last."""
    last = piece.row_numbers[piece.batch.last_rows[chosen]]
    kept = [int(t[INDEX][-1]) if INDEX in t else None for t in tables if len(t[TERMINATED])]
    shorter = lengths < piece.batch.lengths[chosen]
    earlier = [at is not None and at != end for at, end in zip(kept, last, strict=True)]
    return np.asarray(piece.batch.final_observation[chosen] | (shorter & np.array(earlier, bool)))


def _ended(piece: Piece, at: int, table: Table) -> Table:
    """Mark the last row as truncated where the episode is shorter and nothing ends it."""
    rows = len(table[TERMINATED])
    if not 0 < rows < int(piece.batch.lengths[at]):
        return table
    if table[TERMINATED][-1].any() or table[TRUNCATED][-1].any():
        return table
    truncated = table[TRUNCATED].copy()
    truncated[-1] = True
    ended = {**table, TRUNCATED: truncated}
    if DONE in table:
        ended[DONE] = truncated | table[TERMINATED]
    return ended


def _no_rows(schema: Schema | None) -> tuple[int, Table]:
    """Return a result without rows, for a piece of which no episode is left."""
    if schema is None:
        raise StepError("The function leaves out all episodes")
    return 0, {key: np.zeros((0, *shape), dtype) for key, (dtype, shape) in schema.items()}
