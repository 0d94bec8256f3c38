"""What is decided before any of the work, and read back from the disk."""

from __future__ import annotations

import errno
import itertools
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from offline_data.errors import ManifestError, NoSpaceError, NotFoundError, StepError, UsageError
from offline_data.preprocess import plan as module
from offline_data.preprocess import plan as saved
from offline_data.preprocess.job import RunOptions
from offline_data.preprocess.piece import (
    EpisodeSelection,
    Piece,
    read_piece,
    select_episodes,
)
from offline_data.preprocess.plan import (
    Plan,
    fingerprint,
    grouped,
    identity_of,
    load_plan,
    prepare,
    row_bytes,
    save_plan,
    tasks_of,
)
from offline_data.preprocess.recipe import Calling, Recipe, Stage, recipe_of
from offline_data.preprocess.steps.base import Revised, Selection, Step
from offline_data.preprocess.task import measure_task
from offline_data.preprocess.workdir import WorkDir
from offline_data.store.layout import LayoutName
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.pieces import toy_piece, with_leaves
from offline_data.testing.toy import toy_batch, write_toy
from tests.preprocess.oracle import Episode, episodes_of
from tests.preprocess.runs import LENGTHS, small_groups, write_plain, write_rich

MANY = [3, 1, 4, 2, 7, 1, 5, 30, 1, 1, 2]


@pytest.fixture
def reader(tmp_path: Path) -> DatasetReader:
    return open_reader(write_plain(tmp_path / "toy", MANY))


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 29, 30, 31, 1000])
def test_groups_are_whole_episodes_and_no_larger_than_they_must_be(
    reader: DatasetReader, rows: int
) -> None:
    seams = grouped(reader, select_episodes(reader), rows)
    assert (seams[0], seams[-1]) == (0, len(MANY))
    sizes = [sum(MANY[a:b]) for a, b in itertools.pairwise(seams)]
    counts = np.diff(seams)
    assert counts.min() > 0
    assert all(size <= rows or n == 1 for size, n in zip(sizes, counts, strict=True))
    ends = list(seams[1:-1])
    assert all(size + MANY[end] > rows for size, end in zip(sizes, ends, strict=False))


def test_groups_depend_on_bytes_alike_in_both_layouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = open_reader(write_rich(tmp_path / "compact"))
    other = open_reader(write_rich(tmp_path / "ted", layout="ted"))
    assert row_bytes(one) == row_bytes(other)
    monkeypatch.setattr(module, "GROUP_BYTES", 6 * row_bytes(one))
    seams = [grouped(reader, select_episodes(reader)).tolist() for reader in (one, other)]
    assert seams[0] == seams[1] == grouped(one, select_episodes(one), 6).tolist()


@pytest.mark.parametrize("rows", [1, 4, 9, 1000])
def test_tasks_are_whole_groups(reader: DatasetReader, rows: int) -> None:
    chosen = select_episodes(reader)
    groups = grouped(reader, chosen, 4)
    tasks = tasks_of(chosen, groups, rows)
    assert (tasks[0], tasks[-1]) == (0, len(groups) - 1)
    assert np.diff(tasks).min() > 0
    assert (len(tasks) - 1 == 1) == (rows == 1000)


def test_fingerprints(reader: DatasetReader, tmp_path: Path) -> None:
    other = open_reader(write_plain(tmp_path / "other", [*MANY[:-1], 3]))
    write_toy(tmp_path / "named", [toy_batch(MANY)], dataset="local:toy@2")
    named = open_reader(tmp_path / "named")
    clip, clip2 = recipe_of(["clip:action,low=1"]), recipe_of(["clip:action,low=2"])
    prints = [
        fingerprint(reader, clip, None),
        fingerprint(reader, clip2, None),
        fingerprint(reader, clip, 5),
        fingerprint(other, clip, None),
        fingerprint(named, clip, None),
        fingerprint(reader, recipe_of(["clip:action,low=1", "clip:action,low=1"]), None),
    ]
    assert len(set(prints)) == len(prints)
    assert (
        fingerprint(open_reader(reader.path), recipe_of(["clip:action,low=1"]), None) == prints[0]
    )
    assert len({identity_of(one) for one in (reader, other, named)}) == 3


