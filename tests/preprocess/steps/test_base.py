from __future__ import annotations

from dataclasses import replace
from typing import Any

from offline_data.preprocess.steps.base import episode_columns
from offline_data.testing.pieces import toy_piece


def test_columns_of_episodes() -> None:
    found = episode_columns(toy_piece([2, 1, 3], first_episode=4, unknown_final=[5]))
    rewards = [[4001, 4002], [5001], [6001, 6002, 6003]]
    expected = {
        "seed": [104, 105, 106],
        "number": [4, 5, 6],
        "length": [2, 1, 3],
        "return": [sum(one) / 8 for one in rewards],
        "terminated": [True, False, True],
        "truncated": [False, True, False],
        "final_observation": [True, False, True],
    }
    assert {key[0]: column.tolist() for key, column in found.items()} == expected


def test_what_follows_from_the_steps_is_not_taken_from_the_parent() -> None:
    piece = toy_piece([2, 1])
    stale: Any = {("return",): piece.batch.lengths, ("length",): piece.batch.lengths + 5}
    piece = replace(piece, batch=replace(piece.batch, episodes=stale))
    found = episode_columns(piece)
    assert found[("length",)].tolist() == [2, 1]
    assert found[("return",)].tolist() == [0.375, 125.125]
