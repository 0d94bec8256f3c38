"""What pictures, films and descriptions refuse: the cases are the lines of `refusals.json`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.analysis.frames import Film, film
from offline_data.analysis.info import dataset_info
from offline_data.analysis.replay import Replay
from offline_data.analysis.statistics import dataset_stats
from offline_data.analysis.transitions import first_transitions
from offline_data.base.config import Settings
from offline_data.reports import figure
from offline_data.reports.video import open_rerun, write_film
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.toy import toy_batch, write_toy
from tests.refusals import Refusals

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))


def written(folder: Path, lengths: list[int], **content: Any) -> DatasetReader:
    write_toy(folder, [toy_batch(lengths, **content)])
    return open_reader(folder)


def damaged(folder: Path) -> DatasetReader:
    """Write a dataset whose texts have a code of no word."""
    (leaf,) = [
        one
        for key, one in written(folder, [3], text=True).observation_leaves.items()
        if key[-1] == "mission"
    ]
    content = bytearray((folder / leaf.file).read_bytes())
    content[leaf.offset : leaf.offset + 4] = (99).to_bytes(4, "little")
    (folder / leaf.file).write_bytes(content)
    return open_reader(folder)


def without(package: str, call: Callable[[], object]) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, package, None)
        return call()


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Whatever the texts name; `frames` has images and four episodes, `plain` has no images."""
    folder = tmp_path_factory.mktemp("datasets")
    return {
        "nan": math.nan,
        "Path": Path,
        "without": without,
        "frames": written(folder / "frames", [4, 1, 7, 3], images=True),
        "plain": written(folder / "plain", [2]),
        "damaged": damaged(folder / "damaged"),
        "no_episodes": Replay("local:x@1", None, "X-v0", 1e-5, ()),
        "check_format": figure.check_format,
        "require_matplotlib": figure.require_matplotlib,
        "draw_replay": figure.draw_replay,
        "film": film,
        "dataset_stats": dataset_stats,
        "first_transitions": first_transitions,
    }


@REFUSALS.cases
def test_refusals(kind: str, text: str, tmp_path: Path, names: dict[str, Any]) -> None:
    """Nothing is written."""
    shown = Film("x", 1, 16, 16, (), iter([np.zeros((16, 16, 3), np.uint8)]))
    made = {
        "write_film": lambda name, fps=30: write_film(shown, tmp_path / name, fps),
        "open_rerun": lambda: open_rerun(shown, np.zeros(1), "x"),
        "info": partial(dataset_info, settings=Settings(tmp_path, offline=True)),
        "folder": str(tmp_path),
    }
    REFUSALS.check(kind, text, lambda: eval(text, {**names, **made}), {tmp_path: "FOLDER"})  # noqa: S307
    assert list(tmp_path.iterdir()) == []
