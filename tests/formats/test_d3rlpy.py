"""d3rlpy: files of both versions, every leaf of every row against h5py, and files that do not fit."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, OfflineDataError
from offline_data.formats.base import Release
from offline_data.formats.d3rlpy.source import D3rlpy
from offline_data.formats.registry import source_accepting
from offline_data.pipeline.ingest import Options, convert
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from tests.toys.stored import read_shards

LENGTHS = (4, 1, 6)
TERMINATED = (True, False, True)


def code_of(episode: int, length: int) -> Any:
    return 100.0 * (episode + 1) + np.arange(length)


def write_flat(path: Path, **columns: Any) -> Path:
    """Write a file of version 1, with terminals on two rows as in the published cartpole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = np.concatenate([code_of(e, n) for e, n in enumerate(LENGTHS)])
    last = np.cumsum(LENGTHS) - 1
    ends, terminals = np.zeros(len(code), np.float32), np.zeros(len(code), np.float32)
    ends[last] = 1
    terminals[[last[0] - 1, last[0], last[2]]] = 1
    arrays = {
        "observations": np.repeat(code[:, None], 4, axis=1).astype(np.float32),
        "actions": code.astype(np.int32),
        "rewards": (code / 10).astype(np.float32),
        "terminals": terminals,
        "episode_terminals": ends,
        "discrete_action": np.bool_(True),
        "version": "1.0",
        **columns,
    }
    with h5py.File(path, "w") as file:
        for name, column in arrays.items():
            if column is not None:
                file[name] = column
    return path


