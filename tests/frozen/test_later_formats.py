"""Datasets and a view of format 2, and states of formats 2 and 3, still open and go on as they did."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import offline_data as od
from tests.frozen import states
from tests.frozen.recorded import compare, compare_names
from tests.frozen.values import of_batch

HERE = Path(__file__).parent
STORED = ("compact", "ted")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Return a folder with a copy of the datasets."""
    shutil.copytree(HERE / "format2" / "root", tmp_path / "root")
    return tmp_path


@pytest.mark.parametrize("name", STORED)
def test_datasets(name: str, written: Path) -> None:
    compare("format2", f"stored {name}", of_batch(states.stored(written / "root", name)[:]))
    assert od.verify(f"local:{name}", root=written / "root").ok


def test_a_saved_view(written: Path) -> None:
    view = states.stored(written / "root").saved_view("long")
    compare("format2", "view", of_batch(view[:]))


@pytest.mark.parametrize("version", ["format2", "format3"])
@pytest.mark.parametrize("name", states.KINDS)
def test_states(name: str, version: str, written: Path) -> None:
    shutil.copytree(HERE / version / "states", written / "states")
    compare("format2", name, states.resume(name, written))


def test_no_name_is_stale() -> None:
    compare_names("format2", {*states.KINDS, *(f"stored {name}" for name in STORED), "view"})
