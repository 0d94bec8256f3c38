"""DSRL and NeoRL: flat files of other names, every leaf against the arrays that were written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.buffers.load import load_dataset
from offline_data.formats.base import Release
from offline_data.formats.catalogues import read_rows
from offline_data.formats.d4rl.dsrl import DSRL
from offline_data.formats.d4rl.neorl import NeoRL
from offline_data.formats.registry import source_accepting
from offline_data.pipeline.ingest import Options, convert
from offline_data.store.reader import open_reader
from offline_data.testing.sources import SourceCase, SourceContract

LENGTHS = (4, 1, 6)
ENDS = ("terminals", "timeouts", "timeouts")


def flat_arrays() -> dict[str, NDArray[Any]]:
    """Return rows by D4RL's names; step `t` of episode `e` has the code `100·(e + 1) + t`."""
    code = np.concatenate([100.0 * (e + 1) + np.arange(n) for e, n in enumerate(LENGTHS)])
    last = np.cumsum(LENGTHS) - 1
    flags = {name: np.zeros(len(code), bool) for name in ("terminals", "timeouts")}
    for row, name in zip(last, ENDS, strict=True):
        flags[name][row] = True
    return {
        "observations": np.repeat(code[:, None], 3, axis=1).astype(np.float32),
        "next_observations": np.repeat(code[:, None] + 1, 3, axis=1).astype(np.float32),
        "actions": -np.repeat(code[:, None], 2, axis=1).astype(np.float32),
        "rewards": (code / 10).astype(np.float32),
        "costs": (code % 2).astype(np.float32),
        **flags,
    }


NEORL = {
    "observations": "obs", "next_observations": "next_obs", "actions": "action", "rewards": "reward",
    "terminals": "done", "timeouts": "truncated",
}  # fmt: skip


def write_dsrl(path: Path, arrays: dict[str, NDArray[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, column in arrays.items():
            file[name] = column
    return path


def write_neorl(path: Path, arrays: dict[str, NDArray[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    renamed: Any = {NEORL[name]: column for name, column in arrays.items() if name in NEORL}
    for name in ("done", "truncated", "reward"):  # as the published files have them
        renamed[name] = renamed[name].reshape(-1, 1)
    np.savez_compressed(path, **renamed)
    return path


class TestDSRL(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        release = DSRL().resolve("OfflineCarGoal1Gymnasium-v0", None, Settings(tmp_path))
        path = tmp_path / "raw" / release.files[0].path
        return SourceCase(DSRL(), release, write_dsrl(path, flat_arrays()))


class TestNeoRL(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        release = NeoRL().resolve("Pipeline", None, Settings(tmp_path))
        path = tmp_path / "raw" / release.files[0].path
        return SourceCase(NeoRL(), release, write_neorl(path, flat_arrays()))


@pytest.mark.parametrize("source", ["dsrl", "neorl"])
def test_every_leaf_of_every_row(tmp_path: Path, source: str) -> None:
    arrays, settings = flat_arrays(), Settings(tmp_path / "root", offline=True)
    write, suffix = (write_dsrl, "hdf5") if source == "dsrl" else (write_neorl, "npz")
    path = write(tmp_path / f"x.{suffix}", arrays)
    assert source_accepting(path).name == source
    stored = convert(path, "toy", settings, Options(audit="all"))
    reader = open_reader(stored.path)
    table = reader.transitions_at(np.arange(reader.transitions))
    assert reader.lengths.tolist() == list(LENGTHS)
    expected = {
        ("observation",): arrays["observations"],
        ("next", "observation"): arrays["next_observations"],
        ("action",): arrays["actions"],
        ("next", "reward"): arrays["rewards"][:, None],
        ("next", "terminated"): arrays["terminals"][:, None],
        ("next", "truncated"): arrays["timeouts"][:, None],
    }
    if source == "dsrl":
        expected["next", "cost"] = arrays["costs"][:, None]
    for key, column in expected.items():
        assert table[key].dtype == column.dtype, key
        np.testing.assert_array_equal(table[key], column, err_msg=str(key))
    assert np.asarray(reader.episodes["final_observation",]).all()


def test_costs_are_sampled_and_exported_by_their_name(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "root", offline=True)
    path = write_dsrl(tmp_path / "x.hdf5", flat_arrays())
    stored = convert(path, "toy", settings, Options(audit="all"))
    ds = load_dataset(stored.path)
    assert ds.sample(8)["next", "cost"].shape == (8, 1)
    np.testing.assert_array_equal(np.ravel(ds.to_numpy("dataset")["costs"]), flat_arrays()["costs"])


def test_a_file_with_costs_can_be_read_as_d4rl(tmp_path: Path) -> None:
    path = write_dsrl(tmp_path / "x.hdf5", flat_arrays())
    settings = Settings(tmp_path / "root", offline=True)
    assert source_accepting(path).name == "dsrl"
    stored = convert(path, "toy", settings, Options(audit="all"), source="d4rl")
    assert ("extra", "costs") in open_reader(stored.path).step_leaves


def test_another_number_of_trajectories_than_the_name_says_is_told(tmp_path: Path) -> None:
    name = "OfflineAntRun-v0"
    release = DSRL().resolve(name, None, Settings(tmp_path))
    path = write_dsrl(tmp_path / release.files[0].path, flat_arrays())
    info = DSRL().open(release, path).info
    assert "The file's name says 1,816 trajectories; it has 3 episodes." in info.warnings
    assert info.about["ref_max_score"] == 955.4818725585938
    same = write_dsrl(tmp_path / "SafetyX-v0-10-3.hdf5", flat_arrays())
    assert DSRL().open(Release("x", "1", local=same), same).info.warnings == ()


def test_catalogues() -> None:
    assert len(read_rows("dsrl")) == 38
    files = [row["file"] for row in read_rows("dsrl").values()]
    assert len(set(files)) == 38
    assert all(file.endswith(".hdf5") for file in files)
    assert len(read_rows("neorl")) == 8
    assert all(
        len(row[f"{split}_md5"]) == 32
        for row in read_rows("neorl").values()
        for split in ("train", "val")
    )
    release = NeoRL().resolve("Fusion-val", None, Settings(Path("/nowhere")))
    assert release.files[0].path == "Fusion-val.npz"
    assert release.files[0].digest == "md5:9baa5556fac98b86ab9b58040da17d86"
    with pytest.raises(NotFoundError, match="There is no neorl:Fusio"):
        NeoRL().resolve("Fusio", None, Settings(Path("/nowhere")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": None}, r"arrays of .*x\.npz lack 'reward'"),
        ({"reward": np.zeros(3)}, r"x\.npz: 'reward' has 3 rows, expected 11"),
        ({"obs": np.zeros((0, 3))}, r"x\.npz have no rows"),
        ({"done": np.full(11, "x")}, r"x\.npz: 'done'"),
        ({"next_obs": np.zeros((11, 2), np.float32)}, r"x\.npz"),
    ],
)
def test_npz_files_that_do_not_fit(tmp_path: Path, change: Any, message: str) -> None:
    path = write_neorl(tmp_path / "x.npz", flat_arrays())
    with np.load(path) as file:
        arrays = {**file, **change}
    kept: Any = {name: column for name, column in arrays.items() if column is not None}
    np.savez_compressed(path, **kept)
    with pytest.raises(FormatError, match=message):
        NeoRL().open(Release("x", "1", local=path), path)
