"""Datasets made of datasets, every value compared with a plain loop in Python."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.base.config import Settings
from offline_data.base.errors import StepError, WorkerDiedError
from offline_data.pipeline.jobs.executors import LocalProcesses
from offline_data.pipeline.preprocess import engine
from offline_data.pipeline.preprocess.job import RunOptions, Stage, recipe_of
from offline_data.pipeline.preprocess.plan import Plan, seconds_of_calls
from offline_data.store.layout import LayoutName
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch, write_toy
from tests.pipeline.preprocess import oracle, pairs, runs
from tests.pipeline.preprocess.oracle import (
    REWARD,
    Episode,
    Row,
    check,
    digests,
    episodes_of,
    mapped,
)
from tests.pipeline.preprocess.pairs import CLIP, LAYOUTS, clipped, scaled
from tests.pipeline.preprocess.runs import LENGTHS, Shuffled, make, small_groups
from tests.slow import slow_but


def chosen(episodes: list[Episode]) -> list[Episode]:
    """Long ones, of which the scaled return is high and the label another one; every second."""
    episodes = mapped([one for one in episodes if len(one.rows) > 1], scaled)
    returns = [sum(float(row[REWARD][0]) for row in one.rows) for one in episodes]
    kept = zip(episodes, returns, strict=True)
    left = [one for one, r in kept if r > 9000 and one.extras["label",] != "label 1"][::2]
    assert 0 < len(left) < 4
    return mapped(left, pairs.root_only)


def different(episodes: list[Episode]) -> list[Episode]:
    """The first of each length and ending."""
    first: dict[tuple[int, int], Episode] = {}
    for one in mapped(episodes, pairs.alike):
        first.setdefault((len(one.rows), one.number % 2), one)
    assert [one.number for one in first.values()] == [0, 1, 4, 5, 7]
    return mapped(list(first.values()), scaled)


def without_last_rows(episodes: list[Episode]) -> list[Episode]:
    left = pairs.plain_shorter([one for one in episodes if one.number != 8])
    return mapped([one for one in left if len(one.rows) > 1], scaled)


def write_parent(kind: str, folder: Path, layout: LayoutName) -> Path:
    batch = toy_batch([2, 3])
    batch.steps[REWARD][3] = np.nan
    batch.observations["observation", "state"][2, 1] = -np.inf
    batch.observations["observation", "state"][1, 0] = -0.0
    if kind == "not finite":
        write_toy(folder, [batch], layout=layout)
    elif kind == "unknown final":
        runs.write_plain(folder, LENGTHS, unknown_final=[3], text=True)
    elif kind == "repeated":
        runs.write_plain(folder, [3, 1, 3, 1, 2, 3, 3, 2, 2])
    else:
        lengths = [3, 1, 1, 1, 4, 2, 7, 1, 5] if kind == "rich, short" else LENGTHS
        runs.write_rich(folder, lengths, layout=layout)
    return folder


@dataclass(frozen=True)
class Case:
    """A recipe, and what it makes of rows in plain Python."""

    stages: list[Stage]
    plain: tuple[Callable[[Row], Row], ...] | Callable[[list[Episode]], list[Episode]]
    parent: str = "rich"
    options: dict[str, Any] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)
    """Of the first step, in the manifest."""

    def expected(self, parent: Path) -> list[Episode]:
        episodes = oracle.cut(
            oracle.numbered(episodes_of(parent)), self.options.get("num_frames", 10**6)
        )
        if isinstance(self.plain, tuple):
            return reduce(mapped, self.plain, episodes)
        return self.plain(episodes)


def framed(frames: int) -> Case:
    return Case([CLIP, scaled], (clipped, scaled), "unknown final", {"num_frames": frames})


STATE_TWICE: dict[str, Any] = {"run": "vectorised", "two_copies": ["observation/state"]}
BOTH_ENDS: dict[str, Any] = {"run": "vectorised", "two_copies": []}
CHOICES: list[Stage] = [
    "filter:length > 1", scaled, "filter:return > 9000 and label != 'label 1'", pairs.root_only,
    "subsample:every=2",
]  # fmt: skip
SHORTER: list[Stage] = [
    "filter:number != 8", recipe_of([pairs.shorter], RunOptions(by="episode")).steps[0],
    "filter:length > 1", scaled,
]  # fmt: skip
CASES: dict[str, Case] = {
    "a step": Case([CLIP], (clipped,)),
    "vectorised": Case([scaled], (scaled,), said=BOTH_ENDS),
    "by rows": Case([pairs.branching], (pairs.branching,), said={"run": "rows", "two_copies": []}),
    "two copies": Case([pairs.root_only], (pairs.root_only,), said=STATE_TWICE),
    "new leaves": Case([pairs.reshaped], (pairs.plain_reshaped,), said={"two_copies": []}),
    "text told apart": Case([pairs.silent], (pairs.silent,)),
    "bare": Case([pairs.bare], (pairs.plain_bare,)),
    "3 frames": framed(3),
    "5 frames": framed(5),
    "all frames": framed(1000),
    "choices": Case(CHOICES, chosen),
    "the same": Case(["dedupe", pairs.alike, "dedupe", scaled], different, "repeated"),
    "shorter": Case(SHORTER, without_last_rows, "rich, short"),
    "not finite": Case([CLIP], (clipped,), "not finite"),
    "not finite, a function": Case([pairs.doubled], (pairs.doubled,), "not finite"),
}
WAYS: list[tuple[str, LayoutName, LayoutName]] = [
    *((name, layout, layout) for name in CASES for layout in LAYOUTS),
    ("a step", "ted", "compact"),
    ("a step", "compact", "ted"),
    ("vectorised", "compact", "ted"),
    ("two copies", "compact", "ted"),
]
QUICK = [
    *((name, *2 * [LAYOUTS[number % 2]]) for number, name in enumerate(CASES)),
    *(("a step", "ted", "compact"), ("two copies", "compact", "ted")),
]


@pytest.fixture(scope="module")
def parents(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, LayoutName], Path]:
    written: dict[tuple[str, LayoutName], Path] = {}

    def parent(kind: str, layout: LayoutName) -> Path:
        if (kind, layout) not in written:
            folder = tmp_path_factory.mktemp("parent") / "parent"
            written[kind, layout] = write_parent(kind, folder, layout)
        return written[kind, layout]

    return parent


@pytest.mark.parametrize(
    ("name", "source", "layout"),
    [pytest.param(*way, marks=() if way in QUICK else pytest.mark.slow) for way in WAYS],
)
def test_as_a_loop_makes_it(
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    parents: Callable[[str, LayoutName], Path],
    name: str,
    source: LayoutName,
    layout: LayoutName,
) -> None:
    case, dest = CASES[name], tmp_path / "out"
    small_groups(monkeypatch, rows=4, width=5200 if "rich" in case.parent else 60)
    parent, executor = parents(case.parent, source), Shuffled(shards=layout == "ted")
    options = {"executor": executor, "layout": layout, "chunksize": 3, **case.options}
    found = make(parent, case.stages, dest, settings, **options)
    assert len(executor.ran) > 2 or case.options or case.parent == "not finite"
    expected = case.expected(parent)
    check(dest, expected)
    assert verify(dest) == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "root"]
    (step, *_), manifest = found.manifest.converter["options"]["recipe"], found.manifest
    assert step.items() >= case.said.items()
    assert ["/".join(key) for key in manifest.two_copies] == case.said.get(
        "two_copies", [*map("/".join, manifest.two_copies)]
    )
    frames = case.options.get("num_frames", 1000)
    inside = frames not in np.cumsum(LENGTHS) and frames < sum(LENGTHS)
    assert any("is cut after" in note for note in manifest.notes) == inside
    kept = "not returned by bare, kept as they were"
    assert any(kept in note for note in manifest.notes) == (name == "bare")
    if case.parent == "not finite":
        assert dict(manifest.non_finite) == {
            "next/reward": {"nan": 1, "inf": 0},
            "observation/state": {"nan": 0, "inf": 1},
        }


@pytest.mark.parametrize(
    ("name", "layout"),
    slow_but(
        lambda name, layout: (layout == "ted") == (name == "text told apart"),
        ["two copies", "text told apart", "bare"],
        LAYOUTS,
    ),
)
def test_what_is_made_can_be_preprocessed_again(
    tmp_path: Path,
    settings: Settings,
    parents: Callable[[str, LayoutName], Path],
    name: str,
    layout: LayoutName,
) -> None:
    case, parent = CASES[name], parents("rich", "compact")
    first = make(parent, case.stages, tmp_path / "first", settings, layout=layout)
    found = make(first.path, [CLIP, scaled], tmp_path / "out", settings)
    expected = mapped(mapped(case.expected(parent), clipped), scaled)
    check(tmp_path / "out", expected)
    assert found.manifest.two_copies == first.manifest.two_copies
    assert found.manifest.parents == (first.manifest.id,)
    if name == "text told apart":
        key = ("observation", "mission")
        words = oracle.Plain(parent).words("observations", *key)
        table = "ted" if layout == "ted" else "steps"
        for path in (first.path, tmp_path / "out"):
            assert oracle.Plain(path).words(table, *key) == words
            assert oracle.Plain(path).words(table, "next", *key) == words


STATE = ("observation", "state")
NEXT_STATE = ("next", *STATE)
GOAL = ("observation", "goal")


@pytest.fixture(scope="module", params=LAYOUTS)
def stored_apart(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[Any, Any]]:
    """A dataset whose next observations are not the following ones, and its leaves `[N, …]`."""
    folder = tmp_path_factory.mktemp("apart") / "toy"
    toy = toy_batch(LENGTHS)
    code: Any = toy.observations[STATE][toy.root_rows]
    grid = np.stack([code[:, :2], 3 - code[:, :2]], axis=1)
    goal = (code[:, :1] // 100).astype(np.int32)
    kept = {STATE: grid, NEXT_STATE: 5 * grid + 7, GOAL: goal, ("next", *GOAL): goal * 2 + 1}
    info: dict[Any, Any] = {("info", "code"): toy.observations["info", "code"]}
    write_toy(
        folder, [replace(toy, steps={**toy.steps, **kept}, observations=info)], layout=request.param
    )
    return folder, kept


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (
            "normalize:observation.state,eps=0",
            lambda v, root: {STATE: (v[STATE] - root[STATE].mean(0)) / root[STATE].std(0)},
        ),
        (
            "normalize:observation.goal,eps=0.5",
            lambda v, root: {GOAL: (v[GOAL] - root[GOAL].mean(0)) / (root[GOAL].std(0) + 0.5)},
        ),
        ("normalize:observation.state,std=false", lambda v, root: {STATE: v[STATE] - root[STATE].mean(0)}),
        ("clip:obs,low=10,high=3005", lambda v, _: {STATE: v[STATE].clip(10, 3005), GOAL: v[GOAL].clip(10, 3005)}),
        ("cast:observation.state=float64", lambda v, _: {STATE: v[STATE].astype(np.float64)}),
        (
            "crop:1,observation.state,top=1,left=0,format=hw",
            lambda v, _: {STATE: v[STATE][:, 1:, :1]},
        ),
        ("flatten:observation.state", lambda v, _: {STATE: v[STATE].reshape(-1, 4)}),
        ("flatten", lambda v, _: {STATE: v[STATE].reshape(-1, 4)}),
        ("rename:observation.state=seen", lambda v, _: {("seen",): v[STATE], STATE: None}),
        ("rename:observation=seen.as", lambda v, _: {("seen", "as", k[1]): v[k] for k in v} | dict.fromkeys(v)),
        ("exclude:observation.state", lambda *_: {STATE: None}),
        ("select:observation.state", lambda *_: {GOAL: None}),
        (
            "flatten | concat:obs.goal,obs.state→obs",
            lambda v, _: {
                **dict.fromkeys(v),
                ("obs",): np.concatenate([v[GOAL], v[STATE].reshape(-1, 4)], axis=1),
            },
        ),
    ],
)  # fmt: skip
def test_the_name_of_an_observation_selects_next_where_it_is_stored_apart(
    stored_apart: tuple[Path, dict[Any, Any]],
    tmp_path: Path,
    settings: Settings,
    step: str,
    expected: Callable[..., dict[Any, Any]],
) -> None:
    parent, leaves = stored_apart
    make(parent, step.split(" | "), tmp_path / "out", settings)
    found = open_reader(tmp_path / "out").transitions_at(np.arange(sum(LENGTHS)))
    root = {key: leaves[key].astype(np.float64) for key in (STATE, GOAL)}
    sides: tuple[tuple[str, ...], ...] = ((), ("next",))
    for above in sides:
        values = {key: leaves[above + key] for key in (STATE, GOAL)}
        for key, want in {**values, **expected(values, root)}.items():
            if want is None:
                assert above + key not in found
            else:
                np.testing.assert_allclose(found[above + key], want, rtol=1e-5, atol=1e-5)
                assert not step.startswith("cast") or found[above + key].dtype == want.dtype


def test_a_worker_that_dies_is_reported_with_function_and_rows(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=4, width=64)
    parent, rows = runs.write_plain(tmp_path / "plain"), dict[int, int]()

    class Deadly(Shuffled):
        def run(self, job: Any, tasks: Any, progress: Any) -> Any:
            rows.update(super().run(job, tasks, progress))  # how many transitions each has
            yield 0, rows[0]
            raise WorkerDiedError("A process was ended by SIGSEGV", hint="look", task=1)

    with pytest.raises(WorkerDiedError) as caught:
        make(parent, [CLIP, scaled], tmp_path / "out", settings, executor=Deadly(), chunksize=4)
    assert len(rows) > 2
    span = f"rows {rows[0]} to {rows[0] + rows[1] - 1}"
    said = f"A process was ended by SIGSEGV: step 'clip' and the function scaled on {span}"
    assert (caught.value.message, caught.value.hint) == (said, "look")


@pytest.mark.slow
def test_results_are_the_same_to_the_byte_however_they_are_made(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=4, width=5200)
    parent = runs.write_rich(tmp_path / "rich", [3, 1, 4, 2, 7, 1, 5, 2, 2, 9, 1, 1, 3])
    stages: list[Stage] = [CLIP, "normalize:observation.state,next.reward", "split:train,train=0.7"]
    ways: list[dict[str, Any]] = [
        {},
        {"chunksize": 1, "executor": Shuffled()},
        {"chunksize": 7, "executor": Shuffled(shards=True)},
        {"num_chunks": 2, "executor": LocalProcesses(2)},
    ]
    made = []
    for number, way in enumerate(ways):
        dest = tmp_path / str(number) / "out"
        make(parent, stages, dest, settings, **way)
        made.append(digests(dest))
    assert len(set(made[0].values())) > 5
    assert made == [made[0]] * len(ways)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [3])
def test_functions_give_the_same_on_any_number_of_processes(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    small_groups(monkeypatch, rows=4, width=5200)
    parent = runs.write_rich(tmp_path / "rich", [3, 1, 4, 2, 7, 1, 5, 2, 2, 9, 1, 1, 3])
    stages: list[Stage] = [pairs.root_only, pairs.branching, pairs.reshaped]
    expected = oracle.numbered(episodes_of(parent))
    for plain in (pairs.root_only, pairs.branching, pairs.plain_reshaped):
        expected = mapped(expected, plain)
    make(parent, stages, tmp_path / "one" / "out", settings)
    executor = LocalProcesses(workers)
    dest = tmp_path / "many" / "out"
    make(parent, stages, dest, settings, executor=executor, chunksize=workers)
    check(dest, expected)
    assert digests(dest) == digests(tmp_path / "one" / "out")


def tenth(td: Any) -> Any:
    td[REWARD] = td[REWARD] * 0.1
    return td


def minus_mean(td: Any) -> Any:
    td[REWARD] = td[REWARD] - td[REWARD].mean()
    return td


@pytest.mark.slow
@pytest.mark.parametrize("second", ["normalize:next.reward", "blocks"])
def test_sums_and_blocks_do_not_depend_on_chunks_or_on_time(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    lengths = np.random.default_rng(0).integers(1, 9, 24).tolist()
    parent = runs.write_plain(tmp_path / "toy", lengths)
    blocks = recipe_of([minus_mean], RunOptions(batched=13)).steps[0]
    rows = recipe_of([tenth], RunOptions(vectorize=False)).steps[0]
    stages: list[Stage] = [rows, blocks if second == "blocks" else second]
    made = []
    for number, (seconds, chunk) in enumerate([(4.0, None), (4.0, 7), (1e-3, None)]):
        monkeypatch.setattr("offline_data.pipeline.preprocess.plan.TASK_SECONDS", seconds)
        dest = tmp_path / str(number) / "out"
        found = make(parent, stages, dest, settings, chunksize=chunk)
        made.append((digests(dest), found.manifest.converter))
    assert made == [made[0]] * 3


def test_what_shows_late(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rows that are different lie in the last group, where no probe looks.

    What is to be stored twice shows only then: all is done again. What cannot be vectorised is done
    by rows where it is.
    """
    small_groups(monkeypatch, rows=4, width=60)
    parent = runs.write_plain(tmp_path / "toy", [4] * 24)
    for fn, plain, again, executor in [
        (pairs.late_root, pairs.plain_late_root, 1, Shuffled(shards=True)),
        (pairs.late_random, pairs.plain_late_random, 0, None),
    ]:
        notes, dest = runs.Notes(), tmp_path / str(again)
        found = make(parent, [fn], dest, settings, executor=executor, progress=notes, chunksize=8)
        check(dest, mapped(episodes_of(parent), plain))
        over = [note for note in notes.notes if "starting over" in note]
        assert len(over) == again, notes.notes
        (step,) = found.manifest.converter["options"]["recipe"]
        assert found.manifest.two_copies == ((("observation", "state"),) if again else ())
        notes_of = [note for note in found.manifest.notes if "stored before and after" in note]
        assert len(notes_of) == again
        by_rows = step.get("by_rows", {"rows": 0, "why": ""})
        assert (0 < by_rows["rows"] < 96) == (not again)
        why = "has another value for many rows at once, first seen near row 8"
        assert again or why in by_rows["why"]


