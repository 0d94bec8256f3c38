"""A function of rows or blocks as a step: vectorised if that gives equal results, else row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import StepError
from offline_data.episode import Key
from offline_data.episode.fields import join_key, split_key
from offline_data.pipeline.preprocess.functions.rows import Call, FunctionSchema, own_randomness
from offline_data.pipeline.preprocess.functions.ted import (
    ALL,
    NeedsExplicitNext,
    On,
    equal_rows,
    fill_columns,
    rebuild,
    row_numbers,
    table_of,
)
from offline_data.pipeline.preprocess.functions.vectorize import (
    LEAST_ROWS,
    NotVectorized,
    block_rows,
    checked_rows,
    compare,
    rows_to_check,
    run_vmap,
)
from offline_data.pipeline.preprocess.identity import describe_function, unknown_note
from offline_data.pipeline.preprocess.steps.base import Revision, Step
from offline_data.store.chunk import EpisodeChunk

if TYPE_CHECKING:
    from typing_extensions import Self

    from offline_data.pipeline.preprocess.functions.ted import Made, Table

_CALLED_TWICE = 4  # rows for which the results of a second call are compared

_IN_MANIFEST = {"explicit_next": "two_copies"}

UNSTEADY = "it gives something else when it is called again"


@dataclass(frozen=True)
class UserFunction(Step):
    """A step that calls a user function, whose output schema it learns from a probe."""

    name: ClassVar[str] = "fn"
    brings_torch: ClassVar[bool] = True
    learns: ClassVar[tuple[str, ...]]  # fields, in the order of the manifest

    fn: Callable[[Any], Any] = field(repr=False)
    """Takes a TensorDict; returns a TensorDict (or a nested dict of tensors)."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Name and digest for the manifest; default: from `describe_function`."""
    seed: int = 0  # of its random numbers, with the row's or episode's number
    explicit_next: tuple[str, ...] = field(default=(), metadata={"state": True})
    """Features whose `next` value differs from the root value of the following row, so that both
    are stored; parts joined by `/`."""
    unsteady: str = field(default="", metadata={"state": True})
    """Why its result may depend on the order of calls; empty if nothing suggests so."""
    schema: FunctionSchema | None = field(default=None, metadata={"state": True}, repr=False)
    """Features of the first result, with dtype and shape of a row."""

    def __post_init__(self) -> None:
        if not self.about:
            object.__setattr__(self, "about", describe_function(self.fn))

    def state(self) -> dict[str, Any]:
        if self.schema is None:
            return {}
        values = {_IN_MANIFEST.get(name, name): getattr(self, name) for name in self.learns}
        state = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
        schema = [[list(key), dtype, list(shape)] for key, (dtype, shape) in self.schema.items()]
        return {**state, "schema": schema}

    def with_state(self, state: Mapping[str, Any]) -> Self:
        """Return the step with this state; raises `ValueError` if it is not one of `state`."""
        if not state:
            return self
        learnt = {name: state[_IN_MANIFEST.get(name, name)] for name in self.learns}
        learnt = {k: tuple(v) if isinstance(v, list) else v for k, v in learnt.items()}
        if any(type(value) is not type(getattr(self, name)) for name, value in learnt.items()):
            raise ValueError(f"a function has not learnt {learnt}")
        schema = {tuple(key): (str(dtype), tuple(n)) for key, dtype, n in state["schema"]}
        return replace(self, **learnt, schema=schema)

    def notes(self) -> tuple[str, ...]:
        name = self.about.get("name", "the function")
        notes = []
        if self.explicit_next:
            notes.append(
                f"{', '.join(self.explicit_next)}: stored before and after every action, "
                f"for {name} tells them apart"
            )
        if self.unsteady:
            notes.append(
                f"What {name} gives may depend on the order of calls, and be different next time: "
                f"{self.unsteady}"
            )
        if self.about.get("unknown"):
            notes.append(unknown_note(self.about))
        return tuple(notes)

    def storing_next(self, found: NeedsExplicitNext, schema: FunctionSchema | None = None) -> Self:
        """Return the step that also stores `next` of the features found to need it."""
        names = tuple(sorted({*self.explicit_next, *map(join_key, found.keys)}))
        return replace(self, explicit_next=names, schema=schema or self.schema)

    @property
    def explicit_keys(self) -> set[Key]:
        """`explicit_next` as keys, whose parts may have dots in them."""
        return {split_key(name) for name in self.explicit_next}


