"""A stack machine that runs the opcodes of a pickle which only build plain values and arrays.

`pickletools.genops` would decode the opcodes, but not strings of Python 2's protocol 0 beyond ASCII,
and those are what raw array bytes are spelled in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.readers.pickle_arguments import Arguments
from offline_data.readers.pickle_names import ONLY, Budget, plain_names
from offline_data.readers.pickle_numpy import Arrays
from offline_data.readers.pickle_steps import STEPS

if TYPE_CHECKING:
    from offline_data.readers.pickle_names import Name

_STOP = ord(".")


class Machine(Arguments):
    """One pickle being read.

    Args:
        data: The whole pickle.

    Attributes:
        began: Offset of the opcode being run.
    """

    __slots__ = ("arrays", "began", "marked", "memo", "names", "stack")

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.began = 0
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        budget = Budget(len(data))
        self.arrays = Arrays(budget)
        self.names = {**plain_names(budget), **self.arrays.names()}

    def run(self) -> Any:
        """Run until STOP and return the value, in which names and item types may still stand.

        Raises:
            ValueError: An opcode that is refused, or what it says is not allowed or damaged.
            IndexError: The bytes, the stack or the marks end too early.
            TypeError: Values of numpy that it cannot take.
        """
        data = self.data
        while (code := data[self.at]) != _STOP:
            self.began = self.at
            self.at += 1
            STEPS[code](self)
        self.began = self.at
        self.at += 1
        if self.at < len(data):
            raise ValueError(f"{len(data) - self.at} bytes follow its end")
        self.arrays.check_filled()
        if self.marked or len(self.stack) != 1:
            raise ValueError("it does not end with one value")
        return self.stack[0]

    def pop_mark(self) -> list[Any]:
        """Return what lies above the last mark and take it off."""
        items = self.stack
        self.stack = self.marked.pop()
        return items

    def find(self, module: str, name: str) -> Name:
        """Return what stands for a name; raises `ValueError` for all but a few."""
        found = self.names.get((module, name))
        if found is None:
            asked = f"{module}.{name}"
            shown = asked if asked.isprintable() and len(asked) < 200 else ascii(asked[:200])
            raise ValueError(f"it asks for {shown}; {ONLY}")
        return found

    def target(self, kind: type) -> Any:
        """Return the top of the stack if it is of this very type."""
        top = self.stack[-1]
        if type(top) is not kind:
            raise ValueError(f"it adds to a {type(top).__name__} as if it were a {kind.__name__}")
        return top
