"""Importing a user function given as `FILE.py:NAME` or `package.module:NAME`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pkgutil
import sys
import traceback
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data.config import user_path
from offline_data.errors import UsageError
from offline_data.preprocess.steps.parse import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType


def load_function(text: str) -> Callable[[Any], Any]:
    """Import the function `FILE.py:NAME` or `package.module:NAME`; NAME may have dots.

    A file may import modules beside it; an installed module of the same name takes precedence. The
    file is imported under a unique name, so that `torch.py` shadows nothing, and its definitions
    are pickled by value. A package or module is searched in the current folder first. Raises
    `UsageError`.

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
            raise UsageError(f"{text}: there is no {part!r}", hint=did_you_mean(part, names))
        found = getattr(found, part)
    if isinstance(found, type):
        raise UsageError(
            f"{text} is a class, not a function", hint=f"name an object: f = {part}(…) in the file"
        )
    if not callable(found):
        raise UsageError(f"{text} is no function: its type is {type(found).__name__}")
    return found  # type: ignore[no-any-return]


class _UncachedLoader(SourceFileLoader):
    """Always compiles the file: a `.pyc` is considered valid for a second after a change."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the file is known
        return self.source_to_code(self.get_data(self.path), self.path)


def _file(path: Path) -> ModuleType:
    import cloudpickle

    path = user_path(path, "the file of the function")
    if not path.is_file():
        near = did_you_mean(path.name, (one.name for one in path.parent.glob("*.py")))
        raise UsageError(f"There is no file {path}", hint=near)
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
        raise _failed(str(path), error, _import_hint(path.parent, error)) from error
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
            raise _failed(name, error) from error
        above = name.rpartition(".")[0]
        folders = getattr(sys.modules.get(above), "__path__", None) if above else [str(here)]
        prefix = f"{above}." if above else ""
        beside = (prefix + found.name for found in pkgutil.iter_modules(folders or []))
        hint = did_you_mean(name, beside) or "a file is written FILE.py:NAME"
        raise UsageError(f"There is no module {error.name!r}", hint=hint) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _failed(what: str, error: BaseException, hint: str | None = None) -> UsageError:
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
    """Return a hint for a file whose own imports fail."""
    if not isinstance(error, ImportError):
        return None
    if "relative import" in str(error):
        return "a file that is part of a package is written package.module:NAME"
    name = (error.name or "").partition(".")[0]
    if name and ((folder / f"{name}.py").exists() or (folder / name).is_dir()):
        return f"another module {name!r} is installed, and comes before the one beside the file"
    return None
