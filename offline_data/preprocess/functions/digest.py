"""A digest of a value and of all it is made of: code, constants, closures, state of objects.

Equal in every process, whatever the addresses, the order of sets and the seed of hashes there.
"""

from __future__ import annotations

import builtins
import hashlib
import random
import sys
from functools import cached_property, partial
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.preprocess.functions.origin import is_own, names_of, package_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented))
"""Types whose values are told apart by how they are written."""

_SKIPPED = {
    "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__dict__",
    "__doc__", "__firstlineno__", "__module__", "__slotnames__", "__static_attributes__",
    "__weakref__", "_abc_impl",
}  # fmt: skip
"""Attributes of classes that say nothing of what they do, or that Python sets when it pleases."""


def digest_of(value: object, *, data_alone: bool = False) -> str:
    """Return 64 hexadecimal digits that are the same for values made of the same.

    Of a function: bytecode, constants, defaults, closed-over values, attributes, and the functions,
    classes and values that it names, as far as they are of the user's own modules (not installed
    ones) or of the package of `value`; what is installed counts by name. Of an object: its class,
    and what `pickle` would save. What cannot be pickled counts by the name of its type.

    Not the same in all versions of Python, whose bytecode differs.

    Args:
        value: Anything.
        data_alone: Only of the bytes of tensors and arrays that are in it, in order.

    Example:
        >>> digest_of({1: "a"}) == digest_of({1: "a"}), digest_of([0]) == digest_of([-0.0])
        (True, False)
    """
    walk = _Walk(package_of(value), data_alone=data_alone)
    try:
        walk.add(value)
    except RecursionError:  # hundreds of things inside each other
        walk = _Walk("")
        walk.add(type(value))
    return walk.hexdigest()


def _shared() -> tuple[object, ...]:
    """Return the generators of all programs, whose state is that of the process."""
    torch = sys.modules.get("torch")
    own = (random.getstate.__self__, np.random.get_state.__self__)  # type: ignore[attr-defined]
    return own if torch is None else (*own, torch.default_generator)


