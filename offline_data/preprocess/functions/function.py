"""A function of one row, or of a block of rows, as a step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch

from offline_data.buffers.assemble import assemble, tree_of
from offline_data.episodes.fields import join_key, split_key
from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions.blocks import Places, block_rows, checked_rows, joined
from offline_data.preprocess.functions.per_row import CPU, run_rows
from offline_data.preprocess.functions.randomness import holds_generator, own_randomness, seed_all
from offline_data.preprocess.functions.results import (
    Schema,
    called,
    conform,
    leaves_of,
    schema_of,
    to_array,
)
from offline_data.preprocess.functions.ted import TwoCopies
from offline_data.preprocess.functions.vectorized import NotVectorized, compare, run_vmap
from offline_data.preprocess.functions.views import VIEWS, On
from offline_data.preprocess.steps.base import Revision, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from typing_extensions import Self

    from offline_data.preprocess.functions.ted import Table
    from offline_data.preprocess.piece import Piece

_TWICE = 2
"""Rows for which a function is called a second time, to see whether it gives the same."""


@dataclass(frozen=True)
class FunctionStep(Step):
    """A function called with every row, or with blocks of rows.

    It means the same however it is run: `fn` gets a TensorDict without batch size, one transition
    in TED (with `index` and `episode`) or one observation, and returns one. Where `torch.vmap` can
    run it and gives the same to the bit on the rows of the probe, whole blocks are run so; some
    rows of every block are compared, and where one differs, all is done again row by row.

    Raises:
        UsageError: Arguments that exclude each other.
    """

    name: ClassVar[str] = "fn"

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
    """Why row by row, if that was not asked for."""
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
        return {
            "step": self.name,
            **self.about,
            "on": self.on,
            "batched": self.batched,
            "vectorize": self.vectorize,
            "seed": self.seed,
        }

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes with what `fn` made of every row.

        Raises:
            StepError: `fn` failed, or returned what cannot be stored.
            Revision: The data show that it must be run, or stored, otherwise.
        """
        leaves = self._leaves(piece)
        known = {split_key(key) for key in self.two_copies}
        try:
            return VIEWS[self.on].rebuilt(piece, leaves, known)[0]
        except TwoCopies as found:
            names = {*self.two_copies, *map(join_key, found.keys)}
            step = replace(self, two_copies=tuple(sorted(names)))
            raise Revision(
                step, f"{found} after an action is not what stands before the next"
            ) from found

    def settled(self, probe: Piece) -> Self:
        """Find out how it can be run, and what it returns."""
        view = VIEWS[self.on]
        if self.batched is not None:
            step = replace(self, run="blocks", schema=None)
            leaves = step._leaves(probe)
        else:
            step = replace(self, run="rows", schema=None)
            leaves = step._leaves(probe)
            step = step._fastest(probe, leaves)
        _, kept = view.rebuilt(probe, leaves, tuple(leaves))  # what is told apart shows later
        found = schema_of({key: torch.from_numpy(v) for key, v in leaves.items()}, len(probe.rows))
        return replace(step, schema=found, kept=tuple(map(join_key, kept)))

    def state(self) -> dict[str, Any]:
        """Return how it is run and what it returns; nothing before it has learnt that."""
        if self.schema is None:
            return {}
        schema = [[list(k), dtype, list(shape)] for k, (dtype, shape) in self.schema.items()]
        return {
            "run": self.run,
            "why": self.why,
            "two_copies": list(self.two_copies),
            "kept": list(self.kept),
            "schema": schema,
        }

    def with_state(self, state: Mapping[str, Any]) -> Self:
        """Return it as `state` says."""
        if not state:
            return self
        schema = {tuple(key): (dtype, tuple(shape)) for key, dtype, shape in state["schema"]}
        return replace(
            self,
            run=state["run"],
            why=state["why"],
            two_copies=tuple(state["two_copies"]),
            kept=tuple(state["kept"]),
            schema=schema or None,
        )

    def notes(self) -> tuple[str, ...]:
        """Say what was kept although the function does not return it, and what is stored twice."""
        name = self.about.get("name", "the function")
        notes = []
        if self.kept:
            notes.append(f"{', '.join(self.kept)}: not returned by {name}, kept as they were")
        if self.two_copies:
            listed = ", ".join(self.two_copies)
            notes.append(
                f"{listed}: stored before and after every action, for {name} tells them apart"
            )
        return tuple(notes)

    def _leaves(self, piece: Piece) -> Table:
        """Run `fn` on all rows of a piece."""
        view = VIEWS[self.on]
        table, numbers = view.table(piece), view.numbers(piece)
        run = {"rows": self._rows, "vmap": self._vmap, "blocks": self._block}[self.run]
        size = {"rows": len(numbers), "vmap": block_rows(table), "blocks": self.batched or 1}
        parts = []
        for begin in range(0, len(numbers), size[self.run]):
            part = slice(begin, begin + size[self.run])
            at = Places(piece, self.on, begin)
            parts.append(run({k: v[part] for k, v in table.items()}, numbers[part], at))
        return parts[0] if len(parts) == 1 else joined(parts)

    def _rows(self, table: Table, numbers: NDArray[np.int64], place: Places) -> Table:
        return run_rows(self.fn, table, numbers, place, self.seed, self.schema)

    def _vmap(self, table: Table, numbers: NDArray[np.int64], place: Places) -> Table:
        at = checked_rows(numbers)
        alone = {key: values[at] for key, values in table.items()}  # `fn` may write into the table
        try:
            leaves = run_vmap(self.fn, table)
            wanted = self._rows(alone, numbers[at], place.of(at))
            compare(wanted, leaves, at)
        except NotVectorized as reason:
            step = replace(self, run="rows", why=f"{reason}, first seen near {place(0)}")
            raise Revision(step, step.why) from reason
        return leaves

    def _block(self, table: Table, numbers: NDArray[np.int64], place: Places) -> Table:
        rows = len(numbers)
        tree = tree_of({key: slot for slot, key in enumerate(table)})
        inputs = [torch.from_numpy(values) for values in table.values()]
        with own_randomness(), torch.no_grad():
            seed_all(self.seed, int(numbers[0]))
            block = assemble(tree, inputs, torch.Size((rows,)), CPU)
            leaves = leaves_of(called(self.fn, block, place.block(rows)), place.block(rows))
        for key, value in leaves.items():
            if value.ndim < 1 or len(value) != rows:
                raise StepError(
                    f"The function returned {join_key(key)!r} as {list(value.shape)} for "
                    f"{place.block(rows)()}; expected {rows} rows",
                    hint="without batched=N it gets one row at a time",
                )
        if self.schema is not None:
            conform(self.schema, schema_of(leaves, rows), place.block(rows))
        return {key: to_array(value) for key, value in leaves.items()}

    def _fastest(self, probe: Piece, alone: Table) -> Self:
        """Return the step that runs many rows at once, if it gives the same as row by row."""
        why = "" if self.vectorize else "asked for"
        if self.vectorize:
            try:
                self._prove(probe, alone)
                return replace(self, run="vmap", why="")
            except NotVectorized as reason:
                why = str(reason)
        return replace(self, run="rows", why=why)

    def _prove(self, probe: Piece, alone: Table) -> None:
        view = VIEWS[self.on]
        if holds_generator(self.fn):
            raise NotVectorized("it has a random generator of its own")
        again = {key: values[:_TWICE] for key, values in view.table(probe).items()}
        numbers = view.numbers(probe)
        twice = self._rows(again, numbers[:_TWICE], Places(probe, self.on, 0))
        try:
            compare(twice, alone, np.arange(len(next(iter(again.values())))))
        except NotVectorized:
            raise NotVectorized("it gives something else when it is called again") from None
        compare(alone, run_vmap(self.fn, view.table(probe)), np.arange(len(numbers)))
