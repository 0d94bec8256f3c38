"""A function of whole episodes as a step, which may change their length and drop them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_data.base.errors import StepError
from offline_data.base.plurals import plural
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import (
    ACTION_ROOTS,
    DONE,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Key,
    join_key,
)
from offline_data.pipeline.preprocess.functions.rows import (
    Call,
    FunctionSchema,
    Leaves,
    Place,
    conform,
    describe_leaves,
    leaves_of,
    own_randomness,
    result_error,
    schema_of,
    to_array,
)
from offline_data.pipeline.preprocess.functions.step import (
    UNSTEADY,
    UserFunction,
    same_rows,
    schema_of_table,
)
from offline_data.pipeline.preprocess.functions.ted import (
    INDEX,
    NeedsExplicitNext,
    from_ted,
    table_of,
    words_of,
)
from offline_data.pipeline.preprocess.steps.base import Revision
from offline_data.pipeline.preprocess.steps.leaves import OUTCOMES, outcomes
from offline_data.store.chunk import EpisodeChunk

if TYPE_CHECKING:
    from typing_extensions import Self

    from offline_data.pipeline.preprocess.functions.ted import Table


@dataclass(frozen=True)
class EpisodeStep(UserFunction):
    """A function called on every episode.

    `fn` takes a TensorDict `[T]` of the transitions of one episode in TED, with `index` and
    `episode`, and returns one of `[T']`, or None to drop the episode. Rows are in order. An episode
    that becomes shorter is truncated at its new end, unless that row is terminated. `next/done`
    follows from `next/terminated` and `next/truncated` and need not be set. If the new last row was
    not the last one before, its next observation is known; this is recognised by `index`, if `fn`
    returns it unchanged.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk
        >>> chunk = toy_chunk([3, 1, 2])
        >>> step = EpisodeStep(lambda td: td[:2] if len(td) > 1 else None).settled(chunk)
        >>> step.apply(chunk).batch.lengths, step.apply(chunk).episodes
        (array([2, 2]), array([0, 2]))
    """

    keeps_rows: ClassVar[bool] = False
    learns: ClassVar[tuple[str, ...]] = ("explicit_next", "unsteady", "guessed")

    guessed: bool = field(default=False, metadata={"state": True})
    """Whether `schema` is that of the input, because `fn` has dropped every episode so far."""

    @property
    def per_row(self) -> bool:
        return True

    def describe(self) -> dict[str, Any]:
        return {"step": self.name, **self.about, "by": "episode", "seed": self.seed}

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        parts = self._parts(chunk)
        schema = self.schema or _schema_of_parts(chunk, parts)
        try:
            return _join_episodes(chunk, parts, schema, self.explicit_keys)
        except NeedsExplicitNext as found:
            raise Revision(self.storing_next(found, schema).state(), found.reason) from found

    def settled(self, probe: EpisodeChunk) -> Self:
        step = replace(self, schema=None)
        first, again = step._parts(probe), step._parts(probe)
        same = [at for at, _ in first] == [at for at, _ in again] and all(
            _rows(one) == _rows(other) and same_rows(one, other, np.arange(_rows(one)))
            for (_, one), (_, other) in zip(first, again, strict=True)
        )
        schema, unsteady = _schema_of_parts(probe, first), "" if same else UNSTEADY
        return replace(self, schema=schema, guessed=not first, unsteady=unsteady)

    def _parts(self, chunk: EpisodeChunk) -> list[tuple[int, Table]]:
        """Call `fn` on every episode; returns number in the chunk and rows of each kept one."""
        parts, batch, schema = [], chunk.batch, self.schema
        with own_randomness():
            for at, (start, length) in enumerate(zip(batch.starts, batch.lengths, strict=True)):
                number = chunk.episodes[at : at + 1]
                table = table_of(chunk, part=slice(int(start), int(start + length)))

                def place(number: int = int(number[0]), length: int = int(length)) -> str:
                    return f"episode {number} ({plural(length, 'step')})"

                result = Call(self.fn, table, number, chunk.place, self.seed).as_one(place)
                if result is not None:
                    leaves = leaves_of(result, place)
                    schema = self._check_schema(leaves, schema, outcomes(chunk), place)
                    arrays = {key: to_array(key, leaves[key], place).copy() for key in schema}
                    _check_done(arrays, place)
                    parts.append((at, arrays))
        return parts

    def _check_schema(
        self, leaves: Leaves, schema: FunctionSchema | None, required: Sequence[Key], place: Place
    ) -> FunctionSchema:
        rows = _rows_of(leaves, place)
        found = describe_leaves(leaves, rows)
        if schema == found:
            return schema
        if schema is None or self.guessed:
            schema_of(leaves, place, rows)
            _check_required_leaves(found, required, place)
        if schema is not None and self.guessed:
            step = replace(self, schema=found, guessed=False)
            raise Revision(step.state(), f"{place()} is the first one that the function keeps")
        conform(schema or found, found, place)
        return schema or found


def _schema_of_parts(chunk: EpisodeChunk, parts: list[tuple[int, Table]]) -> FunctionSchema:
    """Return the schema of the first result, or of the input if no episode was kept."""
    return schema_of_table(parts[0][1] if parts else table_of(chunk))


def _rows_of(leaves: Leaves, place: Place) -> int:
    counts = {len(value) if value.ndim else -1 for value in leaves.values()}
    if len(counts) != 1 or min(counts) < 1:
        found = ", ".join(f"{join_key(k)} {list(v.shape)}" for k, v in leaves.items())
        what = "no rows" if counts == {0} else "features of different lengths, or without rows"
        hint = "return None to leave an episode out"
        raise result_error(None, f"{what} ({found})", "rows of one episode", place, hint)
    return counts.pop()


def _check_required_leaves(found: FunctionSchema, required: Sequence[Key], place: Place) -> None:
    missing = [join_key(key) for key in required if key not in found]
    missing += [] if any(key[0] in ACTION_ROOTS for key in found) else ["action"]
    if missing:
        raise StepError(
            f"The function's result for {place()} lacks {', '.join(missing)}, which every dataset "
            "has",
            hint="return the TensorDict that it was given, with what is to be changed",
        )
    for key in [key for key in OUTCOMES if key in found]:
        dtype, shape = found[key]
        if shape != (1,) or (key != REWARD and dtype != "bool"):
            expected = "numbers [1]" if key == REWARD else "bool [1]"
            raise result_error(key, f"{dtype} {list(shape)}", expected, place)


def _rows(table: Table) -> int:
    return len(next(iter(table.values())))


def _join_episodes(
    chunk: EpisodeChunk,
    parts: list[tuple[int, Table]],
    schema: FunctionSchema,
    explicit_next: set[Key],
) -> EpisodeChunk:
    """Concatenate `[T', …]` columns of kept episodes, with their numbers in the chunk, in order."""
    tables = [_truncate_end(chunk, at, table) for at, table in parts]
    leaves = {
        key: np.concatenate([np.zeros((0, *shape), dtype), *(table[key] for table in tables)])
        for key, (dtype, shape) in schema.items()
    }
    chosen = np.array([at for at, _ in parts], np.int64)
    lengths = np.array([_rows(table) for table in tables], np.int64)
    steps = {k: v for k, v in leaves.items() if k[0] in ACTION_ROOTS or k in OUTCOMES}
    extras = {key: column[chosen] for key, column in chunk.batch.episodes.items()}
    final = np.array([_knows_final(chunk, at, table) for at, table in parts], bool)
    frame = EpisodeChunk(
        EpisodeBatch(lengths, steps, {}, final, extras),
        chunk.episodes[chosen],
        chunk.rows[chosen],
        chunk.steps[chosen],
        words_of(chunk),
        chunk.by_rows,
    )
    return from_ted(frame, leaves, explicit_next)[0]


def _check_done(table: Table, place: Place) -> None:
    if DONE not in table:
        return
    flags = (table[TERMINATED], table[TRUNCATED], table[DONE])
    if any(flag.shape != flags[0].shape or flag.dtype != np.bool_ for flag in flags):
        return  # rejected elsewhere
    wrong = np.flatnonzero((flags[2] & ~flags[0] & ~flags[1]).reshape(-1))
    if len(wrong):
        raise StepError(
            f"The function's result for {place()} is done at row {int(wrong[0])}, and neither "
            "terminated nor truncated",
            hint="set next/terminated or next/truncated; next/done follows from them",
        )


def _truncate_end(chunk: EpisodeChunk, at: int, table: Table) -> Table:
    shorter = _rows(table) < int(chunk.batch.lengths[at])
    if not shorter or table[TERMINATED][-1].any() or table[TRUNCATED][-1].any():
        return table
    truncated = table[TRUNCATED].copy()
    truncated[-1] = True
    return {**table, TRUNCATED: truncated}


def _knows_final(chunk: EpisodeChunk, at: int, table: Table) -> bool:
    """Return True if the source has the observation after the last row; `index` says which it was."""
    known, index = bool(chunk.batch.final_observation[at]), table.get(INDEX)
    first = int(chunk.rows[at])
    last = first + int(chunk.batch.lengths[at]) - 1
    if known or index is None or index.ndim != 1:
        return known
    return _rows(table) <= last - first and first <= int(index[-1]) < last
