"""Datasets made of datasets, every value compared with a plain loop in Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import WorkerDiedError
from offline_data.pipeline.jobs.executors import LocalProcesses
from offline_data.pipeline.preprocess.job import RunOptions, Stage, recipe_of
from offline_data.store.layout import LayoutName
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch, write_toy
from tests.pipeline.preprocess import oracle
from tests.pipeline.preprocess.oracle import Row, check, cut, digests, episodes_of, mapped, numbered
from tests.pipeline.preprocess.pairs import (
    CLIP,
    LAYOUTS,
    branching,
    clipped,
    flags,
    late_random,
    late_root,
    odd_root,
    plain_branching,
    plain_flags,
    plain_late_random,
    plain_late_root,
    plain_odd_root,
    plain_reshaped,
    plain_root_only,
    plain_scaled,
    plain_shorter,
    reshaped,
    root_only,
    scaled,
    shorter,
)
from tests.pipeline.preprocess.runs import (
    LENGTHS,
    Notes,
    Shuffled,
    make,
    small_groups,
    write_plain,
    write_rich,
)


@pytest.mark.parametrize(
    ("source", "layout", "shards"),
    [
        ("compact", "compact", False),
        ("ted", "compact", False),
        ("ted", "ted", False),
        ("compact", "ted", True),
    ],
)
def test_every_kind_of_leaf_in_both_layouts(
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    source: LayoutName,
    layout: LayoutName,
    shards: bool,
) -> None:
    small_groups(monkeypatch, rows=4, width=5200)
    parent = write_rich(tmp_path / "rich", layout=source)
    executor = Shuffled(shards=shards)
    make(parent, [CLIP], tmp_path / "out", settings, executor=executor, layout=layout)
    assert len(executor.ran) > 2
    check(tmp_path / "out", mapped(episodes_of(parent), clipped))
    assert verify(tmp_path / "out") == ()
    assert not [path for path in tmp_path.iterdir() if path.name not in {"rich", "out", "root"}]


@pytest.mark.parametrize(
    ("fn", "plain", "run", "twice", "source"),
    [
        (scaled, plain_scaled, "vectorised", [], "compact"),
        (branching, plain_branching, "rows", [], "ted"),
        (root_only, plain_root_only, "vectorised", ["observation/state"], "compact"),
        (reshaped, plain_reshaped, None, [], "ted"),
    ],
)
def test_functions_of_rows(
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    fn: Callable[[Any], Any],
    plain: Callable[[Row], Row],
    run: str | None,
    twice: list[str],
    source: LayoutName,
) -> None:
    small_groups(monkeypatch, rows=5, width=5200)
    parent = write_rich(tmp_path / "rich", layout=source)
    expected = mapped(numbered(episodes_of(parent)), plain)
    for layout in LAYOUTS:
        found = make(parent, [fn], tmp_path / layout, settings, chunksize=3, layout=layout)
        check(tmp_path / layout, expected)
        step = found.manifest.converter["options"]["recipe"][0]
        assert step["run"] == (run or step["run"])
        assert ["/".join(key) for key in found.manifest.two_copies] == step["two_copies"] == twice


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
    parent, rows = write_plain(tmp_path / "plain"), dict[int, int]()

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
def test_what_two_copies_were_made_of_can_be_preprocessed_again(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=5, width=5200)
    parent = write_rich(tmp_path / "rich")
    for layout in LAYOUTS:
        first, second = tmp_path / f"{layout}1", tmp_path / f"{layout}2"
        make(parent, [root_only], first, settings, layout=layout)
        found = make(first, [CLIP, scaled], second, settings)
        expected = mapped(episodes_of(parent), plain_root_only)
        check(second, mapped(mapped(expected, clipped), plain_scaled))
        assert found.manifest.two_copies == (("observation", "state"),)
        assert found.manifest.parents == (f"local:{layout}1@{found.manifest.parents[0][-12:]}",)


@pytest.mark.slow
def test_results_are_the_same_to_the_byte_however_they_are_made(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=4, width=5200)
    parent = write_rich(tmp_path / "rich", [3, 1, 4, 2, 7, 1, 5, 2, 2, 9, 1, 1, 3])
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
    parent = write_rich(tmp_path / "rich", [3, 1, 4, 2, 7, 1, 5, 2, 2, 9, 1, 1, 3])
    stages: list[Stage] = [root_only, branching, reshaped]
    expected = numbered(episodes_of(parent))
    for plain in (plain_root_only, plain_branching, plain_reshaped):
        expected = mapped(expected, plain)
    make(parent, stages, tmp_path / "one" / "out", settings)
    executor = LocalProcesses(workers)
    dest = tmp_path / "many" / "out"
    make(parent, stages, dest, settings, executor=executor, chunksize=workers)
    check(dest, expected)
    assert digests(dest) == digests(tmp_path / "one" / "out")


def tenth(td: Any) -> Any:
    td["next", "reward"] = td["next", "reward"] * 0.1
    return td


def minus_mean(td: Any) -> Any:
    td["next", "reward"] = td["next", "reward"] - td["next", "reward"].mean()
    return td


@pytest.mark.slow
@pytest.mark.parametrize("second", ["normalize:next.reward", "blocks"])
def test_sums_and_blocks_do_not_depend_on_chunks_or_on_time(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    lengths = np.random.default_rng(0).integers(1, 9, 24).tolist()
    parent = write_plain(tmp_path / "toy", lengths)
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
    parent = write_plain(tmp_path / "toy", [4] * 24)
    for fn, plain, again, executor in [
        (late_root, plain_late_root, 1, Shuffled(shards=True)),
        (late_random, plain_late_random, 0, None),
    ]:
        notes, dest = Notes(), tmp_path / str(again)
        found = make(parent, [fn], dest, settings, executor=executor, progress=notes, chunksize=8)
        check(dest, mapped(episodes_of(parent), plain))
        over = [note for note in notes.notes if "starting over" in note]
        assert len(over) == again, notes.notes
        (step,) = found.manifest.converter["options"]["recipe"]
        by_rows = step.get("by_rows", {"rows": 0, "why": ""})
        assert (0 < by_rows["rows"] < 96) == (not again)
        why = "has another value for many rows at once, first seen near row 8"
        assert again or why in by_rows["why"]


@pytest.mark.slow
def test_several_workers_find_at_once_that_all_is_to_be_done_otherwise(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=4, width=60)
    parent = write_plain(tmp_path / "toy", [4] * 24)
    notes, dest = Notes(), tmp_path / "out"
    executor = LocalProcesses(3)
    stages: list[Stage] = [odd_root, late_root]
    make(parent, stages, dest, settings, executor=executor, progress=notes, chunksize=4)
    check(dest, mapped(mapped(episodes_of(parent), plain_odd_root), plain_late_root))


@pytest.mark.parametrize("frames", [3, 5, 1000])
def test_first_frames(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    small_groups(monkeypatch, rows=4, width=100)
    for layout in LAYOUTS:
        parent = write_plain(tmp_path / layout, LENGTHS, unknown_final=[3], text=True)
        found = make(
            parent, [CLIP, scaled], tmp_path / f"{layout}-out", settings, num_frames=frames
        )
        episodes = mapped(mapped(cut(episodes_of(parent), frames), clipped), plain_scaled)
        check(tmp_path / f"{layout}-out", episodes)
        inside = frames not in np.cumsum(LENGTHS) and frames < sum(LENGTHS)
        assert any("is cut after" in note for note in found.manifest.notes) == inside


def test_choices_before_between_and_after_maps(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=4, width=5200)
    parent = write_rich(tmp_path / "rich")
    stages: list[Stage] = [
        "filter:length > 1",
        scaled,
        "filter:return > 9000 and label != 'label 1'",
        root_only,
        "subsample:every=2",
    ]
    make(parent, stages, tmp_path / "out", settings, executor=Shuffled())
    episodes = [one for one in episodes_of(parent) if len(one.rows) > 1]
    episodes = mapped(episodes, plain_scaled)
    returns = [sum(float(row["next", "reward"][0]) for row in one.rows) for one in episodes]
    kept = zip(episodes, returns, strict=True)
    episodes = [one for one, r in kept if r > 9000 and one.extras["label",] != "label 1"]
    episodes = mapped(episodes, plain_root_only)[::2]
    assert 0 < len(episodes) < 4
    check(tmp_path / "out", episodes)


def alike(td: Any) -> Any:
    """Let episodes of one length and one ending be the same."""
    for place in (td, td["next"]):
        place["observation", "state"] = place["observation", "state"] * 0 + 3
        place["info", "code"] = place["info", "code"] * 0 + 5
    td["action"], td["next", "reward"] = td["action"] * 0 + 7, td["next", "reward"] * 0 + 9
    return td


def plain_alike(row: Row) -> Row:
    fixed = {"state": 3, "code": 5, "action": 7, "reward": 9}
    return {k: np.full_like(v, fixed[k[-1]]) if k[-1] in fixed else v for k, v in row.items()}


def test_episodes_that_have_become_the_same(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=4, width=60)
    parent = write_plain(tmp_path / "toy", [3, 1, 3, 1, 2, 3, 3, 2, 2])
    stages: list[Stage] = ["dedupe", alike, "dedupe", scaled]
    make(parent, stages, tmp_path / "out", settings, executor=Shuffled())
    first: dict[tuple[int, int], oracle.Episode] = {}
    for one in mapped(episodes_of(parent), plain_alike):
        first.setdefault((len(one.rows), one.number % 2), one)
    assert [one.number for one in first.values()] == [0, 1, 4, 5, 7]
    check(tmp_path / "out", mapped(list(first.values()), plain_scaled))


def test_episodes_that_get_shorter_and_go(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=2, width=5200)
    parent = write_rich(tmp_path / "rich", [3, 1, 1, 1, 4, 2, 7, 1, 5])
    stages: list[Stage] = [
        "filter:number != 8",
        recipe_of([shorter], RunOptions(by="episode")).steps[0],
        "filter:length > 1",
        scaled,
    ]
    for layout in LAYOUTS:
        executor = Shuffled(shards=layout == "ted")
        dest = tmp_path / layout
        make(parent, stages, dest, settings, executor=executor, chunksize=2, layout=layout)
        assert len(executor.ran) > 3
        episodes = plain_shorter([one for one in episodes_of(parent) if one.number != 8])
        check(dest, mapped([one for one in episodes if len(one.rows) > 1], plain_scaled))
        assert verify(dest) == ()


def test_numbers_that_are_none(tmp_path: Path, settings: Settings) -> None:
    batch = toy_batch([2, 3])
    batch.steps["next", "reward"][3] = np.nan
    batch.observations["observation", "state"][2, 1] = -np.inf
    batch.observations["observation", "state"][1, 0] = -0.0
    write_toy(tmp_path / "toy", [batch])
    parent = tmp_path / "toy"
    ways: dict[str, list[Stage]] = {"step": [CLIP], "fn": [doubled]}
    for name, stages in ways.items():
        found = make(parent, stages, tmp_path / name, settings, executor=Shuffled(shards=True))
        plain = clipped if name == "step" else plain_doubled
        check(tmp_path / name, mapped(episodes_of(parent), plain))
        assert dict(found.manifest.non_finite) == {
            "next/reward": {"nan": 1, "inf": 0},
            "observation/state": {"nan": 0, "inf": 1},
        }


def doubled(td: Any) -> Any:
    for place in (td, td["next"]):
        place["observation", "state"] = place["observation", "state"] * 2
    return td


def plain_doubled(row: Row) -> Row:
    for key in (("observation", "state"), ("next", "observation", "state")):
        row[key] = row[key] * 2
    return row


def test_the_manifest(tmp_path: Path, settings: Settings) -> None:
    parent = write_plain(tmp_path / "toy")
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
    parent = write_plain(tmp_path / "toy")
    for mode, rows in [("none", 0), (0.01, 12)]:
        found = make(parent, [CLIP], tmp_path / str(mode), settings, audit=mode)
        assert found.manifest.audit["rows"] >= rows
        assert (found.manifest.audit["rows"] == 0) == (mode == "none")


def test_a_parent_that_was_replaced_is_read_anew(tmp_path: Path, settings: Settings) -> None:
    """What was opened before under the same path, in the same process, is another dataset now."""
    toy, middle = write_plain(tmp_path / "toy"), tmp_path / "middle"
    made = {}
    for fn, plain in [(scaled, plain_scaled), (flags, plain_flags)]:
        make(toy, [fn], middle, settings, force=True)
        made[fn.__name__] = tmp_path / fn.__name__
        make(middle, [CLIP], made[fn.__name__], settings)
        check(made[fn.__name__], mapped(mapped(episodes_of(toy), plain), clipped))


def silent(td: Any) -> Any:
    td["observation", "mission"] = td["observation", "mission"] * 0
    return td


def plain_silent(row: Row) -> Row:
    row["observation", "mission"] = row["observation", "mission"] * np.int32(0)
    return row


def test_text_that_is_told_apart_keeps_its_words(tmp_path: Path, settings: Settings) -> None:
    parent = write_rich(tmp_path / "rich")
    words = oracle.Plain(parent).words("observations", "observation", "mission")
    for layout in LAYOUTS:
        make(parent, [silent], tmp_path / layout, settings, layout=layout)
        plain = oracle.Plain(tmp_path / layout)
        table = "ted" if layout == "ted" else "steps"
        for key in (("observation", "mission"), ("next", "observation", "mission")):
            assert plain.words(table, *key) == words
        again = tmp_path / f"{layout}-again"
        make(tmp_path / layout, [CLIP], again, settings)
        assert oracle.Plain(again).words(table, "next", "observation", "mission") == words
        check(again, mapped(mapped(episodes_of(parent), plain_silent), clipped))


def test_words_of_every_table_are_taken_over(tmp_path: Path, settings: Settings) -> None:
    parent = write_rich(tmp_path / "rich")
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


def test_spaces_licence_and_the_rest_of_what_the_source_said(
    tmp_path: Path, settings: Settings
) -> None:
    parent = write_plain(tmp_path / "toy")
    path = parent / "manifest.json"
    said = {
        "spaces": {"observation": {"type": "Box"}, "action": {"type": "Discrete"}},
        "environment": {"id": "Door-v1"},
        "about": {"author": "somebody"},
        "licence": "CC-BY-4.0",
        "citation": "Somebody, 2021",
        "notes": ["Rewards are late."],
        "dropped": [{"key": "info/video", "reason": "too large"}],
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), **said}))
    make(parent, ["cast:action=float64"], tmp_path / "out", settings)
    found = oracle.Plain(tmp_path / "out").manifest
    assert found["spaces"] == {"observation": {"type": "Box"}}
    assert {key: found[key] for key in said if key not in {"spaces", "notes"}} == {
        key: value for key, value in said.items() if key not in {"spaces", "notes"}
    }
    assert found["notes"][0] == "Rewards are late."
    assert "Spaces of action are left out" in found["notes"][-1]


def test_functions_that_leave_out_all_they_may(tmp_path: Path, settings: Settings) -> None:
    def bare(td: Any) -> Any:
        return td.select("done")

    parent = write_plain(tmp_path / "toy")
    needed = {"action", "reward", "done", "terminated", "truncated"}
    wanted = mapped(
        episodes_of(parent), lambda row: {k: v for k, v in row.items() if k[-1] in needed}
    )
    for layout in LAYOUTS:
        found = make(parent, [bare], tmp_path / layout, settings, layout=layout)
        check(tmp_path / layout, wanted)
        assert "not returned by bare, kept as they were" in found.manifest.notes[0]
        make(tmp_path / layout, [CLIP], tmp_path / f"{layout}2", settings)
        check(tmp_path / f"{layout}2", mapped(wanted, clipped))


def halved(td: Any) -> Any:
    td["observation", "state"] = td["observation", "state"] / 2
    return td


def untouched(td: Any) -> Any:
    return td


def test_indices_below_zero_have_a_space(tmp_path: Path, settings: Settings) -> None:
    batch = toy_batch(LENGTHS)
    numbers = np.arange(sum(LENGTHS), dtype=np.int64) - 2**40
    steps = {**batch.steps, ("action",): numbers}
    write_toy(tmp_path / "toy", [replace(batch, steps=steps)])
    path = tmp_path / "toy" / "manifest.json"
    spaces = {"action": {"type": "Discrete", "n": 3, "start": -1}}
    path.write_text(json.dumps({**json.loads(path.read_text()), "spaces": spaces}))
    for name, stage, kept in (("same", untouched, spaces), ("cut", "clip:action,low=0,high=1", {})):
        make(tmp_path / "toy", [stage], tmp_path / name, settings)
        assert oracle.Plain(tmp_path / name).manifest["spaces"] == kept


@pytest.mark.parametrize(
    ("stage", "kept"),
    [
        ("normalize:observation.state", ["action"]),
        ("clip:action,low=-1e6,high=1e6", ["action", "observation"]),
        ("clip:action,low=-5,high=5", ["observation"]),
        ("filter:return > -1e9", ["action", "observation"]),
        ("reward_scale:0.1", ["action", "observation"]),
        ("rename:action=action.arm", ["observation"]),
        (halved, ["action"]),
        (untouched, ["action", "observation"]),
    ],
)
def test_spaces_of_leaves_with_other_values_are_left_out(
    tmp_path: Path, settings: Settings, stage: Stage, kept: list[str]
) -> None:
    parent = write_plain(tmp_path / "toy")
    path = parent / "manifest.json"
    spaces = {"observation": {"type": "Dict"}, "action": {"type": "Box"}}
    path.write_text(json.dumps({**json.loads(path.read_text()), "spaces": spaces}))
    make(parent, [stage], tmp_path / "out", settings)
    found = oracle.Plain(tmp_path / "out").manifest
    assert sorted(found["spaces"]) == kept
    left_out = sorted({*spaces} - {*kept})
    assert any("are left out" in note for note in found["notes"]) == bool(left_out)
