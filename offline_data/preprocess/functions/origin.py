"""Where functions and classes come from: the user's own modules, or what is installed."""

from __future__ import annotations

import dis
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages, wherever they are."""

_COUNTED_BY_NAME = {"offline_data", "numpy", "tensordict", "torch", "torchrl"}
"""Packages that count by name even where a function is theirs."""


def package_of(value: Any) -> str:
    """Return the top package of a function, empty for anything else.

    Example:
        >>> import json
        >>> package_of(json.dumps), package_of(3)
        ('json', '')
    """
    value = value.__func__ if isinstance(value, MethodType) else value
    if not isinstance(value, FunctionType):
        return ""
    top = (value.__module__ or "").partition(".")[0]
    return "" if top in _COUNTED_BY_NAME else top


def is_own(module: str | None, home: str) -> bool:
    """Tell whether a module is the user's own: not installed, or of the package `home`.

    Example:
        >>> is_own("__main__", ""), is_own("json", ""), is_own("json", "json")
        (True, False, True)
    """
    top = (module or "").partition(".")[0]
    if top == "__main__" or (home and top == home):
        return True
    return top not in _COUNTED_BY_NAME and not _is_installed(module or "")


def names_of(code: CodeType) -> tuple[list[str], list[str]]:
    """Return the global names that code uses, and all its names of attributes, both sorted.

    Of functions inside it too.

    Example:
        >>> names_of((lambda x: [len(y.z) for y in x]).__code__)[0]
        ['len']
    """
    used: set[str] = set()
    attributes: set[str] = set()
    for one in _codes(code):
        attributes.update(one.co_names)
        used.update(
            str(step.argval)
            for step in dis.get_instructions(one)
            if step.opname.endswith(("_GLOBAL", "_GLOBALS", "_NAME"))
        )
    return sorted(used), sorted(attributes)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


@lru_cache(maxsize=4096)
def _is_installed(module: str) -> bool:
    """Tell whether a module is Python's or an installed package's; unknown ones are not."""
    found = sys.modules.get(module)
    if found is None:
        return False
    file = getattr(found, "__file__", None)
    if file is None:
        return module.partition(".")[0] in sys.stdlib_module_names
    path = Path(file)
    if not _INSTALLED.isdisjoint(path.parts):
        return True
    library = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return any(path.is_relative_to(folder) for folder in library)
