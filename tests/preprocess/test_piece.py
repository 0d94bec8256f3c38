"""Places of rows, and words that follow their leaves."""

from __future__ import annotations

from typing import Any

import pytest

from offline_data.episodes import Key
from offline_data.errors import FormatError
from offline_data.testing.pieces import toy_piece

MISSION = ("mission",)


def test_places() -> None:
    piece = toy_piece([2, 3, 1], first_episode=4)
    assert piece.step_numbers.tolist() == [0, 1, 0, 1, 2, 0]
    assert piece.episode_numbers.tolist() == [4, 4, 5, 5, 5, 6]
    first = 4 * 2
    assert piece.row_numbers.tolist() == [first + n for n in range(6)]
    assert piece.place(4) == f"row {first + 4} (episode 5, step 2)"


def test_words_go_with_their_leaf() -> None:
    piece = toy_piece([2])
    steps: dict[Key, Any] = dict(piece.batch.steps)
    assert MISSION in piece.having().words
    assert MISSION not in piece.having(steps={**steps, MISSION: steps[MISSION] * 0.5}).words
    steps.pop(MISSION)
    assert MISSION not in piece.having(steps=steps).words


def test_rows_that_do_not_add_up() -> None:
    piece = toy_piece([2])
    with pytest.raises(FormatError):
        piece.having(steps={key: column[:1] for key, column in piece.batch.steps.items()})
