"""A function of whole episodes as a step: it may change their length, and drop them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from offline_data.buffers.assemble import assemble, tree_of
from offline_data.episodes import EpisodeBatch
from offline_data.episodes.fields import DONE, REWARD, TERMINATED, TRUNCATED, Key, join_key
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions.results import (
    Leaves,
    Schema,
    conform,
    described,
    leaves_of,
    schema_of,
    to_array,
)
from offline_data.preprocess.functions.rows import CPU, called, own_randomness, seed_all
from offline_data.preprocess.functions.step import (
    UNSTEADY,
    keys_of,
    notes_of,
    reason_of,
    same_rows,
    schema_json,
    schema_of_json,
    schema_of_table,
    with_found,
)
from offline_data.preprocess.functions.ted import (
    INDEX,
    TwoCopies,
    from_ted,
    refuse_codes,
    to_ted,
    words_of,
)
from offline_data.preprocess.identity import describe_function
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps.base import Revision, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from typing_extensions import Self

    from offline_data.preprocess.functions.results import Place
    from offline_data.preprocess.functions.ted import Table


@dataclass(frozen=True)
class EpisodeStep(Step):
    """A function called with every episode.

    `fn` gets a TensorDict `[T]` of the transitions of one episode in TED, with `index` and
    `episode`, and returns one of `[T']`, or None: the episode is left out. Rows it returns are in
    order; an episode that it ends earlier is truncated there, unless its last row is terminated.
    `next/done` follows from `next/terminated` and `next/truncated`, and need not be set. Of a row
    that is the last now and was not before, the observation after it is known; `index` tells, if
    `fn` returns it as it was.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> piece = toy_piece([3, 1, 2])
        >>> step = EpisodeStep(lambda td: td[:2] if len(td) > 1 else None).settled(piece)
        >>> step.apply(piece).batch.lengths, step.apply(piece).episodes
        (array([2, 2]), array([0, 2]))
    """

    name: ClassVar[str] = "fn"
    brings_torch: ClassVar[bool] = True
    keeps_rows: ClassVar[bool] = False

    fn: Callable[[Any], Any] = field(repr=False)
    """From the TensorDict of an episode to that of an episode, or to None."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest says of it; see `describe_function`, which finds it out."""
    seed: int = 0
    """What random numbers of an episode depend on, beside its number."""
    two_copies: tuple[str, ...] = field(default=(), metadata={"state": True})
    """Leaves whose value after an action is not the one before the next; parts joined by `/`."""
    unsteady: str = field(default="", metadata={"state": True})
    """Why what it gives depends on the order of calls; empty: nothing shows that it does."""
    guessed: bool = field(default=False, metadata={"state": True})
    """Whether `schema` is that of what it is given, because it left out every episode so far."""
    schema: Schema | None = field(default=None, metadata={"state": True}, repr=False)
    """Leaves of the first result, with dtype and shape of a row."""

    def __post_init__(self) -> None:
        if not self.about:
            object.__setattr__(self, "about", describe_function(self.fn))

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
        parts = list(self._parts(piece))
        schema = self.schema or schema_of_table(parts[0].table if parts else to_ted(piece))
        try:
            return assembled(piece, parts, schema, keys_of(self.two_copies))
        except TwoCopies as found:
            names = with_found(self.two_copies, found)
            step = replace(self, two_copies=names, schema=schema)
            raise Revision(step, reason_of(found)) from found

    def settled(self, probe: Piece) -> Self:
        """Learn what it returns."""
        step = replace(self, schema=None)
        first = list(step._parts(probe))
        unsteady = "" if _same(first, list(step._parts(probe))) else UNSTEADY
        schema = schema_of_table(first[0].table if first else to_ted(probe))
        return replace(self, schema=schema, guessed=not first, unsteady=unsteady)

    def state(self) -> dict[str, Any]:
        """Return what it returns; nothing before it has learnt that."""
        if self.schema is None:
            return {}
        return {
            "two_copies": list(self.two_copies),
            "unsteady": self.unsteady,
            "guessed": self.guessed,
            "schema": schema_json(self.schema),
        }

    def with_state(self, state: Mapping[str, Any]) -> Self:
        """Return it as `state` says."""
        if not state:
            return self
        learnt = {**state, "two_copies": tuple(state["two_copies"])}
        return replace(self, **{**learnt, "schema": schema_of_json(state["schema"])})

    def notes(self) -> tuple[str, ...]:
        """Say what is stored twice, and whether values may depend on more than the data."""
        return notes_of(self.about, self.two_copies, (), self.unsteady)

    def _parts(self, piece: Piece) -> Iterator[Part]:
        """Call `fn` with every episode, and yield what it does not leave out."""
        table, batch, schema = to_ted(piece), piece.batch, self.schema
        tree = tree_of({key: slot for slot, key in enumerate(table)})
        for at, (start, length) in enumerate(zip(batch.starts, batch.lengths, strict=True)):
            number, place = int(piece.episodes[at]), _place(piece, at)
            rows = [torch.from_numpy(v[start : start + length]) for v in table.values()]
            with own_randomness(), torch.no_grad():
                seed_all(self.seed, number)
                given = assemble(tree, rows, torch.Size((int(length),)), CPU)
                result = called(self.fn, given, place)
            if result is not None:
                leaves = leaves_of(result, place)
                schema = self._held(leaves, schema, place)
                arrays = {key: to_array(key, leaves[key], place).copy() for key in schema}
                check_done(arrays, place)
                yield Part(at, arrays)

    def _held(self, leaves: Leaves, schema: Schema | None, place: Place) -> Schema:
        """Hold a result to the schema, or learn it."""
        rows = _rows_of(leaves, place)
        found = described(leaves, rows)
        if schema == found:
            return schema
        if schema is None or self.guessed:
            schema_of(leaves, place, rows)
            _check_required(found, place)
        if schema is not None and self.guessed:
            step = replace(self, schema=found, guessed=False)
            raise Revision(step, f"{place()} is the first one that the function keeps")
        conform(schema or found, found, place)
        return schema or found