@pytest.fixture
def rich(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetReader:
    small_groups(monkeypatch, rows=4, width=5200)
    return open_reader(write_rich(tmp_path / "rich"))


class Passes:
    """Runs first passes here, and remembers over how many transitions."""

    def __init__(self) -> None:
        self.transitions: list[int] = []

    def __call__(self, plan: Plan, step: Any) -> list[Any]:
        self.transitions.append(plan.chosen.transitions)
        job: Any = partial(measure_task, plan, step)
        return [one for task in range(plan.count) for one in job(task)]


def prepared(
    rich: DatasetReader,
    stages: Sequence[Stage],
    passes: Passes | None = None,
    **options: Any,
) -> Plan:
    recipe = recipe_of(stages)
    return prepare(rich, recipe, RunOptions(**options), passes or Passes(), in_place=True)


def test_episode_tables_are_enough_where_nothing_has_changed(
    rich: DatasetReader,
) -> None:
    passes = Passes()
    stages = ["filter:length > 1", "subsample:every=2", "filter:terminated"]
    plan = prepared(rich, stages, passes)
    assert passes.transitions == []
    left = [number for number, length in enumerate(LENGTHS) if length > 1][::2]
    assert plan.chosen.episodes.tolist() == [number for number in left if number % 2 == 0]
    assert plan.chosen.lengths.tolist() == [LENGTHS[n] for n in plan.chosen.episodes]
    numbered = prepared(rich, ["filter:length > 1", "filter:number >= 4"], passes)
    assert numbered.chosen.episodes.tolist() == [n for n in (4, 5, 6) if LENGTHS[n] > 1]


def test_changed_or_cut_episodes_are_looked_at(rich: DatasetReader) -> None:
    rewards = [
        [float(row["next", "reward"][0]) for row in one.rows] for one in episodes_of(rich.path)
    ]
    passes = Passes()
    plan = prepared(rich, ["reward_scale:-1", "filter:return > -800"], passes)
    wanted = [n for n, one in enumerate(rewards) if -sum(one) > -800]
    assert 0 < len(wanted) < len(LENGTHS)
    assert plan.chosen.episodes.tolist() == wanted
    cut = prepared(rich, ["filter:length == 1"], passes, num_frames=9)
    assert (cut.chosen.episodes.tolist(), cut.chosen.lengths.tolist()) == ([1, 3], [1, 1])
    assert passes.transitions == [sum(LENGTHS), 9]


def test_figures_are_of_what_is_left_and_as_it_is_then(rich: DatasetReader) -> None:
    passes = Passes()
    stages = ["reward_scale:2", "filter:length > 1", "normalize:next.reward", "reward_shift:7"]
    plan = prepared(rich, stages, passes, num_frames=20)
    rows = [one.rows for one in episodes_of(rich.path)]
    lengths = [min(len(one), max(0, 20 - sum(LENGTHS[:n]))) for n, one in enumerate(rows)]
    kept = [(n, length) for n, length in enumerate(lengths) if length > 1]
    values = [
        2 * float(rows[n][t]["next", "reward"][0]) for n, length in kept for t in range(length)
    ]
    learnt = plan.recipe.states()[2]["leaves"]["next/reward"]
    assert learnt["mean"][0] == pytest.approx(np.mean(values), rel=1e-12)
    assert learnt["std"][0] == pytest.approx(np.std(values), rel=1e-12)
    assert passes.transitions == [20, sum(length for _, length in kept)]


@pytest.mark.parametrize(
    "stages", [["filter:length > 100"], ["reward_scale:2", "filter:return < 0"]]
)
def test_at_least_one_episode_must_be_left(rich: DatasetReader, stages: list[str]) -> None:
    with pytest.raises(StepError):
        prepared(rich, stages)


@dataclass(frozen=True)
class Nothing(Selection):
    name: ClassVar[str] = "nothing"

    def choose(
        self,
        table: Mapping[Any, Any],
        words: Mapping[Any, Sequence[str]],  # noqa: ARG002 - no column matters
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.zeros(len(table["length",]), bool)


@dataclass(frozen=True)
class Objects(Step):
    name: ClassVar[str] = "objects"

    def apply(self, piece: Piece) -> Piece:
        column = np.ones(piece.batch.transitions, np.longdouble)
        return piece.having(steps={**piece.batch.steps, ("wide",): column})


def test_steps_of_other_people(rich: DatasetReader) -> None:
    with pytest.raises(StepError, match="Step 'nothing' leaves none of 7 episodes"):
        prepared(rich, [Nothing()])
    with pytest.raises(StepError, match=r"cannot be stored: Leaf 'wide' has dtype \w+"):
        prepared(rich, [Objects()])


def test_text_of_episodes_is_asked_for_by_words(rich: DatasetReader) -> None:
    plan = prepared(rich, ["reward_scale:2", "filter:label == 'label 1'"])
    assert plan.chosen.episodes.tolist() == [1, 4]


STAGES = ["subsample:every=2", "normalize:observation.state", "clip:action,low=-5000"]


def measured(plan: Plan, step: Any) -> list[Any]:
    job: Any = partial(measure_task, plan, step)
    return [one for task in range(plan.count) for one in job(task)]


@pytest.fixture
def rich_whole(tmp_path: Path) -> DatasetReader:
    return open_reader(write_rich(tmp_path / "rich"))


def plan_of(rich_whole: DatasetReader) -> Plan:
    options = RunOptions(num_frames=17, layout="ted")
    return prepare(rich_whole, recipe_of(STAGES), options, measured, in_place=True)


def test_a_plan_comes_back(
    rich_whole: DatasetReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=3, width=5200)
    plan, work = plan_of(rich_whole), WorkDir(tmp_path / "work")
    assert plan.count > 1
    save_plan(work, plan, "f" * 64)
    found = load_plan(work, recipe_of(STAGES), rich_whole)
    for name in ("groups", "tasks"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plan, name))
    for name in ("episodes", "lengths"):
        np.testing.assert_array_equal(getattr(found.chosen, name), getattr(plan.chosen, name))
    for name in ("parent", "identity", "recipe", "layout", "schema", "in_place"):
        assert getattr(found, name) == getattr(plan, name), name
    assert dict(found.words) == dict(plan.words)
    assert (work.read_plan() or {})["fingerprint"] == "f" * 64


def test_damaged_plans_are_refused(rich_whole: DatasetReader, tmp_path: Path) -> None:
    work = WorkDir(tmp_path / "work")
    save_plan(work, plan_of(rich_whole), "f" * 64)
    whole = work.plan.read_bytes()
    for at in range(0, len(whole), 97):
        work.plan.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ManifestError, match="its plan is damaged"):
            load_plan(work, recipe_of(STAGES), rich_whole)
    work.plan.unlink()
    with pytest.raises(ManifestError, match="damaged"):
        load_plan(work, recipe_of(STAGES), rich_whole)


