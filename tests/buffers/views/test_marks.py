"""Marks of episodes as columns of datasets, views and mixtures, and in recipes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import StepError, UsageError
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.mixtures.dataset_mixture import DatasetMixture
from offline_data.episode import Key
from offline_data.pipeline.preprocess.job import Job
from offline_data.pipeline.preprocess.subsets import filter_dataset, save_view
from offline_data.rows.saved import read_view
from offline_data.store.library import entry_at
from offline_data.store.manifest import read_manifest
from offline_data.store.marks import Marks, marks_file, write_marks
from offline_data.testing.toy import toy_batch, write_toy

LENGTHS = [3, 1, 4, 2, 5, 1]
MARKS = {1: ("bad", "slips"), 3: ("good", ""), 4: ("bad", ""), 5: (None, "look")}
OWN = ["start", "length", "return", "id", "seed", "terminated", "truncated", "final_observation"]


def mark(path: Path, marks: Mapping[int, tuple[object, str]] = MARKS) -> None:
    def change(found: Marks) -> Marks:
        for number, (name, note) in marks.items():
            found = found.with_mark(number, name, note)  # type: ignore[arg-type]
        return found

    write_marks(path, read_manifest(path), change)


@pytest.fixture
def path(toys: Callable[..., Path], tmp_path: Path) -> Path:
    return shutil.copytree(toys(LENGTHS), tmp_path / "toy")


@pytest.fixture
def ds(path: Path) -> Dataset:
    return offline_data.open_dataset(path)


def ids(path: Path) -> list[int]:
    """Return the episodes of a dataset by their column `id`, read with numpy alone."""
    manifest = json.loads((path / "manifest.json").read_text())
    table = manifest["schema"]["episodes"]
    (leaf,) = (one for one in table["leaves"] if one["key"] == ["id"])
    place = {"names": ["x"], "offsets": [leaf["offset"]], "itemsize": leaf["stride"]}
    record = np.dtype({**place, "formats": [(leaf["dtype"], ())]})  # type: ignore[call-overload]
    rows = np.memmap(path / leaf["file"], record, mode="r", shape=(table["rows"],))
    return [int(one) for one in rows["x"]]


def test_without_marks(ds: Dataset) -> None:
    assert ds.episodes.keys() == OWN
    assert "mark" in ds.episodes
    assert ds.episodes["mark"] == [""] * 6
    assert len(ds.filter('mark != "bad"').episodes) == 6
    with pytest.raises(StepError, match="leaves none of 6 episodes"):
        ds.filter('mark == "good"')


def test_columns_are_those_on_the_disk_now(ds: Dataset, path: Path) -> None:
    view = ds.filter("length < 5")
    assert view.episodes["note"] == [""] * 5
    mark(path)
    assert ds.episodes.keys() == [*OWN, "mark", "note"]
    assert ds.episodes["mark"] == ["", "bad", "", "good", "bad", ""]
    assert ds.episodes.note == ["", "slips", "", "", "", "look"]
    assert view.episodes["mark"] == ["", "bad", "", "good", ""]
    assert view.episodes.row(4)["note"] == "look"
    assert ds.filter('mark != "bad"').episodes.numbers.tolist() == [0, 2, 3, 5]
    assert view.filter('note != "" or mark == "good"').episodes.numbers.tolist() == [1, 3, 5]
    mark(path, {1: (None, ""), 0: ("unsure", "")})
    assert ds.episodes["mark"] == ["unsure", "", "", "good", "bad", ""]
    assert view.episodes["mark"] == ["unsure", "", "", "good", ""]
    marks_file(path).unlink()
    assert ds.episodes.keys() == OWN
    assert ds.episodes["mark"] == [""] * 6


def test_an_ignored_file_warns_once(ds: Dataset, path: Path) -> None:
    mark(path)
    marks_file(path).write_bytes(b"{")
    with pytest.warns(UserWarning, match="is ignored"):
        assert ds.episodes["mark"] == [""] * 6
    assert ds.episodes.keys() == OWN  # warnings are errors in tests


def test_own_columns_win(tmp_path: Path) -> None:
    batch = toy_batch(LENGTHS)
    own: dict[Key, Any] = {("mark",): np.array(list("abcdef"), object), ("note",): np.zeros(6)}
    own[("marks", "note")] = np.arange(6)
    write_toy(tmp_path / "toy", [replace(batch, episodes={**batch.episodes, **own})])
    mark(tmp_path / "toy")
    ds = offline_data.open_dataset(tmp_path / "toy")
    assert ds.episodes["mark"] == list("abcdef")
    assert ds.episodes["marks/mark"] == ["", "bad", "", "good", "bad", ""]
    assert ds.episodes["note"].tolist() == [0] * 6
    assert ds.episodes["marks/note"].tolist() == list(range(6))
    assert ds.filter("mark in ['a', 'b'] and marks.mark != 'bad'").episodes.numbers.tolist() == [0]


def test_mixtures(ds: Dataset, path: Path, tmp_path: Path) -> None:
    other = shutil.copytree(path, tmp_path / "other")
    mixture = DatasetMixture(ds, offline_data.open_dataset(other))
    assert mixture.episodes.columns[-1] == ("source",)
    assert ("mark",) not in mixture.episodes.columns
    mark(other, {0: ("bad", "x")})
    assert mixture.episodes["mark"] == [*[""] * 6, "bad", *[""] * 5]
    assert mixture.episodes.keys()[-3:] == ["mark", "note", "source"]
    mark(path, {5: ("good", "")})
    assert mixture.episodes["mark"] == [*[""] * 5, "good", "bad", *[""] * 5]


@pytest.mark.parametrize(
    ("where", "stored", "kept"),
    [
        ('mark != "bad"', "number not in [1, 4]", [0, 2, 3, 5]),
        ("mark == 'good' or return > 1200", "number in [3] or return > 1200", [2, 3, 4]),
        ("mark in ['bad', 'good'] and not note == ''", None, [1]),
        ("'bad' == mark and length >= mean(length)", "number in [1, 4] and length >= mean(length)", [4]),
        ("not mark in ['bad']", "not number in [1, 4]", [0, 2, 3, 5]),
    ],
)  # fmt: skip
def test_a_recipe_has_the_numbers(
    where: str, stored: str | None, kept: list[int], path: Path, settings: Settings, tmp_path: Path
) -> None:
    mark(path)
    made = filter_dataset(path, where, "made", settings)
    assert ids(made.path) == kept
    manifest = read_manifest(made.path)
    (step,) = manifest.converter["options"]["recipe"]
    assert stored in {None, step["where"]}
    assert f"Episodes were selected by their marks: {where}" in manifest.notes
    elsewhere = shutil.copytree(path, tmp_path / "elsewhere" / "toy")
    assert not marks_file(elsewhere).exists()
    again = filter_dataset(elsewhere, step["where"], "again", settings)
    assert ids(again.path) == kept


def test_other_marks_are_another_recipe(path: Path, settings: Settings) -> None:
    mark(path)
    first = filter_dataset(path, 'mark != "bad"', "a", settings)
    assert filter_dataset(path, 'mark != "bad"', "a", settings).existed
    mark(path, {0: ("bad", "")})
    second = filter_dataset(path, 'mark != "bad"', "b", settings)
    assert first.id.revision != second.id.revision
    assert ids(second.path) == [2, 3, 5]


def test_saved_views(path: Path, settings: Settings) -> None:
    mark(path)
    saved = save_view(path, ("filter:mark != 'bad'", "filter:length > 1"), "good", settings)
    found = read_view(saved.path)
    assert found.arrays["episodes"].tolist() == [0, 2, 3]
    assert [step["where"] for step in found.recipe] == ["number not in [1, 4]", "length > 1"]


@pytest.mark.parametrize("where", ["mark", "mark == id", "min(mark) == 3", "mark > 3", "mark == 3"])
def test_what_marks_are_not_compared_with(where: str, path: Path, settings: Settings) -> None:
    with pytest.raises(StepError, match="text"):
        filter_dataset(path, where, "made", settings)


def test_columns_of_a_step_win(path: Path, settings: Settings, tmp_path: Path) -> None:
    from offline_data.pipeline.preprocess.engine import preprocess

    mark(path)
    labels = tmp_path / "labels.csv"
    labels.write_text("episode,mark\n" + "".join(f"{n},{'bad' * (n < 2)}x\n" for n in range(6)))
    job = Job(path, (f"label:{labels}", "filter:mark == 'badx'"), "made")
    made = preprocess(job, settings)
    assert ids(made.path) == [0, 1]
    assert entry_at(made.path).manifest.notes == ()


def test_marking_in_python(ds: Dataset, path: Path) -> None:
    ds.mark(3, "bad", note="gripper slips")
    view = ds.episodes_at([5, 3])
    view.mark(0, "good")
    view.mark(-1, "unsure")
    assert ds.episodes["mark"] == ["", "", "", "unsure", "", "good"]
    assert view.episodes["note"] == ["", "gripper slips"]
    assert json.loads(marks_file(path).read_text())["episodes"] == {
        "3": {"mark": "unsure", "note": "gripper slips"},
        "5": {"mark": "good", "note": ""},
    }
    ds.mark(3, None, note="")
    assert ds.episodes["mark"] == ["", "", "", "", "", "good"]
    with pytest.raises(IndexError):
        ds.mark(6, "bad")
    with pytest.raises(UsageError, match="True"):
        ds.mark(True, "bad")
    with pytest.raises(UsageError, match="'superb'"):
        ds.mark(0, "superb")  # type: ignore[arg-type]