def _place(piece: Piece, at: int) -> Place:
    def words() -> str:
        return f"episode {int(piece.episodes[at])} ({int(piece.batch.lengths[at])} transitions)"

    return words


def _same(first: list[Part], again: list[Part]) -> bool:
    """Return True if two runs over the same episodes gave the same to the bit."""
    if [part.place for part in first] != [part.place for part in again]:
        return False
    pairs = zip(first, again, strict=True)
    return all(
        one.rows == other.rows and same_rows(one.table, other.table, np.arange(one.rows))
        for one, other in pairs
    )


def _rows_of(leaves: Leaves, place: Place) -> int:
    counts = {len(value) if value.ndim else -1 for value in leaves.values()}
    if len(counts) != 1 or min(counts) < 1:
        found = ", ".join(f"{join_key(k)} {list(v.shape)}" for k, v in leaves.items())
        what = "no rows" if counts == {0} else "leaves of different lengths, or without rows"
        raise StepError(
            f"The function's result for {place()} has {what}: {found}",
            hint="return None to leave an episode out",
        )
    return counts.pop()


def _check_required(found: Schema, place: Place) -> None:
    missing = [join_key(key) for key in (REWARD, TERMINATED, TRUNCATED) if key not in found]
    missing += [] if any(key[0] == "action" for key in found) else ["action"]
    if missing:
        raise StepError(
            f"The function's result for {place()} lacks {', '.join(missing)}, which every dataset "
            "has",
            hint="return the TensorDict that it was given, with what is to be changed",
        )
    for key in (REWARD, TERMINATED, TRUNCATED):
        dtype, shape = found[key]
        if shape != (1,) or (key != REWARD and dtype != "bool"):
            expected = "numbers [1]" if key == REWARD else "bool [1]"
            raise StepError(
                f"The function returned {join_key(key)!r} as {dtype} {list(shape)} for {place()}; "
                f"expected {expected}"
            )


