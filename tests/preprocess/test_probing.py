"""What recipes learn from: few transitions, ends of episodes among them, or few whole episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offline_data.preprocess.probing import probe, seconds_each
from offline_data.preprocess.reading import Chosen, every
from offline_data.preprocess.spec import Calling, function_step, recipe_of
from offline_data.store.reader import DatasetReader, open_reader
from tests.preprocess.runs import write_plain

LENGTHS = [9, 1, 40, 2] * 50
CLIP = recipe_of(["clip:action,low=-5000"])


@pytest.fixture
def reader(tmp_path: Path) -> DatasetReader:
    return open_reader(write_plain(tmp_path / "toy", LENGTHS))


def test_transitions(reader: DatasetReader) -> None:
    piece = probe(reader, every(reader), CLIP)
    rows = piece.row_numbers
    ends = np.cumsum(LENGTHS) - 1
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert {0, ends[0], ends[-1]} <= set(rows.tolist())
    assert np.isin(rows, ends).sum() >= 8
    assert (~np.isin(rows, ends)).sum() >= 8
    assert len(rows) <= 26
    assert (piece.batch.lengths == 1).all()
    again = probe(reader, every(reader), CLIP)
    np.testing.assert_array_equal(again.row_numbers, rows)


@pytest.mark.parametrize("frames", [1, 5, 9, 10, 30, 2000])
def test_transitions_of_chosen_episodes_only(reader: DatasetReader, frames: int) -> None:
    assert probe(reader, every(reader, frames), CLIP).row_numbers.max() < frames
    some = Chosen(np.array([2, 7, 198]), np.array([40, 1, 3]), np.zeros(3, np.int64))
    piece = probe(reader, some, CLIP)
    within = {(int(e), int(s)) for e, s in zip(piece.episodes, piece.steps, strict=True)}
    assert {(2, 0), (2, 39), (7, 0), (198, 2)} <= within
    assert all(s < {2: 40, 7: 1, 198: 3}[e] for e, s in within)


def test_whole_episodes_where_lengths_may_change(reader: DatasetReader) -> None:
    recipe = recipe_of([function_step(lambda td: td, Calling(by="episode"))])
    piece = probe(reader, every(reader), recipe)
    assert piece.episodes.tolist() == [0, 99, 199]
    assert piece.batch.lengths.tolist() == [LENGTHS[0], LENGTHS[99], LENGTHS[199]]
    assert probe(reader, every(reader, 4), recipe).batch.lengths.tolist() == [4]


def test_time_is_of_one_transition(reader: DatasetReader) -> None:
    import time

    def slow(td: object) -> object:
        time.sleep(0.002)
        return td

    recipe = recipe_of([function_step(slow, Calling(vectorize=False))])
    assert 0.002 <= seconds_each(recipe, probe(reader, every(reader), recipe)) < 0.2
