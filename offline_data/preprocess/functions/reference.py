"""Functions of the user: found by name, and told apart by what they are made of."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from offline_data.errors import UsageError
from offline_data.ids import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def load_function(text: str) -> Callable[[Any], Any]:
    """Find the function that `FILE.py:NAME` or `package.module:NAME` means.

    A file is run as a program's own modules are: its folder is where its imports are looked for
    first. What it defines travels to other processes by value.

    Raises:
        UsageError: No such file, module or name; it cannot be imported, or is no function.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(
            f"{text!r} names no function", hint="write FILE.py:NAME or package.module:NAME"
        )
    module = _file(Path(place)) if place.endswith(".py") else _module(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise _no_name(text, part, found)
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{text} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def describe_function(fn: Callable[[Any], Any]) -> dict[str, str]:
    """Return a function's name, and a digest of its code and of what it refers to.

    The digest covers bytecode, constants, defaults, closed-over values, and, the same way, the
    functions and values of its own module that it names; what it imports counts by name. It may
    differ between versions of Python.

    Example:
        >>> describe_function(lambda td: td)["name"]
        '<lambda>'
        >>> one, other = (describe_function(lambda td, k=k: td * k)["sha256"] for k in (2, 3))
        >>> one == other
        False
    """
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    digest = hashlib.sha256()
    for part in _parts(fn, set()):
        digest.update(part.encode() + b"\0")
    return {"name": name.rpartition("<locals>.")[2], "sha256": digest.hexdigest()}


def _file(path: Path) -> ModuleType:
    path = path.expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"There is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(path.stem, None)
        raise _failed(str(path), error) from error
    _by_value(module)
    return module


def _module(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python -m` has it
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise _failed(name, error) from error


def _by_value(module: ModuleType) -> None:
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)


def _failed(what: str, error: Exception) -> UsageError:
    trace = error.__traceback__
    while trace is not None and "importlib" in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    own = (
        trace.tb_next
        if trace is not None and trace.tb_frame.f_code.co_filename == __file__
        else trace
    )
    lines = "".join(traceback.format_exception(type(error), error, own)).rstrip()
    return UsageError(f"{what} cannot be imported: {type(error).__name__}: {error}\n{lines}")


def _no_name(text: str, part: str, found: Any) -> UsageError:
    near = nearest(part, [name for name in dir(found) if not name.startswith("_")])
    return UsageError(
        f"{text}: there is no {part!r}", hint=f"did you mean {near[0]!r}?" if near else None
    )


def _parts(value: Any, seen: set[int]) -> Iterator[str]:
    """Yield texts that differ where functions or values do."""
    if id(value) in seen:
        return
    if isinstance(value, MethodType):
        yield from _parts(value.__func__, seen)
        yield from _parts(value.__self__, seen)
    elif isinstance(value, FunctionType):
        seen.add(id(value))
        yield from _function(value, seen)
    elif isinstance(value, CodeType):
        yield from _code(value, seen)
    elif isinstance(value, ModuleType):
        yield f"module {value.__name__}"
    elif isinstance(value, (frozenset, set)):
        yield from sorted(repr(one) for one in value)
    elif isinstance(value, (list, tuple)):
        yield f"{type(value).__name__} {len(value)}"
        for one in value:
            yield from _parts(one, seen)
    else:
        yield _value(value)


def _function(fn: FunctionType, seen: set[int]) -> Iterator[str]:
    yield from _code(fn.__code__, seen)
    yield from _parts(fn.__defaults__ or (), seen)
    for name, default in sorted((fn.__kwdefaults__ or {}).items()):
        yield name
        yield from _parts(default, seen)
    for cell in fn.__closure__ or ():
        try:
            yield from _parts(cell.cell_contents, seen)
        except ValueError:
            yield "empty"
    for name in fn.__code__.co_names:
        if name in fn.__globals__:
            yield f"global {name}"
            yield from _global(fn, fn.__globals__[name], seen)


def _global(fn: FunctionType, value: Any, seen: set[int]) -> Iterator[str]:
    """Values and functions of the function's own module count; those of others by their names."""
    home = getattr(value, "__module__", fn.__module__)
    if isinstance(value, (FunctionType, type)) and home != fn.__module__:
        yield f"{home}.{value.__qualname__}"
    else:
        yield from _parts(value, seen)


def _code(code: CodeType, seen: set[int]) -> Iterator[str]:
    yield code.co_code.hex()
    yield from (*code.co_names, *code.co_varnames)
    for constant in code.co_consts:
        yield from _parts(constant, seen)


def _value(value: Any) -> str:
    """Write a value so that equal ones read alike: plain ones by `repr`, others by their pickle."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    import cloudpickle

    try:
        return hashlib.sha256(cloudpickle.dumps(value)).hexdigest()
    except Exception:  # noqa: BLE001 - what cannot be pickled is told apart by its type alone
        return f"{type(value).__module__}.{type(value).__qualname__}"
