"""What each opcode of a pickle does: puts plain values together, or is refused by its name."""

from __future__ import annotations

import pickletools
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.readers.pickle_arguments import READERS, Arguments
from offline_data.readers.pickle_dtypes import ItemType
from offline_data.readers.pickle_names import ONLY, Name, check_keys, fill_dict

if TYPE_CHECKING:
    from collections.abc import Callable

    from offline_data.readers.pickle_machine import Machine

_OPCODES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}


def _refuse(machine: Machine) -> None:
    code = machine.data[machine.began]
    known = _OPCODES.get(code)
    what = f"the opcode {known}" if known else f"no opcode, but the byte 0x{code:02x}"
    raise ValueError(f"it has {what}; {ONLY}")


def _push(read: Callable[[Arguments], Any]) -> Callable[[Machine], None]:
    def step(machine: Machine) -> None:
        machine.stack.append(read(machine))

    return step


def _get(read: Callable[[Arguments], int]) -> Callable[[Machine], None]:
    def step(machine: Machine) -> None:
        index = read(machine)
        if index not in machine.memo:
            raise ValueError(f"it refers to value {index}, which it never kept")
        machine.stack.append(machine.memo[index])

    return step


def _put(read: Callable[[Arguments], int]) -> Callable[[Machine], None]:
    def step(machine: Machine) -> None:
        machine.memo[read(machine)] = machine.stack[-1]

    return step


def _memoize(machine: Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _proto(machine: Machine) -> None:
    protocol = machine.unsigned(1)
    if protocol > 5:
        raise ValueError(f"it is of protocol {protocol}; 0 to 5 are read")


def _frame(machine: Machine) -> None:
    size = machine.unsigned(8)
    if size > len(machine.data) - machine.at:
        raise ValueError(f"a frame of {size} bytes is announced, fewer follow")


def _mark(machine: Machine) -> None:
    machine.marked.append(machine.stack)
    machine.stack = []


def _pop(machine: Machine) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.pop_mark()


def _pop_mark(machine: Machine) -> None:
    machine.pop_mark()


def _dup(machine: Machine) -> None:
    machine.stack.append(machine.stack[-1])


def _append(machine: Machine) -> None:
    item = machine.stack.pop()
    machine.target(list).append(item)


def _appends(machine: Machine) -> None:
    items = machine.pop_mark()
    machine.target(list).extend(items)


def _set_item(machine: Machine) -> None:
    items = machine.stack[-2:]
    del machine.stack[-2:]
    fill_dict(machine.target(dict), items)


def _set_items(machine: Machine) -> None:
    items = machine.pop_mark()
    fill_dict(machine.target(dict), items)


def _add_items(machine: Machine) -> None:
    items = machine.pop_mark()
    machine.target(set).update(check_keys(items))


def _build_from_mark(build: Callable[[list[Any]], Any]) -> Callable[[Machine], None]:
    def step(machine: Machine) -> None:
        items = machine.pop_mark()
        machine.stack.append(build(items))

    return step


def _tuple_of(count: int) -> Callable[[Machine], None]:
    def step(machine: Machine) -> None:
        items = tuple(machine.stack[-count:])
        if len(items) < count:
            raise IndexError
        machine.stack[-count:] = [items]

    return step


def _global(machine: Machine) -> None:
    module, name = machine.line(), machine.line()
    machine.stack.append(machine.find(str(module, "utf-8"), str(name, "utf-8")))


def _stack_global(machine: Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise ValueError("it asks for a name that is no text")
    machine.stack.append(machine.find(module, name))


def _reduce(machine: Machine) -> None:
    args = machine.stack.pop()
    name = machine.stack[-1]
    if type(name) is not Name:
        raise ValueError(f"it calls a {type(name).__name__}; {ONLY}")
    machine.stack[-1] = name.call(args)


def _build(machine: Machine) -> None:
    state = machine.stack.pop()
    target = machine.stack[-1]
    if type(target) is ItemType:
        target.set_state(state)
    elif type(target) is np.ndarray:
        machine.arrays.fill(target, state)
    else:
        raise ValueError(f"it sets the state of a {type(target).__name__}; {ONLY}")


_BY_NAME: dict[str, Callable[[Machine], None]] = {
    **{name: _push(read) for name, read in READERS.items()},
    "PROTO": _proto,
    "FRAME": _frame,
    "MARK": _mark,
    "POP": _pop,
    "POP_MARK": _pop_mark,
    "DUP": _dup,
    "GET": _get(Arguments.decimal),
    "BINGET": _get(Arguments.byte),
    "LONG_BINGET": _get(lambda source: source.unsigned(4)),
    "PUT": _put(Arguments.decimal),
    "BINPUT": _put(Arguments.byte),
    "LONG_BINPUT": _put(lambda source: source.unsigned(4)),
    "MEMOIZE": _memoize,
    "APPEND": _append,
    "APPENDS": _appends,
    "LIST": _build_from_mark(list),
    "TUPLE": _build_from_mark(tuple),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "DICT": _build_from_mark(lambda items: fill_dict({}, items)),
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "ADDITEMS": _add_items,
    "FROZENSET": _build_from_mark(lambda items: frozenset(check_keys(items))),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "BUILD": _build,
}

STEPS: tuple[Callable[[Machine], None], ...] = tuple(
    _BY_NAME.get(_OPCODES.get(code, ""), _refuse) for code in range(256)
)
"""What to run for each byte; what is not named above is refused."""
