"""Infos that differ between episodes: an error, or left out with a note."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, UsageError
from offline_data.pipeline.ingest import Options, convert
from offline_data.store.reader import open_reader
from tests.slow import slow_but
from tests.toys.d4rl import write_d4rl_hdf5
from tests.toys.minari import STORAGES, box, toy_episode, toy_rows, write_minari

BAD_INFOS: dict[str, tuple[Any, str]] = {
    "shape": (np.zeros((3, 4)), r"has rows of shape \[4\]; expected \[3\] as in the first episode"),
    "dimensions": (np.zeros(3), r"has rows of shape \[\]; expected \[3\] as in the first episode"),
    "type": (np.full((3, 3), 1j), "is complex128, and its values do not fit float64"),
    "rows": (np.zeros((9, 3)), "has 9 rows in 'infos/goal' of shape"),
    "text": (["a", "b", "c"], r"expected array|is string; expected array|\|S|object"),
}


@pytest.mark.parametrize(
    ("bad", "count", "storage"),
    slow_but(lambda *case: len({*case} & {"shape", 2, "hdf5"}) > 1, BAD_INFOS, [2, 40], STORAGES),
)
def test_infos_that_differ_between_episodes(
    tmp_path: Path, settings: Settings, storage: str, bad: str, count: int
) -> None:
    """The last episode has another `goal`; with the option there is none, and all else is kept."""
    if storage != "hdf5" and bad in {"type", "rows"}:
        pytest.skip("tables have rows of one length, and no complex numbers")
    values, said = BAD_INFOS[bad]
    goals = [np.full((3, 3), float(n)) for n in range(count - 1)] + [values]
    episodes = [
        toy_episode(n, 2, infos={"x": toy_rows(box(), n, 3), "goal": g})
        for n, g in enumerate(goals)
    ]
    raw = write_minari(tmp_path / "raw-v0", episodes, storage)
    with pytest.raises(FormatError, match=said) as caught:
        convert(raw, "x", settings, Options())
    assert "skip_bad_features=True" in (caught.value.hint or "")
    with pytest.raises(FormatError, match="infos/goal"):
        convert(raw, "x", settings, Options(skip_bad_features=True, strict=True))
    stored = convert(raw, "x", settings, Options(skip_bad_features=True, audit="all"))
    (dropped,) = stored.manifest.dropped
    assert dropped["key"] == "infos/goal"
    assert re.search(said, dropped["reason"])
    assert str(tmp_path) not in dropped["reason"]
    assert stored.manifest.converter["options"]["skip_bad_features"] is True
    assert stored.episodes == count
    keys = open_reader(stored.path).transitions_at(np.arange(1)).keys()
    assert {key for key in keys if "info" in key} == {("info", "x"), ("next", "info", "x")}


def test_the_option_is_for_minari(tmp_path: Path, settings: Settings) -> None:
    path = write_d4rl_hdf5(tmp_path / "x.hdf5")
    with pytest.raises(UsageError, match="is for infos of minari; this is d4rl"):
        convert(path, "x", settings, Options(skip_bad_features=True))
    with pytest.raises(UsageError, match="is for files of Minari"):
        offline_data.convert([], "x", skip_bad_features=True, root=settings.root)
