"""DSRL and NeoRL: flat files of other names, every leaf against the arrays that were written."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.base.config import Settings
from offline_data.buffers.load import load_dataset
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.formats.base import Release
from offline_data.formats.catalogues import read_rows
from offline_data.formats.d4rl.dsrl import DSRL
from offline_data.formats.d4rl.neorl import NeoRL
from offline_data.pipeline.ingest import Options, convert
from offline_data.store.reader import open_reader
from offline_data.testing.sources import Damage, Episode, SourceCase
from tests.formats.contract import Contract
from tests.refusals import Refusals

REFUSALS = Refusals.beside(__file__)
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


def truth(_: Path, *, costs: bool = True) -> list[Episode]:
    """Cut what was written at the ends of episodes."""
    arrays = flat_arrays()
    expected = {
        ("observation",): arrays["observations"],
        ("next", "observation"): arrays["next_observations"],
        ("action",): arrays["actions"],
        REWARD: arrays["rewards"][:, None],
        TERMINATED: arrays["terminals"][:, None],
        TRUNCATED: arrays["timeouts"][:, None],
    }
    if costs:
        expected["next", "cost"] = arrays["costs"][:, None]
    starts = np.cumsum([0, *LENGTHS[:-1]])
    rows = [slice(start, start + length) for start, length in zip(starts, LENGTHS, strict=True)]
    known = {("episode", "final_observation"): True}
    return [{key: column[some] for key, column in expected.items()} | known for some in rows]


def changed(**new: Any) -> Damage:
    """Change arrays of an npz file, or leave out those that are None."""

    def apply(path: Path) -> None:
        with np.load(path) as file:
            arrays = {**file, **new}
        kept: Any = {name: column for name, column in arrays.items() if column is not None}
        np.savez_compressed(path, **kept)

    return Damage(apply)


BAD = {
    "no rewards": changed(reward=None),
    "fewer rewards": changed(reward=np.zeros(3)),
    "no rows": changed(obs=np.zeros((0, 3))),
    "text": changed(done=np.full(11, "x")),
    "wider next": changed(next_obs=np.zeros((11, 2), np.float32)),
}


class TestDSRL(Contract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        release = DSRL().resolve("OfflineCarGoal1Gymnasium-v0", None, Settings(tmp_path))
        path = write_dsrl(tmp_path / "raw" / release.files[0].path, flat_arrays())
        return SourceCase(DSRL(), release, path, truth)


class TestNeoRL(Contract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        release = NeoRL().resolve("Pipeline", None, Settings(tmp_path))
        path = write_neorl(tmp_path / "raw" / release.files[0].path, flat_arrays())
        return SourceCase(NeoRL(), release, path, partial(truth, costs=False), BAD)


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
    rows = read_rows("neorl").values()
    assert {len(row[f"{split}_md5"]) for row in rows for split in ("train", "val")} == {32}
    release = NeoRL().resolve("Fusion-val", None, Settings(Path("/nowhere")))
    assert release.files[0].path == "Fusion-val.npz"
    assert release.files[0].digest == "md5:9baa5556fac98b86ab9b58040da17d86"
