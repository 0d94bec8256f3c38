"""CALVIN: every leaf of every step against numpy, where recordings are cut, instructions, bad folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data.formats.calvin
import offline_data.pipeline.ingest.raw
from offline_data.base.config import Settings
from offline_data.base.errors import NotFoundError
from offline_data.episode.fields import TERMINATED, TRUNCATED, Key, next_of
from offline_data.formats.calvin import Calvin
from offline_data.pipeline.ingest import Options, SeveralSplitsError, plan_convert
from offline_data.store.reader import DatasetReader
from offline_data.testing.sources import Damage, Episode, SourceCase, assert_episodes
from tests.formats.contract import Contract
from tests.refusals import Refusals
from tests.toys.calvin import SAID, toy_step, write_calvin
from tests.toys.stored import convert_and_open

REFUSALS = Refusals.beside(__file__)

NAMES = {"actions": ("action",), "rel_actions": ("extra", "rel_actions"), "scene_obs": ("state",)}


def episodes_of(folder: Path) -> list[Episode]:
    """Read the steps of each recording by numpy; the last observation is given twice."""
    found = []
    for start, end in np.load(folder / "ep_start_end_ids.npy"):
        steps = [dict(np.load(folder / f"episode_{n:07d}.npz")) for n in range(start, end + 1)]
        last = np.arange(len(steps))[:, None] == len(steps) - 1
        episode: Episode = {TERMINATED: last & False, TRUNCATED: last}
        episode |= {("episode", "first_step"): start, ("episode", "final_observation"): False}
        for name in steps[0]:
            rows = np.stack([step[name] for step in steps])
            key: Key = NAMES.get(name, ("observation", name))
            episode[key] = rows
            if "actions" not in name:
                episode[next_of(key)] = np.concatenate([rows[1:], rows[-1:]])
        found.append(episode | _said(start, end))
    return found


def _said(start: int, end: int) -> Episode:
    """Return the annotation that ends first among those of each step."""
    words = []
    for step in range(start, end + 1):
        here = sorted((one for one in SAID if one[0] <= step < one[1]), key=lambda one: one[1])
        words.append(here[0][2:] if here else ("", ""))
    tasks, texts = zip(*words, strict=True)
    return {("task",): list(tasks), ("language_instruction",): list(texts)}


class Evil:
    def __reduce__(self) -> Any:
        return exec, ("open('touched-by-a-pickle', 'w').close()",)


def _save(path: Path, value: Any) -> None:
    path.unlink(missing_ok=True)
    np.save(path, value)


def _step(folder: Path, **changed: Any) -> None:
    arrays = {name: one for name, one in {**toy_step(32), **changed}.items() if one is not None}
    np.savez_compressed(folder / "episode_0000032.npz", **arrays)


WORDS = "lang_annotations/auto_lang_ann.npy"
BAD: dict[str, Callable[[Path], Any]] = {
    "a missing last step": lambda to: (to / "episode_0000042.npz").unlink(),
    "a missing step": lambda to: (to / "episode_0000032.npz").unlink(),
    "a step cut short": lambda to: (to / "episode_0000032.npz").write_bytes(b"PK\3\4"),
    "another shape": lambda to: _step(to, robot_obs=np.zeros(3)),
    "another dtype": lambda to: _step(to, robot_obs=np.zeros(15, "f4")),
    "an array less": lambda to: _step(to, rgb_static=None),
    "an array more": lambda to: _step(to, sound=np.zeros(3)),
    "objects": lambda to: _step(to, robot_obs=np.array([Evil()])),
    "steps that fall": lambda to: _save(to / "ep_start_end_ids.npy", np.array([(8, 3)])),
    "too many steps": lambda to: _save(to / "ep_start_end_ids.npy", np.array([(3, 2**60)])),
    "no range": lambda to: _save(to / "ep_start_end_ids.npy", np.zeros(4)),
    "code in words": lambda to: _save(to / WORDS, np.array({"language": Evil()})),
    "code in scenes": lambda to: _save(to / "scene_info.npy", np.array({"x": Evil()})),
    "words without tasks": lambda to: _save(to / WORDS, np.array({"info": {"indx": [(3, 4)]}, "language": {}})),
    "fewer words": lambda to: _save(to / WORDS, np.array({"info": {"indx": [(3, 4)]}, "language": {"task": [], "ann": []}})),
    "scenes of a list": lambda to: _save(to / "scene_info.npy", np.array([1, 2])),
}  # fmt: skip


class TestCalvin(Contract):
    @pytest.fixture
    def case(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceCase:
        monkeypatch.chdir(tmp_path)
        path = write_calvin(tmp_path / "training")
        bad = {name: Damage(change) for name, change in BAD.items()}
        return SourceCase(Calvin(), Calvin().release_of(path, "x"), path, episodes_of, bad)

    def assert_refused(self, name: str, damage: Damage, case: SourceCase) -> None:
        super().assert_refused(name, damage, case)
        assert not Path("touched-by-a-pickle").exists()


def stored(path: Path, settings: Settings, **options: Any) -> DatasetReader:
    return convert_and_open(path, settings, force=True, **options)


def test_annotations_of_episodes(tmp_path: Path, settings: Settings) -> None:
    folder = write_calvin(tmp_path / "training")
    reader = stored(folder, settings)
    assert_episodes(reader, episodes_of(folder))
    batch = reader.episode_batch(0, 3)
    assert list(batch.steps["language_instruction",][1:6]) == ["push the blue block"] * 3 + ["pull the handle"] * 2  # fmt: skip
    assert list(batch.episodes["scene",]) == ["calvin_scene_B", "calvin_scene_B", "calvin_scene_A"]
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
    both = [*episodes_of(top / "training"), *episodes_of(top / "validation")]
    assert_episodes(reader, both)
    assert list(reader.episode_batch(0, 4).episodes["scene",])[-1] == ""
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
