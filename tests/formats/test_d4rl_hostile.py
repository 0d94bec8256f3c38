"""D4RL files whose shapes, dtypes or flags are not what they claim: right data, or one sentence."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from offline_data.base.errors import FormatError, NotFoundError, OfflineDataError
from offline_data.formats.base import Release
from offline_data.formats.d4rl.source import D4RL, D4RLEpisodes
from tests.oracles import d4rl_transitions
from tests.toys.d4rl import TOYS, write_published

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch

    Edit = Callable[[Any], None]

ROWS = 40
MEMORY = 3 << 29
COMMAND = (sys.executable, "-c", "from offline_data_cli.main import run; run()")


def opened(path: Path) -> D4RLEpisodes:
    return D4RL().open(Release("mine", "local-0", local=path), path)


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


def all_declared(rows: int, **options: Any) -> Edit:
    def edit(file: Any) -> None:
        for name in list(file):
            shape = (rows, *file[name].shape[1:])
            replaced(name, shape=shape, dtype=file[name].dtype, **options)(file)

    return edit


DECLARED: dict[str, tuple[Edit, str]] = {
    "3e9 rows, gzip": (all_declared(3 * 10**9, compression="gzip"), "observations"),
    "3e9 rows": (all_declared(3 * 10**9), "observations"),
    "1e13 rows": (all_declared(10**13, chunks=True), "observations"),
    "wide infos": (
        replaced("infos/wide", shape=(ROWS, 10**9), dtype="f8", chunks=(1, 1000)),
        "infos/wide",
    ),
    "wide infos of too many values": (
        replaced("infos/wide", shape=(ROWS, 2**31, 2**25), dtype="u1", chunks=(1, 1, 1000)),
        "infos/wide",
    ),
}


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


@pytest.mark.parametrize("case", DECLARED)
def test_rows_that_are_only_declared_are_refused(tmp_path: Path, case: str) -> None:
    edit, largest = DECLARED[case]
    path = declaring(tmp_path, edit)
    with pytest.raises(FormatError, match=f"mine.hdf5 declares .*{largest!r}"):
        opened(path)


@pytest.mark.slow
def test_rows_that_are_only_declared_take_no_memory(tmp_path: Path) -> None:
    """In a process that may have 1.5 GiB, libraries included, and a minute."""
    path = declaring(tmp_path, DECLARED["3e9 rows, gzip"][0])
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
    "gzip in chunks": replaced(
        "terminals", shape=(ROWS,), dtype=bool, chunks=(7,), compression="gzip"
    ),
    "chunks": replaced("terminals", shape=(ROWS,), dtype=bool, chunks=(7,)),
    "plain": replaced("terminals", shape=(ROWS,), dtype=bool),
    "f4 gzip": replaced("terminals", shape=(ROWS, 1), dtype="f4", compression="gzip"),
    "rewards with a fill value": replaced(
        "rewards", shape=(ROWS,), dtype="f4", compression="gzip", fillvalue=2.5
    ),
    "half of the rewards": half_written,
}


@pytest.mark.parametrize("case", NEVER_WRITTEN)
def test_what_was_never_written_has_its_fill_value(tmp_path: Path, case: str) -> None:
    path = write(tmp_path, NEVER_WRITTEN[case])
    batch, expected = read(path), d4rl_transitions(path)
    for name in ("terminated", "reward"):
        found = batch.steps["next", name][:, 0].tolist()
        assert found == [getattr(row, name) for row in expected]
    assert batch.lengths.tolist() == [10] * 4


UNFIT: dict[str, tuple[Edit, str]] = {
    "object": (replaced("rewards", data=["x"] * ROWS, dtype=h5py.string_dtype()), "dtype object"),
    "references": (
        replaced("actions", shape=(ROWS,), dtype=h5py.ref_dtype),
        "'actions' has dtype object",
    ),
    "compound": (
        replaced("actions", shape=(ROWS,), dtype=[("x", "f4"), ("y", "f4")]),
        r"'actions' has dtype \[\('x', '<f4'\)",
    ),
    "arrays": (replaced("actions", shape=(ROWS,), dtype=np.dtype((np.float32, (2,)))), "'actions'"),
    "variable length": (
        replaced("observations", shape=(ROWS,), dtype=h5py.vlen_dtype(np.float32)),
        "'observations' has dtype object",
    ),
    "opaque": (replaced("terminals", data=np.zeros(ROWS, "V3")), r"'terminals' has dtype \|V3"),
    "long double": (replaced("rewards", data=np.zeros(ROWS, np.longdouble)), "dtype float128"),
    "complex": (replaced("rewards", data=np.zeros(ROWS, "c8")), "dtype complex64"),
    "scalar": (replaced("rewards", data=3.0), "'rewards' has no rows, expected 40"),
    "scalar observations": (replaced("observations", data=3.0), "'observations' has shape \\[\\]"),
    "scalar flag": (replaced("timeouts", data=True), "'timeouts' has no rows, expected 40"),
    "empty": (replaced("rewards", data=h5py.Empty("f4")), "'rewards' has no rows"),
    "empty observations": (replaced("observations", data=h5py.Empty("f4")), "has shape None"),
    "no rows": (replaced("observations", data=np.zeros((0, 3))), r"has shape \[0, 3\]"),
    "too long": (replaced("actions", data=np.zeros((ROWS + 1, 2))), "'actions' has 41 rows"),
    "too short": (replaced("timeouts", data=np.zeros(ROWS - 1, bool)), "'timeouts' has 39 rows"),
    "two flags a row": (replaced("terminals", data=np.zeros((ROWS, 2), bool)), r"shape \[40, 2\]"),
    "wider next": (
        replaced("next_observations", data=np.zeros((ROWS, 4))),
        r"'next_observations' has rows of shape \[4\]",
    ),
    "text next": (
        replaced("next_observations", data=np.zeros((ROWS, 3), "S2")),
        r"'next_observations' has dtype \|S2",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_an_unfit_column_is_refused_by_name(tmp_path: Path, case: str) -> None:
    edit, message = UNFIT[case]
    path = write(tmp_path, edit)
    with pytest.raises(FormatError, match=message) as caught:
        opened(path)
    assert str(path) in caught.value.message


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminals"])
def test_a_missing_column_is_named(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, lambda file: file.pop(name))
    with pytest.raises(FormatError, match=rf"mine\.hdf5 .* expected datasets '{name}'; found"):
        opened(path)
    assert not D4RL().accepts(path)


@pytest.mark.parametrize("name", ["timeouts", "next_observations", "rewards"])
@pytest.mark.parametrize("link", [h5py.SoftLink("/actions"), h5py.ExternalLink("o.h5", "/x")])
def test_a_column_that_is_a_link_is_refused(tmp_path: Path, name: str, link: Any) -> None:
    with pytest.raises(FormatError, match=f"'{name}' is a link to"):
        opened(write(tmp_path, linked(name, link)))


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


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        *((emptied(f"virtual/{n}"), f"piece 'virtual/{n}'") for n in range(3)),
        *(
            (linked(f"virtual/{n}", h5py.ExternalLink("whole.hdf5", "/")), f"piece 'virtual/{n}'")
            for n in range(3)
        ),
        (lambda f: f.pop("virtual/1/observations"), "expected datasets 'virtual/1/observations'"),
        (lambda f: f.pop("virtual/1/rewards"), "'rewards' is in 2 of the 3 pieces"),
        (
            replaced("virtual/1/actions", data=np.ones((ROWS, 3))),
            "'actions' has a dtype or shape of",
        ),
    ],
)
def test_a_piece_that_is_not_read_is_not_left_out(tmp_path: Path, edit: Edit, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        opened(in_pieces(tmp_path, edit))


def test_a_piece_without_an_info(tmp_path: Path) -> None:
    found = opened(in_pieces(tmp_path, lambda file: file.pop("virtual/1/infos/qpos")))
    dropped = {d.key: d.reason for d in found.info.dropped}
    assert dropped == {"infos/qpos": "It is in 2 of the 3 pieces."}


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
    with pytest.raises(FormatError, match="'rewards' has its values in another file"):
        opened(write(tmp_path, replaced("rewards", **elsewhere)))


def test_without_ends_of_episodes(tmp_path: Path) -> None:
    dataset = opened(write(tmp_path, replaced("timeouts", data=np.zeros(ROWS, bool))))
    assert dataset.lengths.tolist() == [ROWS]
    assert "The file stops inside its last episode, of 40 rows" in " ".join(dataset.info.notes)
    with pytest.raises(FormatError, match="marks no end of an episode") as caught:
        opened(write(tmp_path, lambda file: file.pop("timeouts")))
    assert "'timeouts'" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<!DOCTYPE html><title>Not found", "it is a web page"),
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "damaged or cut short"),
    ],
)
def test_what_is_not_hdf5_is_said(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mine.hdf5"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message):
        opened(path)
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
    with pytest.raises(NotFoundError, match="There is no file"):
        opened(tmp_path / "absent.hdf5")
    with pytest.raises(FormatError, match="is not a plain file"):
        D4RL().release_of(tmp_path, "mine")
