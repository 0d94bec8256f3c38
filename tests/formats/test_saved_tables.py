"""Folders of `Dataset.save_to_disk`: files by `state.json`, splits, and what is refused of a stranger's."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, IntegrityError, NotFoundError
from offline_data.formats.files.mapping import read_mapping
from offline_data.pipeline.ingest import Options, convert, inspect_files
from offline_data.store.reader import DatasetReader, open_reader
from tests.toys.files import write_saved

LENGTHS = (3, 1, 4)
ROWS = sum(LENGTHS)
MAPPING: dict[str, Any] = {
    "leaves": {"observation": "obs", "action": "act"},
    "final_observation": "missing",
    "ends": {"episode": "episode", "otherwise": "truncated"},
}


def toy_arrays(numbers: tuple[int, ...] = (0, 1, 2)) -> dict[str, Any]:
    code = np.arange(ROWS) + 1.0
    arrays: dict[str, Any] = {
        "obs": np.stack([code, -code], 1).astype(np.float32),
        "act": code / 4,
        "episode": np.repeat([0, 1, 2], LENGTHS),
    }
    kept = np.isin(arrays["episode"], numbers)
    return {name: values[kept] for name, values in arrays.items()}


def stored(path: Path, settings: Settings, **more: Any) -> DatasetReader:
    options = Options(mapping=read_mapping({**MAPPING, **more}), audit="all")
    return open_reader(convert(path, "toy", settings, options).path)


def edit_state(folder: Path, change: Callable[[Any], Any]) -> None:
    path = folder / "state.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def named(name: Any) -> Callable[[Path], object]:
    return lambda folder: edit_state(folder, lambda s: {**s, "_data_files": [{"filename": name}]})


def test_files_are_those_of_the_state_in_its_order(tmp_path: Path, settings: Settings) -> None:
    folder, arrays = write_saved(tmp_path / "x", toy_arrays()), toy_arrays()
    first, second = sorted(folder.glob("*.arrow"))
    first.rename(folder / "z.arrow")
    edit_state(
        folder, lambda s: {**s, "_data_files": [{"filename": n} for n in ("z.arrow", second.name)]}
    )
    (folder / "cache-1.arrow").write_bytes(b"\xff")
    reader = stored(folder, settings)
    assert reader.lengths.tolist() == list(LENGTHS)
    table = reader.transitions_at(np.arange(ROWS))
    np.testing.assert_array_equal(table["observation",], arrays["obs"])
    np.testing.assert_array_equal(table["action",], arrays["act"])


def test_splits_of_a_dict_are_parts(tmp_path: Path, settings: Settings) -> None:
    folder = tmp_path / "x"
    write_saved(folder / "train", toy_arrays((0, 1)))
    write_saved(folder / "validation", toy_arrays((2,)))
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    found = inspect_files(folder)
    assert (found.episodes, found.mapping.each) == (("train", "validation"), "*")
    reader = stored(folder, settings, each="*", parts="table")
    assert reader.lengths.tolist() == list(LENGTHS)
    table = reader.transitions_at(np.arange(ROWS))
    np.testing.assert_array_equal(table["action",], toy_arrays()["act"])


def cut(folder: Path, count: int) -> None:
    path = min(folder.glob("*.arrow"))
    path.write_bytes(path.read_bytes()[:-count])


def replace_second(table: Any) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        with pa.ipc.new_stream(max(folder.glob("*.arrow")), table.schema) as stream:
            stream.write_table(table)

    return write


def holding(content: bytes) -> Callable[[Path], object]:
    return lambda folder: min(folder.glob("*.arrow")).write_bytes(content)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a path out of the folder": (named("../secret.arrow"), r"is named '\.\./secret.arrow'"),
    "an absolute path": (named("/etc/passwd"), "is named '/etc/passwd'"),
    "no name": (named(3), "does not list the names"),
    "no such file": (named("gone.arrow"), "gone.arrow"),
    "no list": (lambda folder: edit_state(folder, lambda _: []), "does not list the names"),
    "no files": (lambda folder: edit_state(folder, lambda _: {}), "does not list the names"),
    "rows chosen by indices": (
        lambda folder: edit_state(
            folder, lambda s: {**s, "_indices_data_files": [{"filename": "i"}]}
        ),
        "selects rows by a file of indices",
    ),
    "a state that is not JSON": (lambda f: (f / "state.json").write_bytes(b"{"), "JSON"),
    "no end of the stream": (lambda folder: cut(folder, 8), "end of the stream is missing"),
    "a batch less": (lambda folder: cut(folder, 300), "damaged or cut short"),
    "a pickle": (holding(pickle.dumps([1])), "is not an Arrow file: .*pickle"),
    "nothing": (holding(b""), "empty"),
    "other columns": (replace_second(pa.table({"act": [1.0]})), "has other columns than"),
    "another type": (
        replace_second(pa.table({"obs": [[1.0, 2.0]], "act": ["x"], "episode": [2]})),
        "has other columns than",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(tmp_path: Path, name: str, settings: Settings) -> None:
    make, said = BAD[name]
    write_saved(tmp_path / "other", toy_arrays())
    min((tmp_path / "other").glob("*.arrow")).rename(tmp_path / "secret.arrow")
    make(folder := write_saved(tmp_path / "x", toy_arrays()))
    with pytest.raises((FormatError, IntegrityError, NotFoundError), match=said):
        stored(folder, settings)
    assert not list(settings.root.rglob("manifest.json"))


def test_what_datasets_writes(tmp_path: Path, settings: Settings) -> None:
    datasets = pytest.importorskip("datasets")
    arrays = toy_arrays()
    made = datasets.Dataset.from_dict({name: one.tolist() for name, one in arrays.items()})
    made.save_to_disk(tmp_path / "x", num_shards=3)
    table = stored(tmp_path / "x", settings).transitions_at(np.arange(ROWS))
    np.testing.assert_array_equal(table["observation",], arrays["obs"])
    np.testing.assert_array_equal(table["action",], arrays["act"])
