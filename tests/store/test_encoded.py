"""Encoded leaves on disk: exact after the disk, audited, verified, and refused where spoiled."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.errors import AuditError, FormatError, ManifestError
from offline_data.store.audit import Audit
from offline_data.store.encoded import EncodedColumn
from offline_data.store.layout import OBSERVATIONS, STEPS
from offline_data.store.manifest import read_manifest
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from tests.pictures import (
    JPEG,
    PIXELS,
    PNG,
    ROWS,
    WRIST,
    Kind,
    column,
    encoded_batch,
    images_on_disk,
    pictures,
    raw,
    read,
    restate,
    with_pixels,
    write,
    written,
)

FILE = "observations/observation/pixels.bytes"
OFFSETS = "observations/observation/pixels.offsets"

KINDS: list[Kind] = [
    PNG,
    JPEG,
    *(("png", "uint8", (9, 8, *channels)) for channels in ((), (1,), (4,))),
    *(("png", "uint16", (9, 8, *channels)) for channels in ((), (1,))),
    *(("jpeg", "uint8", (40, 33, *channels)) for channels in ((), (1,))),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of encoded images."""
    return write(tmp_path / "d")


def pixels(folder: Path) -> Any:
    return open_reader(folder).leaf(OBSERVATIONS, PIXELS)


def spoil(folder: Path, row: int, image: bytes) -> None:
    """Put another image in place of a row, digests and offsets as they then are."""
    images = images_on_disk(folder)
    images[row] = image
    (folder / FILE).write_bytes(b"".join(images))
    np.cumsum([0, *map(len, images)]).astype("<i8").tofile(folder / OFFSETS)
    restate(folder)


class TestValues:
    @pytest.mark.parametrize("kind", KINDS, ids=str)
    def test_an_independent_reader_finds_the_bytes_of_the_source(
        self, kind: Kind, tmp_path: Path
    ) -> None:
        folder = write(tmp_path / "d", encoded_batch(kind=kind))
        for table, key, first in ((OBSERVATIONS, PIXELS, 0), (STEPS, WRIST, 500)):
            images = images_on_disk(folder, key)
            source = pictures(len(images), kind, first)
            assert images == [written(image, kind[0]) for image in source]
            theirs = np.stack([read(image) for image in images]).reshape(source.shape)
            ours = np.asarray(open_reader(folder).leaf(table, key))
            assert ours.dtype == source.dtype
            np.testing.assert_array_equal(ours, source if kind[0] == "png" else theirs)
            np.testing.assert_array_equal(ours, theirs)
        assert verify(folder) == ()
        assert read_manifest(folder).to_json()["format_version"] == 2

    def test_batches_and_parts_of_columns_lie_end_to_end(self, tmp_path: Path) -> None:
        order = np.arange(ROWS)[::-1]
        folder = write(tmp_path / "d", with_pixels(column(ROWS)[order]), encoded_batch(first=100))
        expected = [*pictures(ROWS)[order], *pictures(ROWS, first=100)]
        np.testing.assert_array_equal(np.asarray(pixels(folder)), expected)
        assert verify(folder) == ()

    def test_transitions_and_episodes_are_those_of_a_raw_leaf(self, tmp_path: Path) -> None:
        batch = encoded_batch()
        folders = write(tmp_path / "e", batch), write(tmp_path / "r", raw(batch))
        rows = np.array([0, 9, 3, 3, 4])
        found, expected = (open_reader(path).transitions_at(rows) for path in folders)
        assert sorted(found) == sorted(expected)
        for key, values in expected.items():
            np.testing.assert_array_equal(np.asarray(found[key]), values)
        again: Any = open_reader(folders[0]).episode_batch(1, 3).observations[PIXELS]
        assert again.images() == images_on_disk(folders[0])[4:11]

    def test_a_column_is_indexed_like_an_array(self) -> None:
        expected, one = pictures(7), column(7)
        for index in (slice(1, 6, 2), slice(None, None, -1), np.array([5, 0, 5]), np.arange(7) > 4):
            assert isinstance(one[index], EncodedColumn)
            np.testing.assert_array_equal(np.asarray(one[index]), expected[index])
            np.testing.assert_array_equal(np.asarray(one[index][:2]), expected[index][:2])
        np.testing.assert_array_equal(one[-1], expected[-1])
        with pytest.raises(IndexError):
            one[7]
        assert len(pickle.dumps(one[3:5])) < len(pickle.dumps(one))
        again = pickle.loads(pickle.dumps(one[3:5]))  # noqa: S301 - our own bytes
        np.testing.assert_array_equal(np.asarray(again), expected[3:5])
        assert np.asarray(one[:0]).shape == (0, *PNG[2])

    def test_threads_in_a_forked_process_too(self, folder: Path) -> None:
        code = (
            "import os, sys, numpy as np\n"
            "from pathlib import Path\n"
            "from offline_data.store import encoded\n"
            "from offline_data.store.reader import open_reader\n"
            "os.sched_getaffinity = lambda _: range(4)\n"
            "column = open_reader(Path(sys.argv[1])).leaf('observations', ('observation', 'pixels'))\n"
            "out = [np.empty(column.shape, 'u1') for _ in range(3)]\n"
            "for threads, places in zip((1, 2, 8), out): column.decode(list(places), threads)\n"
            "assert (out[0] == out[1]).all() and (out[0] == out[2]).all() and encoded._pools\n"
            "if (child := os.fork()) == 0:\n"
            "    same = (np.asarray(column) == out[0]).all() and os.getpid() in encoded._pools\n"
            "    os._exit(0 if same else 3)\n"
            "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        )
        subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=60)


