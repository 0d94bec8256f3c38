"""Steps look at what they need, in order: what was chosen, cut and changed before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from offline_data.preprocess.errors import StepError
from offline_data.preprocess.options import Options
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.plan import Plan
from offline_data.preprocess.preparing import Prepared, prepare
from offline_data.preprocess.spec import Stage, recipe_of
from offline_data.preprocess.steps.base import Selection, Step
from offline_data.preprocess.tasks import MeasureJob
from offline_data.store.reader import DatasetReader, open_reader
from tests.preprocess.oracle import episodes_of
from tests.preprocess.runs import LENGTHS, small_groups, write_rich


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetReader:
    small_groups(monkeypatch, rows=4, width=5200)
    return open_reader(write_rich(tmp_path / "rich"))


class Passes:
    """Runs first passes here, and remembers over how many transitions."""

    def __init__(self) -> None:
        self.transitions: list[int] = []

    def __call__(self, plan: Plan, step: Any) -> list[Any]:
        self.transitions.append(plan.chosen.transitions)
        job: Any = MeasureJob(plan, step)
        return [one for task in range(plan.count) for one in job(task)]


def prepared(
    reader: DatasetReader, stages: Sequence[Stage], passes: Passes | None = None, **options: Any
) -> Prepared:
    recipe = recipe_of(stages)
    return prepare(reader, recipe, Options(**options), passes or Passes(), in_place=True)


def test_episode_tables_are_enough_where_nothing_has_changed(reader: DatasetReader) -> None:
    passes = Passes()
    stages = ["filter:length > 1", "subsample:every=2", "filter:terminated"]
    plan = prepared(reader, stages, passes).plan
    assert passes.transitions == []
    left = [number for number, length in enumerate(LENGTHS) if length > 1][::2]
    assert plan.chosen.episodes.tolist() == [number for number in left if number % 2 == 0]
    assert plan.chosen.lengths.tolist() == [LENGTHS[n] for n in plan.chosen.episodes]


def test_changed_or_cut_episodes_are_looked_at(reader: DatasetReader) -> None:
    rewards = [
        [float(row["next", "reward"][0]) for row in one.rows] for one in episodes_of(reader.path)
    ]
    passes = Passes()
    plan = prepared(reader, ["reward_scale:-1", "filter:return > -800"], passes).plan
    wanted = [n for n, one in enumerate(rewards) if -sum(one) > -800]
    assert 0 < len(wanted) < len(LENGTHS)
    assert plan.chosen.episodes.tolist() == wanted
    cut = prepared(reader, ["filter:length == 1"], passes, num_frames=9).plan
    assert (cut.chosen.episodes.tolist(), cut.chosen.lengths.tolist()) == ([1, 3], [1, 1])
    assert passes.transitions == [sum(LENGTHS), 9]


def test_figures_are_of_what_is_left_and_as_it_is_then(reader: DatasetReader) -> None:
    passes = Passes()
    stages = ["reward_scale:2", "filter:length > 1", "normalize:next.reward", "reward_shift:7"]
    plan = prepared(reader, stages, passes, num_frames=20).plan
    rows = [one.rows for one in episodes_of(reader.path)]
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
def test_at_least_one_episode_must_be_left(reader: DatasetReader, stages: list[str]) -> None:
    with pytest.raises(StepError):
        prepared(reader, stages)


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


def test_steps_of_other_people(reader: DatasetReader) -> None:
    with pytest.raises(StepError, match="Step 'nothing' leaves none of 7 episodes"):
        prepared(reader, [Nothing()])
    with pytest.raises(StepError, match=r"cannot be stored: Leaf 'wide' has dtype \w+"):
        prepared(reader, [Objects()])


def test_text_of_episodes_is_asked_for_by_words(reader: DatasetReader) -> None:
    plan = prepared(reader, ["reward_scale:2", "filter:label == 'label 1'"]).plan
    assert plan.chosen.episodes.tolist() == [1, 4]


def test_sizes_of_tasks(reader: DatasetReader) -> None:
    clip = ["clip:action,low=-5000"]
    groups = len(prepared(reader, clip).plan.groups) - 1
    assert prepared(reader, clip, chunksize=1).plan.count == groups > 4
    assert prepared(reader, clip, num_chunks=1).plan.count == 1
    assert prepared(reader, clip, chunksize=1000).plan.count == 1
    assert 1 < prepared(reader, clip, num_chunks=3).plan.count <= 4


def test_what_is_known_of_the_new_dataset(reader: DatasetReader) -> None:
    plan = prepared(reader, ["rename:plan=script", "cast:action=float64"], layout="ted").plan
    assert plan.layout == "ted"
    assert plan.schema.steps["action",].dtype == np.float64
    assert plan.schema.steps["script", "words"].text
    assert plan.words["script", "words"] == reader.words(("plan", "words"))
    assert plan.in_place
    assert prepared(reader, ["clip:action,low=1"]).plan.layout == "compact"
