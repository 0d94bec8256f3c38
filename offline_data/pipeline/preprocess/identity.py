"""Identity of user functions: a digest of their code and everything they refer to.

The digest is the same in every process: it does not depend on addresses, the order of sets or the
hash seed. A function that refers to something that cannot be compared has no digest and never
counts as the same.
"""

from __future__ import annotations

import builtins
import dis
import functools
import hashlib
import random
import secrets
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from offline_data.base.pickles import name_of

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented))
"""Types whose values are identified by their `repr`."""

_SKIPPED = {  # class attributes without effect, or set by Python at times of its own
    "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__dict__",
    "__doc__", "__firstlineno__", "__module__", "__slotnames__", "__static_attributes__",
    "__weakref__", "_abc_impl",
}  # fmt: skip

_COUNTED_BY_NAME = {"offline_data", "numpy", "tensordict", "torch", "torchrl"}
"""Packages that are identified by name even if the function is defined in them."""


class UnknownIdentityError(Exception):
    """A value cannot be identified: two of its kind cannot be compared."""


def describe_function(fn: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the name and identity of a function: `sha256`, see `digest_of`.

    Without one, `unknown` is the reason and `token` is random, so that no two results are equal.

    Example:
        >>> describe_function(lambda td: td)["name"]
        '<lambda>'
        >>> one, other = (describe_function(lambda td, k=k: td * k)["sha256"] for k in (2, 3))
        >>> one == other
        False
        >>> describe_function(lambda td, file=sys.__stdout__: td)["unknown"]
        "its default for 'file' is a _io.TextIOWrapper"
    """
    named = fn
    while isinstance(named, functools.partial):
        named = named.func
    name = getattr(named, "__qualname__", None) or type(named).__qualname__
    about: dict[str, Any] = {"name": name.rpartition("<locals>.")[2]}
    try:
        return {**about, "sha256": digest_of(fn)}
    except UnknownIdentityError as reason:
        return {**about, "sha256": None, "unknown": str(reason), "token": secrets.token_hex(16)}


def unknown_note(about: Mapping[str, Any]) -> str:
    """Return a note that results of a function without digest are not reused."""
    return (
        f"{about['name']} has no fingerprint ({about['unknown']}): its results are not reused, and the "
        "run cannot be resumed; close over arrays and paths instead"
    )


def digest_of(value: object) -> str:
    """Return 64 hexadecimal digits that are equal for equal values.

    For a function they cover bytecode, constants, defaults, closed-over values, attributes, and the
    functions, classes and values that it names, if these are from the user's own modules or the
    package of `value`; anything installed counts by name. For an object: its class and what
    `pickle` would save. Bytecode differs between versions of Python. Values that a function reads
    other than by name (`globals()["x"]`, files, the environment) are not covered.

    Raises `UnknownIdentityError` if part of it cannot be compared: an open file, an h5py dataset, a
    generator, anything that cannot be pickled.

    Example:
        >>> digest_of({1: "a"}) == digest_of({1: "a"}), digest_of([0]) == digest_of([-0.0])
        (True, False)
    """
    made = value.__func__ if isinstance(value, types.MethodType) else value
    module = (made.__module__ or "") if isinstance(made, types.FunctionType) else ""
    home = module.partition(".")[0]
    walk = _Walk("" if home in _COUNTED_BY_NAME else home)
    try:
        walk.add(value)
    except RecursionError:
        raise UnknownIdentityError("it holds hundreds of objects inside each other") from None
    return walk._sha.hexdigest()


def is_own(module: str | None, home: str = "") -> bool:
    """Return True if a module is the user's own: not installed, or in the package `home`.

    Example:
        >>> is_own("__main__"), is_own("json"), is_own("json", "json")
        (True, False, True)
    """
    top = (module or "").partition(".")[0]
    if top == "__main__" or (home and top == home):
        return True
    return top not in _COUNTED_BY_NAME and not _is_installed(module or "")


def _names_of(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Return the global names and the attribute names that code uses."""
    attributes = set(code.co_names)
    used = {
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname.endswith(("_GLOBAL", "_GLOBALS", "_NAME"))
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names = _names_of(constant)
            used, attributes = used | names[0], attributes | names[1]
    return used, attributes


@lru_cache(maxsize=4096)
def _is_installed(module: str) -> bool:
    """Return True if a module belongs to Python or an installed package; False if unknown."""
    found = sys.modules.get(module)
    if found is None:
        return False
    file = getattr(found, "__file__", None)
    if file is None:
        return module.partition(".")[0] in sys.stdlib_module_names
    path = Path(file)
    if not {"site-packages", "dist-packages"}.isdisjoint(path.parts):
        return True
    library = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return any(path.is_relative_to(folder) for folder in library)


class _Walk:
    """Adds values to a digest, each once."""

    def __init__(self, home: str, seen: dict[int, int] | None = None) -> None:
        self._home = home
        self._seen = dict(seen or {})
        self._alive: list[object] = []  # so that no address is used twice
        self._attributes: list[str] = []  # names that the function uses which is being added
        self._modules: set[tuple[int, str]] = set()
        torch = sys.modules.get("torch")
        own = (random.getstate.__self__, np.random.get_state.__self__)  # type: ignore[attr-defined]
        shared = own if torch is None else (*own, torch.default_generator)
        self._shared = set(map(id, shared))  # generators of the whole process
        self._sha = hashlib.sha256()

    def add(self, value: Any) -> None:
        """Add a value, or a reference if it was added before."""
        if type(value) in _PLAIN:  # each time: which are one object depends on how code was loaded
            self._say(f"plain {type(value).__name__}", repr(value))
        elif id(value) in self._shared:
            self._say("shared", type(value).__name__)
        elif isinstance(value, types.ModuleType):
            self._module(value)
        elif type(value) in (tuple, frozenset):
            self._how(value)(value)
        elif id(value) in self._seen:
            self._say("seen", str(self._seen[id(value)]))
        else:
            self._seen[id(value)] = len(self._seen)
            self._alive.append(value)
            self._how(value)(value)

    def _how(self, value: Any) -> Callable[[Any], None]:
        """Choose by type; exact for containers, since subclasses may hold more than items."""
        if type(value) in (list, tuple, dict, types.MappingProxyType):
            return self._items
        if type(value) in (set, frozenset):
            return self._set
        torch = sys.modules.get("torch")
        locks = (type(threading.Lock()), type(threading.RLock()))  # which hold no data
        descriptors = (  # attributes of classes that are written in C
            types.ClassMethodDescriptorType,
            types.GetSetDescriptorType,
            types.MemberDescriptorType,
            types.MethodDescriptorType,
            types.WrapperDescriptorType,
        )
        kinds: list[tuple[Any, Callable[[Any], None]]] = [
            (torch.Tensor if torch else (), self._tensor),
            (torch.Generator if torch else (), lambda value: self._tensor(value.get_state())),
            (types.FunctionType, self._function),
            (types.MethodType, lambda value: self._each((value.__func__, value.__self__))),
            (types.BuiltinFunctionType, self._builtin),
            (types.CodeType, self._code),
            (type, self._class),
            (np.ndarray, self._array),
            (descriptors, lambda value: self._say("descriptor", value.__qualname__)),
            (locks, lambda value: self._say("lock", type(value).__name__)),
            (weakref.ReferenceType, lambda value: self.add(value())),
            (property, lambda value: self._each((value.fget, value.fset, value.fdel))),
            ((staticmethod, classmethod), lambda value: self.add(value.__func__)),
            (partial, lambda value: self._each((value.func, value.args, value.keywords))),
            (cached_property, lambda value: self.add(value.func)),
        ]
        return next((add for kind, add in kinds if isinstance(value, kind)), self._object)

    def _say(self, kind: str, text: str | bytes | memoryview) -> None:
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self._sha.update(f"{kind} {len(data)} ".encode())
        self._sha.update(data)

    def _each(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)

    def _items(self, values: Any) -> None:
        named = type(values) not in (list, tuple)
        self._say("dict" if named else type(values).__name__, str(len(values)))
        self._each(chain.from_iterable(values.items()) if named else values)

    def _set(self, values: Any) -> None:
        digests = []
        for value in values:
            walk = _Walk(self._home, self._seen)
            walk.add(value)
            digests.append(walk._sha.hexdigest())
        self._say(type(values).__name__, "".join(sorted(digests)))

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
            where = f"a tensor of layout {value.layout} on device {value.device}"
            raise UnknownIdentityError(where) from None

    def _builtin(self, function: Any) -> None:
        self._say("builtin", f"{function.__module__} {function.__qualname__}")
        if not isinstance(function.__self__, types.ModuleType):
            self.add(function.__self__)
        elif is_own(function.__module__, self._home):
            raise UnknownIdentityError(f"a compiled function of {function.__module__}")

    def _function(self, fn: types.FunctionType) -> None:
        if not is_own(fn.__module__, self._home):
            self._say("function", _full_name(fn))
            self._add_bound(fn)
            return
        self.add(fn.__code__)
        names, attributes = _names_of(fn.__code__)
        before, self._attributes = self._attributes, sorted(attributes)
        self._add_bound(fn)
        for name in sorted(names):
            self._say("global", name)
            self._add_named(repr(name), fn.__globals__.get(name, getattr(builtins, name, None)))
        self._attributes = before

    def _add_bound(self, fn: types.FunctionType) -> None:
        positional = fn.__code__.co_varnames[: fn.__code__.co_argcount]
        defaults = fn.__defaults__ or ()
        given = dict(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))
        for name, value in {**given, **(fn.__kwdefaults__ or {})}.items():
            self._say("default", name)
            self._add_named(f"its default for {name!r}", value)
        self.add(vars(fn))
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                self._say("cell", "empty")
            else:
                self._add_named(repr(name), value)

    def _add_named(self, name: str, value: Any) -> None:
        try:
            self.add(value)
        except UnknownIdentityError as reason:
            if not str(reason).startswith("a "):  # it is named already
                raise
            verb = "is" if str(reason) == _kind(value) else "holds"
            raise UnknownIdentityError(f"{name} {verb} {reason}") from None

    def _module(self, module: types.ModuleType) -> None:
        """Add a module by name and, if it is the user's own, the attributes that are used."""
        self._say("module", module.__name__)
        if not is_own(module.__name__, self._home):
            return
        for name in self._attributes:
            if name in vars(module) and (id(module), name) not in self._modules:
                self._modules.add((id(module), name))
                self._say("attribute", name)
                self._add_named(f"'{module.__name__}.{name}'", vars(module)[name])

    def _code(self, code: types.CodeType) -> None:
        # Neither file nor line numbers, on which the bytes of pickled code depend.
        self._say("code", code.co_code)
        self._say("handlers", getattr(code, "co_exceptiontable", b""))
        self._each((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount))
        self._each((code.co_flags, code.co_names, code.co_varnames, code.co_consts))
        self._each((code.co_freevars, code.co_cellvars))

    def _class(self, kind: type) -> None:
        if not is_own(kind.__module__, self._home):
            self._say("class", _full_name(kind))
            return
        self._say("class", kind.__qualname__)
        self._each(kind.__bases__)
        for name, value in sorted(vars(kind).items()):
            if name not in _SKIPPED:
                self._say("attribute", name)
                self.add(value)

    def _object(self, value: Any) -> None:
        """Add what `pickle` would save of an object, and the function that it wraps."""
        self.add(type(value))
        try:
            wrapped = getattr(value, "__wrapped__", None)
            reduced = value.__reduce_ex__(4)
        except Exception:  # noqa: BLE001 - what an object's own method raises
            raise UnknownIdentityError(_kind(value)) from None
        self.add(wrapped)
        if isinstance(reduced, str):
            self._say("name", reduced)
            return
        make, arguments, *rest = reduced
        trusted = type(value).__module__.partition(".")[0] in _COUNTED_BY_NAME
        if getattr(make, "__name__", "").startswith("__pyx_unpickle") and not trusted:
            # Cython's default: whatever C numbers it holds, also handles and addresses (h5py's ids).
            raise UnknownIdentityError(_kind(value))
        # Not the bytes that it would save: these depend on which equal strings are one object.
        self._each((make, arguments))
        for part in rest:
            self.add(list(part) if hasattr(part, "__next__") else part)


def _full_name(value: type | types.FunctionType) -> str:
    """Return module and name, of this package without the module in which it is defined."""
    return f"{'offline_data' if name_of(value) else value.__module__} {value.__qualname__}"


def _kind(value: object) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}"
