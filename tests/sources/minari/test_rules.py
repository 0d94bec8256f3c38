"""What becomes of episodes that are not as the format says: one stated rule each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from offline_data.errors import FormatError
from offline_data.sources.minari import assemble
from offline_data.sources.minari.plan import NOTE_REWARD
from offline_data.testing.minari_toy import STORAGES, read_minari, write_hdf5, write_minari
from offline_data.testing.minari_values import ToyEpisode, box, toy_episode, toy_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offline_data.episodes import EpisodeBatch

EVERY_STORAGE = pytest.mark.parametrize("storage", STORAGES)


def hdf5(tmp_path: Path, *episodes: ToyEpisode) -> EpisodeBatch:
    return read_minari(write_minari(tmp_path / "toy-v0", episodes))


def infos(number: int, rows: int, **more: Any) -> Mapping[str, Any]:
    return {"x": toy_rows(box(), number, rows), **more}


@EVERY_STORAGE
def test_last_step_without_a_flag_is_truncated(tmp_path: Path, storage: str) -> None:
    none = np.zeros(3, bool)
    episodes = [toy_episode(0, 3, terminations=none, truncations=none), toy_episode(1, 2)]
    batch = read_minari(write_minari(tmp_path / "t-v0", episodes, storage))
    assert batch.steps["next", "truncated"][:, 0].tolist() == [False, False, True, False, True]
    assert not batch.steps["next", "terminated"].any()
    assert assemble.NOTE_UNENDED in batch.notes


@EVERY_STORAGE
def test_observations_without_the_last_one(tmp_path: Path, storage: str) -> None:
    short = toy_rows(box(3), 1, 4)
    episodes = [toy_episode(0, 2), toy_episode(1, 4, observations=short), toy_episode(2, 1)]
    batch = read_minari(write_minari(tmp_path / "t-v0", episodes, storage))
    assert batch.final_observation.tolist() == [True, False, True]
    rows = batch.observations["observation",]
    np.testing.assert_array_equal(rows[3:7], short)
    np.testing.assert_array_equal(rows[7], short[3])
    np.testing.assert_array_equal(rows[8:], toy_rows(box(3), 2, 2))
    assert assemble.NOTE_NO_FINAL in batch.notes


def test_infos_of_one_row_per_action_are_step_leaves(tmp_path: Path) -> None:
    batch = hdf5(tmp_path, *(toy_episode(n, 3, infos=infos(n, 3)) for n in range(2)))
    assert batch.steps["next", "info", "x"].tolist() == [1, 2, 3, 1001, 1002, 1003]
    assert not [key for key in batch.observations if key[0] == "info"]


def test_infos_shorter_than_in_the_first_episode(tmp_path: Path) -> None:
    batch = hdf5(
        tmp_path, toy_episode(0, 2, infos=infos(0, 3)), toy_episode(1, 3, infos=infos(1, 3))
    )
    found = batch.observations["info", "x"]
    np.testing.assert_array_equal(found, [1, 2, 3, np.nan, 1001, 1002, 1003])
    assert assemble.NOTE_NO_FIRST.format(leaf="infos/x", nothing="nan") in batch.notes


def test_infos_longer_than_in_the_first_episode(tmp_path: Path) -> None:
    batch = hdf5(
        tmp_path, toy_episode(0, 2, infos=infos(0, 2)), toy_episode(1, 3, infos=infos(1, 4))
    )
    assert batch.steps["next", "info", "x"].tolist() == [1, 2, 1002, 1003, 1004]
    assert assemble.NOTE_FIRST_LEFT.format(leaf="infos/x") in batch.notes


@EVERY_STORAGE
def test_infos_missing_in_some_episodes(tmp_path: Path, storage: str) -> None:
    more = {"n": np.arange(2) + 7, "b": np.array([True, True]), "s": ["left", "right"]}
    episodes = [toy_episode(0, 1, infos=infos(0, 2, **more)), toy_episode(1, 1)]
    batch = read_minari(write_minari(tmp_path / "t-v0", episodes, storage))
    np.testing.assert_array_equal(batch.observations["info", "x"], [1, 2, np.nan, np.nan])
    assert batch.observations["info", "n"].tolist() == [7, 8, 0, 0]
    assert batch.observations["info", "b"].tolist() == [True, True, False, False]
    assert batch.observations["info", "s"].tolist() == ["left", "right", None, None]
    for leaf, nothing in (("x", "nan"), ("n", "0"), ("b", "False"), ("s", "None")):
        note = assemble.NOTE_MISSING.format(leaf=f"infos/{leaf}", nothing=nothing)
        assert note in batch.notes


@pytest.mark.parametrize("storage", ["arrow", "parquet"])
def test_infos_with_empty_values(tmp_path: Path, storage: str) -> None:
    some = {"x": [1.5, None, 2.5], "n": [4, None, 6], "s": ["a", None, "c"]}
    batch = read_minari(
        write_minari(tmp_path / "t-v0", [toy_episode(0, 2, infos=some), toy_episode(1, 1)], storage)
    )
    np.testing.assert_array_equal(batch.observations["info", "x"][:3], [1.5, np.nan, 2.5])
    assert batch.observations["info", "n"].tolist()[:3] == [4, 0, 6]
    assert batch.observations["info", "s"].tolist()[:3] == ["a", None, "c"]
    for leaf, nothing in (("x", "nan"), ("n", "0"), ("s", "None")):
        assert assemble.NOTE_NULLS.format(leaf=f"infos/{leaf}", nothing=nothing) in batch.notes


def test_parts_grow_where_the_metadata_count_too_few_steps(tmp_path: Path) -> None:
    episodes = [toy_episode(n, 40) for n in range(30)]
    folder = write_minari(tmp_path / "t-v0", episodes, metadata={"total_steps": 30})
    rewards = read_minari(folder).steps["next", "reward"][:, 0]
    np.testing.assert_array_equal(rewards, np.concatenate([e.rewards for e in episodes]))


def test_infos_missing_in_the_first_episode_only(tmp_path: Path) -> None:
    batch = hdf5(tmp_path, toy_episode(0, 1), toy_episode(1, 1, infos=infos(1, 2)))
    np.testing.assert_array_equal(batch.observations["info", "x"], [np.nan, np.nan, 1001, 1002])


def test_infos_in_an_episode_that_was_not_looked_at_are_dropped_aloud(tmp_path: Path) -> None:
    episodes = [toy_episode(n, 1, infos=infos(n, 2)) for n in range(40)]
    extra = infos(1, 2, rare=toy_rows(box(), 1, 2))
    episodes[1] = toy_episode(1, 1, infos=extra)
    batch = hdf5(tmp_path, *episodes)
    assert ("info", "rare") not in batch.observations
    assert [dropped.key for dropped in batch.dropped] == ["infos/rare"]


def test_leaves_that_cannot_be_kept_are_dropped_aloud(tmp_path: Path) -> None:
    pair = np.zeros(3, dtype=[("a", "f4"), ("b", "i4")])
    odd = infos(0, 3, pair=pair, once=np.float64(3), five=np.arange(5), **{"..": np.arange(3)})
    batch = hdf5(tmp_path, toy_episode(0, 2, infos=odd))
    assert {dropped.key for dropped in batch.dropped} == {
        "infos/pair",
        "infos/once",
        "infos/five",
        "infos/..",
    }
    assert [key for key in batch.observations if key[0] == "info"] == [("info", "x")]


@EVERY_STORAGE
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
def test_rewards_keep_floats_and_turn_integers_into_float64(
    tmp_path: Path, storage: str, dtype: str
) -> None:
    rewards = np.array([3, 5], dtype)
    batch = read_minari(
        write_minari(tmp_path / "t-v0", [toy_episode(0, 2, rewards=rewards)], storage)
    )
    assert batch.steps["next", "reward"].tolist() == [[3], [5]]
    whole = dtype.startswith("int")
    assert batch.steps["next", "reward"].dtype == ("float64" if whole else dtype)
    assert (NOTE_REWARD.format(dtype=dtype) in batch.notes) == whole


def test_nan_is_kept(tmp_path: Path) -> None:
    values = toy_rows(box(3), 0, 3)
    values[1, 2] = np.nan
    batch = hdf5(tmp_path, toy_episode(0, 2, observations=values, rewards=np.array([np.nan, 1.0])))
    np.testing.assert_array_equal(batch.observations["observation",], values)
    np.testing.assert_array_equal(batch.steps["next", "reward"][:, 0], [np.nan, 1])


def test_another_dtype_is_cast_where_nothing_is_lost(tmp_path: Path) -> None:
    whole = np.array([[4, 5], [6, 7]], "int64")
    batch = hdf5(tmp_path, toy_episode(0, 1), toy_episode(1, 2, actions=whole))
    assert batch.steps["action",].dtype == "float32"
    assert batch.steps["action",][1:].tolist() == whole.tolist()


def test_another_dtype_that_would_lose_values_is_an_error(tmp_path: Path) -> None:
    third = np.full((1, 2), 1 / 3)
    with pytest.raises(FormatError, match=r"main_data.hdf5 episode_1/actions is float64.*float32"):
        hdf5(tmp_path, toy_episode(0, 1), toy_episode(1, 1, actions=third))


@EVERY_STORAGE
def test_episode_columns(tmp_path: Path, storage: str) -> None:
    options = {"b": {"qpos": np.array([0.5, 1.0])}, "a": "x"}
    episodes = [
        toy_episode(0, 1, seed=2**64 - 3, options=options, attributes={"mood": "good"}),
        toy_episode(1, 1),
    ]
    batch = read_minari(write_minari(tmp_path / "t-v0", episodes, storage))
    assert batch.episodes["id",].tolist() == [0, 1]
    assert batch.episodes["seed",].tolist() == [-3, -1]
    assert assemble.NOTE_SEED in batch.notes
    text = batch.episodes["options",].tolist()
    assert text == ['{"a": "x", "b": {"qpos": [0.5, 1.0]}}', None]
    assert [value and json.loads(value) for value in batch.episodes["metadata",]] == [
        {"mood": "good"},
        None,
    ]


def test_episodes_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    batch = hdf5(tmp_path, *(toy_episode(n, 1) for n in range(12)))
    assert batch.episodes["id",].tolist() == list(range(12))
    assert batch.steps["next", "reward"][:, 0].tolist() == [(1000 * n + 1) / 4 for n in range(12)]


def test_an_arrow_episode_of_several_record_batches_is_whole(tmp_path: Path) -> None:
    folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 70_000), toy_episode(1, 2)], "arrow")
    batch = read_minari(folder)
    assert batch.lengths.tolist() == [70_000, 2]
    assert (
        batch.observations["observation",][70_000].tolist()
        == toy_rows(box(3), 0, 70_001)[-1].tolist()
    )
    assert batch.steps["next", "reward"][70_000, 0] == 1001 / 4


def test_total_timesteps_of_old_files_is_no_metadata_of_its_own(tmp_path: Path) -> None:
    data = tmp_path / "t-v0" / "data"
    data.mkdir(parents=True)
    episodes = [toy_episode(n, 2, attributes={"total_timesteps": 2}) for n in range(2)]
    write_hdf5(data / "main_data.hdf5", episodes, {"total_timesteps": 4, "total_episodes": 2})
    batch = read_minari(data.parent)
    assert batch.lengths.tolist() == [2, 2]
    assert ("metadata",) not in batch.episodes
