"""Pickles of arrays, numbers, text, bytes and plain containers, read without running any of them.

Nothing is imported and no function of another module is called because a file names it: an opcode
builds a plain value, or is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from offline_data.errors import FormatError
from offline_data.readers.pickle_machine import Machine
from offline_data.readers.pickle_names import LEAVES, Name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import IO

_BLOCK = 1 << 20
_LONGEST = 400
"""Characters of a reason, which may quote what stands in the file."""


def loads(data: bytes | memoryview, *, where: str) -> Any:
    r"""Read one pickle of protocol 0 to 5.

    Memory is bounded by a constant times the length of `data`.

    Args:
        data: The whole pickle and nothing after it.
        where: What it is, for messages: the file, and the member of an archive.

    Returns:
        The value, of numbers, `str`, `bytes`, `bytearray`, None, `list`, `tuple`, `dict` (also for
        `OrderedDict`), `set`, `frozenset`, numpy scalars and `numpy.ndarray`, never of subclasses.
        Arrays are read-only. Their byte order is what numpy gives: native, but as written in
        protocol 5. What was one object in the pickle is one object here, lists and dicts that
        contain themselves included. Strings of Python 2 are `str`, each byte a character of
        Latin-1. Metadata of item types are left out; records with titles or with fields of objects
        are refused, and so are keys of more than 64 parts or bits. Containers may lie in each other as deep as
        the file says: walk them with a loop, or with a bound.

    Raises:
        FormatError: It asks for anything else, or is damaged; the message names it and the byte.

    Example:
        >>> import pickle
        >>> loads(pickle.dumps({"action": np.array([1.5, -2.0])}), where="steps.pickle")
        {'action': array([ 1.5, -2. ])}
        >>> try:
        ...     loads(b"cos\nsystem\n(S'true'\ntR.", where="steps.pickle")
        ... except FormatError as error:
        ...     print(error.message.partition(";")[0])
        steps.pickle cannot be read at byte 0: it asks for os.system
    """
    machine = Machine(bytes(data))
    try:
        value = machine.run()
        _check_plain(value)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise FormatError(
            f"{where} cannot be read at byte {machine.began}: {_reason(error, machine)}",
            hint="nothing of it was run; a file that is damaged can be fetched again",
        ) from error
    return value


def load(stream: IO[bytes], *, size: int, where: str) -> Any:
    """Read one pickle from a stream to its end, or to `size` bytes, whichever is first.

    Args:
        stream: Where it is read from, a block at a time.
        size: Bytes it has at most.
        where: As for `loads`, which also says what is returned and raised.
    """
    blocks: list[bytes] = []
    while size and (block := stream.read(min(size, _BLOCK))):
        blocks.append(block)
        size -= len(block)
    return loads(b"".join(blocks), where=where)


def _check_plain(value: object) -> None:
    """Raise `ValueError` where names or item types stand among the values of a pickle."""
    waiting: list[Iterable[Any]] = [(value,)]
    seen: set[int] = set()
    while waiting:
        for item in waiting.pop():
            if type(item) not in LEAVES and id(item) not in seen:
                seen.add(id(item))
                waiting.append(_parts(item))


def _parts(item: object) -> Iterable[Any]:
    """Return the values in a container; keys were checked when they were put there."""
    if type(item) in {list, tuple}:
        return cast("Iterable[Any]", item)
    if type(item) is dict:
        return item.values()
    if type(item) is np.ndarray:
        return cast("list[Any]", item.ravel().tolist()) if item.dtype.hasobject else ()
    if type(item) in {set, frozenset}:
        return ()
    what = item.full if isinstance(item, Name) else "an item type of numpy"
    raise ValueError(f"it holds {what} as a value")


def _reason(error: Exception, machine: Machine) -> str:
    if type(error) is IndexError:  # numpy has subclasses of it, for other reasons
        early = machine.at >= len(machine.data)
        return "it ends too early" if early else "it takes what was never put on its stack"
    return str(error)[:_LONGEST]
