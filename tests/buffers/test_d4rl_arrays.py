"""`to_numpy("dataset")` against D4RL's own reader, and the names that consumers take."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

import offline_data
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.mixtures.dataset_mixture import DatasetMixture
from offline_data.store.content import digest_of
from offline_data.store.library import entry_at
from offline_data.store.reader import open_reader
from offline_data.testing.toy import toy_batch, write_toy
from tests.toys.d4rl import TOYS, write_published


def get_dataset(path: Path) -> dict[str, NDArray[Any]]:
    """Do what D4RL's `OfflineEnv.get_dataset` does with a file, without what has no rows."""
    names: list[str] = []

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith("metadata/"):
            names.append(name)

    with h5py.File(path, "r") as file:
        file.visititems(visit)
        data = {name: file[name][:] for name in names}
    for name in ("rewards", "terminals"):
        data[name] = data[name].reshape(len(data["observations"]))
    return data


def assert_same(found: Any, expected: dict[str, NDArray[Any]]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found[name], array, name)


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_every_column_of_the_file(tmp_path: Path, name: str, layout: Any) -> None:
    path = write_published(tmp_path, TOYS[name])
    folder = offline_data.convert(path, "toy", layout=layout, root=tmp_path / "root").path
    expected = get_dataset(path)
    ds = BaseDatasetExperienceReplay(folder)
    for copy in (True, False):
        assert_same(ds.to_numpy("dataset", copy=copy), expected)
    assert_same(offline_data.load_arrays(folder, "dataset"), expected)
    last = len(ds.episodes) - 1
    first = int(ds.episodes["start"][last])
    tail = {key: array[first:] for key, array in expected.items()}
    assert_same(ds.episodes_at([last]).to_numpy("dataset"), tail)
    both = DatasetMixture(ds, ds.episodes_at([last])).to_numpy("dataset")
    assert_same(both, {key: np.concatenate([expected[key], tail[key]]) for key in expected})
    if expected["terminals"].any() and layout == "compact":  # else nothing marks an end
        again = offline_data.convert(ds.to_numpy("dataset"), "again", root=tmp_path / "root")
        assert_same(offline_data.load_arrays(again.path, "dataset"), expected)


def test_real_files(realdata: Path, tmp_path: Path) -> None:
    paths = sorted((realdata / "fixtures_generated" / "d4rl").glob("*.hdf5"))
    assert len(paths) == 8
    for number, path in enumerate(paths):
        stored = offline_data.convert(path, f"set-{number}", root=tmp_path)
        expected = get_dataset(path)
        assert len(expected["rewards"]) == stored.transitions
        assert_same(BaseDatasetExperienceReplay(stored.path).to_numpy("dataset"), expected)


def test_timeouts_that_the_file_does_not_mark(tmp_path: Path) -> None:
    """Rows that end an episode for another reason are no time-outs of the file."""
    rows = 9
    arrays: dict[str, Any] = {
        "observations": np.arange(rows, dtype=np.float32).reshape(rows, 1),
        "actions": np.zeros((rows, 1), np.float32),
        "rewards": np.ones(rows),
        "terminals": np.zeros(rows, np.uint8),
        "timeouts": np.isin(np.arange(rows), [2, 5]),
        "next_observations": np.arange(1, rows + 1, dtype=np.float32).reshape(rows, 1),
    }
    arrays["next_observations"][7] = -1  # the episode is cut here; the last one is not marked
    folder = offline_data.convert(arrays, "mine", root=tmp_path).path
    ds = BaseDatasetExperienceReplay(folder)
    assert ds.to_numpy("episodes")["timeouts"].nonzero()[0].tolist() == [2, 5, 7, 8]
    assert_same(ds.to_numpy("dataset"), {name: arrays[name] for name in sorted(arrays)})
    said = {**arrays, "timeouts": np.isin(np.arange(rows), [2, 5, 7, 8])}
    whole = offline_data.convert(said, "said", root=tmp_path).path
    contents = [digest_of(entry_at(path), tmp_path) for path in (folder, whole)]
    assert contents[0] == contents[1]  # a lock of before fits
    assert [("file_timeout",) in open_reader(path).episodes for path in (folder, whole)] == [
        True,
        False,
    ]
    part = offline_data.convert(arrays, "part", root=tmp_path, episodes=(1, None)).path
    marked = BaseDatasetExperienceReplay(part).to_numpy("dataset")["timeouts"]
    assert marked.nonzero()[0].tolist() == [2]


def test_other_sources_have_d4rls_names(tmp_path: Path) -> None:
    names = ["actions", "infos/code", "next_observations", "observations", "rewards"]
    for unknown in ((), (1,)):
        folder = tmp_path / f"toy{len(unknown)}"
        write_toy(folder, [toy_batch([3, 2], unknown_final=unknown)])
        found = BaseDatasetExperienceReplay(folder).to_numpy(
            "dataset", observation_key="observation/state"
        )
        own = [name for name in names if not (unknown and name == "next_observations")]
        assert {*own, "terminals", "timeouts"} <= {*found}
        assert ("next_observations" in found) == (not unknown)


def test_styles_have_the_keys_of_their_consumers(tmp_path: Path) -> None:
    ds = BaseDatasetExperienceReplay(
        offline_data.convert(
            write_published(tmp_path, TOYS["adroit"]), "toy", root=tmp_path / "root"
        ).path
    )

    def mdp_dataset(  # the signature of d3rlpy's
        observations: Any, actions: Any, rewards: Any, terminals: Any, timeouts: Any = None
    ) -> list[Any]:
        return [observations, actions, rewards, terminals, timeouts]

    assert len(mdp_dataset(**ds.to_numpy("episodes"))) == len(
        inspect.signature(mdp_dataset).parameters
    )
    five = {"observations", "actions", "rewards", "next_observations", "terminals"}
    assert set(ds.to_numpy()) == set(ds.to_numpy("qlearning")) == five
    assert "next_observations" not in ds.to_numpy("dataset")  # nor has the file


def test_a_record_that_makes_no_sense_is_ignored(tmp_path: Path) -> None:
    from offline_data.store.manifest import dump_manifest

    manifest = write_toy(tmp_path / "toy", [toy_batch([3, 2])])
    about: dict[str, Any] = {"columns": {"terminals": ["x"], "timeouts": "O", "infos": 3}}
    text = dump_manifest(replace(manifest, about=about))
    (tmp_path / "toy" / "manifest.json").write_text(text)
    found = BaseDatasetExperienceReplay(tmp_path / "toy").to_numpy(
        "dataset", observation_key="observation/state"
    )
    assert found["terminals"].dtype == bool