def write_dump(path: Path, *, parts: int = 0, **columns: Any) -> Path:
    """Write a dump of version 2; `parts`: number of observations in a tuple."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        arrays: dict[str, Any] = {
            "columns": [b"observations", b"actions", b"rewards", b"terminated"],
            "num_episodes": len(LENGTHS),
            "version": b"2.1",
        }
        for e, length in enumerate(LENGTHS):
            code = code_of(e, length)[:, None].astype(np.float32)
            names = [f"observations_{e}_{n}" for n in range(parts)] or [f"observations_{e}"]
            arrays |= {name: np.repeat(code + n / 8, 3, axis=1) for n, name in enumerate(names)}
            arrays |= {f"actions_{e}": -code, f"rewards_{e}": code / 10}
            arrays[f"terminated_{e}"] = TERMINATED[e]
        for name, column in {**arrays, **columns}.items():
            if column is not None:
                file[name] = column
    return path


class TestDump(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        path = write_dump(tmp_path / "raw" / "x.h5")
        return SourceCase(D3rlpy(), D3rlpy().release_of(path, "x"), path)


class TestFlat(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        release = D3rlpy().resolve("cartpole", None, Settings(tmp_path))
        path = write_flat(tmp_path / "raw" / release.files[0].path)
        return SourceCase(D3rlpy(), release, path)


def stored(path: Path, folder: Path) -> DatasetReader:
    assert source_accepting(path).name == "d3rlpy"
    made = convert(path, "toy", Settings(folder / "root", offline=True), Options(audit="all"))
    return open_reader(made.path)


def test_version_1_is_cut_at_episode_terminals(tmp_path: Path) -> None:
    path = write_flat(tmp_path / "x.h5")
    reader = stored(path, tmp_path)
    assert reader.lengths.tolist() == list(LENGTHS)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(reader.step(("action",)), file["actions"][()])
        np.testing.assert_array_equal(reader.step(("next", "reward"))[:, 0], file["rewards"][()])
        table = reader.transitions_at(np.arange(reader.transitions))
        np.testing.assert_array_equal(table["observation",], file["observations"][()])
    last = np.cumsum(LENGTHS) - 1
    assert np.flatnonzero(reader.step(("next", "terminated"))).tolist() == [last[0], last[2]]
    assert np.flatnonzero(reader.step(("next", "truncated"))).tolist() == [last[1]]
    assert not np.asarray(reader.episodes["final_observation",]).any()
    assert any(
        "1 row within episodes, which d3rlpy ignores" in note for note in reader.manifest.notes
    )


@pytest.mark.parametrize("parts", [0, 2])
def test_version_2(tmp_path: Path, parts: int) -> None:
    path = write_dump(tmp_path / "x.h5", parts=parts)
    check_dump(path, stored(path, tmp_path))


def check_dump(path: Path, reader: DatasetReader) -> None:
    """Compare every leaf with the file, which h5py reads."""
    table = reader.transitions_at(np.arange(reader.transitions))
    with h5py.File(path) as file:
        count = int(file["num_episodes"][()])
        for name, key in (("actions", ("action",)), ("rewards", ("next", "reward"))):
            rows = np.concatenate([file[f"{name}_{e}"][()] for e in range(count)])
            assert table[key].dtype == rows.dtype
            np.testing.assert_array_equal(table[key], rows)
        tuples = "observations_0_0" in file
        for part in ("_0", "_1") if tuples else ("",):
            rows = np.concatenate([file[f"observations_{e}{part}"][()] for e in range(count)])
            key = ("observation", part[1:]) if tuples else ("observation",)
            np.testing.assert_array_equal(table[key], rows)
        ends = [bool(file[f"terminated_{e}"][()]) for e in range(count)]
    assert np.asarray(reader.episodes["terminated",]).tolist() == ends
    assert np.asarray(reader.episodes["truncated",]).tolist() == [not end for end in ends]


@pytest.mark.parametrize(
    "name", ["vector_continuous", "vector_discrete", "tuple_continuous", "image_discrete"]
)
def test_real_dumps(realdata: Path, tmp_path: Path, name: str) -> None:
    path = realdata / "d3rlpy_v2_generated" / f"{name}.h5"
    check_dump(path, stored(path, tmp_path))


def test_the_real_cartpole(realdata: Path, tmp_path: Path) -> None:
    path = realdata / "agilerl_d3rlpy_v1" / "cartpole_v1.1.0.h5"
    reader = stored(path, tmp_path)
    assert reader.transitions == 99_866
    with h5py.File(path) as file:
        np.testing.assert_array_equal(reader.step(("next", "reward"))[:, 0], file["rewards"][()])
        ends = np.flatnonzero(file["episode_terminals"][()]) + 1
    np.testing.assert_array_equal(np.cumsum(reader.lengths), ends)


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no end": (write_flat, {"episode_terminals": np.zeros(11, np.float32)}, "marks no end"),
    "fewer rewards": (write_flat, {"rewards": np.zeros(3)}, "'rewards' has 3 rows"),
    "another count": (write_dump, {"num_episodes": 9}, "num_episodes is 9"),
    "a huge count": (write_dump, {"num_episodes": 2**62}, "num_episodes is 4611686018427387904"),
    "a text count": (write_dump, {"num_episodes": "x"}, "num_episodes is None"),
    "a gap": (write_dump, {"num_episodes": 2, "actions_1": None}, "num_episodes is 2"),
    "no actions": (write_dump, {"actions_1": None}, "episode 1: it has no actions"),
    "text": (write_dump, {"actions_1": ["x"]}, "its 'actions' are"),
    "two flags": (write_dump, {"terminated_1": [True, False]}, "'terminated' is None"),
    "no rows": (write_dump, {"rewards_1": np.zeros((0, 1))}, r"rewards have shape \[0, 1\]"),
    "more observations": (
        write_dump,
        {"observations_1": np.zeros((9, 3), np.float32)},
        "episode 1",
    ),
    "fewer observations": (
        write_dump,
        {"observations_2": np.zeros((3, 3), np.float32)},
        "observations have 3 rows, expected 6",
    ),
    "a final observation": (
        write_dump,
        {"observations_2": np.zeros((7, 3), np.float32)},
        "observations have 7 rows, expected 6",
    ),
    "a link": (write_dump, {"actions_1": h5py.ExternalLink("/etc/passwd", "x")}, "is a link"),
    "a soft link": (write_dump, {"actions_1": h5py.SoftLink("/actions_0")}, "is a link"),
    "a group": (write_dump, {"actions_1": None, "actions_1/x": [1]}, "x.h5 is damaged"),
}


@pytest.mark.parametrize("what", BAD)
def test_files_that_do_not_fit(tmp_path: Path, what: str) -> None:
    write, columns, message = BAD[what]
    path = write(tmp_path / "x.h5", **columns)
    with pytest.raises(FormatError, match=message) as found:
        read_shards(D3rlpy(), Release("x", "1", local=path))
    assert "x.h5" in found.value.message


@pytest.mark.slow
def test_damaged_files_are_errors(tmp_path: Path) -> None:
    path = write_dump(tmp_path / "x.h5")
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for at in rng.choice(len(whole), 60, replace=False).tolist():
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with suppress(OfflineDataError):
            read_shards(D3rlpy(), Release("x", "1", local=path))
