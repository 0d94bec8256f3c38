"""Marks of episodes are columns of exports to formats that hold any column of episodes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import offline_data
from offline_data.base.config import Settings
from offline_data.store.marks import marks_file

Store = Callable[[str], Path]


def columns(path: Path) -> dict[str, list[Any]]:
    """Read the columns of marks of an export to Parquet with pyarrow."""
    (file,) = (path / "episodes").glob("*.parquet")
    table = pq.read_table(file).to_pydict()
    return {name: table[name] for name in ("mark", "note") if name in table}


def test_columns_of_parquet(stored: Store, settings: Settings, tmp_path: Path) -> None:
    ds = offline_data.open_dataset(stored("flat"))
    count = len(ds.episodes)

    def export(to: str = "parquet", data: Any = ds, **more: Any) -> Any:
        out = tmp_path / ("out.hdf5" if to == "d4rl" else "out")
        return offline_data.export(data, out, to=to, settings=settings, progress=False, **more)

    assert columns(export().path) == {}
    ds.mark(1, "bad", note="slips, ”twice”")
    ds.mark(0, "good")
    done = export()
    assert not done.existed
    marks, notes = ["good", "bad"] + [""] * (count - 2), ["", "slips, ”twice”"] + [""] * (count - 2)
    assert columns(done.path) == {"mark": marks, "note": notes}
    assert export().existed
    ds.mark(1, "unsure")
    assert not export().existed
    assert columns(done.path)["mark"] == ["good", "unsure", *marks[2:]]
    assert columns(export(data=ds.episodes_at([1])).path) == {
        "mark": ["unsure"],
        "note": notes[1:2],
    }
    other = offline_data.open_dataset(shutil.copytree(stored("flat"), tmp_path / "again"))
    mixed = columns(export(data=offline_data.DatasetMixture(other, ds)).path)
    assert mixed == {
        "mark": [""] * count + ["good", "unsure", *marks[2:]],
        "note": [""] * count + notes,
    }
    marks_file(ds.data_path).unlink()
    assert columns(export().path) == {}


def test_other_formats_lose_nothing_of_the_dataset(
    stored: Store, settings: Settings, tmp_path: Path
) -> None:
    ds = offline_data.open_dataset(stored("flat"))
    for number, to in enumerate(("zarr", "d3rlpy")):
        losses = []
        for mark in (None, "bad"):
            ds.mark(0, mark)
            out = tmp_path / f"{number}{mark}{'.h5' if to == 'd3rlpy' else '.zarr'}"
            done = offline_data.export(ds, out, to=to, settings=settings, dry_run=True)
            losses.append([str(loss) for loss in done.losses])
        assert losses[0] == losses[1]