@pytest.mark.slow
def test_several_workers_find_at_once_that_all_is_to_be_done_otherwise(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=4, width=60)
    parent = runs.write_plain(tmp_path / "toy", [4] * 24)
    notes, dest = runs.Notes(), tmp_path / "out"
    executor = LocalProcesses(3)
    stages: list[Stage] = [pairs.odd_root, pairs.late_root]
    make(parent, stages, dest, settings, executor=executor, progress=notes, chunksize=4)
    check(dest, mapped(mapped(episodes_of(parent), pairs.odd_root), pairs.plain_late_root))


def test_the_manifest(tmp_path: Path, settings: Settings) -> None:
    parent = runs.write_plain(tmp_path / "toy")
    found = make(parent, [CLIP], tmp_path / "out", settings)
    text = oracle.Plain(tmp_path / "out").manifest
    assert text["id"] == f"local:out@{text['converter']['options']['fingerprint'][:12]}"
    assert (text["source"], text["name"]) == ("local", "out")
    assert text["parents"] == ["local:toy@1"]
    assert text["layout"] == "compact"
    assert text["converter"]["adapter"] == "preprocess"
    assert text["converter"]["options"]["recipe"] == [
        {"step": "clip", "keys": ["action"], "low": -4004, "high": -1002}
    ]
    rows = sum(LENGTHS)
    audit = {"mode": "all", "rows": rows, "of": rows, "episodes": 7, "differences": 0}
    assert text["audit"] == audit
    assert (found.existed, found.path) == (False, tmp_path / "out")
    again = make(parent, [CLIP], tmp_path / "out", settings)
    assert (again.existed, again.manifest) == (True, found.manifest)


