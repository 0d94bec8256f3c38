"""What is derived of episodes that end in every way, against naive loops."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.episode.fields import next_of
from offline_data.rows.derived import action_chunk, frame_stack, n_step, return_to_go
from tests import oracles_derived as oracle

STATE, IMAGE = ("observation", "state"), ("image",)
STORED = [("next", name) for name in ("terminated", "truncated", "bonus")] + [next_of(STATE)]


@pytest.mark.parametrize(
    ("n", "gamma", "layout"),
    [(1, 0.5, "compact"), (2, 0.0, "compact"), (3, 0.99, "ted"), (8, 1.0, "compact")],
)
def test_n_steps(sets: Any, n: int, gamma: float, layout: Any) -> None:
    of = sets.write(layout=layout)
    rows = of.shuffled()
    batch, index = of.gather(rows)
    found = n_step(n, gamma)(batch, index, of.storage)
    assert index.tolist() == found["index"].tolist() == rows
    want = oracle.n_step(
        of.reward, of.terminated, of.truncated, of.bounds, of.known, n=n, gamma=gamma
    )
    assert found["steps_to_next_obs"].dtype == torch.int64
    assert found["steps_to_next_obs"].tolist() == want.steps[rows].tolist()
    assert found["gamma"].dtype == torch.float32
    np.testing.assert_allclose(found["gamma"], want.gamma[rows], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found["next", "reward"][:, 0], want.reward[rows], rtol=1e-5)
    assert found["next", "original_reward"][:, 0].tolist() == of.reward[rows].tolist()
    for key in STORED:
        np.testing.assert_array_equal(found[key], of.leaf(key)[want.end[rows]], str(key))
    flags = found["next", "terminated"] | found["next", "truncated"]
    assert found["next", "done"].equal(flags)
    for key in (STATE, ("action",)):
        np.testing.assert_array_equal(found[key], of.leaf(key)[rows], str(key))


@pytest.mark.parametrize(
    ("k", "pad", "n", "layout"),
    [
        (1, "repeat", 1, "compact"),
        (3, "zero", 1, "ted"),
        (5, "repeat", 2, "compact"),
        (2, "zero", 4, "compact"),
    ],
)
def test_stacks_of_frames(sets: Any, k: int, pad: Any, n: int, layout: Any) -> None:
    of = sets.write(layout=layout)
    rows = of.shuffled()
    batch, index = of.gather(rows)
    if n > 1:
        batch = n_step(n)(batch, index, of.storage)
    after = batch[next_of(STATE)].clone()
    found = frame_stack(k, ["observation", "image"], pad=pad)(batch, index, of.storage)
    flags = of.terminated, of.truncated
    ends = oracle.n_step(of.reward, *flags, of.bounds, of.known, n=n, gamma=1).end[rows]
    for key in (STATE, IMAGE):
        frames = of.leaf(key)
        want = oracle.frame_stack(frames, of.bounds, k=k, pad=pad)[rows]
        np.testing.assert_array_equal(found[key], want)
        want = oracle.next_frame_stack(frames, of.leaf(next_of(key)), of.bounds, k=k, pad=pad)
        np.testing.assert_array_equal(found[next_of(key)], want[ends])
    np.testing.assert_array_equal(found[next_of(STATE)][:, -1], after)


@pytest.mark.parametrize(
    ("k", "pad", "layout"), [(1, "zero", "compact"), (3, "repeat", "ted"), (8, "zero", "compact")]
)
def test_chunks_of_actions(sets: Any, k: int, pad: Any, layout: Any) -> None:
    of = sets.write(layout=layout)
    rows = of.shuffled()
    found = of.derive(action_chunk(k, pad=pad), rows)
    chunks, mask = oracle.action_chunk(of.leaf(("action",)), of.bounds, k=k, pad=pad)
    assert found["chunk_mask"].dtype == torch.bool
    np.testing.assert_array_equal(found["action"], chunks[rows])
    np.testing.assert_array_equal(found["chunk_mask"], mask[rows])


@pytest.mark.parametrize(
    ("gamma", "chunk", "layout"),
    [(0.0, 1, "compact"), (0.5, 3, "ted"), (0.99, 1000, "compact"), (1.0, 3, "compact")],
)
def test_returns_to_go(
    sets: Any, monkeypatch: pytest.MonkeyPatch, gamma: float, chunk: int, layout: Any
) -> None:
    monkeypatch.setattr("offline_data.rows.derived.returns.CHUNK", chunk)
    of = sets.write(layout=layout)
    rows = of.shuffled()
    found = of.derive(return_to_go(gamma, "next.sum"), rows)["next", "sum"]
    assert found.dtype == torch.float32
    want = oracle.return_to_go(of.leaf(("next", "reward")), of.bounds, gamma=gamma)[rows]
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_rewards_are_added_up_once_by_one_thread(grown: Any, sets: Any, episode: Any) -> None:
    storage, derived = grown(sets.write([episode(50)])), return_to_go()
    rows, gate = torch.tensor([0]), threading.Barrier(4)
    batches = [storage.gather(rows) for _ in range(4)]
    read = storage.gathered

    def work(batch: Any) -> None:
        gate.wait()
        derived(batch, rows, storage)

    threads = [threading.Thread(target=work, args=(batch,)) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert storage.gathered == read + 1 + 50  # a row to see what there is, then all rows
    assert all(batch["return_to_go"].equal(batches[0]["return_to_go"]) for batch in batches)


def test_what_lies_behind_a_window_does_not_count(grown: Any, sets: Any, episode: Any) -> None:
    storage = grown(sets.write([episode(3, middle=0), episode(2)]))
    storage.content["next", "reward"] = torch.tensor([1, float("nan"), 3, 4, 5])[:, None]
    rows = torch.arange(5)
    found = n_step(4, 1.0)(storage.gather(rows), rows, storage)
    assert found["next", "reward"][[0, 2, 3, 4], 0].tolist() == [1, 3, 9, 5]


@pytest.mark.parametrize(
    ("missing", "steps"),
    [
        (["done"], [2, 1, 2, 1]),
        (["done", "truncated"], [2, 1, 2, 1]),
        (["done", "truncated", "terminated"], [4, 3, 2, 1]),
    ],
)
def test_flags_that_a_storage_lacks(
    grown: Any, sets: Any, episode: Any, missing: list[str], steps: list[int]
) -> None:
    storage = grown(sets.write([episode(4, middle=1), episode(2)]))
    for name in missing:
        del storage.content["next", name]
    rows = torch.arange(4)
    found = n_step(4, 1.0)(storage.gather(rows), rows, storage)
    assert found["steps_to_next_obs"].tolist() == steps


def test_a_buffer_with_few_leaves(sets: Any, episode: Any) -> None:
    found = sets.write([episode(3)], keys=["next.reward"]).derive(n_step(2, 1.0))
    assert found["steps_to_next_obs"].tolist() == [2, 2, 1]
    assert set(found.keys()) == {"index", "gamma", "steps_to_next_obs", "next"}
    assert set(found["next"].keys()) == {"reward", "original_reward"}
    found = sets.write([episode(3)], keys=["image"]).derive(frame_stack(2, "image"))
    assert set(found.keys()) == {"image", "index"}
    assert found["image"].shape == (3, 2, 2, 3, 4)


@pytest.mark.parametrize("dim", [0, 2, -3])
def test_frames_joined(sets: Any, episode: Any, dim: int) -> None:
    of = sets.write([episode(4)])
    apart = of.derive(frame_stack(3, ["image"]))
    found = of.derive(frame_stack(3, ["image"], cat_dim=dim))
    for key in ("image", ("next", "image")):
        want = torch.cat(list(apart[key].unbind(1)), dim % 3 + 1)
        assert found[key].shape[1 + dim % 3] == 3 * (2, 3, 4)[dim]
        assert found[key].equal(want)
        assert found[key].is_contiguous()
