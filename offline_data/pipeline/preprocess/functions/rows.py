"""Calling a user function on one row after the other, or on a block, and checking its results.

Running row by row is the reference for all other ways. Errors of the function name the row and have
its own traceback; the random generators are seeded before every call; all results must have the
schema of the first.
"""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase, is_non_tensor, is_tensor_collection
from torch import Tensor

from offline_data.base.errors import FormatError, StepError
from offline_data.base.plurals import plural
from offline_data.episode.fields import RESERVED_ROOTS, Key, check_key, join_key
from offline_data.rows.gather.assemble import assemble, tree_of
from offline_data.store.layout import DTYPES

if TYPE_CHECKING:
    from offline_data.pipeline.preprocess.functions.ted import Table

Place: TypeAlias = Callable[[], str]  # describes a row, block or episode for a message

Leaves: TypeAlias = "dict[Key, Tensor]"
FunctionSchema: TypeAlias = "dict[Key, tuple[str, tuple[int, ...]]]"  # dtype name and row shape

CPU = torch.device("cpu")

_STRIP = 32  # rows unbound at once: many long-lived tensors keep the garbage collector busy

_FRAMES = 30  # last of a traceback, which are shown; endless recursion has a thousand

_MASK = (1 << 64) - 1


def result_error(
    key: Key | None, found: str, expected: str, place: Place, hint: str | None = None
) -> StepError:
    """Return the error for a result, or the feature of a result, that is not as expected."""
    leaf = "" if key is None else f"{join_key(key)!r} as "
    return StepError(
        f"The function returned {leaf}{found} for {place()}; expected {expected}", hint=hint
    )


