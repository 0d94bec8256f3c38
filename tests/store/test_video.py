"""Leaves of videos: frames are those that PyAV decodes, wherever they are read; damage has a name."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.errors import (
    FormatError,
    IntegrityError,
    MissingDependencyError,
)
from offline_data.raw.video import VideoFile
from offline_data.store import video as module
from offline_data.store.join import join
from offline_data.store.layout import MANIFEST, OBSERVATIONS
from offline_data.store.manifest import read_manifest
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import write_toy
from tests.films import FILM, LENGTHS, SHAPE, decoded, film, film_batch, write_films
from tests.pictures import restate
from tests.store.test_join import header

FRAMES = "observations/observation/film.frames"
FOLDER = "observations/observation/film.video"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    return write_films(tmp_path_factory.mktemp("films"))


@pytest.fixture
def here(made: tuple[Path, Any], tmp_path: Path) -> Path:
    """A copy of it that may be damaged."""
    return Path(shutil.copytree(made[0], tmp_path / "d"))


def column_of(folder: Path) -> Any:
    return DatasetReader(folder).leaf(OBSERVATIONS, FILM)


def test_rows_are_those_of_the_files(made: tuple[Path, Any]) -> None:
    folder, truth = made
    column = column_of(folder)
    assert column.encoding == "video"
    assert column.shape == (sum(LENGTHS) + len(LENGTHS), *SHAPE)
    np.testing.assert_array_equal(np.asarray(column), truth)
    assert len({row.tobytes() for row in truth}) == len(truth)
    assert verify(folder) == ()
    assert read_manifest(folder).to_json()["format_version"] == 3


def test_any_rows_in_any_order(made: tuple[Path, Any]) -> None:
    folder, truth = made
    column, random = column_of(folder), np.random.default_rng(0)
    for threads in (1, 2, None):
        for _ in range(15):
            rows = random.integers(0, len(truth), random.integers(1, 30))
            out = np.zeros((len(rows), *SHAPE), np.uint8)
            column[rows].decode(list(out), threads)
            np.testing.assert_array_equal(out, truth[rows])
    np.testing.assert_array_equal(column[-1], truth[-1])
    np.testing.assert_array_equal(np.asarray(column[3:12][::2]), truth[3:12:2])
    assert np.asarray(column[:0]).shape == (0, *SHAPE)


def test_a_pickled_column_and_a_joined_one(made: tuple[Path, Any], tmp_path: Path) -> None:
    folder, truth = made
    column = column_of(folder)
    some = pickle.loads(pickle.dumps(column[[18, 2, 18]]))  # noqa: S301 - our own
    np.testing.assert_array_equal(np.asarray(some), truth[[18, 2, 18]])
    other = film(tmp_path, 7, 6)
    pairs = np.array([[0, 5], [0, 1]], np.int32)
    more = module.VideoColumn([other], pairs, ("video", "uint8", SHAPE))
    both = column[[1, 20]].joined_with([more, column[[2]]])
    expected = [truth[1], truth[20], decoded(other.path)[5], decoded(other.path)[1], truth[2]]
    np.testing.assert_array_equal(np.asarray(both), expected)
    assert len(both.used()[0]) == 3


def _sums(folder: Path, rows: list[int]) -> list[int]:
    return [int(frame.astype(int).sum()) for frame in np.asarray(column_of(folder)[rows])]


def test_a_forked_process_opens_its_own(made: tuple[Path, Any]) -> None:
    folder, truth = made
    np.asarray(column_of(folder))  # containers are open
    before = list(module._idle[os.getpid()])
    end, out = os.pipe()
    child = os.fork()
    if not child:
        os.write(out, str(_sums(folder, [4, 17])).encode())
        os._exit(0)
    assert os.read(end, 1000).decode() == str([int(truth[n].astype(int).sum()) for n in (4, 17)])
    assert os.waitpid(child, 0)[1] == 0
    assert module._idle[os.getpid()] == before


def test_few_containers_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OPEN", 3)
    monkeypatch.setattr(module, "_idle", {})
    files = [film(tmp_path, n, 3) for n in range(8)]
    pairs = np.array([(n, k) for n in range(8) for k in range(3)], np.int32)
    column = module.VideoColumn(files, pairs, ("video", "uint8", SHAPE))
    for rows in (np.arange(24), np.arange(24)[::-1]):
        expected = [decoded(files[n].path)[k] for n, k in pairs[rows]]
        np.testing.assert_array_equal(np.asarray(column[rows]), expected)
        assert len(module._idle[os.getpid()]) == 3


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted on Linux")
def test_open_containers_have_no_threads(made: tuple[Path, Any]) -> None:
    tasks = Path("/proc/self/task")
    before = len(list(tasks.iterdir()))
    files = [VideoFile(made[0] / FOLDER / f"{n}.mp4", threads=False) for n in ("000000", "000001")]
    for file in files:
        assert len(list(file.read(np.arange(3)))) == 3
    assert len(list(tasks.iterdir())) == before


def refuse(*_: object) -> None:
    raise OSError(18, "Invalid cross-device link")


def test_files_are_links_where_that_is_possible(
    made: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = made
    source = folder.parent / "film0.mp4"
    assert (folder / FOLDER / "000000.mp4").samefile(source)

    monkeypatch.setattr("os.link", refuse)
    batch, truth = film_batch(tmp_path)  # encoded anew, which need not give the same pixels
    write_toy(tmp_path / "copy", [batch])
    assert not (tmp_path / "copy" / FOLDER / "000000.mp4").samefile(tmp_path / "film0.mp4")
    assert verify(tmp_path / "copy") == ()
    np.testing.assert_array_equal(np.asarray(column_of(tmp_path / "copy")), truth)


@pytest.mark.parametrize("linked", [True, False])
def test_files_that_change_before_they_are_stored(
    tmp_path: Path, linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = film_batch(tmp_path)[0]  # has their digests
    path = tmp_path / "film1.mp4"
    data = path.read_bytes()
    path.write_bytes(data + b"x" if linked else bytes([data[0] ^ 1]) + data[1:])
    if not linked:
        monkeypatch.setattr("os.link", refuse)
    said = "does not have [0-9]+ bytes" if linked else "does not match its checksum"
    with pytest.raises(IntegrityError, match=f"film1.mp4 {said}") as caught:
        write_toy(tmp_path / "d", [batch])
    assert caught.value.hint == "it was changed, or is damaged: restore it and try again"
    assert not (tmp_path / "d" / MANIFEST).exists()


@pytest.mark.parametrize("consume", [False, True])
def test_joined_parts_have_each_file_once(tmp_path: Path, consume: bool) -> None:
    made = [film_batch(tmp_path, first_episode=4 * n) for n in range(2)]
    made.insert(1, film_batch(tmp_path))  # the files of the first part once more
    batches = [batch for batch, _ in made]
    expected = write_toy(tmp_path / "whole", batches)
    parts = [tmp_path / f"part{n}" for n in range(3)]
    for part, batch in zip(parts, batches, strict=True):
        write_toy(part, [batch])
    found = join(parts, tmp_path / "joined", header(parts[0]), consume=consume)
    assert found.digests == expected.digests
    assert len([name for name in found.digests if name.endswith(".mp4")]) == 4
    assert verify(tmp_path / "joined") == ()
    truth = np.concatenate([truth for _, truth in made])
    np.testing.assert_array_equal(np.asarray(column_of(tmp_path / "joined")), truth)
    assert any(part.rglob("*.mp4") for part in parts)
    assert bool(list(tmp_path.glob("part*/**/*.mp4"))) != consume


def _set_frames(folder: Path, row: int, pair: tuple[int, int]) -> None:
    pairs = np.fromfile(folder / FRAMES, "<i4").reshape(-1, 2)
    pairs[row] = pair
    pairs.tofile(folder / FRAMES)
    restate(folder)


@pytest.mark.parametrize("pair", [(2, 0), (-1, 0), (0, 11), (1, -1), (2**31 - 1, 2**31 - 1)])
def test_rows_of_frames_that_are_not_there(here: Path, pair: tuple[int, int]) -> None:
    _set_frames(here, 4, pair)
    column = open_reader(here).leaf(OBSERVATIONS, FILM)
    with pytest.raises(FormatError, match=r"row 4, is said to be frame -?[0-9]+ of video -?[0-9]+"):
        np.asarray(column)
    np.testing.assert_array_equal(np.asarray(column[5:6]), np.asarray(column_of(here)[5:6]))
    assert [one.file for one in verify(here)] == [FRAMES]


def _times(change: Any) -> Any:
    def damage(folder: Path) -> None:
        path = folder / FOLDER / "000001.times"
        index = np.fromfile(path, "<i8").reshape(-1, 2)
        change(index).astype("<i8").tofile(path)

    return damage


def _film(change: Any) -> Any:
    def damage(folder: Path) -> None:
        path = folder / FOLDER / "000001.mp4"
        data = path.read_bytes()
        path.unlink()  # others have it, too
        path.write_bytes(change(data, folder.parent))

    return damage


DAMAGES = {
    "unknown codec": (
        _film(lambda data, _: data.replace(b"avc1", b"xxxx")),
        "has a video of an unknown codec",
    ),
    "cut mp4": (_film(lambda data, _: data[: len(data) // 2]), "cannot be decoded"),
    "another mp4": (_film(lambda _, at: film(at, 9, 4).path.read_bytes()), "cannot be decoded"),
    "no mp4": (_film(lambda *_: b"x" * 99), "is not an mp4 file"),
    "times descend": (_times(lambda index: index[::-1]), "not a list of times"),
    "odd key frames": (_times(lambda index: index + np.array([0, 2])), "not a list of times"),
    "other times": (_times(lambda index: index + np.array([1, 0])), "cannot be decoded"),
    "no key frames": (_times(lambda index: index * [1, 0]), None),
    "all key frames": (_times(lambda index: index * [1, 0] + np.array([0, 1])), None),
    "times beyond": (_times(lambda index: index + np.array([2**61, 0])), "cannot be decoded"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_has_a_name(here: Path, made: tuple[Path, Any], name: str) -> None:
    damage, message = DAMAGES[name]
    damage(here)
    restate(here)
    column: Any = open_reader(here).leaf(OBSERVATIONS, FILM)
    rows = np.arange(11, 21)
    if message is None:  # frames are found by their times all the same
        np.testing.assert_array_equal(np.asarray(column[rows]), made[1][rows])
    else:
        with pytest.raises(FormatError, match=message) as caught:
            np.asarray(column[rows])
        assert "000001." in caught.value.message
    assert [one.file for one in verify(here)] == [FRAMES]


def test_a_file_that_the_manifest_does_not_list_is_not_opened(here: Path) -> None:
    shutil.copy(here / FOLDER / "000000.mp4", here / FOLDER / "000002.mp4")
    shutil.copy(here / FOLDER / "000000.times", here / FOLDER / "000002.times")
    _set_frames(here, 0, (2, 0))
    with pytest.raises(FormatError, match="and there are 2 videos"):
        np.asarray(open_reader(here).leaf(OBSERVATIONS, FILM)[:1])


def test_frames_of_another_size(here: Path) -> None:
    manifest = read_manifest(here).to_json()
    (leaf,) = (x for x in manifest["schema"][OBSERVATIONS]["leaves"] if x["key"] == [*FILM])
    leaf["shape"] = [64, 48, 3]
    (here / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match=r"has frames of uint8 \[32, 48, 3\], and feature"):
        np.asarray(open_reader(here).leaf(OBSERVATIONS, FILM))


def test_without_pyav(made: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_idle", {})
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(MissingDependencyError, match="PyAV") as caught:
        np.asarray(column_of(made[0])[:1])
    assert "pip install 'offline-data[video]'" in str(caught.value.hint)
    assert "keys=[…]" in str(caught.value.hint)
    assert verify(made[0]) == ()
