"""Conversions in this process, unless a test is about the processes."""

from __future__ import annotations

import pytest

from tests.pipeline.ingest.here import conversions_start_no_process, processes

__all__ = ["conversions_start_no_process", "processes"]

STARTED = {"test_torchrl.py::TestDump"}
"""Whose reading is begun without torch by default: files that torch itself reads.

Of all, `test_torch_stays_in_the_buffers` looks at what they import.
"""

DAMAGED = {
    "minari/test_reading.py::TestMinari",
    "rlds/test_reading.py::TestContract",
    "rlds/test_webdataset.py::TestContract",
    "test_d4rl.py::TestContract",
    "test_diffusion_policy.py::TestPublishedZip",
    "test_gen_dgrl.py::TestContract",
    "test_imitation.py::TestImitation",
    "test_lerobot.py::TestContract",
    "test_openml.py::TestTables",
    "test_torchrl.py::TestTensorDict",
    "test_vd4rl.py::TestNpz",
}
"""Whose bytes are damaged by default: one of each format of files. `tests/fuzz` damages those of all."""

MANY_BAD = {
    "test_gen_dgrl.py::TestContract",
    "test_katakomba.py::TestKatakomba",
    "test_robomimic.py::TestRobomimic",
    "test_roboset.py::TestContract",
    "test_vd4rl.py::TestNpz",
}
"""Whose table of bad data takes up to a second."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of one contract, run the test that starts a program for the first only.

    By default, this test is run for one contract, and damaged bytes for the first case of one contract
    of a format, where bad episodes are not skipped.
    """
    seen = set[tuple[str, bool]]()
    for item in list(items):
        name, _, case = item.nodeid.partition("[")
        contract, _, test = name.rpartition("::")
        if not contract.startswith("tests/formats/"):
            continue
        source, first = contract.removeprefix("tests/formats/"), (name, "True" in case) not in seen
        if test == "test_needs_no_torch":
            if case and not first:
                items.remove(item)
            if source not in STARTED:
                item.add_marker(pytest.mark.slow)
        if test == "test_bad_data_are_named_or_skipped" and source in MANY_BAD:
            item.add_marker(pytest.mark.slow)
        if test == "test_damaged_bytes_raise_our_errors_only" and not (
            first and source in DAMAGED and "True" not in case
        ):
            item.add_marker(pytest.mark.slow)
        seen.add((name, "True" in case))