def test_plans_of_another_version_are_refused(
    rich_whole: DatasetReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = WorkDir(tmp_path / "work")
    save_plan(work, plan_of(rich_whole), "f" * 64)
    monkeypatch.setattr(saved, "package_version", lambda: "99.9")
    with pytest.raises(ManifestError, match=r"offline-data \S+ made it, not 99\.9"):
        load_plan(work, recipe_of(STAGES), rich_whole)


def test_where_a_plan_cannot_be_saved_nothing_is_left(
    rich_whole: DatasetReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = WorkDir(tmp_path / "work")
    (work.dataset / "steps").mkdir(parents=True)
    (work.dataset / "steps" / "rows").write_bytes(b"room that was taken")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoSpaceError):
        save_plan(work, plan_of(rich_whole), "f" * 64)
    assert not work.path.exists()


@dataclass(frozen=True)
class Linear(Step):
    """Reward · factor + shift; where the shift is odd, it must be even."""

    name: ClassVar[str] = "linear"

    factor: int
    shift: int = 0
    learnt: str = field(default="", metadata={"state": True})

    def apply(self, piece: Piece) -> Piece:
        if self.shift % 2 and not self.learnt:
            raise Revised(replace(self, learnt="even").state(), "the shift is odd")
        reward = piece.batch.steps["next", "reward"]
        shift = self.shift - 1 if self.learnt else self.shift
        return piece.having(
            steps={**piece.batch.steps, ("next", "reward"): reward * self.factor + shift}
        )

    def state(self) -> dict[str, Any]:
        return {"learnt": self.learnt} if self.learnt else {}

    def with_state(self, state: Mapping[str, Any]) -> Linear:
        return replace(self, learnt=state.get("learnt", ""))

    def notes(self) -> tuple[str, ...]:
        return (f"shift {self.shift}",)


def rewards(piece: Piece) -> list[float]:
    found: list[float] = piece.batch.steps["next", "reward"][:, 0].tolist()
    return found


def test_steps_are_applied_in_order() -> None:
    piece = toy_piece([3])
    before = rewards(piece)
    found = Recipe((Linear(2, 10), Linear(3, 4))).apply(piece)
    assert rewards(found) == [(value * 2 + 10) * 3 + 4 for value in before]
    assert rewards(Recipe((Linear(3, 4), Linear(2, 10))).apply(piece)) != rewards(found)
    assert rewards(piece) == before


def test_a_revision_names_its_step() -> None:
    recipe = Recipe((Linear(2), Linear(3, 5), Linear(4, 7)))
    with pytest.raises(Revised, match="the shift is odd") as caught:
        recipe.apply(toy_piece([2]))
    found = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert (found.number, found.state, str(found)) == (1, {"learnt": "even"}, "the shift is odd")
    again = recipe.revised(found)
    assert again.states() == [{}, {"learnt": "even"}, {}]
    with pytest.raises(Revised) as caught:
        again.apply(toy_piece([2]))
    assert caught.value.number == 2
    ready = again.revised(caught.value)
    before = rewards(toy_piece([2]))
    assert rewards(ready.apply(toy_piece([2]))) == [(v * 2 * 3 + 4) * 4 + 6 for v in before]
    assert recipe.states() == [{}, {}, {}]


def test_a_step_that_never_learns_is_refused() -> None:
    @dataclass(frozen=True)
    class Deaf(Linear):
        def with_state(self, state: Mapping[str, Any]) -> Deaf:  # noqa: ARG002
            return self

    with pytest.raises(StepError, match="does not take the state"):
        Recipe((Deaf(3, 5),)).revised(Revised({"learnt": "even"}, "the shift is odd", 0))


@dataclass(frozen=True)
class Codes(Step):
    """Put other numbers in the place of a text leaf's."""

    name: ClassVar[str] = "codes"

    value: int

    def apply(self, piece: Piece) -> Piece:
        codes = piece.batch.steps["mission",].copy()
        codes[-1] = self.value
        return piece.having(steps={**piece.batch.steps, ("mission",): codes})


@pytest.mark.parametrize("value", [-2, 3, 100])
def test_numbers_that_stand_for_no_words_are_refused(value: int) -> None:
    with pytest.raises(StepError, match=rf"'mission' is text, numbers from -1 .* to 2 .*{value}"):
        Recipe((Codes(value),)).apply(toy_piece([3]))
    for fine in (-1, 0, 2):
        Recipe((Codes(fine),)).apply(toy_piece([3]))
    piece = with_leaves(toy_piece([1]), steps={"mission": np.zeros((1, 0), np.int32)})
    assert Recipe(()).apply(piece) is piece


def first(td: Any) -> Any:
    td["first"] = torch.rand(2)
    return td


def second(td: Any) -> Any:
    td["second"] = torch.rand(2)
    return td


def drawn(seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    piece = toy_piece([4, 3])
    for step in recipe_of([first, second], Calling(seed=seed)).steps:
        piece = step.settled(piece).apply(piece)
    steps = piece.batch.steps
    return np.array(steps["first",]), np.array(steps["second",])


def test_two_functions_of_a_recipe_draw_different_numbers_the_same_every_time() -> None:
    one, other = drawn(3)
    assert len(np.unique(np.concatenate([one, other]))) == 28
    np.testing.assert_array_equal(drawn(3), (one, other))
    assert not np.isin(drawn(4), (one, other)).any()


def test_what_is_no_recipe_is_refused() -> None:
    with pytest.raises(UsageError, match="Nothing to do"):
        recipe_of([])
    with pytest.raises(UsageError, match="neither a function nor a step"):
        recipe_of([5])  # type: ignore[list-item]
    with pytest.raises(NotFoundError) as unknown:
        recipe_of(["clipp:action,low=1"])
    assert "clip" in str(unknown.value.hint)
    with pytest.raises(UsageError, match="by='episode'"):
        Calling(by="episode", batched=4)


TRUNCATED = ("next", "truncated")


@pytest.fixture(params=["compact", "ted"])
def layout(request: pytest.FixtureRequest) -> LayoutName:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def rich_stored(tmp_path: Path, layout: LayoutName) -> DatasetReader:
    return open_reader(write_rich(tmp_path / "rich", layout=layout))


def chosen(rich_stored: DatasetReader, *numbers: int) -> EpisodeSelection:
    episodes = np.array(numbers, np.int64)
    return EpisodeSelection(episodes, rich_stored.lengths[episodes], np.zeros_like(episodes))


def check_piece(piece: Piece, episodes: list[Episode]) -> None:
    """Assert that a piece is these episodes, row by row."""
    assert piece.batch.lengths.tolist() == [len(one.rows) for one in episodes]
    assert piece.batch.final_observation.tolist() == [one.final for one in episodes]
    row = 0
    for e, episode in enumerate(episodes):
        for t, wanted in enumerate(episode.rows):
            for key, column in piece.batch.steps.items():
                assert column[row].tobytes() == wanted[key].tobytes(), (key, e, t)
            for key, column in piece.batch.observations.items():
                following = ("next", *key)
                assert column[row + e].tobytes() == wanted[key].tobytes(), (key, e, t)
                assert column[row + e + 1].tobytes() == wanted[following].tobytes(), (key, e, t)
            row += 1
        assert piece.batch.episodes["file",][e] == episode.extras["file",]
    assert row == piece.batch.transitions


@pytest.mark.parametrize("numbers", [[0], [2, 3], [0, 1, 2, 3, 4, 5, 6], [0, 2, 3, 6], [6, 0, 3]])
def test_whole_episodes(rich_stored: DatasetReader, numbers: list[int]) -> None:
    piece = read_piece(rich_stored, chosen(rich_stored, *numbers))
    all_of_them = episodes_of(rich_stored.path)
    check_piece(piece, [all_of_them[number] for number in numbers])
    starts = np.cumsum(LENGTHS) - LENGTHS
    assert piece.episodes.tolist() == numbers
    assert piece.rows.tolist() == starts[numbers].tolist()
    assert piece.steps.tolist() == [0] * len(numbers)
    expected = [starts[n] + t for n in numbers for t in range(LENGTHS[n])]
    assert piece.row_numbers.tolist() == expected


def test_an_episode_cut_where_it_is_terminated_is_not_truncated(tmp_path: Path) -> None:
    from offline_data.testing.toy import toy_batch, write_toy

    batch = toy_batch([4, 3])
    batch.steps["next", "terminated"][1] = True
    write_toy(tmp_path / "toy", [batch])
    rich_stored = open_reader(tmp_path / "toy")
    piece = read_piece(rich_stored, select_episodes(rich_stored, 2))
    assert piece.batch.steps["next", "terminated"][:, 0].tolist() == [False, True]
    assert piece.batch.steps[TRUNCATED][:, 0].tolist() == [False, False]


def test_neighbours_are_not_copied_in_layout_compact(
    rich_stored: DatasetReader, layout: LayoutName
) -> None:
    piece = read_piece(rich_stored, chosen(rich_stored, 1, 2, 3))
    own = [c.flags.owndata for c in piece.batch.observations.values() if c.size]
    assert any(own) == (layout == "ted")
    assert not any(column.flags.writeable for column in piece.batch.steps.values())
    apart = read_piece(rich_stored, chosen(rich_stored, 1, 3))
    assert all(column.base is None or column.flags.owndata for column in apart.batch.steps.values())
