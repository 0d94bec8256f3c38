"""Numbers in the batches of a view are the view's own, whatever draws, mixes or derives them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.buffers.dataset import Dataset, DatasetView
from offline_data.rows.derived import (
    action_chunk,
    frame_stack,
    n_step,
    relabel,
    return_to_go,
)
from offline_data.rows.samplers import (
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from offline_data.testing.toy import toy_batch, write_toy
from tests import oracles_derived as oracle

from .conftest import LENGTHS, UNKNOWN, action, rows_of, step_of

STATE = ("observation", "state")

VIEWS: dict[str, Callable[[Any], Any]] = {
    "episodes": lambda ds: ds.episodes_at([30, 2, 17, 7]),
    "an episode twice": lambda ds: ds.episodes_at([12, 3, 12]),
    "a range": lambda ds: ds.subset(slice(11, 97)),
    "rows": lambda ds: ds.subset([5, 6, 7, 100, 99, 3, 4, 8, 40, 41, 3]),
    "a view of a view": lambda ds: ds.filter(lambda e: e["length"] > 3).subset(slice(4, 60)),
    "episodes of rows": lambda ds: ds.subset(slice(9, 120)).episodes_at([6, 1, -1, 0]),
    "a slice of a slice": lambda ds: ds.subset(slice(3, 99)).subset(
        [i for i in range(60) if i % 5]
    ),
    "a split of a view": lambda ds: ds.subset(slice(5, 140)).split(a=0.6, b=0.4, seed=2)["b"],
}


@pytest.fixture(params=VIEWS)
def view(request: pytest.FixtureRequest, many: Dataset) -> Any:
    """A view of each kind."""
    return VIEWS[request.param](many)


def check(view: Any, batch: Any) -> None:
    """Compare every row of a batch with the row of the view that it says it is."""
    index, rows = batch["index"].reshape(-1), batch["dataset_index"].reshape(-1)
    steps = [step_of(row) for row in rows.tolist()]
    assert torch.equal(view.rows[index], rows)
    assert batch["action"].reshape(-1).tolist() == [action(*step) for step in steps]
    assert torch.equal(view[index]["action"].reshape(-1), batch["action"].reshape(-1))
    if "episode" in batch.keys():  # noqa: SIM118
        assert batch["dataset_episode"].reshape(-1).tolist() == [episode for episode, _ in steps]
        named = view.episodes["id"][batch["episode"].reshape(-1)]
        assert torch.equal(named, batch["dataset_episode"].reshape(-1))


def test_rows_by_number(view: DatasetView) -> None:
    check(view, view[:])
    assert view[:]["index"].tolist() == list(range(len(view)))
    for index in (0, -1, slice(1, 7, 2), [2, 0, 2], torch.tensor([[0, 1], [2, 0]])):
        check(view, view[index])


def test_the_table_of_episodes_says_where_they_are(view: DatasetView) -> None:
    episode = view[:]["episode"].numpy()
    table = view.episodes
    assert table.length.tolist() == np.bincount(episode, minlength=len(table)).tolist()
    assert int(table.length.sum()) == len(view)
    first = [int(np.flatnonzero(episode == number)[0]) for number in range(len(table))]
    assert table.start.tolist() == first
    assert first == sorted(first)


def test_whole_episodes_as_rows(toy: Path) -> None:
    view = Dataset(toy, split_trajs=True).episodes_at([11, 2, 30])
    for batch in (view[:], view.subset([1, 0, 2]).subset([1, 0, 2])[:]):
        assert batch["index"].tolist() == [[row] * max(LENGTHS) for row in range(3)]
        for leaf, numbers in (("traj_ids", [0, 1, 2]), ("episode", [0, 1, 2])):
            assert batch[leaf][:, 0].tolist() == numbers
        assert batch["dataset_episode"][:, 0].tolist() == [11, 2, 30]
        assert batch["dataset_index"][batch["mask"]].tolist() == rows_of(11, 2, 30)
        padding = ~batch["mask"]
        assert not any(batch[leaf][padding].any() for leaf in ("dataset_index", "episode"))
    sizes = [LENGTHS[e] for e in (11, 2, 30)]
    assert view.episodes.start.tolist() == [0, sizes[0], sizes[0] + sizes[1]]
    assert view.manifest.counts["transitions"] == sum(sizes)
    assert view.valid_rows.tolist() == [0, 1, 2]


def test_counts_are_the_views(view: DatasetView, many: Dataset) -> None:
    rows = view.rows.tolist()
    last = {rows_of(e)[-1]: e for e in range(len(LENGTHS))}
    ends = [last[row] for row in rows if row in last]
    unknown = [e for e in ends if e in UNKNOWN]
    assert view.manifest.counts == {
        "transitions": len(rows),
        "episodes": len({step_of(row)[0] for row in rows}),
        "valid_transitions": len(rows) - sum(e % 2 for e in unknown),
        "terminated": sum(e % 2 == 0 for e in ends),
        "truncated": sum(e % 2 for e in ends),
        "without_final_observation": len(unknown),
    }
    assert view.manifest.counts["valid_transitions"] == len(view.valid_rows)
    whole = many.subset(slice(None))
    assert whole.manifest == many.manifest


SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomSampler(seed=0),
    "without replacement": lambda: SamplerWithoutReplacement(seed=0),
    "slices": lambda: SliceSampler(slice_len=2, seed=0),
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(slice_len=2, seed=0),
    "prioritized": lambda: PrioritizedSampler(200, 0.7, 0.5, seed=0),
    "prioritized slices": lambda: PrioritizedSliceSampler(200, 0.7, 0.5, slice_len=2, seed=0),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("kind", ["an episode twice", "a slice of a slice"])
def test_samplers(many: Dataset, kind: str, name: str) -> None:
    view = VIEWS[kind](many).subset(slice(None), sampler=SAMPLERS[name]())
    for _ in range(5):
        batch, info = view.sample(4, return_info=True)
        check(view, batch)
        assert torch.equal(info["index"], batch["index"])
    check(view, next(iter(view)))
    other = view.subset(slice(None), sampler=SAMPLERS[name]())
    other.load_state_dict(view.state_dict())
    for _ in range(3):
        expected, found = view.sample(4), other.sample(4)
        assert torch.equal(expected["index"], found["index"])
        check(other, found)


DERIVED: dict[str, Any] = {
    "n": n_step(3, 0.5),
    "stack": frame_stack(3, [STATE]),
    "chunk": action_chunk(3),
    "to go": return_to_go(0.9),
    "goals": relabel("future", 1, goal_key="goal", achieved_key=STATE, seed=0),
}


@pytest.mark.parametrize("name", DERIVED)
def test_what_is_derived_over_views(toy: Path, name: str) -> None:
    for make in VIEWS.values():
        plain = make(Dataset(toy, 4))
        view = make(Dataset(toy, 4, derived=[DERIVED[name]]))
        rows, truth = view.rows.tolist(), plain[:]
        bounds, known = runs_of(rows)
        got = view[:]
        assert got["index"].tolist() == list(range(len(view)))
        assert got["dataset_index"].tolist() == rows
        ended, cut = (truth["next", flag].numpy() for flag in ("terminated", "truncated"))
        reward, state = truth["next", "reward"].numpy(), truth[STATE].numpy()
        if name == "n":
            want = oracle.n_step(reward, ended, cut, bounds, known, n=3, gamma=0.5)
            assert got["steps_to_next_obs"].tolist() == want.steps.tolist()
            np.testing.assert_allclose(got["next", "reward"][:, 0], want.reward, rtol=1e-12)
            after = truth["next", "observation", "state"].numpy()[want.end]
            np.testing.assert_array_equal(got["next", "observation", "state"], after)
        elif name == "stack":
            after = truth["next", "observation", "state"].numpy()
            np.testing.assert_array_equal(got[STATE], oracle.frame_stack(state, bounds, k=3))
            stack = oracle.next_frame_stack(state, after, bounds, k=3)
            np.testing.assert_array_equal(got["next", "observation", "state"], stack)
        elif name == "chunk":
            chunk, mask = oracle.action_chunk(truth["action"].numpy(), bounds, k=3)
            np.testing.assert_array_equal(got["action"], chunk)
            np.testing.assert_array_equal(got["chunk_mask"], mask)
        elif name == "to go":
            want_to_go = oracle.return_to_go(reward, bounds, gamma=0.9).astype(np.float32)
            np.testing.assert_allclose(got["return_to_go"], want_to_go, rtol=1e-6)
        else:
            after = truth["next", "observation", "state"].numpy()
            for row in range(len(view)):
                allowed = oracle.goal_rows("future", row, bounds, known)
                goals = [after[one].tolist() for one in allowed] or [state[row].tolist()]
                assert got["goal"][row].tolist() in goals


def runs_of(rows: list[int]) -> tuple[list[tuple[int, int]], list[bool]]:
    """Cut rows of the dataset where the next does not follow in the same episode."""
    cuts = [
        place
        for place in range(len(rows))
        if not place or rows[place] != rows[place - 1] + 1 or step_of(rows[place])[1] == 0
    ]
    bounds = list(zip(cuts, [*cuts[1:], len(rows)], strict=True))
    unknown = {rows_of(e)[-1] for e in UNKNOWN}
    return bounds, [rows[stop - 1] not in unknown for _, stop in bounds]


def test_counts_of_flags_inside_episodes(tmp_path: Path) -> None:
    toy = toy_batch([5, 4])
    toy.steps["next", "terminated"][2] = True
    write_toy(tmp_path / "toy", [toy])
    ds = Dataset(tmp_path / "toy")
    assert ds.subset(slice(1, 4)).manifest.counts["terminated"] == 1
    assert ds.subset(slice(3, 7)).manifest.counts["terminated"] == 1
    assert ds.subset([2, 2, 4, 8]).manifest.counts["terminated"] == 3
