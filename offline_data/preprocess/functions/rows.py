"""A function called with one row after the other, with a block, or with an episode.

This is what every other way of running a function is held to. What it raises is said with its row and
its own traceback; random numbers are seeded for every call, and the caller's generators are left as
they were.
"""

from __future__ import annotations

import os
import random
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from offline_data.buffers.assemble import assemble, tree_of
from offline_data.episodes.fields import join_key
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions.results import (
    Leaves,
    Place,
    Schema,
    conform,
    described,
    difference,
    leaves_of,
    not_plain,
    schema_of,
    to_array,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from numpy.typing import NDArray
    from torch import Tensor

    from offline_data.episodes import Key
    from offline_data.preprocess.functions.ted import Table

NO_ROWS = torch.Size(())

CPU = torch.device("cpu")

_STRIP = 32
"""Rows that are tensors at once: many small ones that live long keep the garbage collector busy."""

_FRAMES = 30
"""Frames of a traceback that are shown, the last ones: endless recursion has a thousand."""

_MASK = (1 << 64) - 1


def called(fn: Callable[[Any], Any], data: Any, place: Place) -> Any:
    """Call a function of the user's.

    Args:
        fn: The function.
        data: What it gets.
        place: Where that comes from.

    Raises:
        StepError: What it raised, with its own traceback; also where it would end the program.

    Example:
        >>> called(len, "abc", lambda: "row 0")
        3
    """
    try:
        return fn(data)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        trace = _below(error.__traceback__)
        lines = traceback.format_exception(type(error), error, trace, limit=-_FRAMES)
        raise StepError(
            f"The function failed on {place()}: {_said(error)}\n" + "".join(lines).rstrip(),
        ) from error


def _said(error: BaseException) -> str:
    """Write an error in one line."""
    try:
        first = str(error).strip().partition("\n")[0]
    except Exception:  # noqa: BLE001 - an error whose own text fails
        first = ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _below(trace: TracebackType | None) -> TracebackType | None:
    """Leave the frame of `called` out of a traceback."""
    return trace.tb_next if trace is not None else None


def run_rows(
    fn: Callable[[Any], Any],
    table: Table,
    numbers: NDArray[np.int64],
    place: Callable[[int], str],
    seed: int,
    schema: Schema | None = None,
) -> Table:
    """Call `fn` with every row of a table as a TensorDict without batch size.

    Args:
        fn: The function; may write into what it gets.
        table: `[n, …]` columns, n at least 1; overwritten where `fn` writes.
        numbers: `[n]` what each row's random numbers depend on, beside `seed`.
        place: Says where a row comes from.
        seed: Of all rows.
        schema: What results are held to; None: the first one.

    Returns:
        `[n, …]` columns, new.

    Raises:
        StepError: `fn` failed on a row, or returned what cannot be stored, or something else than
            for the first row; names the row.

    Example:
        >>> import numpy as np
        >>> table = {("x",): np.array([1.0, 2.0])}
        >>> run_rows(lambda td: {"y": td["x"] * 2}, table, np.arange(2), str, 0)
        {('y',): array([2., 4.])}
    """
    tree = tree_of({key: slot for slot, key in enumerate(table)})
    out = _Out(schema, len(numbers))
    with own_randomness(), torch.no_grad():
        for begin in range(0, len(numbers), _STRIP):
            part = slice(begin, begin + _STRIP)
            columns = [torch.from_numpy(values[part]).unbind(0) for values in table.values()]
            strip = zip(numbers[part].tolist(), *columns, strict=True)
            for row, (number, *leaves) in enumerate(strip, begin):
                seed_all(seed, number)
                here = _Here(place, row)
                result = called(fn, assemble(tree, leaves, NO_ROWS, CPU), here)
                out.put(row, leaves_of(result, here), here)
    return {key: values.numpy() for key, values in out.columns.items()}


class _Here:
    """A place that is put into words when somebody asks."""

    __slots__ = ("_place", "_row")

    def __init__(self, place: Callable[[int], str], row: int) -> None:
        self._place, self._row = place, row

    def __call__(self) -> str:
        return self._place(self._row)


class _Out:
    """Columns of results: copied at once, for a function may use its memory again."""

    def __init__(self, schema: Schema | None, rows: int) -> None:
        self._schema = schema
        self._rows = rows
        self.columns: dict[Key, Tensor] = {}
        self._slots: list[tuple[Key, torch.dtype, torch.Size]] = []
        self._places: list[tuple[Tensor, ...]] = []

    def put(self, row: int, leaves: Leaves, here: Place) -> None:
        """Take the result of the next row; what is as expected is found so without a schema."""
        if not self._slots:
            self._begin(leaves, here)
        if len(leaves) != len(self._slots):
            raise difference(self._expected, described(leaves), here)
        at = row % _STRIP
        if not at:
            self._places = [c[row : row + _STRIP].unbind(0) for c in self.columns.values()]
        for (key, dtype, shape), places in zip(self._slots, self._places, strict=True):
            leaf = leaves.get(key)
            if leaf is None or leaf.dtype is not dtype or leaf.shape != shape:
                raise difference(self._expected, described(leaves), here)
            try:
                places[at].copy_(leaf)
            except (RuntimeError, NotImplementedError) as error:
                raise not_plain(key, leaf, here) from error

    def _begin(self, leaves: Leaves, here: Place) -> None:
        """Make columns; the order of leaves is that of the first result of all."""
        self._expected = self._schema or schema_of(leaves, here)
        conform(self._expected, described(leaves), here)
        for key in self._expected:
            leaf = leaves[key]
            try:
                self.columns[key] = torch.empty((self._rows, *leaf.shape), dtype=leaf.dtype)
            except RuntimeError as error:
                raise StepError(
                    f"The function returned {join_key(key)!r} as {list(leaf.shape)} for {here()}: "
                    f"{self._rows} rows of that do not fit into memory"
                ) from error
            self._slots.append((key, leaf.dtype, leaf.shape))


def run_block(
    fn: Callable[[Any], Any],
    table: Table,
    number: int,
    place: Place,
    seed: int,
    schema: Schema | None = None,
) -> Table:
    """Call `fn` with all rows of a table as one TensorDict.

    Args:
        fn: The function; may write into what it gets.
        table: `[n, …]` columns, n at least 1; overwritten where `fn` writes.
        number: What random numbers of the block depend on, beside `seed`.
        place: Says where the block comes from.
        seed: Of all blocks.
        schema: What the result is held to; None: whatever can be stored.

    Returns:
        `[n, …]` columns, which may share memory with `table`, and with what `fn` keeps.

    Raises:
        StepError: `fn` failed, or returned what cannot be stored, or another number of rows.

    Example:
        >>> import numpy as np
        >>> table = {("x",): np.array([1.0, 3.0])}
        >>> run_block(lambda td: {"x": td["x"] - td["x"].mean()}, table, 0, lambda: "here", 0)
        {('x',): array([-1.,  1.])}
    """
    rows = len(next(iter(table.values())))
    tree = tree_of({key: slot for slot, key in enumerate(table)})
    inputs = [torch.from_numpy(values) for values in table.values()]
    with own_randomness(), torch.no_grad():
        seed_all(seed, number)
        block = assemble(tree, inputs, torch.Size((rows,)), CPU)
        leaves = leaves_of(called(fn, block, place), place)
    _check_rows(leaves, rows, place)
    expected = schema or schema_of(leaves, place, rows)
    conform(expected, described(leaves, rows), place)
    return {key: to_array(key, leaves[key], place) for key in expected}


def _check_rows(leaves: Leaves, rows: int, place: Place) -> None:
    for key, value in leaves.items():
        if value.ndim < 1 or len(value) != rows:
            raise StepError(
                f"The function returned {join_key(key)!r} as {list(value.shape)} for {place()}; "
                f"expected {rows} rows",
                hint="without batched=N a function gets one row at a time",
            )


def mixed(seed: int, number: int) -> int:
    """Return 64 bits that depend on both numbers (SplitMix64: Steele, Lea and Flood, 2014)."""
    value = (seed * 0x9E3779B97F4A7C15 + number + 0x632BE59BD9B4E019) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def seed_all(seed: int, number: int) -> None:
    """Seed torch's (CPU), numpy's and Python's global generators for one row.

    Not `torch.manual_seed`, which asks after every accelerator: 190 µs instead of 1.
    """
    bits = mixed(seed, number)
    torch.default_generator.manual_seed(bits >> 1)
    np.random.seed(bits & 0xFFFFFFFF)  # noqa: NPY002 - functions may use the global generator
    random.seed(bits)


@contextmanager
def own_randomness() -> Iterator[None]:
    """Give the global generators back as they were; meanwhile `os._exit` raises `SystemExit`.

    It would end the program without a word, and with an exit status of its own.
    """
    before, leave, process = states(), os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:  # a child that the function forked
            leave(status)
        raise SystemExit(f"it calls os._exit({status})")

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = leave
        torch.default_generator.set_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


def states() -> tuple[Any, Any, Any]:
    """Return the states of the three global generators."""
    return (
        torch.default_generator.get_state(),
        np.random.get_state(),  # noqa: NPY002
        random.getstate(),
    )


def same(before: tuple[Any, Any, Any], after: tuple[Any, Any, Any]) -> bool:
    """Return True if nobody drew from the global generators in between."""
    return (
        torch.equal(before[0], after[0])
        and before[1][2:] == after[1][2:]
        and np.array_equal(before[1][1], after[1][1])
        and before[2] == after[2]
    )