def test_a_few_rows_of_every_task_are_read_back(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch)
    parent = runs.write_plain(tmp_path / "toy")
    for mode, rows in [("none", 0), (0.01, 12)]:
        found = make(parent, [CLIP], tmp_path / str(mode), settings, audit=mode)
        assert found.manifest.audit["rows"] >= rows
        assert (found.manifest.audit["rows"] == 0) == (mode == "none")


def test_a_parent_that_was_replaced_is_read_anew(tmp_path: Path, settings: Settings) -> None:
    """What was opened before under the same path, in the same process, is another dataset now."""
    toy, middle = runs.write_plain(tmp_path / "toy"), tmp_path / "middle"
    for fn in (scaled, pairs.flags):
        make(toy, [fn], middle, settings, force=True)
        dest = tmp_path / fn.__name__
        make(middle, [CLIP], dest, settings)
        check(dest, mapped(mapped(episodes_of(toy), fn), clipped))


def test_words_of_every_table_are_taken_over(tmp_path: Path, settings: Settings) -> None:
    parent = runs.write_rich(tmp_path / "rich")
    before = oracle.Plain(parent)
    stages: list[Stage] = [scaled, "rename:observation.mission=observation.order,plan=script"]
    make(parent, stages, tmp_path / "out", settings)
    after = oracle.Plain(tmp_path / "out")
    mission = before.words("observations", "observation", "mission")
    assert after.words("observations", "observation", "order") == mission
    assert after.words("steps", "script", "words") == before.words("steps", "plan", "words")
    np.testing.assert_array_equal(
        after.leaf("steps", "script", "words"), before.leaf("steps", "plan", "words")
    )
    assert after.table()["label",].tolist() == [f"label {n % 3}" for n in range(len(LENGTHS))]


