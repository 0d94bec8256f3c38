"""Files that are not what a source reads: one sentence that names them, and nothing is published.

Every source of the registry is tried, a new one as well. A file has the first bytes of each format that
any of them reads, and names that they look at; it is alone, or in a folder. Or it is of the right format,
but has no episode, or one of the files of its dataset is missing.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import OfflineDataError
from offline_data.formats.registry import _BUILT_IN
from offline_data.pipeline.ingest import Options, convert
from offline_data.pipeline.ingest.shards import BEGUN
from offline_data_cli.main import exit_code
from tests.cli.conftest import Cli
from tests.pipeline.ingest.here import convert_here
from tests.slow import every_second
from tests.toys.atari import write_replay_log
from tests.toys.d4rl import write_d4rl_hdf5
from tests.toys.minari import toy_episode, write_minari
from tests.toys.openml import toy_table
from tests.toys.rlds import write_rlds, write_toy_rlds
from tests.toys.roboset import toy_trial, write_trials
from tests.toys.vd4rl import toy_rows, write_vd4rl_hdf5
from tests.toys.webdataset import write_tar, write_webdataset

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
PAGE = b"<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head></html>\n"
NAMES = (
    "data.arff", "data.gz", "data.hdf5", "data.json", "data.npz", "data.parquet", "data.pq", "data.tar",
    "data.tar.xz", "data.tfrecord-00000-of-00001",
)  # fmt: skip
CONTENTS = {
    "pointer": (POINTER, NAMES),
    "page": (PAGE, NAMES),
    "empty": (b"", NAMES),
    "hdf5": (b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0\4\0\x10\0", ("data.hdf5",)),
    "parquet": (b"PAR1\x15\x04\x15\x10\x15", ("data.parquet", "data.pq")),
    "arrow": (b"ARROW1\0\0\xff\xff\xff\xff\x10\0\0\0", ("data.arrow",)),
    "npy": (b"\x93NUMPY\1\0v\0{'descr': '<f8', 'fortran_", ("data.npy", "data.npz")),
    "zip": (b"PK\x03\x04\x14\0\0\0\x08\0\0\0!\0", ("data.zip", "data.npz")),
    "gzip": (
        gzip.compress(bytes(range(256)) * 40)[:-12],
        ("data.gz", "data.arff.gz", "data.tar.gz"),
    ),
    "xz": (b"\xfd7zXZ\0\0\4\xe6\xd6\xb4F\2\0!\1", ("data.tar.xz",)),
    "arff": (b"@RELATION toy\n@ATTRIBUTE width REAL\n@ATTR", ("data.arff",)),
    "json": (b'{"episodes": [{"length": 3, "rew', ("data.json",)),
    "record": (b"\x10\0\0\0\0\0\0\0\x12\x34", ("data.tfrecord-00000-of-00001",)),
}
"""Contents, the formats among them cut, and the names of files that have them."""
IN_FOLDERS = (
    "data/main_data.hdf5", "data/metadata.json", "dataset_info.json", "description.json",
    "features.json", "manifest.json", "meta/info.json", "observation.gz",
)  # fmt: skip
SOURCES = [None, *sorted(_BUILT_IN)]


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    convert_here(monkeypatch)


def check_refused(
    path: Path, settings: Settings, source: str | None, named: str | None = None
) -> None:
    """Convert `path`, which fails with one sentence that names it, and leaves nothing."""
    with pytest.raises(OfflineDataError) as caught:
        convert(path, "bad", settings, Options(), source=source)
    error = caught.value
    assert exit_code(error) in {2, 3, 5}, (path, error)
    assert (named or path.name) in error.message
    assert "\n" not in error.message
    assert len(error.message) < 600
    assert not list(settings.root.rglob("manifest.json"))
    staged = settings.staging.rglob("*")
    kept = [one for one in staged if one.is_file() and one.suffix != ".lock"]
    assert all(one.name == BEGUN for one in kept)  # of shards, in order to resume


@pytest.mark.parametrize(("source", "content"), every_second(SOURCES, CONTENTS))
def test_files_and_folders(
    tmp_path: Path, settings: Settings, source: str | None, content: str
) -> None:
    body, names = CONTENTS[content]
    folder = tmp_path / "bad-folder"
    for name in names:
        path = tmp_path / f"bad-{name}"
        path.write_bytes(body)
        check_refused(path, settings, source)
    for name in (*names, *IN_FOLDERS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
    check_refused(folder, settings, source)


@pytest.mark.parametrize("source", SOURCES)
def test_nothing_at_all(tmp_path: Path, settings: Settings, source: str | None) -> None:
    empty = tmp_path / "bad-empty"
    empty.mkdir()
    check_refused(empty, settings, source)
    check_refused(tmp_path / "bad-absent", settings, source)


def without(pattern: str, folder: Path) -> Path:
    """Remove the only file of such a name from a folder."""
    (found,) = folder.rglob(pattern)
    found.unlink()
    return folder


def npz_without_rows(path: Path) -> Path:
    path.mkdir()
    rows: dict[str, Any] = {name: column[:0] for name, column in toy_rows(0, 3).items()}
    np.savez(path / "bad.npz", **rows)
    return path


def hdf5_without_rows(path: Path) -> Path:
    write_d4rl_hdf5(path)
    with h5py.File(path, "a") as file:
        for name, column in [(name, file[name][:0]) for name in file if name != "infos"]:
            del file[name]
            file[name] = column
        del file["infos"]
    return path


def replay_log(path: Path, *lengths: int) -> Path:
    write_replay_log(path, lengths, capacity=20, final=True)
    return path


def trials(path: Path, rows: int | None) -> Path:
    whole = toy_trial(0, 0, 2)
    some = {} if rows is None else {"Trial0": {key: whole[key][:rows] for key in whole}}
    return write_trials(path / "bad.h5", some)


def tar(path: Path, *members: str) -> Path:
    write_tar(path / "bad.tar", [(name, b"none") for name in members])
    return path


INCOMPLETE: Mapping[str, tuple[Callable[[Path], Path], str]] = {
    "atari_dqn, no episode": (replay_log, "bad"),
    "atari_dqn, no file": (
        lambda path: without("*reward_ckpt.0.gz", replay_log(path, 4, 30)),
        "$store$_reward_ckpt.0.gz",
    ),
    "d4rl, no episode": (hdf5_without_rows, "bad"),
    "gen_dgrl, no episode": (lambda path: tar(path, "README.md") / "bad.tar", "bad.tar"),
    "minari, no episode": (lambda path: write_minari(path, []), "main_data.hdf5"),
    "minari, no file": (
        lambda path: without("main_data.hdf5", write_minari(path, [toy_episode(0, 3)])),
        "main_data.hdf5",
    ),
    "openml, no episode": (lambda path: toy_table(0).write(path), "data.arff"),
    "openml, no file": (lambda path: without("data.arff", toy_table().write(path)), "bad"),
    "openx, no episode": (lambda path: write_rlds(path, {"train": [[]]}), "dataset_info.json"),
    "openx, no file": (
        lambda path: without("*train*-00001-*", write_toy_rlds(path)),
        "toy-train.tfrecord-00001-of-00002",
    ),
    "openx, no description": (
        lambda path: without("features.json", write_toy_rlds(path)),
        "features.json",
    ),
    "openx, no episode in a tar": (lambda path: tar(path, "README.md"), "bad.tar"),
    "openx, no tar": (
        lambda path: without("*_00001.tar", write_webdataset(path, "a", "file", [[2]] * 3)),
        "a_00001.tar",
    ),
    "roboset, no episode": (lambda path: trials(path, None), "bad.h5"),
    "roboset, no row": (lambda path: trials(path, 0), "bad.h5"),
    "vd4rl, no row": (npz_without_rows, "bad.npz"),
    "vd4rl, no row in HDF5": (lambda path: write_vd4rl_hdf5(path, (3,), (0,)), "0_walker"),
    "vd4rl, no file": (
        lambda path: without("1_*", write_vd4rl_hdf5(path, (3, 3, 3), (4, 8))),
        "1_walker",
    ),
}
"""Datasets in the format of a source that lack all episodes, or a file; and what an error names."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", INCOMPLETE)
def test_datasets_that_lack_something(tmp_path: Path, settings: Settings, kind: str) -> None:
    make, named = INCOMPLETE[kind]
    check_refused(make(tmp_path / "bad"), settings, kind.partition(",")[0], named)


@pytest.mark.parametrize("source", SOURCES)
def test_the_command(cli: Cli, tmp_path: Path, source: str | None) -> None:
    path = tmp_path / "bad.arff"
    path.write_bytes(PAGE)
    chosen = ("--from", source) if source else ()
    ran = cli("convert", str(path), "bad", *chosen)
    assert (ran.code in {2, 3, 5}, ran.out) == (True, "")
    said, *hints = ran.err.splitlines()
    assert said.startswith("error: ")
    assert "bad.arff" in said
    assert [hint[:6] for hint in hints] in ([], ["hint: "])
    assert cli("verify", "local:bad").code == 3
    assert cli("list", "--json").json == []
