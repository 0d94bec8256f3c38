"""Only what lies in the file itself is found."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from offline_data.readers.hdf5_links import datasets_in, dtype_of, lies_elsewhere


def test_links_are_named_and_not_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["a/b/c"] = np.arange(3)
        file["a/hard"] = file["a/b/c"]
        file["a/loop"] = file["a"]
        file["a/root"] = file["/"]
        file["soft"] = h5py.SoftLink("/a/b/c")
        file["dangling"] = h5py.SoftLink("/nowhere")
        file["out"] = h5py.ExternalLink("other.hdf5", "/x")
        found, links = datasets_in(file)
        assert set(found) == {"a/b/c", "a/hard"}
        assert links == {"soft": "/a/b/c", "dangling": "/nowhere", "out": "other.hdf5"}


def test_values_in_other_files_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(24))
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["plain"] = np.arange(3.0)
        file.create_dataset("raw", (3,), "f8", external=[(str(tmp_path / "raw"), 0, 24)])
        for name, where in (("within", "."), ("across", "other.hdf5")):
            layout = h5py.VirtualLayout((3,), "f8")
            layout[:] = h5py.VirtualSource(where, "plain", (3,))
            file.create_virtual_dataset(name, layout)
        found = {name: lies_elsewhere(file[name]) for name in file}
    assert found == {"plain": False, "raw": True, "within": False, "across": True}


def test_types_without_a_numpy_form_are_none(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["plain"] = np.arange(3.0)
        time = h5py.h5t.UNIX_D32LE
        h5py.h5d.create(file.id, b"time", time, h5py.h5s.create_simple((3,)))
        assert dtype_of(file["plain"]) == np.float64
        assert dtype_of(file["time"]) is None
