"""Files and folders that no source accepts: what is said of them, and what is advised."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from offline_data.base.errors import AccessError, FormatError
from offline_data.formats.registry import source_accepting, source_names
from offline_data.pipeline.ingest import inspect_files
from tests.toys.files import write_h5, write_npz

PULL = "git lfs pull"
AGAIN = "again"
INSPECT = "--inspect` lists its arrays"


def cut(path: Path) -> None:
    write = write_npz if path.suffix == ".npz" else write_h5
    write(path, {"action": np.arange(1000.0).reshape(500, 2)})
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def holding(content: bytes) -> object:
    return lambda path: path.write_bytes(content)


BAD = {
    "cut.hdf5": (cut, "is damaged or cut short: ", AGAIN),
    "cut.npz": (cut, "is damaged or not supported: File is not a zip file", AGAIN),
    "head.npz": (holding(b"PK\3\4" + bytes(99)), "is damaged or not supported: ", AGAIN),
    "pointer.hdf5": (holding(b"version https://git-lfs.github.com/spec/v1\n"), "LFS pointer", PULL),
    "pointer.npz": (holding(b"version https://git-lfs.github.com/spec/v1\n"), "LFS pointer", PULL),
    "x.pkl": (holding(pickle.dumps([1])), "it is a pickle: pickles can run code", "load it"),
    "x.hdf5": (holding(pickle.dumps([1], 2)), "it is a pickle: pickles can run code", "load it"),
    "page.hdf5": (holding(b"<!DOCTYPE html>"), "it is a web page", AGAIN),
    "empty.npz": (holding(b""), "it is empty", AGAIN),
    "none.hdf5": (lambda path: write_h5(path, {}), "it has no arrays", "recorded nothing"),
    "none.npz": (lambda path: np.savez(path), "it has no arrays", "recorded nothing"),
}


@pytest.mark.parametrize("place", ["a file", "all in a folder", "below a folder", "one of several"])
@pytest.mark.parametrize("name", BAD)
def test_bad_files(tmp_path: Path, name: str, place: str) -> None:
    make, said, advice = BAD[name]
    folder = tmp_path / "data"
    path = folder / ("sub" if place == "below a folder" else "") / name
    path.parent.mkdir(parents=True)
    make(path)  # type: ignore[operator]
    if place == "one of several":
        (folder / "notes.md").write_text("# Notes")
        advice = INSPECT
    elif place != "a file":
        path.with_stem("again").write_bytes(path.read_bytes())
    with pytest.raises(FormatError) as caught:
        source_accepting(path if place == "a file" else folder)
    assert said in caught.value.message
    assert ("(and 1 more): it " in caught.value.message) == (place[:4] in {"all ", "belo"})
    hint = caught.value.shell_hint or ""
    assert advice in hint
    assert place == "one of several" or "--from" not in hint
    with pytest.raises(FormatError) as caught:
        inspect_files(path if place == "a file" else folder)
    assert "--inspect" not in (caught.value.shell_hint or "")


def test_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "ring").symlink_to(tmp_path / "ring")
    with pytest.raises(
        AccessError, match=r"ring cannot be read: Too many levels of symbolic links$"
    ):
        inspect_files(tmp_path / "ring")


D4RL = ("observations", "actions", "rewards", "terminals")
NEAR = [
    (("npz", "HDF5"), D4RL[:3], "nearly D4RL, but has no terminals"),
    (("npz",), (*D4RL, "episode_terminals"), "nearly D4RL, but has episode_terminals"),
    (("npz",), (*D4RL[:2], "terminals", "timeouts"), "nearly D4RL, but has no rewards"),
    (("npz",), ("obs", "action", "reward"), "nearly NeoRL-2, but has no done"),
    (("npz",), ("image", "action", "reward", "discount"), "nearly V-D4RL, but has no is_first"),
    (("npz",), ("obs", "acts", "terminal"), "nearly imitation, but has no indices"),
    (("npz", "HDF5"), ("obs", "act", "rew"), "no known format has these arrays"),
    (("npz", "HDF5"), ("x",), "no known format has these arrays"),
]


@pytest.mark.parametrize(
    ("kind", "names", "said"), [(k, names, s) for kinds, names, s in NEAR for k in kinds]
)
def test_files_of_nearly_a_format(
    tmp_path: Path, kind: str, names: tuple[str, ...], said: str
) -> None:
    write = write_npz if kind == "npz" else write_h5
    path = write(tmp_path / f"x.{kind.lower()}", {name: np.zeros(3) for name in names})
    with pytest.raises(FormatError) as caught:
        source_accepting(path)
    listed = ", ".join(names if kind == "npz" else sorted(names))
    assert caught.value.message == f"Cannot tell what {path} is: it is {kind} with {listed}; {said}"
    assert INSPECT in (caught.value.shell_hint or "")


def write_csv(path: Path, separator: str) -> None:
    path.write_text("\n".join([separator.join(NEORL), separator.join("1234")]))


NEORL = ("obs", "action", "reward", "done")
OTHER_KINDS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "x.csv": ("CSV", lambda path: write_csv(path, ",")),
    "x.TSV": ("TSV", lambda path: write_csv(path, "\t")),
    "x.pt": ("a .pt file", lambda path: torch.save({n: torch.ones(3) for n in NEORL}, path)),
    "x.parquet": ("Parquet", lambda path: pq.write_table(pa.table({n: [1] for n in NEORL}), path)),
}


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_tables_and_files_of_pytorch_have_names(tmp_path: Path, name: str) -> None:
    """Those of a format, which has another kind of files, say nothing about it."""
    (kind, write), path = OTHER_KINDS[name], tmp_path / name
    write(path)
    with pytest.raises(FormatError) as caught:
        source_accepting(path)
    names = "with obs, action, reward, done; no known format has these arrays"
    assert caught.value.message == f"Cannot tell what {path} is: it is {kind} {names}"
    assert INSPECT in (caught.value.shell_hint or "")
    (tmp_path / "x.bin").write_bytes(b"\0" * 8)
    with pytest.raises(FormatError) as caught:
        source_accepting(tmp_path / "x.bin")
    assert f"with --from: {', '.join(source_names())}" in (caught.value.shell_hint or "")


@pytest.mark.parametrize("zip64", [False, True])
def test_headers_of_64_bits_are_npz(tmp_path: Path, zip64: bool) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for name in D4RL:
            with archive.open(f"{name}.npy", "w", force_zip64=zip64) as stream:
                np.save(stream, np.ones((3, 1)))
    assert source_accepting(tmp_path / "x.npz").name == "d4rl"


def test_a_folder_with_several_faults_names_each(tmp_path: Path) -> None:
    for name in ("pointer.hdf5", "x.pkl", "page.hdf5"):
        BAD[name][0](tmp_path / name)  # type: ignore[operator]
    (tmp_path / "more.pkl").write_bytes(pickle.dumps({}))
    with pytest.raises(FormatError) as caught:
        source_accepting(tmp_path)
    assert "; more.pkl (and 1 more): it is a pickle" in caught.value.message
    assert "; pointer.hdf5: it is a Git LFS pointer" in caught.value.message
    assert "; page.hdf5: it is a web page" in caught.value.message
    assert "load it yourself" in (caught.value.hint or "")