@dataclass(frozen=True)
class FunctionStep(UserFunction):
    """A function called on every row, or on blocks of rows.

    `fn` takes a TensorDict without batch size, one transition in TED (with `index` and `episode`)
    or one observation, and returns one; text features are codes. It must be pure, see
    `Preprocesses.preprocess`. If `torch.vmap` supports it and gives equal results on the probe, it
    runs on blocks of rows, of which some are compared with a row-by-row run.

    Example:
        >>> from offline_data.testing.chunks import toy_chunk, transitions_of
        >>> chunk = toy_chunk([3])
        >>> step = FunctionStep(lambda td: td.set("action", td["action"] * 2))
        >>> step = step.settled(transitions_of(chunk))
        >>> step.run, step.apply(chunk).batch.steps["action",][:, 0].tolist()
        ('vectorised', [2.0, 4.0, 6.0])
    """

    learns: ClassVar[tuple[str, ...]] = (
        "run", "why", "checked", "unsteady", "explicit_next", "kept",
    )  # fmt: skip

    on: On = "transitions"
    batched: int | None = None
    vectorize: Literal["auto"] | bool = "auto"
    run: Literal["rows", "vectorised", "blocks"] = field(default="rows", metadata={"state": True})
    why: str = field(default="", metadata={"state": True})
    checked: int = field(default=LEAST_ROWS, metadata={"state": True})
    """Rows of every vectorised block that are compared."""
    kept: tuple[str, ...] = field(default=(), metadata={"state": True})
    """Required features that `fn` does not return, which keep their values."""

    @property
    def per_row(self) -> bool:
        return self.run == "rows"

    def describe(self) -> dict[str, Any]:
        asked = ("on", "batched", "vectorize", "seed")
        return {"step": self.name, **self.about, **{name: getattr(self, name) for name in asked}}

    def notes(self) -> tuple[str, ...]:
        name = self.about.get("name", "the function")
        kept = (f"{', '.join(self.kept)}: not returned by {name}, kept as they were",)
        return (*(kept if self.kept else ()), *super().notes())

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        made, by_rows = self._run_blocks(chunk)
        try:
            found, _ = rebuild(chunk, self.on, made, self.explicit_keys)
        except NeedsExplicitNext as error:
            raise Revision(self.storing_next(error).state(), error.reason) from error
        return replace(found, by_rows=(*chunk.by_rows, *by_rows))

    def settled(self, probe: EpisodeChunk) -> Self:
        count = len(row_numbers(probe, self.on))
        if not count:
            raise StepError(
                "There is no row to try the function on: steps before it leave out all episodes "
                "that were tried",
                hint="choose episodes by a step of its own: --step filter:…",
            )
        step = replace(self, schema=None, run="rows" if self.batched is None else "blocks")
        leaves = step._try_rows(probe, np.arange(count))
        again = np.arange(count)
        if self.batched is None:  # a few rows, the last first
            few = np.linspace(0, count - 1, min(count, _CALLED_TWICE)).astype(int)
            again = np.unique(few)[::-1]
        steady = same_rows(leaves, step._try_rows(probe, again), again)
        step = replace(step, unsteady="" if steady else UNSTEADY, schema=schema_of_table(leaves))
        if self.batched is None:
            step = step._choose_way(table_of(probe, self.on), leaves)
        while True:
            try:
                _, kept = rebuild(probe, self.on, leaves, step.explicit_keys)
                return replace(step, kept=tuple(map(join_key, kept)))
            except NeedsExplicitNext as found:
                step = step.storing_next(found)

    def _run_blocks(self, chunk: EpisodeChunk) -> tuple[Made, list[tuple[int, str, int]]]:
        """Run `fn` block by block, or on all rows; also returns the blocks that were not vectorised."""
        numbers, schema = row_numbers(chunk, self.on), self.schema
        by_rows: list[tuple[int, str, int]] = []
        columns: Table = {}
        step = self.batched or max(1, len(numbers))
        if self.run == "vectorised":
            step = block_rows(table_of(chunk, self.on, slice(0, 1)))
        with own_randomness():
            for begin in range(0, len(numbers), step):
                part = slice(begin, begin + step)
                again = partial(self._call, chunk, numbers, part, schema)
                call = again()
                made, reason = self._run_block(call, again)
                if reason:
                    by_rows.append((len(call.numbers), reason, 0))
                if len(numbers) <= step and self.run != "blocks":
                    return {k: v if v is None else _own(v) for k, v in made.items()}, by_rows
                full = fill_columns(made, call.table)
                schema = schema or schema_of_table(full)
                for key, values in full.items():
                    if key not in columns:
                        if made[key] is None:
                            continue
                        columns[key] = np.empty((len(numbers), *values.shape[1:]), values.dtype)
                        if begin:  # unchanged so far
                            columns[key][:begin] = table_of(chunk, self.on, slice(0, begin))[key]
                    columns[key][part] = values  # copied: the next block may reuse the memory
        if not len(numbers):
            columns = {k: np.zeros((0, *n), dtype) for k, (dtype, n) in (schema or {}).items()}
        return {key: columns.get(key) for key in schema or ()}, by_rows

    def _run_block(self, call: Call, again: Callable[[], Call]) -> tuple[Made, str]:
        """Run `fn` on a block; None for unchanged columns. Also returns why it was not vectorised."""
        if self.run == "rows":
            return call.by_rows(), ""
        given = call.table
        if self.run == "blocks":
            fresh = {key: values.copy() for key, values in given.items()}
            made = replace(call, table=fresh).as_block()
            same = {k for k, v in made.items() if k in fresh and _is_same(v, fresh[k], given[k])}
            return {k: None if k in same else v for k, v in made.items()}, ""
        at = checked_rows(call.numbers, self.checked)
        alone = call.at(at)
        try:
            found = run_vmap(self.fn, given)
            compare(alone.by_rows(), fill_columns(found, given), at)
        except NotVectorized as error:
            return again().by_rows(), f"{error}, first seen near {call.place(0)}"
        return found, ""

    def _call(
        self,
        chunk: EpisodeChunk,
        numbers: NDArray[np.int64],
        part: slice = ALL,
        schema: FunctionSchema | None = None,
    ) -> Call:
        """Return the call on a slice of the rows, of which all have these `numbers`."""
        begin, observed = part.start or 0, self.on == "observations"
        return Call(
            self.fn,
            table_of(chunk, self.on, part),
            numbers[part],
            lambda row: chunk.place(begin + row, observed=observed),
            self.seed,
            schema or self.schema,
        )

    def _try_rows(self, probe: EpisodeChunk, at: NDArray[np.int64]) -> Table:
        call = self._call(probe, row_numbers(probe, self.on))
        if self.run == "blocks":
            return fill_columns(self._run_blocks(probe)[0], call.table)
        alone = call.at(at)
        with own_randomness():
            return alone.by_rows()

    def _choose_way(self, table: Table, rows: Table) -> Self:
        """Return the vectorised step if it equals running row by row; else say why not."""
        if not self.vectorize or self.unsteady:
            return replace(self, why=self.unsteady if self.vectorize else "asked for")
        try:
            with own_randomness():
                made = fill_columns(run_vmap(self.fn, table), table)
            compare(rows, made, np.arange(len(next(iter(rows.values())))))
        except NotVectorized as reason:
            return replace(self, why=str(reason))
        return replace(self, run="vectorised", checked=rows_to_check(made))


def _own(values: NDArray[Any]) -> NDArray[Any]:
    """Copy a result of `torch.vmap` that is one tensor for all rows, as the function may keep it."""
    return values.copy() if len(values) == 1 or 0 in values.strides else values


def _is_same(values: NDArray[Any], fresh: NDArray[Any], given: NDArray[Any]) -> bool:
    """Return True if a column of a result is the one the function was given, not written into."""
    where = values.__array_interface__, fresh.__array_interface__
    if where[0] != where[1]:
        return False
    # Writes through numpy do not change the version of a tensor, so the bytes are compared.
    unit = "u8" if values.nbytes % 8 == 0 else "u1"
    return bool((values.reshape(-1).view(unit) == given.reshape(-1).view(unit)).all())


def same_rows(table: Table, again: Table, at: NDArray[np.int64]) -> bool:
    """Return True if `again` equals the rows `at` of a table bit by bit."""
    if schema_of_table(table) != schema_of_table(again):
        return False
    return all(bool(equal_rows(table[key][at], again[key]).all()) for key in again)


def schema_of_table(table: Table) -> FunctionSchema:
    """Return dtype and row shape of the columns of a table."""
    return {key: (values.dtype.name, values.shape[1:]) for key, values in table.items()}
