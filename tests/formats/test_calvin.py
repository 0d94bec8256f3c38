"""CALVIN: every leaf of every step against numpy, where recordings are cut, instructions, bad folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data.formats.calvin
import offline_data.pipeline.ingest.raw
from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.episode.fields import Key, next_of
from offline_data.formats.calvin import Calvin
from offline_data.formats.registry import source_accepting
from offline_data.pipeline.ingest import Options, SeveralSplitsError, convert, plan_convert
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from tests.toys.calvin import RANGES, SAID, toy_step, write_calvin


class TestCalvin(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        path = write_calvin(tmp_path / "training")
        return SourceCase(Calvin(), Calvin().release_of(path, "x"), path)


def stored(path: Path, settings: Settings, **options: Any) -> DatasetReader:
    assert source_accepting(path).name == "calvin"
    options = {"audit": "all", "force": True, **options}
    return open_reader(convert(path, "toy", settings, Options(**options)).path)


def check(folder: Path, reader: DatasetReader, first: int = 0) -> int:
    """Compare every leaf of the rows from `first` on with the files, read by numpy; return the row after."""
    table = reader.transitions_at(np.arange(reader.transitions))
    row = first
    for start, end in np.load(folder / "ep_start_end_ids.npy"):
        for number in range(start, end + 1):
            with np.load(folder / f"episode_{number:07d}.npz") as step:
                for name, values in step.items():
                    known: dict[str, Key] = {
                        "actions": ("action",),
                        "rel_actions": ("extra", "rel_actions"),
                    }
                    known["scene_obs"] = ("state",)
                    key: Key = known.get(name, ("observation", name))
                    assert table[key].dtype == values.dtype, name
                    np.testing.assert_array_equal(table[key][row], values, err_msg=name)
                    if number > start and name not in {"actions", "rel_actions"}:
                        np.testing.assert_array_equal(table[next_of(key)][row - 1], values)
            assert not table["next", "terminated"][row]
            row += 1
        assert table["next", "truncated"][row - 1]
    return row


def test_every_leaf_of_every_step(tmp_path: Path, settings: Settings) -> None:
    reader = stored(write_calvin(tmp_path / "training"), settings)
    assert check(tmp_path / "training", reader) == reader.transitions == 20
    assert reader.lengths.tolist() == [6, 1, 13]
    assert not np.asarray(reader.episodes["final_observation",]).any()
    assert ("next", "reward") not in reader.step_leaves
    episodes = reader.episode_batch(0, 3).episodes
    assert list(episodes["scene",]) == ["calvin_scene_B", "calvin_scene_B", "calvin_scene_A"]
    assert np.asarray(episodes["first_step",]).tolist() == [3, 20, 30]


def test_instructions_by_step_and_episode(tmp_path: Path, settings: Settings) -> None:
    reader = stored(write_calvin(tmp_path / "training"), settings)
    batch = reader.episode_batch(0, 3)
    expected = []  # the annotation that ends first among those of a step
    for first, last in RANGES:
        for step in range(first, last + 1):
            here = sorted((one for one in SAID if one[0] <= step < one[1]), key=lambda one: one[1])
            expected.append(here[0][2:] if here else ("", ""))
    found = zip(batch.steps["task",], batch.steps["language_instruction",], strict=True)
    assert list(found) == expected
    assert [text for _, text in expected[1:6]] == ["push the blue block"] * 3 + [
        "pull the handle"
    ] * 2
    listed = [json.loads(str(one)) for one in batch.episodes["annotations",]]
    assert listed[0] == [
        [1, 4, "push_blue", "push the blue block"],
        [3, 6, "open_drawer", "pull the handle"],
    ]
    assert listed[1:] == [[], [[3, 7, "push_blue", "slide the blue one"]]]
    (dropped,) = reader.manifest.dropped_leaves
    assert dropped.key == "lang_annotations/auto_lang_ann/language/emb"


def test_recordings_are_cut_between_instructions(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offline_data.formats.calvin, "_CUT", 4)
    said = [(2, 6, "a", "one"), (5, 8, "b", "two"), (8, 11, "c", "three")]
    folder = write_calvin(tmp_path / "training", [(0, 29), (30, 33)], said)
    dataset = Calvin().open(Calvin().release_of(folder, "x"), folder)
    bounds = [(one.first, one.stop, one.final) for one in dataset.episodes]
    # 4 to 7 are within annotations; 8 is between two
    assert bounds[:2] == [(0, 8, True), (8, 12, True)]
    assert bounds[-2:] == [(28, 30, False), (30, 34, False)]
    whole = dataset.read_part(dataset.parts(1 << 40)[0])
    assert whole.final_observation.tolist() == [one[2] for one in bounds]
    ends = np.cumsum(whole.lengths + 1) - 1
    for row, (_, stop, final) in zip(ends, bounds, strict=True):
        after = toy_step(stop if final else stop - 1)
        np.testing.assert_array_equal(whole.observations["observation", "robot_obs"][row], after["robot_obs"])  # fmt: skip
    long = write_calvin(tmp_path / "validation", [(0, 19)], [(0, 20, "a", "all of it")])
    episodes = Calvin().open(Calvin().release_of(long, "x"), long).episodes
    assert [(one.first, one.stop) for one in episodes] == [(0, 8), (8, 16), (16, 20)]


def test_both_splits_of_a_folder(tmp_path: Path, settings: Settings) -> None:
    top = tmp_path / "task_D_D"
    write_calvin(top / "training")
    write_calvin(top / "validation", [(50, 53)], None, None)
    with pytest.raises(SeveralSplitsError, match="2 splits: training, validation"):
        stored(top, settings)
    reader = stored(top, settings, split="all")
    row = check(top / "training", reader)
    assert check(top / "validation", reader, row) == reader.transitions
    episodes = reader.episode_batch(0, 4).episodes
    assert list(episodes["scene",])[-1] == ""
    reader = stored(top, settings, split="validation")
    assert reader.lengths.tolist() == [4]
    assert ("task",) not in reader.step_leaves
    assert any("no instructions" in note for note in reader.manifest.notes)


def test_only_some_arrays(tmp_path: Path, settings: Settings) -> None:
    folder = write_calvin(tmp_path / "training")
    reader = stored(folder, settings, only="rgb_static, robot_obs")
    assert set(reader.observation_leaves) == {
        ("observation", "rgb_static"),
        ("observation", "robot_obs"),
    }
    np.testing.assert_array_equal(reader.step(("action",))[6], toy_step(20)["actions"])
    with pytest.raises(NotFoundError, match="has no feature 'rgb_statik'"):
        stored(folder, settings, only="rgb_statik")


def test_annotations_of_other_steps_are_left_out_with_a_warning(
    tmp_path: Path, settings: Settings
) -> None:
    said = [*SAID, (8, 12, "a", "over the end"), (7, 7, "b", "no step")]
    reader = stored(write_calvin(tmp_path / "training", said=said), settings)
    assert any("2 annotations not within a recording" in note for note in reader.manifest.notes)


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("touched-by-a-pickle"),)


def _save(path: Path, value: Any) -> None:
    path.unlink(missing_ok=True)
    np.save(path, value)


def _step(folder: Path, **changed: Any) -> None:
    arrays = {name: one for name, one in {**toy_step(32), **changed}.items() if one is not None}
    np.savez_compressed(folder / "episode_0000032.npz", **arrays)


WORDS = "lang_annotations/auto_lang_ann.npy"
BAD: dict[str, tuple[Any, str]] = {
    "a missing last step": (lambda to: (to / "episode_0000042.npz").unlink(), r"has no episode_0000042\.npz; ep_start_end_ids\.npy has a recording of steps 30 to 42"),
    "a missing step": (lambda to: (to / "episode_0000032.npz").unlink(), r"episode_0000032\.npz"),
    "a step cut short": (lambda to: (to / "episode_0000032.npz").write_bytes(b"PK\3\4"), r"episode_0000032\.npz"),
    "another shape": (lambda to: _step(to, robot_obs=np.zeros(3)), r"episode_0000032\.npz: 'robot_obs' is float64 \[3\], and float64 \[15\]"),
    "another dtype": (lambda to: _step(to, robot_obs=np.zeros(15, "f4")), "'robot_obs' is float32"),
    "an array less": (lambda to: _step(to, rgb_static=None), "only it, or the first step, has rgb_static"),
    "an array more": (lambda to: _step(to, sound=np.zeros(3)), "only it, or the first step, has sound"),
    "objects": (lambda to: _step(to, robot_obs=np.array([Evil()])), "Python objects"),
    "steps that fall": (lambda to: _save(to / "ep_start_end_ids.npy", np.array([(8, 3)])), "a recording has steps 8 to 3"),
    "too many steps": (lambda to: _save(to / "ep_start_end_ids.npy", np.array([(3, 2**60)])), "a recording has steps 3 to"),
    "no range": (lambda to: _save(to / "ep_start_end_ids.npy", np.zeros(4)), r"is float64 \[4\], expected whole numbers \[E, 2\]"),
    "code in words": (lambda to: _save(to / WORDS, np.array({"language": Evil()})), "it asks for"),
    "code in scenes": (lambda to: _save(to / "scene_info.npy", np.array({"x": Evil()})), "it asks for"),
    "words without tasks": (lambda to: _save(to / WORDS, np.array({"info": {"indx": [(3, 4)]}, "language": {}})), "is not a dict of annotations: 'task'"),
    "fewer words": (lambda to: _save(to / WORDS, np.array({"info": {"indx": [(3, 4)]}, "language": {"task": [], "ann": []}})), "is not a dict of annotations"),
    "scenes of a list": (lambda to: _save(to / "scene_info.npy", np.array([1, 2])), "is not a dict of scenes"),
}  # fmt: skip


def read(folder: Path) -> None:
    dataset = Calvin().open(Calvin().release_of(folder, "x"), folder)
    list(dataset.read(dataset.shards()[0]))


@pytest.mark.parametrize("case", BAD)
def test_bad_folders(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    change, message = BAD[case]
    folder = write_calvin(tmp_path / "training")
    change(folder)
    with pytest.raises((FormatError, NotFoundError), match=message):
        read(folder)
    assert not (tmp_path / "touched-by-a-pickle").exists()


def test_many_files_are_few_entries_of_the_manifest(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offline_data.pipeline.ingest.raw, "_MOST_LISTED", 10)
    folder = write_calvin(tmp_path / "training")
    plan = plan_convert(folder, "toy", settings, Options())
    reader = stored(folder, settings)
    files = {entry["path"]: (entry["count"], entry["size"]) for entry in reader.manifest.files}
    steps = [file.stat().st_size for file in folder.glob("*.npz")]
    assert files["*.npz"] == (20, sum(steps))
    assert files["lang_annotations/*.npy"][0] == 1
    assert plan.files == sum(count for count, _ in files.values()) == 24


def test_revision_changes_with_any_of_few_steps(tmp_path: Path) -> None:
    folder = write_calvin(tmp_path / "training")
    before = Calvin().release_of(folder, "x").revision
    _step(folder, robot_obs=np.ones(15))
    assert Calvin().release_of(folder, "x").revision != before
