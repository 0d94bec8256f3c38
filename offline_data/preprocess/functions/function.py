"""A function of one row, or of a block of rows, as a step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from offline_data.episodes.fields import join_key
from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions.batched import run_block
from offline_data.preprocess.functions.blocks import (
    Gathered,
    Places,
    block_rows,
    checked_rows,
    parts,
)
from offline_data.preprocess.functions.learnt import (
    keys_of,
    notes_of,
    reason_of,
    schema_json,
    schema_of_json,
    schema_of_table,
    with_found,
)
from offline_data.preprocess.functions.per_row import run_rows
from offline_data.preprocess.functions.proving import CHECKED, are_same, fastest, some, tried
from offline_data.preprocess.functions.ted import TwoCopies
from offline_data.preprocess.functions.vectorized import Made, NotVectorized, compare, run_vmap
from offline_data.preprocess.functions.views import VIEWS, On
from offline_data.preprocess.steps.base import Revision, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from typing_extensions import Self

    from offline_data.preprocess.functions.results import Schema
    from offline_data.preprocess.functions.ted import Table
    from offline_data.preprocess.piece import Piece


@dataclass(frozen=True)
class FunctionStep(Step):
    """A function called with every row, or with blocks of rows.

    It means the same however it is run: `fn` gets a TensorDict without batch size, one transition
    in TED (with `index` and `episode`) or one observation, and returns one. Text leaves come as
    codes. Where `torch.vmap` can run it and gives the same to the bit on the rows of the probe,
    whole blocks are run so; some rows of every block are compared, and where one differs, all is
    done again row by row.

    A function is run on many rows only if it depends on nothing but its row: none that draws random
    numbers, looks at values to decide what to do (even if it catches that it can't), changes what
    it refers to, or asks for the time. What is not promised:

    - Of a function that has a state (a counter, a generator of its own): what it gives depends on
      the order of calls, thus on tasks and processes. `notes` say so where the probe shows it.
    - The sign of a zero and the bits of a NaN, where a function takes the larger of two values.
    - The last bit of sums, products of matrices and the like: where it differs between one row and
      many, it does for at least one value in fifty (measured), and some hundred values of every
      block are compared; a difference in fewer values could go unseen. One row of very many values
      may be added up otherwise by another number of threads.
    - Functions that find out that they are vectorised by torch's private names, ask for values in
      threads that are there already and catch that it fails, or draw now and then from a random
      generator that an installed package keeps for itself.

    Raises:
        UsageError: Arguments that exclude each other.

    Example:
        >>> from offline_data.testing.pieces import toy_piece, transitions_of
        >>> piece = toy_piece([3])
        >>> step = FunctionStep(lambda td: td.set("action", td["action"] * 2))
        >>> step = step.settled(transitions_of(piece))
        >>> step.run, step.apply(piece).batch.steps["action",][:, 0].tolist()
        ('vmap', [2.0, 4.0, 6.0])
    """

    name: ClassVar[str] = "fn"
    brings_torch: ClassVar[bool] = True

    fn: Callable[[Any], Any] = field(repr=False)
    """From a TensorDict to a TensorDict (or a nested dict of tensors)."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest says of it: name and digests."""
    on: On = "transitions"
    """What a row is. `observations`: every observation once, whatever is before or after it."""
    batched: int | None = None
    """Most rows of a block, where `fn` takes blocks: it gets, and returns, `[n, …]`."""
    vectorize: bool = True
    """Whether to try `torch.vmap`."""
    seed: int = 0
    """What random numbers of a row depend on, beside the row."""
    run: Literal["rows", "vmap", "blocks"] = field(default="rows", metadata={"state": True})
    """How it is run."""
    why: str = field(default="", metadata={"state": True})
    """Why row by row."""
    checked: int = field(default=CHECKED, metadata={"state": True})
    """Rows of every block that are compared, where blocks are run by `torch.vmap`."""
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
            Revision: The data show that it must be run, or stored, otherwise.
        """
        try:
            return VIEWS[self.on].rebuilt(piece, self._made(piece), keys_of(self.two_copies))[0]
        except TwoCopies as found:
            step = replace(self, two_copies=with_found(self.two_copies, found))
            raise Revision(step, reason_of(found)) from found

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
        again = some(count) if self.batched is None else np.arange(count)
        leaves, unsteady = tried(
            self.fn,
            lambda: step._chosen(probe, np.arange(count)),
            lambda: step._chosen(probe, again),
            lambda rows, other: are_same(rows, other, again),
        )
        step = replace(step, unsteady=unsteady, schema=schema_of_table(leaves))
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

    def _made(self, piece: Piece) -> Made:
        """Run `fn` on all rows of a piece."""
        view = VIEWS[self.on]
        table, numbers = view.table(piece), view.numbers(piece)
        if not len(numbers):
            schema = self.schema or {}
            return Made({k: np.zeros((0, *shape), dtype) for k, (dtype, shape) in schema.items()})
        if self.run == "rows":
            return Made(self._rows(table, numbers, Places(piece, self.on)))
        step, gathered = self, Gathered(table, len(numbers))
        for part in parts(len(numbers), self.batched or block_rows(table)):
            block = {key: values[part] for key, values in table.items()}
            run = step._vmap if self.run == "vmap" else step._block
            made = run(block, numbers[part], Places(piece, self.on, part.start))
            step = replace(step, schema=step.schema or schema_of_table(made.leaves))
            gathered.put(part, made)
        return gathered.made()

    def _rows(self, table: Table, numbers: NDArray[np.int64], place: Places) -> Table:
        return run_rows(self.fn, table, numbers, place, self.seed, self.schema)

    def _block(self, table: Table, numbers: NDArray[np.int64], place: Places) -> Made:
        where = place.block(len(numbers))
        return Made(run_block(self.fn, table, int(numbers[0]), where, self.seed, self.schema))

    def _vmap(self, table: Table, numbers: NDArray[np.int64], place: Places) -> Made:
        at = checked_rows(numbers, self.checked)
        alone = {key: values[at] for key, values in table.items()}  # `fn` may write into the table
        try:
            made = run_vmap(self.fn, table)
            wanted = self._rows(alone, numbers[at], place.of(at))
            compare(wanted, made.leaves, at)
        except NotVectorized as reason:
            step = replace(self, run="rows", why=f"{reason}, first seen near {place(0)}")
            raise Revision(step, step.why) from reason
        return made

    def _chosen(self, probe: Piece, at: NDArray[np.int64]) -> Table:
        """Run `fn` on chosen rows of a piece, or on all as blocks."""
        if self.run == "blocks":
            return self._made(probe).leaves
        view = VIEWS[self.on]
        table = {key: values[at] for key, values in view.table(probe).items()}
        return self._rows(table, view.numbers(probe)[at], Places(probe, self.on).of(at))

    def _fastest(self, table: Table, rows: Table) -> Self:
        """Return the step that runs many rows at once, if it gives the same as row by row."""
        why = self.unsteady if self.vectorize else "asked for"
        if why:
            return replace(self, why=why)
        found = fastest(self.fn, table, rows)
        return replace(self, run=found.run, why=found.why, checked=found.checked)

    def _completed(self, probe: Piece, made: Made) -> Self:
        """Return the step that knows what it keeps and what it stores twice."""
        view = VIEWS[self.on]
        try:
            kept = view.rebuilt(probe, made, keys_of(self.two_copies))[1]
        except TwoCopies as found:
            step = replace(self, two_copies=with_found(self.two_copies, found))
            return step._completed(probe, made)
        return replace(self, kept=tuple(map(join_key, kept)))
