"""Conversions in this process, unless a test is about the processes."""

from __future__ import annotations

import pytest

from tests.pipeline.ingest.here import conversions_start_no_process, processes

__all__ = ["conversions_start_no_process", "processes"]

STARTED = {
    "test_d4rl.py::TestContract",
    "test_lerobot.py::TestContract",
    "test_torchrl.py::TestDump",
}
"""Whose reading is begun without torch by default: HDF5, Parquet, and files that torch itself reads.

Of all, `test_torch_stays_in_the_buffers` looks at what they import.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of one contract, run the test that starts a program for the first only.

    By default, this test is run for a few, and damaged bytes where bad episodes are not skipped.
    """
    seen = set[str]()
    for item in list(items):
        name, _, case = item.nodeid.partition("[")
        contract, _, test = name.rpartition("::")
        if not contract.startswith("tests/formats/"):
            continue
        if test == "test_needs_no_torch":
            if case and name in seen:
                items.remove(item)
            seen.add(name)
            if contract.removeprefix("tests/formats/") not in STARTED:
                item.add_marker(pytest.mark.slow)
        if test == "test_damaged_bytes_raise_our_errors_only" and "True" in case:
            item.add_marker(pytest.mark.slow)
