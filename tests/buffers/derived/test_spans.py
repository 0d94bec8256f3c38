from __future__ import annotations

from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_data.buffers.derived.spans import spans_of


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_each_row_is_in_its_episode(sets: Any, data: Any) -> None:
    of = sets.write(*data.draw(sets.strategy))
    spans = spans_of(of.storage, torch.arange(of.rows))
    for row, (number, time) in enumerate(of.place):
        episode = of.episodes[number]
        assert spans.first[row] == row - time
        assert spans.last[row] == row - time + episode.length - 1
        assert spans.known[row] == episode.known
        ended = of.terminated[int(spans.last[row])]
        assert spans.valid[row] == (episode.known or ended)


def test_a_storage_that_says_nothing_of_final_observations(
    grown: Any, sets: Any, episode: Any
) -> None:
    spans = spans_of(grown(sets.write([episode(2), episode(1)])), torch.tensor([2, 0]))
    assert spans.first.tolist() == [2, 0]
    assert spans.last.tolist() == [2, 1]
    assert spans.valid.tolist() == spans.known.tolist() == [True, True]
