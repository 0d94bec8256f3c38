"""Toys of sources, and real files, as every format; and from there back by `convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.base.errors import UsageError
from offline_data.formats.writing.base import TARGETS, get_target
from offline_data.store.library import entry_at
from offline_data.store.reader import DatasetReader, open_reader
from tests.frozen.conversions import converted
from tests.pipeline.export.contract import FORMATS
from tests.pipeline.ingest.here import convert_here

NAMES = (
    *("minari hdf5", "d4rl with next observations", "calvin", "openx encoded", "lerobot 3.0"),
    *("robomimic", "vd4rl hdf5", "openml", "pairs", "ogbench"),
)
"""Toys that differ in kinds of leaves; all of `CONVERSIONS` passed when this was written."""


def export_and_convert(path: Path, folder: Path, to: str) -> DatasetReader | str:
    """Export a dataset and convert the result; return it, or why it cannot be."""
    target = get_target(to)
    reader = open_reader(path)
    observation = None
    if not target.holds.nested:
        seen = [key for key in reader.observation_leaves if key[0] == "observation"]
        observation = "/".join(seen[0]) if seen else None
    fps = 10 if to == "lerobot" else None
    dest = folder / f"out-v0{target.suffix}"
    options: dict[str, Any] = {"root": folder / "root", "progress": False}
    try:
        offline_data.export(path, dest, to=to, observation=observation, fps=fps, **options)
    except UsageError as error:
        return str(error)
    source = FORMATS[to].source
    split = "all" if to == "rlds" else None  # a dataset of several splits is exported as such
    stored = offline_data.convert(dest, "back", source=source, split=split, force=True, **options)
    return open_reader(entry_at(stored.path).path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_format_of_a_source(name: str, tmp_path: Path) -> None:
    converted(name, tmp_path)
    (manifest,) = (tmp_path / "root" / "local" / "frozen").glob("*/manifest.json")
    first = open_reader(manifest.parent)
    results: dict[str, str] = {}
    """Why a format cannot have the dataset."""
    for to in TARGETS:
        folder = tmp_path / to
        folder.mkdir()
        back = export_and_convert(manifest.parent, folder, to)
        if isinstance(back, str):
            results[to] = back
            continue
        np.testing.assert_array_equal(back.lengths, first.lengths)
    assert {"parquet", "hf", "ted"}.isdisjoint(results), results


@pytest.fixture(scope="module")
def door(realdata: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a real dataset of Minari, converted; not to be written."""
    raw = realdata / "minari_door_human_v2/D4RL/door/human-v2"
    root = tmp_path_factory.mktemp("door")
    with pytest.MonkeyPatch.context() as patch:
        convert_here(patch)
        return offline_data.convert(raw, "door", source="minari", root=root, progress=False).path


@pytest.mark.slow
@pytest.mark.parametrize("to", TARGETS)
def test_a_real_dataset_of_minari(to: str, door: Path, tmp_path: Path) -> None:
    back = export_and_convert(door, tmp_path, to)
    assert not isinstance(back, str), back
    first = open_reader(door)
    np.testing.assert_array_equal(back.lengths, first.lengths)
    np.testing.assert_array_equal(
        back.step(("action",)),
        np.asarray(first.step(("action",))).astype(back.step(("action",)).dtype),
    )
