"""Importing a user function given as `FILE.py:NAME` or `package.module:NAME`."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from offline_data.base.config import user_path
from offline_data.base.errors import UnknownNameError, UsageError
from offline_data.base.ids import did_you_mean, unknown

_FILE = "the file of the function"


def load_function(text: str) -> Callable[[Any], Any]:
    """Import the function `FILE.py:NAME` or `package.module:NAME`; NAME may have dots.

    A file may import modules next to it; an installed module of the same name takes precedence. The
    file is imported under a unique name, so that `torch.py` shadows nothing, and its definitions
    are pickled by value. A package or module is searched in the current folder first. Raises
    `UsageError`, and `UnknownNameError` if there is no such file, module or name.

    Example:
        >>> load_function("math:sqrt")(9)
        3.0
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(
            f"{text!r} names no function", hint="write FILE.py:NAME or package.module:NAME"
        )
    found: Any = _file(Path(place)) if place.endswith(".py") else _module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            names = [name for name in dir(found) if not name.startswith("_")]
            problem = f"{text}: there is no"
            raise unknown(UnknownNameError, problem, part, names, shown=repr, listed=False)
        found = getattr(found, part)
    if isinstance(found, type):
        raise UsageError(
            f"{text} is a class, not a function", hint=f"name an object: f = {part}(…) in the file"
        )
    if not callable(found):
        raise UsageError(f"{text} is not a function: its type is {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def source_digest(text: str) -> str:
    """Return 64 hexadecimal digits of the files that `load_function` would run; runs none of them.

    They are the file, or the module and the packages above it, without comments and line breaks;
    what these import is not covered. Raises `UsageError` for a file that is missing or unreadable.
    """
    place = text.rpartition(":")[0]
    files = [user_path(place, _FILE)] if place.endswith(".py") else _files_of(place)
    digest = hashlib.sha256()
    for file in files:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from error
        with suppress(
            SyntaxError, ValueError, RecursionError
        ):  # no Python, such as a compiled module
            data = ast.dump(ast.parse(data)).encode("utf-8", "surrogatepass")
        digest.update(hashlib.sha256(data).digest())
    return digest.hexdigest()


def _files_of(name: str) -> Iterator[Path]:
    """Yield the files of a module and of the packages above it; none of built-in ones."""
    parts = name.split(".")
    folders = None if parts[0] in sys.modules else [str(Path.cwd()), *sys.path]
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), folders)
        if spec is None:
            return
        if spec.has_location and spec.origin:
            yield Path(spec.origin)
        folders = list(spec.submodule_search_locations or [])


class _UncachedLoader(SourceFileLoader):
    """Always compiles the file: a `.pyc` is considered valid for a second after a change."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the file is known
        return self.source_to_code(self.get_data(self.path), self.path)


def _file(path: Path) -> ModuleType:
    import cloudpickle

    path = user_path(path, _FILE)
    if not path.is_file():
        names = (file.name for file in path.parent.glob("*.py"))
        near = did_you_mean(path.name, names, shown=repr)
        raise UnknownNameError(f"There is no file {path}", hint=near)
    name = f"{path.stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_loader(name, _UncachedLoader(name, str(path)))
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:  # for its imports, also in the processes it is sent to
        sys.path.append(str(path.parent))
    before, sys.modules[name] = sys.modules.get(name), module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise _import_error(str(path), error, _import_hint(path.parent, error)) from error
    cloudpickle.register_pickle_by_value(module)
    return module


def _module(name: str) -> ModuleType:
    here, top = Path.cwd(), name.partition(".")[0]
    is_here = top not in sys.modules and PathFinder.find_spec(top, [str(here)]) is not None
    if is_here and str(here) not in sys.path:
        sys.path.insert(0, str(here))  # as `python -m` does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise _import_error(name, error) from error
        above = name.rpartition(".")[0]
        folders = getattr(sys.modules.get(above), "__path__", None) if above else [str(here)]
        prefix = f"{above}." if above else ""
        siblings = (prefix + found.name for found in pkgutil.iter_modules(folders or []))
        hint = did_you_mean(name, siblings, shown=repr) or "a file is written FILE.py:NAME"
        raise UnknownNameError(f"There is no module {error.name!r}", hint=hint) from error
    except (Exception, SystemExit) as error:
        raise _import_error(name, error) from error


def _import_error(what: str, error: BaseException, hint: str | None = None) -> UsageError:
    """Return the error of a failed import, with the traceback from the user's first line on."""
    machinery, trace = {__file__, importlib.__file__}, error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file not in machinery and not file.startswith("<frozen importlib"):
            break
        trace = trace.tb_next
    lines = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    return UsageError(
        f"{what} cannot be imported: {type(error).__name__}: {error}\n{lines}", hint=hint
    )


def _import_hint(folder: Path, error: BaseException) -> str | None:
    if not isinstance(error, ImportError):
        return None
    if "relative import" in str(error):
        return "a file that is part of a package is written package.module:NAME"
    name = (error.name or "").partition(".")[0]
    if name and ((folder / f"{name}.py").exists() or (folder / name).is_dir()):
        return f"another module {name!r} is installed, and comes before the one next to the file"
    return None