@dataclass(frozen=True)
class Part:
    """What became of one episode."""

    place: int
    """Which episode of the piece it is."""
    table: Table
    """`[T', …]` columns, T' at least 1."""

    @property
    def rows(self) -> int:
        """Transitions that it has now."""
        return len(next(iter(self.table.values())))


def assembled(piece: Piece, parts: list[Part], schema: Schema, two_copies: set[Key]) -> Piece:
    """Lay episodes end to end, where the function ended one earlier marked as truncated.

    Args:
        piece: The episodes before.
        parts: Those that are left, in order; may be none.
        schema: Leaves of all parts.
        two_copies: Root keys that are stored with their `next`.

    Raises:
        TwoCopies: There are more of those.
        StepError: Leaves that no dataset can have.
    """
    tables = [_ended(piece, part) for part in parts]
    leaves = {
        key: np.concatenate([np.zeros((0, *shape), dtype), *(table[key] for table in tables)])
        for key, (dtype, shape) in schema.items()
    }
    frame = _frame(piece, parts, leaves)
    refuse_codes(Piece.place, frame, leaves)
    return from_ted(frame, leaves, two_copies)[0]


def check_done(table: Table, place: Place) -> None:
    """Raise `StepError` where a row says that it is done, and not why."""
    if DONE not in table:
        return
    flags = (table[TERMINATED], table[TRUNCATED], table[DONE])
    if any(flag.shape != flags[0].shape or flag.dtype != np.bool_ for flag in flags):
        return  # which is refused elsewhere
    wrong = np.flatnonzero((flags[2] & ~flags[0] & ~flags[1]).reshape(-1))
    if len(wrong):
        raise StepError(
            f"The function's result for {place()} is done at row {int(wrong[0])}, and neither "
            "terminated nor truncated",
            hint="set next/terminated or next/truncated; next/done follows from them",
        )


def _ended(piece: Piece, part: Part) -> Table:
    """Mark the last row as truncated where the episode is shorter and nothing ends it."""
    table = part.table
    shorter = part.rows < int(piece.batch.lengths[part.place])
    if not shorter or table[TERMINATED][-1].any() or table[TRUNCATED][-1].any():
        return table
    truncated = table[TRUNCATED].copy()
    truncated[-1] = True
    return {**table, TRUNCATED: truncated}


def _frame(piece: Piece, parts: list[Part], leaves: Table) -> Piece:
    """Return the episodes that are left, with what `from_ted` takes from where they were."""
    chosen = np.array([part.place for part in parts], np.int64)
    lengths = np.array([part.rows for part in parts], np.int64)
    required = (REWARD, TERMINATED, TRUNCATED)
    steps = {k: v for k, v in leaves.items() if k[0] == "action" or k in required}
    extras = {key: column[chosen] for key, column in piece.batch.episodes.items()}
    final = np.array([_final(piece, part) for part in parts], bool)
    return Piece(
        EpisodeBatch(lengths, steps, {}, final, extras),
        piece.episodes[chosen],
        piece.rows[chosen],
        piece.steps[chosen],
        words_of(piece),
        piece.by_rows,
    )


def _final(piece: Piece, part: Part) -> bool:
    """Return True if the observation after the last row is the source's own.

    It is where the parent has it, and where that row was not the last: its `index` says so.
    """
    first = int(piece.rows[part.place])
    last = first + int(piece.batch.lengths[part.place]) - 1
    index = part.table.get(INDEX)
    if bool(piece.batch.final_observation[part.place]) or index is None or index.ndim != 1:
        return bool(piece.batch.final_observation[part.place])
    return part.rows <= last - first and first <= int(index[-1]) < last
