"""Conversions in this process, unless a test is about the processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.pipeline.ingest.here import conversions_start_no_process, processes

if TYPE_CHECKING:
    import pytest

__all__ = ["conversions_start_no_process", "processes"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of one contract, run the test that starts a program for the first only."""
    seen = set[str]()
    for item in list(items):
        name, _, case = item.nodeid.partition("[")
        if case and name.endswith("::test_needs_no_torch"):
            if name in seen:
                items.remove(item)
            seen.add(name)
