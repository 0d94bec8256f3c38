"""Chosen episodes and single transitions are the parent's, in both layouts; views where they can be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offline_data.preprocess.piece import Piece
from offline_data.preprocess.reading import Chosen, every, read_piece, read_transitions
from offline_data.store.layout import LayoutName
from offline_data.store.reader import DatasetReader, open_reader
from tests.preprocess.oracle import Episode, cut, episodes_of
from tests.preprocess.runs import LENGTHS, write_rich

TRUNCATED = ("next", "truncated")


@pytest.fixture(params=["compact", "ted"])
def layout(request: pytest.FixtureRequest) -> LayoutName:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def reader(tmp_path: Path, layout: LayoutName) -> DatasetReader:
    return open_reader(write_rich(tmp_path / "rich", layout=layout))


def chosen(reader: DatasetReader, *numbers: int) -> Chosen:
    episodes = np.array(numbers, np.int64)
    return Chosen(episodes, reader.lengths[episodes], np.zeros_like(episodes))


def check_piece(piece: Piece, episodes: list[Episode]) -> None:
    """Assert that a piece is these episodes, row by row."""
    assert piece.batch.lengths.tolist() == [len(one.rows) for one in episodes]
    assert piece.batch.final_observation.tolist() == [one.final for one in episodes]
    row = 0
    for e, episode in enumerate(episodes):
        for t, wanted in enumerate(episode.rows):
            for key, column in piece.batch.steps.items():
                assert column[row].tobytes() == wanted[key].tobytes(), (key, e, t)
            for key, column in piece.batch.observations.items():
                following = ("next", *key)
                assert column[row + e].tobytes() == wanted[key].tobytes(), (key, e, t)
                assert column[row + e + 1].tobytes() == wanted[following].tobytes(), (key, e, t)
            row += 1
        assert piece.batch.episodes["file",][e] == episode.extras["file",]
    assert row == piece.batch.transitions


@pytest.mark.parametrize("numbers", [[0], [2, 3], [0, 1, 2, 3, 4, 5, 6], [0, 2, 3, 6], [6, 0, 3]])
def test_whole_episodes(reader: DatasetReader, numbers: list[int]) -> None:
    piece = read_piece(reader, chosen(reader, *numbers))
    all_of_them = episodes_of(reader.path)
    check_piece(piece, [all_of_them[number] for number in numbers])
    starts = np.cumsum(LENGTHS) - LENGTHS
    assert piece.episodes.tolist() == numbers
    assert piece.rows.tolist() == starts[numbers].tolist()
    assert piece.steps.tolist() == [0] * len(numbers)
    expected = [starts[n] + t for n in numbers for t in range(LENGTHS[n])]
    assert piece.row_numbers.tolist() == expected


@pytest.mark.parametrize("frames", range(1, 26))
def test_first_transitions(reader: DatasetReader, frames: int) -> None:
    piece = read_piece(reader, every(reader, frames))
    check_piece(piece, cut(episodes_of(reader.path), frames))
    assert every(reader, frames).transitions == min(frames, sum(LENGTHS))


def test_an_episode_cut_where_it_is_terminated_is_not_truncated(tmp_path: Path) -> None:
    from offline_data.testing.toy import toy_batch, write_toy

    batch = toy_batch([4, 3])
    batch.steps["next", "terminated"][1] = True
    write_toy(tmp_path / "toy", [batch])
    reader = open_reader(tmp_path / "toy")
    piece = read_piece(reader, every(reader, 2))
    assert piece.batch.steps["next", "terminated"][:, 0].tolist() == [False, True]
    assert piece.batch.steps[TRUNCATED][:, 0].tolist() == [False, False]


def test_neighbours_are_not_copied_in_layout_compact(
    reader: DatasetReader, layout: LayoutName
) -> None:
    piece = read_piece(reader, chosen(reader, 1, 2, 3))
    own = [c.flags.owndata for c in piece.batch.observations.values() if c.size]
    assert any(own) == (layout == "ted")
    assert not any(column.flags.writeable for column in piece.batch.steps.values())
    apart = read_piece(reader, chosen(reader, 1, 3))
    assert all(column.base is None or column.flags.owndata for column in apart.batch.steps.values())


@pytest.mark.parametrize("rows", [[0], [2, 3], [0, 2, 3, 9, 10, 22], list(range(23))])
def test_single_transitions(reader: DatasetReader, rows: list[int]) -> None:
    piece = read_transitions(reader, np.array(rows))
    starts = np.cumsum(LENGTHS) - LENGTHS
    numbers = [int(np.searchsorted(starts, row, side="right")) - 1 for row in rows]
    within = [row - int(starts[number]) for row, number in zip(rows, numbers, strict=True)]
    apart = []
    for number, t in zip(numbers, within, strict=True):
        episode = episodes_of(reader.path)[number]
        final = episode.final or t < len(episode.rows) - 1
        apart.append(Episode(number, [episode.rows[t]], final, episode.extras))
    check_piece(piece, apart)
    assert (piece.episodes.tolist(), piece.steps.tolist()) == (numbers, within)
    assert piece.row_numbers.tolist() == rows


def test_words(reader: DatasetReader) -> None:
    piece = read_piece(reader, chosen(reader, 2))
    assert set(piece.words) == {("observation", "mission"), ("plan", "words")}
    assert all(word.startswith("plan ") for word in piece.words["plan", "words"])
    assert all(word.startswith("go to ") for word in piece.words["observation", "mission"])