def say(folder: Path, **said: Any) -> Path:
    """Write fields into a manifest."""
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **said}))
    return folder


def test_spaces_licence_and_the_rest_of_what_the_source_said(
    tmp_path: Path, settings: Settings
) -> None:
    kept = {
        "environment": {"id": "Door-v1"},
        "about": {"author": "somebody"},
        "licence": "CC-BY-4.0",
        "citation": "Somebody, 2021",
        "dropped": [{"key": "info/video", "reason": "too large"}],
    }
    spaces = {"observation": {"type": "Box"}, "action": {"type": "Discrete"}}
    parent = runs.write_plain(tmp_path / "toy")
    say(parent, **kept, spaces=spaces, notes=["Rewards are late."])
    make(parent, ["cast:action=float64"], tmp_path / "out", settings)
    found = oracle.Plain(tmp_path / "out").manifest
    assert found["spaces"] == {"observation": {"type": "Box"}}
    assert {key: found[key] for key in kept} == kept
    assert found["notes"][0] == "Rewards are late."
    assert "Spaces of action are left out" in found["notes"][-1]


def untouched(td: Any) -> Any:
    return td


def indices_below_zero() -> Any:
    batch = toy_batch(LENGTHS)
    numbers = np.arange(sum(LENGTHS), dtype=np.int64) - 2**40
    return replace(batch, steps={**batch.steps, ("action",): numbers})


