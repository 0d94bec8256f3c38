"""Every transition of a new dataset is what plain Python makes of it, however it is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.config import Settings
from offline_data.preprocess.executors.local import LocalProcesses
from offline_data.preprocess.spec import Calling, Stage, function_step
from offline_data.store.layout import LayoutName
from offline_data.store.verify import verify
from tests.preprocess.oracle import Row, check, digests, episodes_of, mapped, numbered
from tests.preprocess.pairs import (
    CLIP,
    LAYOUTS,
    branching,
    clipped,
    late_random,
    late_root,
    odd_root,
    plain_branching,
    plain_late_random,
    plain_late_root,
    plain_odd_root,
    plain_reshaped,
    plain_root_only,
    plain_scaled,
    reshaped,
    root_only,
    scaled,
)
from tests.preprocess.runs import (
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
        ("compact", "ted", False),
        ("ted", "compact", False),
        ("ted", "ted", False),
        ("compact", "ted", True),
        ("ted", "compact", True),
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
    ("fn", "plain", "run", "twice"),
    [
        (scaled, plain_scaled, "vectorised", []),
        (branching, plain_branching, "rows", []),
        (root_only, plain_root_only, "vectorised", ["observation/state"]),
        (reshaped, plain_reshaped, None, []),
    ],
)
@pytest.mark.parametrize("source", LAYOUTS)
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
        {"num_chunks": 2, "executor": Shuffled()},
        {"chunksize": 5, "executor": LocalProcesses(2)},
        {"num_chunks": 3, "executor": LocalProcesses(3)},
    ]
    made = []
    for number, way in enumerate(ways):
        dest = tmp_path / str(number) / "out"
        make(parent, stages, dest, settings, **way)
        made.append(digests(dest))
    assert len(set(made[0].values())) > 5
    assert made == [made[0]] * len(ways)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3, 7])
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


@pytest.mark.parametrize("second", ["normalize:next.reward", "blocks"])
def test_sums_and_blocks_do_not_depend_on_chunks_or_on_time(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    lengths = np.random.default_rng(0).integers(1, 9, 90).tolist()
    parent = write_plain(tmp_path / "toy", lengths)
    blocks = function_step(minus_mean, Calling(batched=50))
    rows = function_step(tenth, Calling(vectorize=False))
    stages: list[Stage] = [rows, blocks if second == "blocks" else second]
    made = []
    for number, (seconds, chunk) in enumerate([(4.0, None), (4.0, 1), (4.0, 37), (1e-3, None)]):
        monkeypatch.setattr("offline_data.preprocess.preparing.TASK_SECONDS", seconds)
        dest = tmp_path / str(number) / "out"
        found = make(parent, stages, dest, settings, chunksize=chunk)
        made.append((digests(dest), found.manifest.converter))
    assert made == [made[0]] * 4


def test_what_shows_late(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rows that are different lie in the last group, where no probe looks.

    What is to be stored twice shows only then: all is done again. What cannot be vectorised is done
    by rows where it is.
    """
    small_groups(monkeypatch, rows=4, width=60)
    lengths = [4] * 60
    parent = write_plain(tmp_path / "toy", lengths)
    for name, fn, plain, again in [
        ("root", late_root, plain_late_root, 1),
        ("random", late_random, plain_late_random, 0),
    ]:
        for executor in (None, Shuffled(shards=True)):
            notes, dest = Notes(), tmp_path / f"{name}-{executor is None}"
            found = make(
                parent, [fn], dest, settings, executor=executor, progress=notes, chunksize=8
            )
            check(dest, mapped(episodes_of(parent), plain))
            over = [note for note in notes.notes if "starting over" in note]
            assert len(over) == again, notes.notes
            (step,) = found.manifest.converter["options"]["recipe"]
            by_rows = step.get("by_rows", {"rows": 0, "why": ""})
            assert (0 < by_rows["rows"] < 240) == (not again)
            assert (
                again
                or "has another value for many rows at once, first seen near row 22"
                in by_rows["why"]
            )


def test_a_revision_in_a_first_pass(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=4, width=60)
    parent = write_plain(tmp_path / "toy", [4] * 60)
    notes, executor = Notes(), Shuffled()
    stages: list[Stage] = [late_root, "filter:return > 6000", "filter:return < 22000"]
    make(parent, stages, tmp_path / "out", settings, executor=executor, progress=notes)
    assert [note.partition(":")[0] for note in notes.notes] == ["starting over"]
    episodes = mapped(episodes_of(parent), plain_late_root)
    returns = [sum(float(row["next", "reward"][0]) for row in one.rows) for one in episodes]
    kept = [one for one, r in zip(episodes, returns, strict=True) if 6000 < r < 22000]
    assert 10 < len(kept) < 50
    check(tmp_path / "out", kept)


@pytest.mark.slow
def test_several_workers_find_at_once_that_all_is_to_be_done_otherwise(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=4, width=60)
    parent = write_plain(tmp_path / "toy", [4] * 60)
    notes, dest = Notes(), tmp_path / "out"
    executor = LocalProcesses(3)
    stages: list[Stage] = [odd_root, late_root]
    make(parent, stages, dest, settings, executor=executor, progress=notes, chunksize=4)
    check(dest, mapped(mapped(episodes_of(parent), plain_odd_root), plain_late_root))
