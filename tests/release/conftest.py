"""The scripts of `.ci`, as modules."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def script() -> Callable[[str], ModuleType]:
    """Import a script of `.ci` by name."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / ".ci" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # which dataclasses look up
        spec.loader.exec_module(module)
        return module

    return load