BOX = {"observation": {"type": "Dict"}, "action": {"type": "Box"}}
BELOW_ZERO = {"action": {"type": "Discrete", "n": 3, "start": -1}}


@pytest.mark.parametrize(
    ("spaces", "stage", "kept"),
    [
        (BOX, "normalize:observation.state", ["action"]),
        (BOX, "clip:action,low=-1e6,high=1e6", ["action", "observation"]),
        (BOX, "clip:action,low=-5,high=5", ["observation"]),
        (BOX, "filter:return > -1e9", ["action", "observation"]),
        (BOX, "reward_scale:0.1", ["action", "observation"]),
        (BOX, "rename:action=action.arm", ["observation"]),
        (BOX, pairs.root_only, ["action"]),
        (BOX, untouched, ["action", "observation"]),
        (BELOW_ZERO, untouched, ["action"]),
        (BELOW_ZERO, "clip:action,low=0,high=1", []),
    ],
)
def test_spaces_of_leaves_with_other_values_are_left_out(
    tmp_path: Path, settings: Settings, spaces: dict[str, Any], stage: Stage, kept: list[str]
) -> None:
    batch = toy_batch(LENGTHS) if spaces is BOX else indices_below_zero()
    write_toy(tmp_path / "toy", [batch])
    make(say(tmp_path / "toy", spaces=spaces), [stage], tmp_path / "out", settings)
    found = oracle.Plain(tmp_path / "out").manifest
    assert found["spaces"] == {name: spaces[name] for name in kept}
    assert any("are left out" in note for note in found["notes"]) == (len(kept) < len(spaces))


