"""`.npz` files: arrays by name, each read when it is asked for, damage named by file and array."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.errors import FormatError, NotFoundError, OfflineDataError
from offline_data.readers import npy
from offline_data.readers.npz import open_npz

ARRAYS = {
    "observations": np.arange(1001, 1025, dtype="<f4").reshape(4, 6),
    "actions": np.asfortranarray(np.arange(2001, 2009, dtype=">i2").reshape(4, 2)),
    "terminals": np.array([False, False, False, True]),
    "name": np.array("walker"),
}
MOST = 10_000


@pytest.fixture(params=[np.savez, np.savez_compressed])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    place = tmp_path / "episode.npz"
    request.param(place, **ARRAYS)
    return place


def test_arrays_by_name(path: Path) -> None:
    with open_npz(path, most=MOST) as found:
        assert list(found) == list(ARRAYS)
        assert len(found) == 4
        assert "actions" in found
        assert "actions.npy" not in found
        assert found.others == ()
        for name, expected in ARRAYS.items():
            array = found[name]
            assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
            assert array.flags.f_contiguous == expected.flags.f_contiguous
            np.testing.assert_array_equal(array, expected)
        assert found["name"] is not found["name"]
        np.testing.assert_array_equal(found.get("terminals"), ARRAYS["terminals"])
        assert found.get("rewards") is None


def test_shapes_without_values(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npy, "_fill", None)
    with open_npz(path, most=MOST) as found:
        for name, expected in ARRAYS.items():
            assert found.shape_of(name) == expected.shape
            assert found.dtype_of(name) == expected.dtype
        with pytest.raises(TypeError):
            found["actions"]


def test_names_that_are_not_there(path: Path) -> None:
    with open_npz(path, most=MOST) as found:
        for ask in (found.__getitem__, found.shape_of, found.dtype_of):
            with pytest.raises(
                NotFoundError, match=r"episode\.npz has no array 'rewards'; arrays: ob"
            ):
                ask("rewards")


def test_what_is_no_array_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=ARRAYS["actions"])
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("README", "1001")
        archive.mkdir("folder") if hasattr(archive, "mkdir") else archive.writestr("folder/", "")
    with open_npz(path, most=MOST) as found:
        assert (list(found), found.others) == (["a"], ("README",))


def member(data: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("reward.npy", data)
    return path


def saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_damaged_arrays_are_named(tmp_path: Path) -> None:
    whole = saved(ARRAYS["actions"])
    objects = saved(np.array([{"k": 1}], object))
    for data, match in (
        (whole[:-1], "takes 16 bytes; at most 15 follow"),
        (whole + b"\0", "bytes follow its array"),
        (b"1001", "it ends too early"),
        (objects, "an array of Python objects"),
    ):
        path, damaged = member(data, tmp_path), rf"x\.npz, array 'reward' .*{match}"
        with open_npz(path, most=MOST) as found, pytest.raises(FormatError, match=damaged):
            found["reward"]
    path = member(b"1001", tmp_path)
    with open_npz(path, most=MOST) as found, pytest.raises(FormatError, match="array 'reward'"):
        found.shape_of("reward")


def test_damaged_files_are_refused_or_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, reward=ARRAYS["observations"])
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        try:
            with open_npz(path, most=MOST) as found:
                array = found["reward"]
        except OfflineDataError:
            refused += 1
        else:
            np.testing.assert_array_equal(array, ARRAYS["observations"])
    assert refused > len(whole) // 9


def test_more_than_announced_is_refused(
    tmp_path: Path, memory_below: Callable[[int], AbstractContextManager[None]]
) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, reward=np.zeros(5_000_000))
    refused = pytest.raises(FormatError, match=r"x\.npz has a member 'reward\.npy' that")
    with memory_below(5_000_000), refused, open_npz(path, most=39_000_000):
        pass
    with open_npz(path, most=41_000_000) as found:
        assert found["reward"].shape == (5_000_000,)


def test_real_files(realdata: Path) -> None:
    paths = [*realdata.glob("ogbench_generated/*.npz"), *realdata.rglob("walker_walk/**/*.npz")]
    assert len(paths) == 11
    for path in paths:
        with np.load(path, allow_pickle=False) as expected, open_npz(path, most=1 << 30) as found:
            assert list(found) == list(expected)
            for name in expected:
                assert (found.shape_of(name), found.dtype_of(name)) == (
                    expected[name].shape,
                    expected[name].dtype,
                )
                np.testing.assert_array_equal(found[name], expected[name])


def test_real_episodes_named_npy(realdata: Path, tmp_path: Path) -> None:
    with tarfile.open(realdata / "fixtures_generated" / "gendgrl" / "coinrun.tar.xz") as archive:
        streams = [archive.extractfile(member) for member in archive]
        contents = [stream.read() for stream in streams if stream is not None]
    assert len(contents) == 3
    path = tmp_path / "episode.npy"
    for content in contents:
        path.write_bytes(content)
        with open_npz(path, most=1 << 30) as found:
            assert set(found) == {"observations", "actions", "rewards", "dones"}
            assert found.shape_of("observations")[0] == found.shape_of("actions")[0] + 1
