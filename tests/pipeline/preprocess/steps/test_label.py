"""`label` against dictionaries of lines, and each line that does not fit, by name."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as tried
from hypothesis import strategies as st

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError, OfflineDataError, StepError
from offline_data.pipeline.preprocess.job import Job
from offline_data.pipeline.preprocess.steps.label import Label
from offline_data.pipeline.preprocess.steps.registry import parse_step
from offline_data.store.reader import DatasetReader
from offline_data.store.verify import verify
from offline_data.testing.chunks import episodes_of, toy_chunk
from offline_data.testing.steps import StepContract
from tests.pipeline.preprocess.runs import Shuffled, make, small_groups, write_plain, write_rich
from tests.refusals import Refusals

REFUSALS = Refusals(Path(__file__).with_name("label_refusals.json"))
LENGTHS = [3, 1, 4, 2, 7, 1, 5]
PLACES = [(e, t) for e, length in enumerate(LENGTHS) for t in range(length)]


def write_csv(path: Path, header: str, lines: Sequence[tuple[Any, ...]]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header.split(","))
        writer.writerows(lines)
    return str(path)


def of_episodes(folder: Path, header: str = "episode,success,score,task", count: int = 7) -> str:
    lines = [(e, e % 2 == 0, e / 3, f"task, {e % 3}") for e in reversed(range(count))]
    return write_csv(folder / "episodes.csv", header, lines)


def of_rows(folder: Path) -> str:
    shuffled = np.random.default_rng(0).permutation(np.array(PLACES))
    advantage = shuffled @ [100, 1] + np.array([[0.25], [0.5]])
    words = np.array([f"w{e}" for e, _ in shuffled])
    path = folder / "rows.npz"
    np.savez(path, episode=shuffled[:, 0], step=shuffled[:, 1], advantage=advantage.T, plan=words)
    return str(path)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset, beside files of labels, good and bad ones."""
    folder = tmp_path_factory.mktemp("labels")
    of_episodes(folder)
    of_rows(folder)
    (folder / "x.txt").write_text("episode,x\n")
    write_csv(folder / "returns.csv", "return,x", [(1.5, 1), ("", 2)])
    np.savez(folder / "short.npz", episode=np.arange(7), x=np.arange(6))
    np.savez(folder / "objects.npz", episode=np.arange(7), x=np.array([{}] * 7, object))
    return write_plain(folder / "toy", LENGTHS)


class TestContract(StepContract):
    @pytest.fixture(params=["episodes", "rows", "by"])
    def step(self, request: pytest.FixtureRequest, tmp_path: Path) -> Label:
        lengths = {1: 3, 2: 1, 3: 4, 4: 2}
        if request.param == "rows":
            lines = [
                (e, t, e * 10 + t / 4, "ab"[t % 2]) for e in lengths for t in range(lengths[e])
            ]
            return Label(write_csv(tmp_path / "x.csv", "episode,step,next.reward,words", lines))
        by = "seed" if request.param == "by" else "episode"
        numbers = [e + 100 * (by == "seed") for e in lengths]
        tasks = [(e, e > 2, f"do {e}") for e in numbers]
        return Label(write_csv(tmp_path / "x.csv", f"{by},success,task", tasks), by=by)


@tried(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.randoms(), st.integers(0, 3))
def test_each_row_gets_its_line(tmp_path: Path, lengths: list[int], order: Any, first: int) -> None:
    chunk = toy_chunk(lengths, first_episode=first)
    places = [(first + e, t) for e, length in enumerate(lengths) for t in range(length)]
    lines = {place: (*place, number * 1.5, number) for number, place in enumerate(places)}
    written = [*lines.values()]
    order.shuffle(written)
    path = write_csv(tmp_path / "rows.csv", "episode,step,advantage,next.rank", written)
    for alone in episodes_of(chunk):
        made = Label(path).apply(alone).batch
        wanted = [lines[int(alone.episodes[0]), t] for t in range(int(alone.batch.lengths[0]))]
        assert made.steps["advantage",].tolist() == [line[2] for line in wanted]
        assert made.steps["next", "rank"].tolist() == [line[3] for line in wanted]
        assert made.steps["next", "rank"].dtype == np.int64