def failure(error: BaseException, place: Place) -> StepError:
    """Return the error for an exception of a user function; raises `KeyboardInterrupt` again."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    trace = error.__traceback__ and error.__traceback__.tb_next  # from the function's frame on
    lines = traceback.format_exception(type(error), error, trace, limit=-_FRAMES)
    try:
        text = str(error).strip().partition("\n")[0]
    except Exception:  # noqa: BLE001 - an error whose own text fails
        text = ""
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return StepError(f"The function failed on {place()}: {said}\n" + "".join(lines).rstrip())


@dataclass(frozen=True)
class Call:
    """A user function, and the rows to call it on.

    Its methods raise `StepError`: `fn` failed, or a result cannot be stored or differs in schema.

    Example:
        >>> table = {("x",): np.array([1.0, 2.0])}
        >>> Call(lambda td: {"y": td["x"] * 2}, table, np.arange(2), str, 0).by_rows()
        {('y',): array([2., 4.])}
    """

    fn: Callable[[Any], Any]
    table: Table  # `[n, …]` columns, n at least 1; `fn` may write into them
    numbers: NDArray[np.int64]  # `[n]`; seeds with `seed`: for a row its own, else the first
    place: Callable[[int], str]
    seed: int
    schema: FunctionSchema | None = None  # of the results; None: the first one's

    def at(self, rows: NDArray[np.int64]) -> Call:
        """Return the call on copies of some rows."""
        table = {key: values[rows] for key, values in self.table.items()}
        return replace(
            self,
            table=table,
            numbers=self.numbers[rows],
            place=lambda row: self.place(int(rows[row])),
        )

    def by_rows(self) -> Table:
        """Call `fn` on every row as a TensorDict without batch size.

        Returns new `[n, …]` columns, those of `table` for features that `fn` returned unchanged.
        """
        table, schema, count = self.table, self.schema, len(self.numbers)
        slots = {key: slot for slot, key in enumerate(table)}
        tree, no_rows = tree_of(slots), torch.Size(())
        whole = [torch.from_numpy(values) for values in table.values()]
        columns: dict[Key, Tensor | None] = {}  # None: unchanged so far
        with torch.no_grad():
            for begin in range(0, count, _STRIP):
                part = slice(begin, begin + _STRIP)
                given = [values[part].unbind(0) for values in whole]
                places = {k: None if v is None else v[part].unbind(0) for k, v in columns.items()}
                strip = zip(self.numbers[part].tolist(), *given, strict=True)
                for at, (number, *inputs) in enumerate(strip):
                    here = partial(self.place, begin + at)
                    seed_all(self.seed, number)
                    leaves = leaves_of(self._call(assemble(tree, inputs, no_rows, CPU), here), here)
                    if not columns:
                        schema = schema or schema_of(leaves, here)
                        conform(schema, describe_leaves(leaves), here)
                        columns, places = dict.fromkeys(schema), dict.fromkeys(schema)
                    elif len(leaves) != len(columns):
                        conform(schema or {}, describe_leaves(leaves), here)
                    for key, spots in places.items():
                        leaf = leaves.get(key)
                        if spots is None:
                            if leaf is not None and key in slots and leaf is inputs[slots[key]]:
                                continue
                            conform(schema or {}, describe_leaves(leaves), here)
                            column = columns[key] = _allocate(key, leaves[key], count, here)
                            if begin + at:
                                column[: begin + at] = whole[slots[key]][: begin + at]
                            spots = places[key] = column[part].unbind(0)
                        # Copied at once, as the function may reuse the memory.
                        spot = spots[at]
                        if leaf is None or leaf.dtype is not spot.dtype or leaf.shape != spot.shape:
                            conform(schema or {}, describe_leaves(leaves), here)
                        try:
                            spot.copy_(leaves[key])
                        except (RuntimeError, NotImplementedError) as error:
                            raise not_plain(key, leaves[key], here) from error
        return {key: table[key] if v is None else v.numpy() for key, v in columns.items()}

    def as_block(self) -> Table:
        """Call `fn` on all rows as one TensorDict `[n]`, of which it returns one.

        Returns `[n, …]` columns, which may share memory with `table` and with objects that `fn` keeps.
        """
        rows = len(self.numbers)

        def place() -> str:
            return (
                f"the block of {plural(rows, 'row')} from {self.place(0)} to {self.place(rows - 1)}"
            )

        leaves = leaves_of(self.as_one(place), place)
        for key, value in leaves.items():
            if value.ndim < 1 or len(value) != rows:
                hint = "without batched=N a function gets one row at a time"
                raise result_error(key, f"{list(value.shape)}", plural(rows, "row"), place, hint)
        schema = self.schema or schema_of(leaves, place, rows)
        conform(schema, describe_leaves(leaves, rows), place)
        return {key: to_array(key, leaves[key], place) for key in schema}

    def as_one(self, place: Place) -> Any:
        """Return what `fn` returns for all rows as one TensorDict `[n]`."""
        tree = tree_of({key: slot for slot, key in enumerate(self.table)})
        inputs = [torch.from_numpy(values) for values in self.table.values()]
        seed_all(self.seed, int(self.numbers[0]))
        with torch.no_grad():
            return self._call(assemble(tree, inputs, inputs[0].shape[:1], CPU), place)

    def _call(self, given: Any, place: Place) -> Any:
        try:
            return self.fn(given)
        except BaseException as error:
            raise failure(error, place) from error


def _allocate(key: Key, leaf: Tensor, rows: int, here: Place) -> Tensor:
    try:
        return torch.empty((rows, *leaf.shape), dtype=leaf.dtype)
    except RuntimeError as error:
        expected = f"{plural(rows, 'row')} of it that fit into memory"
        raise result_error(key, f"{list(leaf.shape)}", expected, here) from error


def seed_all(seed: int, number: int) -> None:
    """Seed torch's (CPU), numpy's and Python's global generators for one row.

    With 64 bits mixed from both numbers (SplitMix64: Steele, Lea and Flood, 2014). Not by
    `torch.manual_seed`, which also visits every accelerator: 190 µs instead of 1.
    """
    bits = (seed * 0x9E3779B97F4A7C15 + number + 0x632BE59BD9B4E019) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    bits ^= bits >> 31
    torch.default_generator.manual_seed(bits >> 1)
    np.random.seed(bits & 0xFFFFFFFF)  # noqa: NPY002 - functions may use the global generator
    random.seed(bits)


@contextmanager
def own_randomness() -> Iterator[None]:
    """Restore the global generators afterwards; meanwhile `os._exit` raises `SystemExit`."""
    before, leave, process = states(), os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:  # a child that the function forked
            leave(status)
        raise SystemExit(f"it calls os._exit({status})")

    os._exit = refuse  # the true one would end the program without any message
    try:
        yield
    finally:
        os._exit = leave
        torch.default_generator.set_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


def states() -> tuple[Any, Any, Any]:
    """Return the states of the three global generators."""
    of_numpy = np.random.get_state()  # noqa: NPY002
    return torch.default_generator.get_state(), of_numpy, random.getstate()


def same_states(before: tuple[Any, Any, Any], after: tuple[Any, Any, Any]) -> bool:
    """Return True if no random number was drawn from the global generators in between."""
    return (
        torch.equal(before[0], after[0])
        and before[1][2:] == after[1][2:]
        and np.array_equal(before[1][1], after[1][1])
        and before[2] == after[2]
    )


def leaves_of(result: Any, place: Place) -> Leaves:
    """Return tensors and numbers of a TensorDict, tensorclass or mapping by key; `StepError`."""
    if not isinstance(result, (TensorDictBase, Mapping)) and not is_tensor_collection(result):
        what = "None (is a `return` missing?)" if result is None else f"a {type(result).__name__}"
        raise result_error(None, what, "a TensorDict", place)
    found: Leaves = {}
    try:
        _collect_leaves(result, (), found, place)
    except RecursionError as error:
        raise result_error(
            None, "a result that holds itself, nested without end", "features", place
        ) from error
    if not found:
        raise result_error(None, "a TensorDict without features", "features", place)
    return found


def _collect_leaves(result: Any, above: Key, found: Leaves, place: Place) -> None:
    for name, value in result.items():
        if type(name) is str:
            key = (*above, name)
        elif isinstance(name, tuple) and name and all(isinstance(part, str) for part in name):
            key = (*above, *name)
        else:
            raise result_error(None, f"a feature named {name!r}", "text", place)
        if isinstance(value, torch.Tensor):
            if value.is_nested:
                raise not_plain(key, value, place)
            found[key] = value
        elif isinstance(value, Mapping) or (
            is_tensor_collection(value) and not is_non_tensor(value)
        ):
            _collect_leaves(value, key, found, place)
        else:
            try:
                if not isinstance(value, (np.ndarray, np.generic, bool, int, float, complex)):
                    raise TypeError  # noqa: TRY301 - as for what torch refuses
                plain = np.array(value) if isinstance(value, np.ndarray) else value
                found[key] = torch.as_tensor(plain)
            except (TypeError, ValueError, RuntimeError, OverflowError) as error:
                hint = "text and objects cannot be stored: number them"
                kind = type(value).__name__
                raise result_error(key, kind, "a tensor", place, hint) from error


def schema_of(leaves: Leaves, place: Place, rows: int | None = None) -> FunctionSchema:
    """Return the features' schema; raises `StepError` for a name or dtype that cannot be stored."""
    rename = "rename the feature in the function"
    for key, value in leaves.items():
        try:
            check_key(key)
        except FormatError as error:
            raise StepError(
                f"The function returned a feature {key!r:.80} for {place()}: {error.message}",
                hint=rename,
            ) from error
        above = next((key[:n] for n in range(1, len(key)) if key[:n] in leaves), None)
        nested = len(key) > 1 and key[0] in RESERVED_ROOTS - {"next"}
        if key == ("next",) or nested or above:
            wanted = "features in it" if key == ("next",) else f"feature {(above or key[:1])[-1]!r}"
            raise result_error(None, f"a feature {join_key(key)!r}", wanted, place, rename)
        if (dtype := _name_of(value.dtype)) not in DTYPES:
            hint = "cast it, for example to float32 or float16"
            raise result_error(key, dtype, "a dtype that can be stored", place, hint)
    return describe_leaves(leaves, rows)


