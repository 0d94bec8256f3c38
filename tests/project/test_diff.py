"""`diff`: planted differences are found, at the right place and of the right size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data import api
from offline_data.analysis import diff
from offline_data.analysis.diff import (
    DatasetDiff,
    EpisodeDifferences,
    LeafDifference,
    ValueDifference,
)
from offline_data.episode import EpisodeBatch
from offline_data.episode.joining import concatenate
from offline_data.store import content
from offline_data.testing.toy import toy_batch, write_toy

LENGTHS = [3, 1, 4, 2, 5]
REWARD = ("next", "reward")


def batches(**content: Any) -> list[EpisodeBatch]:
    """One batch for each episode."""
    return [toy_batch([n], first_episode=e, text=True, **content) for e, n in enumerate(LENGTHS)]


@pytest.fixture
def compared(tmp_path: Path) -> Any:
    """Write two datasets, the second in the other layout, and compare them."""

    def run(a: list[EpisodeBatch], b: list[EpisodeBatch]) -> DatasetDiff:
        for name, layout, every in (("a", "compact", a), ("b", "ted", b)):
            kind: Any = layout
            write_toy(tmp_path / name, every, layout=kind, dataset=f"local:{name}@1", audit="none")
        return api.diff(tmp_path / "a", tmp_path / "b", progress=False)

    return run


def with_column(batch: EpisodeBatch, table: str, key: Any, values: Any) -> EpisodeBatch:
    columns: Any = {table: {**getattr(batch, table), key: np.asarray(values)}}
    return replace(batch, **columns)


def without_ids(every: list[EpisodeBatch]) -> list[EpisodeBatch]:
    return [replace(one, episodes={}) for one in every]


def test_layouts_do_not_differ(compared: Any) -> None:
    found = compared(batches(images=True), batches(images=True))
    assert found == DatasetDiff(
        "local:a@1",
        "local:b@1",
        (15, 15),
        (),
        EpisodeDifferences(5, 0, (), (), (), "id"),
        (),
        (),
    )
    assert (found.equal, bool(found)) == (True, False)


def test_added_removed_and_moved(compared: Any) -> None:
    every = batches()
    found = compared(every[:4], [every[4], every[2], every[1], every[0], every[0]])
    assert found.episodes == EpisodeDifferences(3, 3, (0, 4), (3,), (), "position")
    assert found.transitions == (10, 16)
    assert (found.values, found.leaves) == ((), ())
    by_name = {(one.key, one.figure): (one.a, one.b) for one in found.figures}
    assert by_name["length", "max"] == (4, 5)
    assert by_name["info/code", "max"] == (4003, 5006)
    assert ("length", "min") not in by_name


@pytest.mark.parametrize("block", [1 << 20, 1])
def test_changed_values(compared: Any, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff, "_BLOCK", block)
    monkeypatch.setattr(content, "_GROUP_ROWS", block)
    every, other = batches(images=True), batches(images=True)
    rewards = every[2].steps[REWARD].copy()
    rewards[1:3] += [[0.5], [-2.0]]
    other[2] = with_column(other[2], "steps", REWARD, rewards)
    states = every[3].observations["observation", "state"].copy()
    states[2, 1] = np.nan  # the one after the last action
    other[3] = with_column(other[3], "observations", ("observation", "state"), states)
    missions = every[3].observations["observation", "mission"].copy()
    missions[0] = "stay"
    other[3] = with_column(other[3], "observations", ("observation", "mission"), missions)
    other[0] = with_column(other[0], "episodes", ("seed",), [99])
    other = [other[n] for n in (3, 1, 0, 2)]
    found = compared(every, other)
    assert found.episodes == EpisodeDifferences(1, 0, (), (4,), ((0, 2), (2, 3), (3, 0)), "id")
    largest = float(np.abs(rewards - every[2].steps[REWARD]).max())
    assert found.values == (
        ValueDifference("episodes", "seed", 1, 1, 98.0),
        ValueDifference("observations", "observation/mission", 1, 1, None),
        ValueDifference("observations", "observation/state", 1, 1, None),
        ValueDifference("steps", "next/reward", 1, 2, largest),
    )
    assert not found.equal
    by_name = {(one.key, one.figure): (one.a, one.b) for one in found.figures}
    assert ("observation/state", "nan") not in by_name  # final observations count in ranges alone
    words = [
        {word for one in each for word in one.observations["observation", "mission"][one.root_rows]}
        for each in (every, other)
    ]
    assert by_name.get(("observation/mission", "distinct"), (7, 7)) == tuple(map(len, words))


def test_without_ids_and_with_other_lengths(compared: Any) -> None:
    every = batches()
    short = replace(toy_batch([2], first_episode=2, text=True), episodes={})
    short.observations["info", "code"][2] += 7  # after the last row that both have
    lost = replace(toy_batch([5], first_episode=4, text=True, unknown_final=[4]), episodes={})
    a, b = without_ids(every), without_ids(every)
    found = compared(a, [*b[:2], short, b[3], lost, b[1]])
    assert found.episodes == EpisodeDifferences(3, 0, (5,), (), ((2, 2), (4, 4)), "position")
    values = {one.key: one for one in found.values}
    assert values["length"] == ValueDifference("episodes", "length", 1, 1, 2.0)
    assert values["final_observation"].rows == 1
    # rows that both have are the same, but for the flag at the new end
    assert values["next/truncated" if "next/truncated" in values else "next/terminated"].rows == 1
    assert values["info/code"] == ValueDifference("observations", "info/code", 1, 1, 7.0)
    assert set(values) <= {
        "info/code",
        "length",
        "final_observation",
        "next/terminated",
        "next/reward",
    }


def test_schema(compared: Any) -> None:
    every, other = batches(), batches()
    for n, one in enumerate(other):
        narrow = one.steps[REWARD].astype(np.float32)
        rest = {key: column for key, column in one.steps.items() if key != ("action",)}
        steps = {**rest, REWARD: narrow, ("action", "arm"): narrow}
        codes = one.observations["info", "code"]
        seen = {**one.observations, ("observation", "mission"): codes}
        other[n] = replace(one, steps=steps, observations=seen)
    found = compared(every, other)
    assert found.leaves == (
        LeafDifference("observations", "observation/mission", "text", "int64"),
        LeafDifference("steps", "action", "float32[1]", None),
        LeafDifference("steps", "action/arm", None, "float32[1]"),
        LeafDifference("steps", "next/reward", "float64[1]", "float32[1]"),
    )
    # the rest is the same
    assert (found.episodes.same, found.values, found.equal) == (5, (), False)


def test_random_changes_are_all_found(compared: Any) -> None:
    random = np.random.default_rng(0)
    batch = toy_batch([3] * 40, text=True)
    rows = np.sort(random.choice(120, 30, replace=False))
    actions = batch.steps["action",].copy()
    actions[rows] += random.uniform(1, 2, (30, 1)).astype(np.float32)
    largest = np.abs(actions.astype(float) - batch.steps["action",]).max()
    found = compared([batch], [with_column(batch, "steps", ("action",), actions)])
    numbers = np.unique(rows // 3).tolist()
    assert found.episodes.changed == tuple((n, n) for n in numbers)
    assert found.values == (ValueDifference("steps", "action", len(numbers), 30, largest),)


def test_episodes_in_another_order_have_the_same_statistics(compared: Any) -> None:
    every = batches()
    found = compared([concatenate(every)], every[::-1])
    assert (found.episodes.same, found.episodes.moved, found.figures) == (5, 4, ())
    assert not found.equal


def test_changed_episodes_in_another_order(compared: Any) -> None:
    every = [toy_batch([2], first_episode=e) for e in range(5)]
    other = [with_column(one, "steps", ("action",), one.steps["action",] + 1) for one in every]
    found = compared(every, [other[n] for n in (0, 2, 1, 3, 4)])
    assert found.episodes.changed == ((0, 0), (1, 2), (2, 1), (3, 3), (4, 4))
    assert found.values == (ValueDifference("steps", "action", 5, 10, 1.0),)
