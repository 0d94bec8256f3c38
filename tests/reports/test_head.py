"""First transitions, value by value, in both layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from offline_data.errors import NotFoundError
from offline_data.reports.info import first_transitions
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=LAYOUTS)
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> DatasetReader:
    layout: LayoutName = request.param
    write_toy(tmp_path / "toy", [toy_batch([3, 2], text=True)], layout=layout)
    return open_reader(tmp_path / "toy")


def test_transitions_of_the_whole(reader: DatasetReader) -> None:
    found = first_transitions(reader, 4)
    assert [(t.index, t.episode, t.step) for t in found] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 0, 2),
        (3, 1, 0),
    ]
    assert [t.values["observation/state"][0] for t in found] == [1001, 1002, 1003, 2001]
    assert [t.values["next/observation/state"][0] for t in found] == [1002, 1003, 1004, 2002]
    assert [t.values["action"][0] for t in found] == [-1001, -1002, -1003, -2001]
    assert [bool(t.values["next/terminated"][0]) for t in found] == [False, False, True, False]


def test_text_comes_as_words(reader: DatasetReader) -> None:
    (first,) = first_transitions(reader, 1)
    assert str(first.values["observation/mission"]) == f"go to {1001 % 7}"
    assert str(first.values["next/observation/mission"]) == f"go to {1002 % 7}"


def test_one_episode_ends_where_it_ends(reader: DatasetReader) -> None:
    found = first_transitions(reader, 10, episode=1)
    assert [(t.index, t.episode, t.step) for t in found] == [(3, 1, 0), (4, 1, 1)]
    assert np.asarray(found[1].values["observation/state"]).tolist() == [2002.0] * 3


@pytest.mark.parametrize("episode", [2, -1])
def test_an_episode_that_is_not_there(reader: DatasetReader, episode: int) -> None:
    with pytest.raises(NotFoundError, match=rf"no episode {episode}.*2 episodes"):
        first_transitions(reader, 1, episode=episode)
