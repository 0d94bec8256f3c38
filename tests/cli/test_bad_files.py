"""Files that are not what a source reads: one sentence that names them, and nothing is published.

Every source of the registry is tried, a new one as well. A file has the first bytes of each format that
any of them reads, and names that they look at; it is alone, or in a folder.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from offline_data.config import Settings
from offline_data.errors import OfflineDataError
from offline_data.ingest import Options, convert
from offline_data.sources.registry import _BUILT_IN
from offline_data_cli.main import exit_code
from tests.cli.conftest import Cli
from tests.ingest.here import convert_here

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


def check_refused(path: Path, settings: Settings, source: str | None) -> None:
    """Convert `path`, which fails with one sentence that names it, and leaves nothing."""
    with pytest.raises(OfflineDataError) as caught:
        convert(path, "bad", settings, Options(), source=source)
    error = caught.value
    assert exit_code(error) in {2, 3, 5}, (path, error)
    assert path.name in error.message
    assert "\n" not in error.message
    assert len(error.message) < 600
    assert not list(settings.root.rglob("manifest.json"))
    staged = settings.staging.rglob("*")
    assert not [one for one in staged if one.is_file() and one.suffix != ".lock"]


@pytest.mark.parametrize("content", list(CONTENTS))
@pytest.mark.parametrize("source", SOURCES)
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
