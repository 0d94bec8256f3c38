"""A function of one row, or of a block of rows, as a step; what functions learn from the data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from offline_data.episodes.fields import join_key
from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions.rows import run_block, run_rows
from offline_data.preprocess.functions.ted import VIEWS, Made, On, TwoCopies, equal_rows
from offline_data.preprocess.functions.vectorize import (
    LEAST_ROWS,
    Gathered,
    NotVectorized,
    block_rows,
    checked_rows,
    compare,
    parts,
    rows_to_check,
    run_vmap,
)
from offline_data.preprocess.identity import describe_function, unknown_note
from offline_data.preprocess.piece import ByRows
from offline_data.preprocess.steps.base import Revision, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self

    from offline_data.episodes import Key
    from offline_data.preprocess.functions.results import Schema
    from offline_data.preprocess.functions.ted import Table
    from offline_data.preprocess.piece import Piece

_AGAIN = 4
"""Rows for which a function is called a second time, to see whether it gives the same."""

UNSTEADY = "it gives something else when it is called again"


@dataclass(frozen=True)
class FunctionStep(Step):
    """A function called with every row, or with blocks of rows.

    `fn` gets a TensorDict without batch size, one transition in TED (with `index` and `episode`) or
    one observation, and returns one. Text leaves come as codes.

    `fn` is pure: what it returns depends on its row alone, and on random numbers of torch's, numpy's
    and Python's global generators, which are seeded for every row. Where `torch.vmap` can run it,
    and gives the same on the rows of the probe, blocks of rows are run so; see `vectorize.py` for
    what that means. Some rows of every block are compared with rows one at a time, and a block in
    which one differs is computed by rows in its place.

    Raises:
        UsageError: Arguments that exclude each other.

    Example:
        >>> from offline_data.testing.pieces import toy_piece, transitions_of
        >>> piece = toy_piece([3])
        >>> step = FunctionStep(lambda td: td.set("action", td["action"] * 2))
        >>> step = step.settled(transitions_of(piece))
        >>> step.run, step.apply(piece).batch.steps["action",][:, 0].tolist()
        ('vectorised', [2.0, 4.0, 6.0])
    """

    name: ClassVar[str] = "fn"
    brings_torch: ClassVar[bool] = True

    fn: Callable[[Any], Any] = field(repr=False)
    """From a TensorDict to a TensorDict (or a nested dict of tensors)."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest says of it; see `describe_function`, which finds it out."""
    on: On = "transitions"
    """What a row is. `observations`: every observation once, whatever is before or after it."""
    batched: int | None = None
    """Most rows of a block, where `fn` takes blocks: it gets, and returns, `[n, …]`."""
    vectorize: Literal["auto"] | bool = "auto"
    """Whether to try `torch.vmap`; False: row by row."""
    seed: int = 0
    """What random numbers of a row depend on, beside the row."""
    run: Literal["rows", "vectorised", "blocks"] = field(default="rows", metadata={"state": True})
    """How it is run."""
    why: str = field(default="", metadata={"state": True})
    """Why row by row."""
    checked: int = field(default=LEAST_ROWS, metadata={"state": True})
    """Rows of every block that are compared, where blocks are vectorised."""
    unsteady: str = field(default="", metadata={"state": True})
    """Why what it gives depends on the order of calls; empty: nothing shows that it does."""
    two_copies: tuple[str, ...] = field(default=(), metadata={"state": True})
    """Leaves whose value after an action is not the one before the next; parts joined by `/`."""
    kept: tuple[str, ...] = field(default=(), metadata={"state": True})
    """Leaves that every dataset has and `fn` does not return: they stay as they were."""
    schema: Schema | None = field(default=None, metadata={"state": True}, repr=False)
    """Leaves of the first result, with dtype and shape of a row."""

    def __post_init__(self) -> None:
        if self.batched is not None and self.batched < 1:
            raise UsageError(f"batched is {self.batched}; expected the rows of a block, at least 1")
        if not self.about:
            object.__setattr__(self, "about", describe_function(self.fn))

    @property
    def per_row(self) -> bool:
        """Whether it is called for every row."""
        return self.run == "rows"

    def describe(self) -> dict[str, Any]:
        """Return what it is and what was asked for, as JSON values."""
        asked = ("on", "batched", "vectorize", "seed")
        return {"step": self.name, **self.about, **{name: getattr(self, name) for name in asked}}

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes with what `fn` made of every row.

        Raises:
            StepError: `fn` failed, or returned what cannot be stored.
            Revision: The data show that it must be stored otherwise.
        """
        made, by_rows = self._made(piece)
        try:
            found, _ = VIEWS[self.on].rebuilt(piece, made, keys_of(self.two_copies))
        except TwoCopies as two:
            step = replace(self, two_copies=with_found(self.two_copies, two))
            raise Revision(step, reason_of(two)) from two
        return replace(found, by_rows=(*piece.by_rows, *by_rows))

    def settled(self, probe: Piece) -> Self:
        """Find out how it can be run, and what it returns."""
        view, count = VIEWS[self.on], len(VIEWS[self.on].numbers(probe))
        if not count:
            raise StepError(
                "There is no row to try the function on: steps before it leave out all episodes "
                "that were tried",
                hint="choose episodes by a step of its own: --step filter:…",
            )
        step = replace(self, schema=None, run="rows" if self.batched is None else "blocks")
        leaves = step._chosen(probe, np.arange(count))
        again = some(count) if self.batched is None else np.arange(count)
        steady = same_rows(leaves, step._chosen(probe, again), again)
        step = replace(step, unsteady="" if steady else UNSTEADY, schema=schema_of_table(leaves))
        if self.batched is None:
            step = step._fastest(view.table(probe), leaves)
        return step._completed(probe, Made(leaves))

    def state(self) -> dict[str, Any]:
        """Return how it is run and what it returns; nothing before it has learnt that."""
        if self.schema is None:
            return {}
        return {
            **{name: getattr(self, name) for name in ("run", "why", "checked", "unsteady")},
            "two_copies": list(self.two_copies),
            "kept": list(self.kept),
            "schema": schema_json(self.schema),
        }

    def with_state(self, state: Mapping[str, Any]) -> Self:
        """Return it as `state` says."""
        if not state:
            return self
        lists = {name: tuple(state[name]) for name in ("two_copies", "kept")}
        return replace(self, **{**state, **lists, "schema": schema_of_json(state["schema"])})

    def notes(self) -> tuple[str, ...]:
        """Say what was kept although the function does not return it, and what is stored twice."""
        return notes_of(self.about, self.two_copies, self.kept, self.unsteady)

    def _made(self, piece: Piece) -> tuple[Made, list[ByRows]]:
        """Run `fn` on all rows of a piece; also returns which blocks had to be run row by row."""
        view = VIEWS[self.on]
        table, numbers = view.table(piece), view.numbers(piece)
        places = Places(piece, self.on)
        if not len(numbers):
            schema = self.schema or {}
            empty = {k: np.zeros((0, *shape), dtype) for k, (dtype, shape) in schema.items()}
            return Made(empty), []
        if self.run == "rows":
            return Made(self._rows(table, numbers, places)), []
        step, gathered, by_rows = self, Gathered(table, len(numbers)), list[ByRows]()
        for part in parts(len(numbers), self.batched or block_rows(table)):
            block = {key: values[part] for key, values in table.items()}
            here = Places(piece, self.on, part.start)
            if self.run == "blocks":
                made = step._block(block, numbers[part], here)
            else:
                try:
                    made = step._vectorised(block, numbers[part], here)
                except NotVectorized as reason:
                    fresh = {key: values[part] for key, values in view.table(piece).items()}
                    made = Made(step._rows(fresh, numbers[part], here))
                    why = f"{reason}, first seen near {here(0)}"
                    by_rows.append(ByRows(part.stop - part.start, why))
            step = replace(step, schema=step.schema or schema_of_table(made.leaves))
            gathered.put(part, made)
        return gathered.made(), by_rows

    def _rows(self, table: Table, numbers: NDArray[np.int64], place: Places) -> Table:
        return run_rows(self.fn, table, numbers, place, self.seed, self.schema)

    def _block(self, table: Table, numbers: NDArray[np.int64], place: Places) -> Made:
        where = place.block(len(numbers))
        return Made(run_block(self.fn, table, int(numbers[0]), where, self.seed, self.schema))

    def _vectorised(self, table: Table, numbers: NDArray[np.int64], place: Places) -> Made:
        """Run a block by `torch.vmap`, and compare; raises `NotVectorized`."""
        at = checked_rows(numbers, self.checked)
        alone = {key: values[at] for key, values in table.items()}  # `fn` may write into the table
        made = run_vmap(self.fn, table)
        compare(self._rows(alone, numbers[at], place.of(at)), made.leaves, at)
        return made

    def _chosen(self, probe: Piece, at: NDArray[np.int64]) -> Table:
        """Run `fn` on chosen rows of a piece, or on all as blocks."""
        if self.run == "blocks":
            return self._made(probe)[0].leaves
        view = VIEWS[self.on]
        table = {key: values[at] for key, values in view.table(probe).items()}
        return self._rows(table, view.numbers(probe)[at], Places(probe, self.on).of(at))

    def _fastest(self, table: Table, rows: Table) -> Self:
        """Return the step that runs many rows at once, if it gives the same as row by row."""
        if not self.vectorize or self.unsteady:
            return replace(self, why=self.unsteady if self.vectorize else "asked for")
        try:
            made = run_vmap(self.fn, table)
            compare(rows, made.leaves, np.arange(len(next(iter(rows.values())))))
        except NotVectorized as reason:
            return replace(self, why=str(reason))
        return replace(self, run="vectorised", checked=rows_to_check(made))

    def _completed(self, probe: Piece, made: Made) -> Self:
        """Return the step that knows what it keeps and what it stores twice."""
        view = VIEWS[self.on]
        try:
            kept = view.rebuilt(probe, made, keys_of(self.two_copies))[1]
        except TwoCopies as found:
            step = replace(self, two_copies=with_found(self.two_copies, found))
            return step._completed(probe, made)
        return replace(self, kept=tuple(map(join_key, kept)))


class Places:
    """Says where rows come from that are counted from some row of a piece on."""

    def __init__(
        self, piece: Piece, on: On, begin: int = 0, at: NDArray[np.int64] | None = None
    ) -> None:
        self._piece, self._on, self._begin, self._at = piece, on, begin, at

    def __call__(self, row: int) -> str:
        """Say where a row is."""
        within = row if self._at is None else int(self._at[row])
        return VIEWS[self._on].place(self._piece, self._begin + within)

    def of(self, at: NDArray[np.int64]) -> Places:
        """Return the places of rows that are chosen by `at`."""
        return Places(self._piece, self._on, self._begin, at)

    def block(self, rows: int) -> Callable[[], str]:
        """Say where a block is."""
        return lambda: f"the block of {rows} rows from {self(0)} to {self(rows - 1)}"


def some(rows: int) -> NDArray[np.int64]:
    """Choose a few rows, the last first, on which a function is called a second time.

    Example:
        >>> some(9).tolist(), some(1).tolist()
        ([8, 5, 2, 0], [0])
    """
    return np.unique(np.linspace(0, rows - 1, min(rows, _AGAIN)).astype(np.int64))[::-1]


def same_rows(table: Table, again: Table, at: NDArray[np.int64]) -> bool:
    """Return True if `again` is the rows `at` of a table, to the bit."""
    if schema_of_table(table) != schema_of_table(again):
        return False
    return all(bool(equal_rows(table[key][at], again[key]).all()) for key in again)


def schema_of_table(table: Table) -> Schema:
    """Describe the rows of a table.

    Example:
        >>> import numpy as np
        >>> schema_of_table({("x",): np.ones((2, 3))})
        {('x',): ('float64', (3,))}
    """
    return {key: (values.dtype.name, values.shape[1:]) for key, values in table.items()}


def schema_json(schema: Schema) -> list[Any]:
    """Return a schema as JSON values."""
    return [[list(key), dtype, list(shape)] for key, (dtype, shape) in schema.items()]


def schema_of_json(value: Iterable[Sequence[Any]]) -> Schema:
    """Read what `schema_json` wrote.

    Example:
        >>> schema_of_json([[["next", "reward"], "float32", [1]]])
        {('next', 'reward'): ('float32', (1,))}
    """
    return {tuple(key): (dtype, tuple(shape)) for key, dtype, shape in value}


def keys_of(names: Iterable[str]) -> set[Key]:
    """Read keys that `join_key` wrote: parts may have dots in them.

    Example:
        >>> keys_of(["observation/a.b"])
        {('observation', 'a.b')}
    """
    return {tuple(name.split("/")) for name in names}


def with_found(names: Iterable[str], found: TwoCopies) -> tuple[str, ...]:
    """Return names of leaves that are stored twice, with those that were found now, sorted."""
    return tuple(sorted({*names, *map(join_key, found.keys)}))


def reason_of(found: TwoCopies) -> str:
    """Say why everything is done again."""
    return f"{found} after an action is not what stands before the next, so that both are stored"


def notes_of(
    about: Mapping[str, Any], two_copies: Sequence[str], kept: Sequence[str], unsteady: str
) -> tuple[str, ...]:
    """Say what a function does not return, what it tells apart, and what else is to be known."""
    name = about.get("name", "the function")
    notes = []
    if kept:
        notes.append(f"{', '.join(kept)}: not returned by {name}, kept as they were")
    if two_copies:
        listed = ", ".join(two_copies)
        notes.append(f"{listed}: stored before and after every action, for {name} tells them apart")
    if unsteady:
        notes.append(
            f"What {name} gives may depend on the order of calls, and be different next time: "
            f"{unsteady}"
        )
    if about.get("unknown"):
        notes.append(unknown_note(about))
    return tuple(notes)