def describe_leaves(leaves: Leaves, rows: int | None = None) -> FunctionSchema:
    """Return dtype and shape of features; with `rows`, of one row along the first axis."""
    skip = 0 if rows is None else 1
    return {key: (_name_of(v.dtype), tuple(v.shape[skip:])) for key, v in leaves.items()}


def conform(schema: FunctionSchema, found: FunctionSchema, place: Place) -> None:
    """Raise `StepError` if features are missing or new, or have another dtype or shape."""
    if schema.keys() != found.keys():
        missing, surplus = schema.keys() - found.keys(), found.keys() - schema.keys()
        parts = [("lacks", missing), ("has, unlike the first one,", surplus)]
        said = (f"{what} {', '.join(sorted(map(join_key, keys)))}" for what, keys in parts if keys)
        raise StepError(f"The function's result for {place()} {' and '.join(said)}")
    for key, (dtype, shape) in schema.items():
        if found[key] != (dtype, shape):
            hint = "a feature has one dtype and one shape in all rows: cast it, pad it or cut it"
            wanted = f"{dtype} {list(shape)} as before"
            raise result_error(key, f"{found[key][0]} {list(found[key][1])}", wanted, place, hint)


def to_array(key: Key, value: Tensor, place: Place) -> NDArray[Any]:
    """Return a dense tensor as a CPU array, which may share its memory."""
    try:
        return np.asarray(value.numpy(force=True))
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise not_plain(key, value, place) from error


def not_plain(key: Key, value: Tensor, place: Place) -> StepError:
    """Return the error for a tensor that cannot be copied."""
    layout = _name_of(value.layout)
    where = f"on device {value.device}" + ("" if layout == "strided" else f", {layout}")
    hint = "return a dense tensor of the CPU"
    return result_error(key, f"a tensor {where}", "values that can be read", place, hint)


def _name_of(what: torch.dtype | torch.layout) -> str:
    return str(what).removeprefix("torch.")
