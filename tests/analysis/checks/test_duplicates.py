"""Copies of episodes, near copies, and episodes that several datasets have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from offline_data.analysis.checks.block import RowBlock
from offline_data.analysis.checks.rules.duplicates import (
    NearDuplicateEpisodes,
    _rates,
    _rounded_hashes,
)
from offline_data.episode import EpisodeBatch
from offline_data.store.encoded import EncodedColumn
from offline_data.store.reader import open_reader
from tests.analysis.checks.planted import Write, changed, clean_batch, found
from tests.pictures import JPEG, pictures, written

LENGTHS = (60, 40, 70, 50)


def rearranged(batch: EpisodeBatch, order: Sequence[int]) -> EpisodeBatch:
    """Return the episodes of these numbers, some more than once."""
    starts = np.cumsum(batch.lengths) - batch.lengths
    rows = np.concatenate([np.arange(starts[e], starts[e] + batch.lengths[e]) for e in order])
    seen = np.concatenate(
        [np.arange(starts[e] + e, starts[e] + e + batch.lengths[e] + 1) for e in order]
    )
    return EpisodeBatch(
        lengths=batch.lengths[list(order)],
        steps={key: values[rows] for key, values in batch.steps.items()},
        observations={key: values[seen] for key, values in batch.observations.items()},
        final_observation=batch.final_observation[list(order)],
    )


def joined(first: EpisodeBatch, second: EpisodeBatch) -> EpisodeBatch:
    """Return the episodes of both."""
    return EpisodeBatch(
        lengths=np.append(first.lengths, second.lengths),
        steps={k: np.concatenate([v, second.steps[k]]) for k, v in first.steps.items()},
        observations={
            k: np.concatenate([v, second.observations[k]]) for k, v in first.observations.items()
        },
        final_observation=np.append(first.final_observation, second.final_observation),
    )


@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_clean(write: Write, layout: str) -> None:
    path = write(clean_batch(LENGTHS), layout=layout)
    other = write(clean_batch(LENGTHS, seed=1), layout=layout)
    assert found(path, "RL060") == []
    assert found(path, "RL061") == []
    assert found([path, other], "RL062") == []


@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_copies(write: Write, layout: str) -> None:
    batch = rearranged(clean_batch(LENGTHS), [0, 1, 0, 2, 1, 0])
    numbers = changed(batch, steps={("info", "row"): np.arange(batch.transitions)})
    (one,) = found(write(numbers, layout=layout), "RL060")
    assert (one.count, one.episode, one.row, one.severity) == (3, 2, 100, "warning")
    assert one.message == "3 of 6 episodes are copies of earlier ones: 2 of 0, 4 of 1, 5 of 0"
    assert found(write(numbers, layout=layout), "RL060", steps=50)[0].count == 2
    # Of episodes 0, 1 and 2 only one is a copy
    assert found(write(numbers, layout=layout), "RL060", candidates=3)[0].count == 1


@pytest.mark.parametrize("row", [7, 33])
@pytest.mark.parametrize("leaf", ["observation", "action", "reward"])
def test_one_bit_makes_another_episode(write: Write, leaf: str, row: int) -> None:
    batch = rearranged(clean_batch(LENGTHS), [0, 0])
    key, table = {
        "observation": (("observation",), "observations"),
        "action": (("action",), "steps"),
        "reward": (("next", "reward"), "steps"),
    }[leaf]
    values = getattr(batch, table)[key].copy()
    values[row, 0] = np.nextafter(values[row, 0], 9, dtype=values.dtype)
    assert len(found(write(batch), "RL060")) == 1
    assert found(write(changed(batch, **{table: {key: values}})), "RL060") == []


def test_equal_ends_and_middles_are_not_enough(write: Write) -> None:
    batch = rearranged(clean_batch(LENGTHS), [0, 0])
    action = batch.steps["action",].copy()
    action[[61, 62]] = action[[62, 61]]
    assert found(write(changed(batch, steps={("action",): action})), "RL060") == []


def test_grid_worlds(write: Write) -> None:
    rng = np.random.default_rng(0)
    batch = rearranged(clean_batch(LENGTHS), [0, 0, 1])
    rows = batch.transitions
    cells = changed(
        batch,
        steps={("action",): np.zeros((rows, 1), np.int64), ("next", "reward"): np.ones((rows, 1))},
        observations={("observation",): np.zeros((rows + 3, 1), np.int64)},
    )
    (one,) = found(write(cells), "RL060")
    assert (one.severity, one.count) == ("info", 1)
    one_hot = np.eye(9, dtype=np.float32)[rng.integers(0, 9, rows + 3)]
    path = write(changed(batch, observations={("observation",): one_hot}))
    assert found(path, "RL061") == []


@pytest.mark.parametrize("kind", ["text", "jpeg"])
def test_copies_of_text_and_images(write: Write, kind: str) -> None:
    batch = clean_batch((5, 6, 5))
    if kind == "jpeg":
        frames = [written(one, "jpeg") for one in pictures(19, JPEG)]
        frames[13:] = frames[:6]
        values: Any = EncodedColumn.of(frames, JPEG)
    else:
        words = [f"word {n}" for n in range(19)]
        words[13:] = words[:6]
        values = np.array(words, dtype=object)
    same = rearranged(batch, [0, 1, 0])
    path = write(replace(same, observations={("observation", "x"): values}))
    (one,) = found(path, "RL060")
    assert (one.count, one.episode) == (1, 2)


def near(batch: EpisodeBatch, change: str) -> EpisodeBatch:
    """Return episodes 0, 1, 2, of which 2 is nearly 0."""
    doubled = rearranged(batch, [0, 1, 0])
    seen = doubled.observations["observation",].astype(np.float64)
    other = slice(2 + batch.lengths[:2].sum(), None)
    if change == "rounded":
        seen[other] = seen[other].round(7)
    elif change == "scaled":
        seen[other] *= 1 + 1e-7
    else:
        seen[other][: {"cut": 3, "halved": 30}[change]] += 1
    return changed(doubled, observations={("observation",): seen})


@pytest.mark.parametrize(
    ("change", "pairs"), [("rounded", 1), ("scaled", 1), ("cut", 1), ("halved", 0)]
)
def test_near_copies(write: Write, change: str, pairs: int) -> None:
    path = write(near(clean_batch((60, 40)), change), layout="compact")
    findings = found(path, "RL061")
    assert len(findings) == pairs
    for one in findings:
        assert (one.leaf, one.episode, one.row, one.count) == ("observation", 2, 100, 1)
        assert one.message.endswith("at least 90% of rows with an earlier one: 2 of 0")
    assert found(path, "RL060") == []


def test_exact_copies_are_not_near_ones(write: Write) -> None:
    assert found(write(rearranged(clean_batch(LENGTHS), [0, 0, 1])), "RL061") == []


def test_similarity_of_long_episodes(write: Write) -> None:
    path = write(near(clean_batch((300, 400)), "cut"), layout="ted")
    assert [one.episode for one in found(path, "RL061")] == [2]
    assert found(path, "RL061", similarity=0.999) == []


def test_sketches() -> None:
    lengths = np.array([1, 16, 31, 32, 1000, 10**6])
    kept = lengths * (_rates(lengths).astype(np.float64) / 2.0**64)
    assert np.allclose(kept, [1, 16, 31, 16, 1000 / 32, 10**6 / 2**15])
    rows = np.random.default_rng(0).normal(size=(20_000, 30))
    hashes = _rounded_hashes(rows)
    assert len(np.unique(hashes)) == len(rows)
    assert abs((hashes < 2**60).mean() - 1 / 16) < 0.01
    rounded = _rounded_hashes(rows.astype(np.float32))
    assert (rounded == hashes).all()


@pytest.mark.parametrize(
    ("names", "severity"),
    [
        (("cube-train", "cube-val"), "error"),
        (("cube-v0", "cube-v0-val"), "error"),
        (("hopper-medium-v2", "hopper-medium-expert-v2"), "warning"),
        (("cube-train", "ball-val"), "warning"),
    ],
)
def test_leakage(write: Write, names: tuple[str, str], severity: str) -> None:
    batch = clean_batch(LENGTHS)
    first = write(rearranged(batch, [0, 1]), name=names[0])
    second = write(rearranged(batch, [2, 1, 3, 0]), name=names[1], layout="ted")
    (one,) = found([first, second], "RL062")
    assert (one.severity, one.count, one.episode, one.row) == (severity, 2, 1, 70)
    assert one.dataset == f"local:{names[1]}@1"
    assert one.about == f"local:{names[0]}"
    assert one.message.endswith("episode 1 here is 1 there")


def test_splits_of_a_parent(write: Write) -> None:
    batch = clean_batch(LENGTHS)

    def part(name: str, order: list[int]) -> Any:
        recipe = [{"step": "split", "part": name, "shares": []}]
        made = {"options": {"recipe": recipe}}
        return write(
            rearranged(batch, order), name=f"my{name}", parents=("local:all@1",), converter=made
        )

    (one,) = found([part("a", [0, 1]), part("b", [1, 2])], "RL062")
    assert (one.severity, one.episode) == ("error", 0)
    assert found([part("a", [0, 1]), part("b", [2, 3])], "RL062") == []


def test_a_dataset_and_its_parent_are_not_compared(write: Write) -> None:
    batch = clean_batch(LENGTHS)
    parent, child = write(batch, name="all"), write(batch, name="some", parents=("local:all@1",))
    assert found([parent, child], "RL062") == []
    assert found([parent, parent], "RL062") == []


def test_leakage_of_grid_worlds(write: Write) -> None:
    batch = clean_batch(LENGTHS)
    cells = changed(
        batch,
        steps={("action",): np.zeros(220, np.int64)},
        observations={("observation",): np.arange(224)},
    )
    (one,) = found([write(cells, name="x-train"), write(cells, name="x-val")], "RL062")
    assert (one.severity, one.count) == ("info", 4)


@pytest.mark.parametrize("cut_first", [False, True])
def test_a_cut_copy_of_another_rate(write: Write, cut_first: bool) -> None:
    """Of 130 rows a sketch keeps every eighth, of the 126 of the copy every fourth."""
    long = clean_batch((130,))
    short = EpisodeBatch(
        lengths=np.array([126]),
        steps={key: values[4:] for key, values in long.steps.items()},
        observations={key: values[4:] for key, values in long.observations.items()},
        final_observation=long.final_observation,
    )
    both = joined(short, long) if cut_first else joined(long, short)
    (one,) = found(write(joined(rearranged(clean_batch(), [1]), both)), "RL061")
    assert (one.episode, one.row) == (2, 146 if cut_first else 150)


def test_a_path_of_many_episodes_is_no_evidence(write: Write) -> None:
    batch = rearranged(clean_batch((40,)), [0] * 18)
    noise = np.random.default_rng(1).normal(size=batch.transitions)[:, None]
    path = write(changed(batch, steps={("action",): noise}))
    assert found(path, "RL061") == []
    few = rearranged(changed(batch, steps={("action",): noise}), range(5))
    assert [one.count for one in found(write(few), "RL061")] == [4]


def test_sketches_belong_to_their_episodes(write: Write) -> None:
    final = np.array([True, True, False, True])
    batch = replace(clean_batch((5, 1, 9, 3)), final_observation=final)
    reader = open_reader(write(batch))
    kept = NearDuplicateEpisodes().measure(RowBlock(reader, 0, 18), ("observation",))
    assert kept is not None
    ((episodes, hashes),) = kept
    seen = batch.observations["observation",]
    parts = (seen[:6], seen[6:8], seen[8:17], seen[18:22])  # one of episode 2 is unknown
    for episode, rows in enumerate(parts):
        of_episode = hashes[episodes == episode]
        assert of_episode.tolist() == _rounded_hashes(rows).tolist()
