"""`ds.episode(i)`, `ds.iter_episodes()` and the table of episodes, against what the toy's numbers say."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.errors import MissingDependencyError
from offline_data.buffers.dataset import Dataset
from offline_data.rows.derived import return_to_go
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.testing.toy import toy_batch, write_toy

LENGTHS = [3, 1, 4, 2]


@pytest.fixture(params=LAYOUTS)
def ds(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
    layout: LayoutName = request.param
    toy = toy_batch(LENGTHS, text=True, unknown_final=(3,))
    names = np.array([f"episode {number}" for number in range(4)], object)
    toy.episodes["options", "goal"] = np.arange(8.0).reshape(4, 2)  # type: ignore[index]
    toy.episodes["name",] = names  # type: ignore[index]
    write_toy(tmp_path / "toy", [toy], layout=layout)
    return Dataset(tmp_path / "toy")


def codes(episode: int) -> list[float]:
    """The `T + 1` observations of an episode; the last one of episode 3 is not known."""
    found = [1000.0 * (episode + 1) + t + 1 for t in range(LENGTHS[episode] + 1)]
    return found if episode < 3 else [*found[:-1], found[-2]]


def assert_whole(episode: Any, number: int) -> None:
    expected, length = codes(number), LENGTHS[number]
    assert (episode.length, len(episode), episode.id) == (length, length, number)
    assert episode.seed == episode.metadata["seed"] == 7 * number + 1
    assert episode.observations["state"][:, 0].tolist() == expected
    assert episode.transitions.batch_size == (length,)
    assert episode.transitions["action"][:, 0].tolist() == [-one for one in expected[:-1]]
    assert episode.observed(("info", "code")).tolist() == expected
    assert episode.return_ == pytest.approx(sum(expected[1:]) / 10)
    assert episode.final_observation == (number != 3)
    assert episode.metadata["name"] == f"episode {number}"
    assert episode.metadata["options/goal"] == [2.0 * number, 2.0 * number + 1]


def test_every_episode(ds: Any) -> None:
    found = list(ds.iter_episodes())
    assert [episode.number for episode in found] == [0, 1, 2, 3]
    for number, episode in enumerate(found):
        assert_whole(episode, number)
        assert_whole(ds.episode(number - 4), number)
        assert_whole(ds.episode(np.int64(number)), number)
    assert repr(found[2]) == "Episode(2, length=4, return=1201.4, id=2, seed=15)"
    assert str(found[2].transitions["index"].tolist()) == "[4, 5, 6, 7]"
    assert list(ds.episodes_at([]).iter_episodes()) == []


def test_arrays(ds: Any) -> None:
    arrays = ds.episode(2).to_numpy("observation/state")
    assert list(arrays) == ["observations", "actions", "rewards", "terminals", "timeouts"]
    assert arrays["observations"].shape == (5, 3)
    assert arrays["rewards"].tolist() == [code / 10 for code in codes(2)[1:]]
    assert arrays["rewards"].dtype == np.float64
    assert arrays["terminals"].tolist() == [False, False, False, True]
    assert not arrays["timeouts"].any()
    assert ds.episode(3).to_numpy()["timeouts"].tolist() == [False, True]
    parts = ds.episode(0).to_numpy()["observations"]
    assert sorted(parts) == ["mission", "state"]
    for whole, style in zip(ds.iter_episodes(), _cut(ds), strict=True):
        own = whole.to_numpy("observation/state")
        assert np.array_equal(own["observations"][:-1], style["observations"])
        for name in ("actions", "rewards", "terminals", "timeouts"):
            assert np.array_equal(own[name], style[name])


def _cut(ds: Any) -> list[dict[str, Any]]:
    arrays = ds.to_numpy("episodes", observation_key="observation/state")
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"]) + 1
    bounds = zip([0, *ends[:-1]], ends, strict=True)
    return [{name: one[a:b] for name, one in arrays.items()} for a, b in bounds]


def test_views_of_whole_episodes(ds: Any) -> None:
    view = ds.episodes_at([2, 0, 3])
    for place, (episode, number) in enumerate(zip(view.iter_episodes(), [2, 0, 3], strict=True)):
        assert_whole(episode, number)
        assert episode.number == place
        assert episode.transitions["episode"].tolist() == [place] * LENGTHS[number]


def test_views_that_cut(ds: Any) -> None:
    rows = [5, 6, 1, 2, 9, 5]
    view = ds.subset(rows)
    first, second, third = view.iter_episodes()
    assert first.transitions["dataset_index"].tolist() == [5, 6, 5]
    assert first.metadata["length"] == first.length == 3
    assert first.return_ == pytest.approx((2 * codes(2)[2] + codes(2)[3]) / 10)
    assert second.observations["state"][:, 0].tolist() == codes(0)[1:]
    assert second.return_ == pytest.approx(sum(codes(0)[2:]) / 10)
    assert (
        second.whole_return == view.episodes["return"][1] == pytest.approx(sum(codes(0)[1:]) / 10)
    )
    assert third.observations["state"][:, 0].tolist() == codes(3)[1:]
    assert [one.final_observation for one in (first, second, third)] == [True, True, False]
    assert second.to_numpy()["timeouts"].tolist() == [False, False]
    inside = ds.subset([4, 5]).episode(0)
    assert inside.to_numpy()["timeouts"].tolist() == [False, True]
    assert inside.final_observation
    assert inside.metadata["return"] != inside.return_
    twice = ds.episodes_at([1, 0, 1]).episode(0)
    assert twice.transitions["dataset_index"].tolist() == [3, 3]


def test_what_the_buffer_derives_and_its_keys(ds: Any) -> None:
    path = ds.data_path
    some = Dataset(path, derived=return_to_go(), decode_text=True)
    episode = some.episode(0)
    assert episode.transitions["return_to_go"][0].item() == pytest.approx(episode.return_)
    assert episode.transitions["observation", "mission"][0].startswith("go to")
    assert episode.to_numpy()["observations"]["mission"].shape == (4,)


def test_iterating_reads_ahead_what_comes_from_a_disk(
    ds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    kind = type(ds.storage)
    monkeypatch.setattr(kind, "needs_io", property(lambda _: True))
    monkeypatch.setattr(kind, "prefetch_rows", lambda _, rows: asked.append(rows.tolist()))
    list(ds.iter_episodes())
    assert asked == [[0, 1, 2, 3], [3, 4, 5, 6, 7], [4, 5, 6, 7, 8, 9]]


def test_the_table(ds: Any) -> None:
    table = ds.episodes
    assert {"start", "length", "return", "id", "seed", "name", "options/goal"} <= {*table.keys()}
    assert [one["length"] for one in table] == LENGTHS
    assert [one["name"] for one in table][:2] == ["episode 0", "episode 1"]
    assert dict(table)["length"].tolist() == LENGTHS
    assert table.row(-1)["options/goal"] == [6.0, 7.0]
    assert table.rows(2).tolist() == [4, 5, 6, 7]
    assert ds.episodes_at([3, 0]).episodes.rows(1).tolist() == [2, 3, 4]


def test_pandas(ds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setitem(__import__("sys").modules, "pandas", None)
        with pytest.raises(MissingDependencyError, match="to_pandas needs pandas"):
            ds.episodes.to_pandas()
    pytest.importorskip("pandas")
    frame = ds.episodes.to_pandas()
    assert frame["length"].tolist() == LENGTHS
    assert frame.loc[2, "name"] == "episode 2"
    assert frame["options/goal"][1] == [2.0, 3.0]
    assert operator.length_hint(ds.episodes_at([1, 3]).episodes.to_pandas().index) == 2