class _Walk:
    """Adds values to a digest, each once."""

    def __init__(
        self, home: str, seen: dict[int, int] | None = None, *, data_alone: bool = False
    ) -> None:
        self._home, self._data_alone = home, data_alone
        self._seen = dict(seen or {})
        self._alive: list[object] = []  # so that no address is used twice
        self._shared = {id(one) for one in _shared()}
        self._sha = hashlib.sha256()

    def hexdigest(self) -> str:
        return self._sha.hexdigest()

    def add(self, value: Any) -> None:
        """Add a value; where it was added already, only that it was."""
        if type(value) in _PLAIN:
            self._say(f"plain {type(value).__name__}", repr(value))
        elif id(value) in self._shared:
            self._say("shared", type(value).__name__)
        elif id(value) in self._seen:
            self._say("seen", str(self._seen[id(value)]))
        else:
            self._seen[id(value)] = len(self._seen)
            self._alive.append(value)
            self._how(value)(value)

    def _how(self, value: Any) -> Callable[[Any], None]:
        """Choose by type: exact for containers, whose subclasses may hold more than items."""
        torch = sys.modules.get("torch")
        lists: dict[type, Callable[[Any], None]] = {list: self._list, tuple: self._list}
        exact = {**lists, dict: self._dict, set: self._set, frozenset: self._set}
        if type(value) in exact:
            return exact[type(value)]
        if torch is not None and isinstance(value, torch.Tensor):
            return self._tensor
        if torch is not None and isinstance(value, torch.Generator):
            return lambda one: self._tensor(one.get_state())
        return next((add for kind, add in self._kinds() if isinstance(value, kind)), self._object)

    def _kinds(self) -> list[tuple[type, Callable[[Any], None]]]:
        return [
            (ModuleType, lambda value: self._say("module", value.__name__)),
            (FunctionType, self._function),
            (MethodType, lambda value: self._each((value.__func__, value.__self__))),
            (BuiltinFunctionType, self._builtin),
            (CodeType, self._code),
            (GeneratorType, self._generator),
            (type, self._class),
            (np.ndarray, self._array),
            (property, lambda value: self._each((value.fget, value.fset, value.fdel))),
            (staticmethod, lambda value: self.add(value.__func__)),
            (classmethod, lambda value: self.add(value.__func__)),
            (partial, lambda value: self._each((value.func, value.args, value.keywords))),
            (cached_property, lambda value: self.add(value.func)),
        ]

    def _say(self, kind: str, text: str | bytes | memoryview) -> None:
        if self._data_alone and kind != "bytes":
            return
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self._sha.update(f"{kind} {len(data)} ".encode())
        self._sha.update(data)

    def _each(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)

    def _list(self, values: Any) -> None:
        self._say(type(values).__name__, str(len(values)))
        self._each(values)

    def _dict(self, values: dict[Any, Any]) -> None:
        self._say("dict", str(len(values)))
        for key, value in values.items():
            self._each((key, value))

    def _set(self, values: Any) -> None:
        self._say(type(values).__name__, "".join(sorted(self._alone(one) for one in values)))

    def _alone(self, value: Any) -> str:
        walk = _Walk(self._home, self._seen, data_alone=self._data_alone)
        walk.add(value)
        return walk.hexdigest()

    def _array(self, values: np.ndarray[Any, Any]) -> None:
        self._say("array", f"{values.dtype} {values.shape}")
        if values.dtype.hasobject:
            self._each(values.ravel().tolist())
        else:
            flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            self._say("bytes", flat.data)

    def _tensor(self, value: Any) -> None:
        self._say("tensor", f"{value.dtype} {tuple(value.shape)} {value.requires_grad}")
        try:
            plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
            flat = plain.reshape(-1).view(sys.modules["torch"].uint8)
            self._say("bytes", flat.numpy().data)
        except (RuntimeError, TypeError, NotImplementedError):
            self._say("layout", f"{value.layout} {value.device}")

    def _builtin(self, function: Any) -> None:
        self._say("builtin", f"{function.__module__} {function.__qualname__}")
        if not isinstance(function.__self__, ModuleType):
            self.add(function.__self__)

    def _function(self, fn: FunctionType) -> None:
        own = is_own(fn.__module__, self._home)
        if own:
            self.add(fn.__code__)
        else:
            self._say("function", f"{fn.__module__} {fn.__qualname__}")
        self._each((fn.__defaults__, fn.__kwdefaults__, vars(fn)))
        for cell in fn.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:
                self._say("cell", "empty")
        if own:
            self._globals(fn)

    def _globals(self, fn: FunctionType) -> None:
        """Add what a function's names stand for, also those of functions inside it."""
        names, attributes = names_of(fn.__code__)
        for name in names:
            value = fn.__globals__.get(name, getattr(builtins, name, None))
            self._say("global", name)
            self.add(value)
            if isinstance(value, ModuleType) and is_own(value.__name__, self._home):
                for attribute in attributes:
                    if attribute in vars(value):
                        self._say("attribute", attribute)
                        self.add(vars(value)[attribute])

    def _code(self, code: CodeType) -> None:
        self._say("code", code.co_code)
        self._say("handlers", getattr(code, "co_exceptiontable", b""))
        self._each((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount))
        self._each((code.co_flags, code.co_names, code.co_varnames, code.co_consts))
        self._each((code.co_freevars, code.co_cellvars))

    def _generator(self, value: Any) -> None:
        frame = value.gi_frame
        self._each((value.gi_code, frame and frame.f_lasti, frame and dict(frame.f_locals)))

    def _class(self, kind: type) -> None:
        if not is_own(kind.__module__, self._home):
            self._say("class", f"{kind.__module__} {kind.__qualname__}")
            return
        self._say("class", kind.__qualname__)
        self._each(kind.__bases__)
        for name, value in sorted(vars(kind).items()):
            if name not in _SKIPPED:
                self._say("attribute", name)
                self.add(value)

    def _object(self, value: Any) -> None:
        """Add what pickling would save of an object, and the function that it stands for."""
        self.add(type(value))
        try:
            self.add(getattr(value, "__wrapped__", None))
            reduced = value.__reduce_ex__(4)
        except Exception:  # noqa: BLE001 - what an object's own method raises
            self.add(str(getattr(value, "code", "")))  # of TorchScript
            return
        if isinstance(reduced, str):
            self._say("name", reduced)
            return
        make, arguments, *rest = reduced
        self._each((make, arguments))
        for part in rest:
            self.add(list(part) if hasattr(part, "__next__") else part)
