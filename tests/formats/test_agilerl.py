"""AgileRL: every leaf of every row against h5py, and ends of episodes that no flag marks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.formats.d4rl.agilerl import AgileRL
from offline_data.formats.registry import source_accepting
from offline_data.pipeline.ingest import Options, convert
from offline_data.store.reader import open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from tests.toys.agilerl import LENGTHS, TERMINATED, write_agilerl


class TestAgileRL(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        folder = write_agilerl(tmp_path / "raw")
        return SourceCase(AgileRL(), AgileRL().release_of(folder, "x"), folder)


@pytest.mark.parametrize("place", ["", "data/main_data.hdf5"])
@pytest.mark.parametrize("flagged", [True, False])
def test_every_leaf_of_every_row(
    tmp_path: Path, place: str, flagged: bool, settings: Settings
) -> None:
    none = None if flagged else np.zeros(sum(LENGTHS), bool)  # as of D4RL/door/human
    folder = write_agilerl(tmp_path / "x_agile-v0", **({} if none is None else {"terminals": none}))
    path = folder / place
    assert source_accepting(path).name == "agilerl"
    reader = open_reader(convert(path, "toy", settings, Options(audit="all")).path)
    table = reader.transitions_at(np.arange(reader.transitions))
    with h5py.File(folder / "data" / "main_data.hdf5") as file:
        columns: dict[str, Any] = {name: file[name][()] for name in file}
    expected = {
        ("observation",): columns["observations"],
        ("next", "observation"): columns["next_observations"],
        ("action",): columns["actions"],
        ("next", "reward"): columns["rewards"][:, None],
        ("next", "terminated"): columns["terminals"][:, None],
    }
    for key, column in expected.items():
        assert table[key].dtype == column.dtype, key
        np.testing.assert_array_equal(table[key], column, err_msg=str(key))
    assert reader.lengths.tolist() == list(LENGTHS)
    assert np.asarray(reader.episodes["final_observation",]).all()
    truncated = [not (flagged and end) for end in TERMINATED]
    assert np.asarray(reader.episodes["truncated",]).tolist() == truncated
    assert AgileRL().open(AgileRL().release_of(path, "x"), path).info.warnings == ()
    assert any("two episodes between which it stays the same" in n for n in reader.manifest.notes)


def test_episodes_are_kept_whole(tmp_path: Path, settings: Settings) -> None:
    folder = write_agilerl(tmp_path / "x_agile-v0")
    stored = convert(folder, "toy", settings, Options(audit="all", keep_episodes=True))
    reader = open_reader(stored.path)
    assert reader.lengths.tolist() == [4, 1 + 6 + 3]
    assert "Episodes end where terminals are set." in stored.manifest.notes
    with h5py.File(folder / "data" / "main_data.hdf5") as file:
        after = file["next_observations"][()]
    table = reader.transitions_at(np.arange(reader.transitions))
    np.testing.assert_array_equal(table["next", "observation"], after)


def test_nothing_is_published(settings: Settings) -> None:
    with pytest.raises(NotFoundError, match=r"There is no agilerl:x") as caught:
        AgileRL().resolve("x", None, settings)
    assert "convert" in (caught.value.hint or "")


def test_a_file_without_next_observations_is_not_one(tmp_path: Path) -> None:
    folder = write_agilerl(tmp_path / "x", next_observations=None)
    assert not AgileRL().accepts(folder)
    with pytest.raises(FormatError, match="no 'next_observations'"):
        AgileRL().open(AgileRL().release_of(folder, "x"), folder)