def test_episode_columns(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = write_rich(tmp_path / "rich", LENGTHS)
    small_groups(monkeypatch)
    path = of_episodes(tmp_path)
    made = make(parent, [f"label:{path}"], tmp_path / "out", settings, executor=Shuffled())
    old, new = DatasetReader(parent), DatasetReader(made.path)
    columns = {
        key: new.as_text(key, np.array(column), "episodes") for key, column in new.episodes.items()
    }
    assert columns["success",].tolist() == [e % 2 == 0 for e in range(7)]
    assert columns["score",].tolist() == [e / 3 for e in range(7)]
    assert columns["task",].tolist() == [f"task, {e % 3}" for e in range(7)]
    for key, column in old.episodes.items():
        np.testing.assert_array_equal(old.as_text(key, np.array(column), "episodes"), columns[key])
    for key in old.step_leaves:
        np.testing.assert_array_equal(old.step(key), new.step(key))
    assert verify(made.path) == ()
    view = offline_data.open_dataset(made.path)
    assert len(view.filter("success and score > 1")) == LENGTHS[4] + LENGTHS[6]


def test_filters_before_and_after(toy: Path, tmp_path: Path, settings: Settings) -> None:
    steps = [f"label:{of_episodes(tmp_path)}", "filter:success and task == 'task, 0'"]
    made = DatasetReader(make(toy, steps, tmp_path / "after", settings).path)
    assert made.lengths.tolist() == [LENGTHS[0], LENGTHS[6]]
    text = np.array(made.episodes["task",])
    assert made.as_text(("task",), text, "episodes").tolist() == ["task, 0", "task, 0"]
    path = write_csv(tmp_path / "some.csv", "episode,score", [(4, 1), (6, 2)])  # needs no others
    steps = ["filter:length > 4", f"label:{path}"]
    made = DatasetReader(make(toy, steps, tmp_path / "before", settings).path)
    assert made.episodes["score",].tolist() == [1, 2]


@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_leaves(
    layout: Any, toy: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch)
    stages = [f"label:{of_rows(tmp_path)}", "clip:advantage,high=600"]
    made = DatasetReader(make(toy, stages, tmp_path / "out", settings, layout=layout).path)
    wanted = [[min(600, 100 * e + t + 0.25), min(600, 100 * e + t + 0.5)] for e, t in PLACES]
    assert made.step(("advantage",)).tolist() == wanted
    words = made.as_text(("plan",), np.array(made.step(("plan",))))
    assert words.tolist() == [f"w{e}" for e, _ in PLACES]


def test_rewards_and_flags_are_replaced(tmp_path: Path) -> None:
    lines = [(0, 0, 5, 0), (0, 1, 6, 1)]
    path = write_csv(tmp_path / "x.csv", "episode,step,next.reward,next.terminated", lines)
    made = Label(path).apply(toy_chunk([2])).batch
    assert made.steps["next", "reward"].tolist() == [[5], [6]]
    assert made.steps["next", "terminated"].tolist() == [[False], [True]]
    assert made.returns.tolist() == [11]


def test_by_a_text_column(tmp_path: Path, settings: Settings) -> None:
    parent = write_rich(tmp_path / "rich", [2, 3, 1])
    path = write_csv(
        tmp_path / "x.csv", "label,score", [("label 2", 2), ("label 0", 0), ("label 1", 1)]
    )
    made = make(parent, [f"label:{path},by=label"], tmp_path / "out", settings)
    assert DatasetReader(made.path).episodes["score",].tolist() == [0, 1, 2]
    again = write_rich(tmp_path / "more", [2, 3, 1, 4])  # labels 0 to 2, and 0 again
    with pytest.raises(StepError, match="several episodes have label label 0"):
        make(again, [f"label:{path},by=label"], tmp_path / "no", settings)


@REFUSALS.cases
def test_refusals(kind: str, text: str, toy: Path, tmp_path: Path, settings: Settings) -> None:
    stages, out = text.replace("FOLDER", str(toy.parent)), tmp_path / "out"
    if kind == "lines":
        header, _, lines = text.partition(" ")
        found = eval(lines, {"PLACES": PLACES})  # noqa: S307 - of the table
        stages = f"label:{write_csv(tmp_path / 'x.csv', header, found)}"
    names: dict[object, str] = {tmp_path: "FOLDER", toy.parent: "FOLDER"}
    REFUSALS.check(kind, text, lambda: make(toy, stages.split(), out, settings), names)
    assert not out.exists()


def test_a_file_that_changes_during_the_run(toy: Path, tmp_path: Path) -> None:
    path = of_episodes(tmp_path)
    bound = parse_step(f"label:{path}").bind(DatasetReader(toy), [])
    with Path(path).open("a") as file:
        file.write("7,true,1,task\n")
    with pytest.raises(IntegrityError, match="was changed during the run"):
        bound.apply(toy_chunk([2]))


def test_the_content_is_part_of_the_recipe(toy: Path, tmp_path: Path, settings: Settings) -> None:
    path = of_episodes(tmp_path)
    made = make(toy, [f"label:{path},success"], tmp_path / "out", settings)
    (step,) = made.manifest.converter["options"]["recipe"]
    assert (step["file"], step["keys"], len(step["sha256"])) == ("episodes.csv", ["success"], 64)
    assert make(toy, [f"label:{path},success"], tmp_path / "out", settings).existed
    write_csv(Path(path), "episode,success", [(e, True) for e in range(7)])
    with pytest.raises(OfflineDataError, match="There is another dataset"):
        make(toy, [f"label:{path},success"], tmp_path / "out", settings)


def test_paths_in_plans_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = Job(tmp_path, ("label:a b.csv,success,by=id",)).absolute()
    assert job.stages == (f"label:{tmp_path}/a b.csv,success,by=id",)