@pytest.mark.slow
def test_calls_are_timed_where_processes_may_save_time(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[float, float]] = []
    threads: list[int] = []

    def timed(reader: DatasetReader, plan: Plan) -> tuple[float, float]:
        found.append(seconds_of_calls(reader, plan))
        threads.append(torch.get_num_threads())
        return 0.0, 0.0

    def slow(td: Any) -> Any:
        time.sleep(0.001)
        return td

    def late(td: Any) -> Any:
        if td["index"].item() == 200:
            raise ValueError("of this row")
        return slow(td)

    monkeypatch.setattr(engine, "seconds_of_calls", timed)
    parent = runs.write_plain(tmp_path / "toy", [50] * 8)
    four = replace(settings, workers=4)
    make(parent, [CLIP], tmp_path / "quick", four, chunksize=50)
    assert not found  # whatever it finds, starting processes would take longer
    monkeypatch.setattr(engine, "_START_SECONDS", {False: 0.0, True: 0.0})
    options: dict[str, Any] = {"chunksize": 50, "vectorize": False}
    make(parent, [slow], tmp_path / "slow", four, **options)
    calls, processor = found.pop()
    assert calls > 400 * 0.001
    assert processor < calls  # it waits
    with pytest.raises(StepError, match="of this row"):
        make(parent, [late], tmp_path / "late", four, **options)
    assert found.pop() > (0.0, 0.0)
    before = torch.get_num_threads()
    make(parent, [slow], tmp_path / "three", four, **options, worker_threads=3)
    assert threads == [1, 1, 3]  # as many as they run with
    assert torch.get_num_threads() == before
