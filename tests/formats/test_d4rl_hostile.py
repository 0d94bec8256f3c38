"""D4RL files whose shapes, dtypes or flags are not what they claim: right data, or one sentence."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from offline_data.base.errors import FormatError, OfflineDataError
from offline_data.formats.base import Release
from offline_data.formats.d4rl.source import D4RL, D4RLEpisodes
from tests.oracles import d4rl_transitions
from tests.refusals import Refusals
from tests.toys.d4rl import TOYS, write_published

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch

    Edit = Callable[[Any], None]

REFUSALS = Refusals.beside(__file__)
ROWS = 40
REQUIRED = ("observations", "actions", "rewards", "terminals")
LINKED = ("timeouts", "next_observations", "rewards")
MEMORY = 3 << 29
COMMAND = (sys.executable, "-c", "from offline_data_cli.main import run; run()")


def opened(path: Path) -> D4RLEpisodes:
    return D4RL().open(Release("mine", "local-0", local=path), path)


def refused(kind: str, name: str, path: Path) -> None:
    REFUSALS.check(kind, name, lambda: opened(path), {path.parent: "FOLDER"})


def read(path: Path) -> EpisodeBatch:
    dataset = opened(path)
    return dataset.read_part(dataset.parts(1 << 50)[0])


def write(folder: Path, *edits: Edit) -> Path:
    path = folder / "mine.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"] = np.arange(3.0 * ROWS).reshape(ROWS, 3) + 1
        file["actions"] = np.arange(2.0 * ROWS).reshape(ROWS, 2)
        file["rewards"] = np.arange(ROWS) / 4
        file["terminals"] = np.zeros(ROWS, bool)
        file["timeouts"] = np.arange(ROWS) % 10 == 9
        for edit in edits:
            edit(file)
    return path


def replaced(name: str, **options: Any) -> Edit:
    """Make `name` anew with these arguments of `create_dataset`."""

    def edit(file: Any) -> None:
        if name in file:
            del file[name]
        file.create_dataset(name, **options)

    return edit


def linked(name: str, link: Any) -> Edit:
    def edit(file: Any) -> None:
        if name in file:
            del file[name]
        file[name] = link

    return edit


def _without(name: str, file: Any) -> None:
    del file[name]


def all_declared(rows: int, **options: Any) -> Edit:
    def edit(file: Any) -> None:
        for name in list(file):
            shape = (rows, *file[name].shape[1:])
            replaced(name, shape=shape, dtype=file[name].dtype, **options)(file)

    return edit


DECLARED: dict[str, Edit] = {
    "3e9 rows, gzip": all_declared(3 * 10**9, compression="gzip"),
    "3e9 rows": all_declared(3 * 10**9),
    "1e13 rows": all_declared(10**13, chunks=True),
    "wide infos": replaced("infos/wide", shape=(ROWS, 10**9), dtype="f8", chunks=(1, 1000)),
    "too many values": replaced("infos/wide", shape=(ROWS, 2**31, 2**25), dtype="u1", chunks=(1, 1, 1000)),
}  # fmt: skip


def declaring(folder: Path, edit: Edit) -> Path:
    """Write a small file whose columns are longer or wider than all memory."""
    path = folder / "mine.hdf5"
    with h5py.File(path, "w") as file:
        for name, tail in (("observations", (3,)), ("actions", (2,)), ("rewards", ())):
            file.create_dataset(name, (ROWS, *tail), "f8")
        file.create_dataset("terminals", (ROWS,), "?")
        edit(file)
    assert path.stat().st_size < 1 << 16
    return path


@REFUSALS.of("declared", DECLARED)
def test_rows_that_are_only_declared_are_refused(tmp_path: Path, name: str) -> None:
    refused("declared", name, declaring(tmp_path, DECLARED[name]))


@pytest.mark.slow
def test_rows_that_are_only_declared_take_no_memory(tmp_path: Path) -> None:
    """In a process that may have 1.5 GiB, libraries included, and a minute."""
    path = declaring(tmp_path, DECLARED["3e9 rows, gzip"])
    ran = subprocess.run(
        [*COMMAND, "convert", str(path), "mine", "--root", str(tmp_path / "root")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    assert ran.returncode == 5, ran.stderr
    assert f"{path} declares" in ran.stderr


def half_written(file: Any) -> None:
    options = {"shape": (ROWS,), "dtype": "f8", "chunks": (8,), "compression": "gzip"}
    replaced("rewards", fillvalue=-1.0, **options)(file)
    file["rewards"][20:] = np.arange(20.0)


NEVER_WRITTEN: dict[str, Edit] = {
    "gzip in chunks": replaced("terminals", shape=(ROWS,), dtype=bool, chunks=(7,), compression="gzip"),
    "chunks": replaced("terminals", shape=(ROWS,), dtype=bool, chunks=(7,)),
    "plain": replaced("terminals", shape=(ROWS,), dtype=bool),
    "f4 gzip": replaced("terminals", shape=(ROWS, 1), dtype="f4", compression="gzip"),
    "rewards with a fill value": replaced("rewards", shape=(ROWS,), dtype="f4", compression="gzip", fillvalue=2.5),
    "half of the rewards": half_written,
}  # fmt: skip


@pytest.mark.parametrize("case", NEVER_WRITTEN)
def test_what_was_never_written_has_its_fill_value(tmp_path: Path, case: str) -> None:
    path = write(tmp_path, NEVER_WRITTEN[case])
    batch, expected = read(path), d4rl_transitions(path)
    for name in ("terminated", "reward"):
        found = batch.steps["next", name][:, 0].tolist()
        assert found == [getattr(row, name) for row in expected]
    assert batch.lengths.tolist() == [10] * 4


UNFIT: dict[str, Edit] = {
    "object": replaced("rewards", data=["x"] * ROWS, dtype=h5py.string_dtype()),
    "references": replaced("actions", shape=(ROWS,), dtype=h5py.ref_dtype),
    "compound": replaced("actions", shape=(ROWS,), dtype=[("x", "f4"), ("y", "f4")]),
    "arrays": replaced("actions", shape=(ROWS,), dtype=np.dtype((np.float32, (2,)))),
    "variable length": replaced("observations", shape=(ROWS,), dtype=h5py.vlen_dtype(np.float32)),
    "opaque": replaced("terminals", data=np.zeros(ROWS, "V3")),
    "long double": replaced("rewards", data=np.zeros(ROWS, np.longdouble)),
    "complex": replaced("rewards", data=np.zeros(ROWS, "c8")),
    "scalar": replaced("rewards", data=3.0),
    "scalar observations": replaced("observations", data=3.0),
    "scalar flag": replaced("timeouts", data=True),
    "empty": replaced("rewards", data=h5py.Empty("f4")),
    "empty observations": replaced("observations", data=h5py.Empty("f4")),
    "no rows": replaced("observations", data=np.zeros((0, 3))),
    "too long": replaced("actions", data=np.zeros((ROWS + 1, 2))),
    "too short": replaced("timeouts", data=np.zeros(ROWS - 1, bool)),
    "two flags a row": replaced("terminals", data=np.zeros((ROWS, 2), bool)),
    "wider next": replaced("next_observations", data=np.zeros((ROWS, 4))),
    "text next": replaced("next_observations", data=np.zeros((ROWS, 3), "S2")),
    "no ends": lambda file: file.pop("timeouts"),
    **{f"no {name}": partial(_without, name) for name in REQUIRED},
    **{f"{name}, a soft link": linked(name, h5py.SoftLink("/actions")) for name in LINKED},
    **{f"{name}, a link outside": linked(name, h5py.ExternalLink("o.h5", "/x")) for name in LINKED},
}  # fmt: skip


@REFUSALS.of("columns", UNFIT)
def test_an_unfit_column_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, UNFIT[name])
    refused("columns", name, path)
    assert name.removeprefix("no ") not in REQUIRED or not D4RL().accepts(path)


def test_flags_with_other_values_are_set_and_counted(tmp_path: Path) -> None:
    flags = np.zeros(ROWS, "f4")
    flags[[3, 13, 23, 33]] = [np.nan, -1, np.inf, 1e-30]
    timeouts = np.where(np.arange(ROWS) % 10 == 9, 255, 0).astype("u1")
    edits = replaced("terminals", data=flags), replaced("timeouts", data=timeouts)
    path = write(tmp_path, *edits)
    batch = read(path)
    assert np.flatnonzero(batch.steps["next", "terminated"]).tolist() == [3, 13, 23, 33]
    assert np.flatnonzero(batch.steps["next", "truncated"]).tolist() == [9, 19, 29, 39]
    for name in ("terminals", "timeouts"):
        note = f"{name} has 4 values besides 0 and 1: all but 0 count as set."
        assert note in opened(path).info.notes


def virtual(name: str, shape: tuple[int, ...], target: str) -> Edit:
    def edit(file: Any) -> None:
        layout = h5py.VirtualLayout(shape, "f8")
        layout[...] = h5py.VirtualSource(target, "value", shape)
        file.create_virtual_dataset(name, layout)

    return edit


SCALARS: dict[str, Edit] = {
    "long text": replaced("note", data="x" * 100_000),
    "long bytes": replaced("note", data=np.bytes_(b"x" * 100_000)),
    "declared bytes": replaced("note", shape=(), dtype="S2000000000"),
    "reference": replaced("note", shape=(), dtype=h5py.ref_dtype),
    "variable length": replaced("note", shape=(), dtype=h5py.vlen_dtype(np.float32)),
    "array": replaced("note", shape=(), dtype=np.dtype((np.float32, (2,)))),
    "long double": replaced("note", data=np.longdouble(1)),
    "in another file": virtual("note", (), "secret.hdf5"),
    "rows in another file": virtual("note", (ROWS,), "secret.hdf5"),
}


@pytest.mark.parametrize("case", SCALARS)
def test_single_values_that_cannot_be_kept_are_dropped(tmp_path: Path, case: str) -> None:
    for shape in ((), (ROWS,)):
        with h5py.File(tmp_path / "secret.hdf5", "w") as file:
            file["value"] = np.full(shape, 42.0)
        info = opened(write(tmp_path, SCALARS[case])).info
        assert [leaf.key for leaf in info.dropped] == ["note"]
        assert "metadata" not in info.about


def in_pieces(tmp_path: Path, edit: Edit) -> Path:
    whole = write(tmp_path).rename(tmp_path / "whole.hdf5")
    with h5py.File(whole) as source, h5py.File(tmp_path / "mine.hdf5", "w") as file:
        for piece in range(3):
            for name in source:
                file[f"virtual/{piece}/{name}"] = source[name][()]
            file[f"virtual/{piece}/infos/qpos"] = source["rewards"][()]
        edit(file)
    return tmp_path / "mine.hdf5"


def emptied(piece: str) -> Edit:
    def edit(file: Any) -> None:
        del file[piece]
        file.create_group(piece)

    return edit


PIECES: dict[str, Edit] = {
    **{f"{n} is empty": emptied(f"virtual/{n}") for n in range(3)},
    **{f"{n} is a link": linked(f"virtual/{n}", h5py.ExternalLink("whole.hdf5", "/")) for n in range(3)},
    "no observations": lambda file: file.pop("virtual/1/observations"),
    "no rewards": lambda file: file.pop("virtual/1/rewards"),
    "wide actions": replaced("virtual/1/actions", data=np.ones((ROWS, 3))),
}  # fmt: skip


@REFUSALS.of("pieces", PIECES)
def test_a_piece_that_is_not_read_is_not_left_out(tmp_path: Path, name: str) -> None:
    refused("pieces", name, in_pieces(tmp_path, PIECES[name]))


def test_a_piece_without_an_info(tmp_path: Path) -> None:
    path = in_pieces(tmp_path, lambda file: file.pop("virtual/1/infos/qpos"))
    with h5py.File(path, "r+") as file:
        file["virtual/notes/x"] = file["metadata/loss"] = np.ones(3)
    assert {d.key: d.reason for d in opened(path).info.dropped} == {
        "infos/qpos": "It is in 2 of the 3 pieces.",
        "virtual/notes/x": "It is not in the pieces that hold all other columns.",
        "metadata/loss": "It belongs to the recording policy and has no value per row.",
    }


DROPPED = {
    "infos/short": (np.ones(ROWS - 1), "has 39 rows, expected 40"),
    "infos/word": (np.array(["a"] * ROWS, "S1"), "has dtype |S1"),
    "infos/wave": (np.ones(ROWS, complex), "has dtype complex128"),
    "metadata/loss": (np.ones(ROWS), "belongs to the recording policy"),
    "metadata/seed": (np.complex128(1), "is a value that JSON cannot hold"),
    "infos/nothing": (h5py.Empty("f4"), "has no rows"),
    "infos/soft": (h5py.SoftLink("/rewards"), "is a link to '/rewards'"),
    "infos/out": (h5py.ExternalLink("o.h5", "/rewards"), "is a link to 'o.h5'"),
}


@pytest.mark.parametrize("name", DROPPED)
def test_other_columns_are_dropped_with_the_reason(tmp_path: Path, name: str) -> None:
    values, reason = DROPPED[name]
    dataset = opened(write(tmp_path, linked(name, values), linked("version", "1.0")))
    (found,) = dataset.info.dropped
    assert (found.key, found.reason.startswith(f"It {reason}")) == (name, True)
    assert not dataset.flat.others
    assert dataset.info.about["metadata"] == {"version": "1.0"}


def test_values_in_other_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(ROWS * 8))
    elsewhere = {"shape": (ROWS,), "dtype": "f8", "external": [(str(tmp_path / "secret"), 0, 320)]}
    outside = virtual("infos/virtual", (ROWS,), str(tmp_path / "other.hdf5"))
    path = write(tmp_path, replaced("infos/out", **elsewhere), outside)
    dropped = {d.key: d.reason for d in opened(path).info.dropped}
    assert "another file" in dropped["infos/out"]
    assert "another file" in dropped["infos/virtual"]
    refused("files", "values elsewhere", write(tmp_path, replaced("rewards", **elsewhere)))


def test_without_ends_of_episodes(tmp_path: Path) -> None:
    dataset = opened(write(tmp_path, replaced("timeouts", data=np.zeros(ROWS, bool))))
    assert dataset.lengths.tolist() == [ROWS]
    assert "The file stops inside its last episode, of 40 rows" in " ".join(dataset.info.notes)


NO_HDF5 = {
    "page": b"<!DOCTYPE html><title>Not found",
    "empty": b"",
    "pointer": b"version https://git-lfs.github.com/spec/v1\n",
    "head": b"\x89HDF\r\n\x1a\n" + bytes(100),
}


@REFUSALS.of("contents", NO_HDF5)
def test_what_is_not_hdf5_is_said(tmp_path: Path, name: str) -> None:
    path = tmp_path / "mine.hdf5"
    path.write_bytes(NO_HDF5[name])
    refused("contents", name, path)
    assert not D4RL().accepts(path)


def test_any_cut_is_an_error_of_ours(tmp_path: Path) -> None:
    whole = write_published(tmp_path, TOYS["mujoco-v2"]).read_bytes()
    path = tmp_path / "mine.hdf5"
    for size in range(0, len(whole), 997):
        path.write_bytes(whole[:size])
        with pytest.raises(OfflineDataError, match=r"mine\.hdf5"):
            opened(path)


def test_a_damaged_chunk_names_column_and_rows(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["mujoco-v2"]).rename(tmp_path / "mine.hdf5")
    with h5py.File(path) as file:
        chunk = file["actions"].id.get_chunk_info(0)
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset + chunk.size // 2)
        raw.write(b"\xff" * 8)
    with pytest.raises(FormatError, match=r"mine\.hdf5 is damaged: '/actions' .* rows 0 to 16"):
        read(path)


def test_absent_and_unreadable_files(tmp_path: Path) -> None:
    refused("files", "absent", tmp_path / "absent.hdf5")
    REFUSALS.check(
        "files", "a folder", lambda: D4RL().release_of(tmp_path, "mine"), {tmp_path: "FOLDER"}
    )
