"""What tests of functions share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def imports_as_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Nothing that a test imports stays."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before, folder = set(sys.modules), str(tmp_path_factory.getbasetemp())
    yield
    for name in set(sys.modules) - before:
        if folder in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]
    importlib.invalidate_caches()