def test_what_the_audit_finds(folder: Path, tmp_path: Path) -> None:
    images = column(ROWS).images()
    images[3] = images[3][:-30]
    with pytest.raises(FormatError, match="row 3, is not a png image that can be decoded"):
        write(tmp_path / "other", with_pixels(EncodedColumn.of(images, PNG)))
    spoil(folder, 5, written(pictures(1, first=999)[0], "png"))
    with pytest.raises(AuditError, match=r"/pixels' differs .* in episode 1"):
        Audit("all").check(encoded_batch(), open_reader(folder), 0, 0)


class TestSpoiled:
    def test_files_that_are_too_short_or_too_long(self, folder: Path) -> None:
        for name, size in ((OFFSETS, 8 * ROWS), (FILE, ROWS - 1)):
            whole = (folder / name).read_bytes()
            (folder / name).write_bytes(whole[:size])
            restate(folder)
            with pytest.raises(ManifestError, match="too short"):
                open_reader(folder)
            (folder / name).write_bytes(whole)
        (folder / FILE).write_bytes(whole + b"more")
        restate(folder)
        assert "its offsets run from 0 to" in verify(folder)[0].problem

    @pytest.mark.parametrize(
        "values", [(-1, 9), (9, 9), (9, 5), (1 << 62, 5), (0, 1 << 40), (-(1 << 63), (1 << 63) - 1)]
    )
    def test_offsets_that_lie(self, values: tuple[int, int], folder: Path) -> None:
        offsets = np.fromfile(folder / OFFSETS, "<i8")
        offsets[5:7] = values
        offsets.tofile(folder / OFFSETS)
        restate(folder)
        one = pixels(folder)
        np.testing.assert_array_equal(one[2], pictures(3)[2])
        told = rf"feature 'observation/pixels' .*, row 5, is said to be bytes {values[0]} to {values[1]}"
        with pytest.raises(FormatError, match=told):
            one[5]
        assert [problem.file for problem in verify(folder)] == [FILE]

    def test_bombs_are_refused_before_their_pixels_take_memory(self, folder: Path) -> None:
        png = bytearray(written(pictures(1)[0], "png"))
        png[16:24] = struct.pack(">II", 60_000, 60_000)
        png[29:33] = struct.pack(">I", zlib.crc32(png[12:29]))
        spoil(folder, 5, bytes(png))
        with pytest.raises(FormatError, match="row 5, is an image of 60000 x 60000"):
            pixels(folder)[5]
        assert "row 5," in verify(folder)[0].problem
        twice = bytearray(written(pictures(1, JPEG)[0], "jpeg"))
        at = twice.index(b"\xff\xc0")
        twice[at:at] = twice[at : at + 19]
        twice[at + 24 : at + 28] = struct.pack(">HH", 60_000, 60_000)  # of the second frame header
        lies = EncodedColumn.of([bytes(twice)], JPEG, "feature 'x'")
        lies.check_headers()  # the first one is right
        with pytest.raises(FormatError, match="feature 'x', row 0,"):
            np.asarray(lies)

    @pytest.mark.slow
    def test_any_spoiled_byte_gives_pixels_or_our_error(self, tmp_path: Path) -> None:
        folders = [
            write(tmp_path / kind[0], encoded_batch((2, 1), kind)).as_posix()
            for kind in (PNG, JPEG)
        ]
        done = subprocess.run(
            [sys.executable, "-c", SPOIL, str(Path(__file__).parents[2]), *folders],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        for read_and_refused in done.stdout.splitlines():
            assert min(map(int, read_and_refused.split())) > 10


SPOIL = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import numpy as np
from offline_data.base.errors import OfflineDataError
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from tests.pictures import PIXELS, restate

rng = np.random.default_rng(0)
for folder in map(Path, sys.argv[2:]):
    whole = {{name: (folder / name).read_bytes() for name in ("{FILE}", "{OFFSETS}")}}
    read = refused = 0
    for turn in range(50):
        name = "{FILE}" if turn % 3 else "{OFFSETS}"
        data = bytearray(whole[name])
        for at in rng.integers(0, len(data), rng.integers(1, 5)):
            at = int(at) if turn % 2 else int(at) % 64
            data[at] = rng.integers(256)
        (folder / name).write_bytes(data)
        if not turn % 5:
            restate(folder)
        column = open_reader(folder).leaf("observations", PIXELS)
        for row in range(len(column)):
            try:
                assert column[row].shape == column.shape[1:]
                read += 1
            except OfflineDataError as error:
                assert f"row {{row}}" in error.message, error.message
                refused += 1
        verify(folder)
        (folder / name).write_bytes(whole[name])
        restate(folder)
    print(read, refused)
"""
