"""Every value of D4RL files of every family arrives where it belongs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from offline_data.episodes import EpisodeBatch
from offline_data.episodes.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.sources.d4rl import D4RL, successors
from offline_data.sources.d4rl.dataset import D4RLEpisodes
from offline_data.testing.batches import assert_same_batch
from offline_data.testing.d4rl_toy import TOYS, ToyD4RL, write_published

if TYPE_CHECKING:
    from numpy.typing import NDArray

REAL = {
    "Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse_fixed.hdf5": [1001] * 3,
    "door-human-v1.hdf5": [200, 230, 190],
    "hopper_medium-v2.hdf5": [30, 1000, 41, 12],
    "hopper_medium_replay-v1.hdf5": [20, 33, 25],
    "hopper_mixed.hdf5": [20, 1000, 25],
    "maze2d-umaze-sparse-v1.hdf5": [150, 154, 147, 149],
    "mini_kitchen_microwave_kettle_light_slider-v0.hdf5": [40, 55],
    "minigrid4rooms_random.hdf5": [25, 35],
}


def opened(path: Path) -> D4RLEpisodes:
    return D4RL().open(D4RL().release_of(path, "mine"), path)


def whole(path: Path) -> EpisodeBatch:
    dataset = opened(path)
    return dataset.read(dataset.parts(1 << 50)[0])


def flat_rows(values: NDArray[Any]) -> NDArray[Any]:
    return values.reshape(len(values), -1)


@pytest.mark.parametrize("family", sorted(TOYS))
def test_toy_values_by_episode_and_step(tmp_path: Path, family: str) -> None:
    toy = TOYS[family]
    batch = whole(write_published(tmp_path, toy))
    assert batch.lengths.tolist() == toy.lengths
    assert batch.final_observation.tolist() == [toy.next_observations] * len(toy.lengths)
    observation = flat_rows(batch.observations["observation",])
    row = 0
    for episode, (length, end) in enumerate(toy.episodes):
        for step in range(length):
            code = 1000 * episode + step + 1
            last = step == length - 1
            at_goal = (episode, step) in toy.goals
            following = code + 1 if not last or toy.next_observations else code
            assert observation[row + episode, 0] == code
            assert observation[row + episode + 1, 0] == following
            assert observation[row + episode, -1] == code + (observation.shape[1] - 1) / 64
            assert (flat_rows(batch.steps["action",])[row] == -code).all()
            assert batch.steps[REWARD][row] == np.float32(code / 10)
            assert batch.steps[TERMINATED][row] == (
                at_goal or (last and end in {"terminal", "both"})
            )
            assert batch.steps[TRUNCATED][row] == (last and end != "terminal")
            for name, _ in toy.infos:
                key = ("info", *name.split("/"))
                assert (flat_rows(batch.steps[key])[row] == code + 0.5).all()
            row += 1
    assert row == batch.transitions


@pytest.mark.parametrize("file", sorted(REAL))
def test_real_values_equal_h5py(realdata: Path, file: str) -> None:
    path = realdata / "fixtures_generated" / "d4rl" / file
    batch = whole(path)
    assert batch.lengths.tolist() == REAL[file]
    with h5py.File(path) as source:
        columns = {n: source[n][()] for n in source if isinstance(source[n], h5py.Dataset)}
        group = source["infos"] if isinstance(source.get("infos"), h5py.Group) else {}
        infos = {name: values[()] for name, values in group.items()}
    observation = batch.observations["observation",]
    np.testing.assert_array_equal(observation[batch.root_rows], columns["observations"])
    inside = np.setdiff1d(np.arange(batch.transitions), batch.last_rows)
    np.testing.assert_array_equal(
        observation[batch.next_rows[inside]], columns["observations"][inside + 1]
    )
    after = columns.get("next_observations", columns["observations"])[batch.last_rows]
    np.testing.assert_array_equal(observation[batch.next_rows[batch.last_rows]], after)
    np.testing.assert_array_equal(batch.steps["action",], columns["actions"])
    np.testing.assert_array_equal(batch.steps[REWARD].ravel(), columns["rewards"].ravel())
    np.testing.assert_array_equal(batch.steps[TERMINATED].ravel(), columns["terminals"].ravel())
    for name, values in infos.items():
        np.testing.assert_array_equal(batch.steps["info", name], values)
    dtypes = {key[-1]: column.dtype for key, column in batch.steps.items()}
    assert dtypes["action"] == columns["actions"].dtype
    assert dtypes["reward"] == columns["rewards"].dtype
    assert observation.dtype == columns["observations"].dtype


def test_demonstration_numbers_are_kept_and_agree(tmp_path: Path) -> None:
    dataset = opened(write_published(tmp_path, TOYS["kitchen"]))
    batch = dataset.read(dataset.parts(1 << 50)[0])
    np.testing.assert_array_equal(batch.steps["info", "demo"], batch.episode_of)
    assert not [note for note in dataset.info.notes if "disagree" in note]


def test_demonstration_numbers_that_disagree_are_noted(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["kitchen"])
    with h5py.File(path, "r+") as file:
        file["infos"][2] = 7
    note = "The demonstration's number (info/demo) and the episodes disagree in 2 rows."
    assert note in opened(path).info.notes


def test_pieces_are_laid_end_to_end(tmp_path: Path) -> None:
    plain = whole(write_published(tmp_path / "a", TOYS["mujoco-v2"]))
    dataset = opened(write_published(tmp_path / "b", TOYS["mujoco-v2"], pieces=(1, 8, 9)))
    assert_same_batch(dataset.read(dataset.parts(1 << 50)[0]), plain)
    for part in dataset.parts(200):
        batch = dataset.read(part)
        codes = batch.observations["observation",][batch.root_rows][:, 0]
        np.testing.assert_array_equal(codes, 1000 * (part.first + batch.episode_of) + _steps(batch))


def _steps(batch: EpisodeBatch) -> NDArray[np.int64]:
    return np.arange(batch.transitions) - batch.starts[batch.episode_of] + 1


def test_a_second_copy_in_pieces_is_dropped_once_and_said(tmp_path: Path) -> None:
    toy = TOYS["carla"]
    path = write_published(tmp_path, toy)
    with h5py.File(path, "r+") as file:
        file["virtual/0/observations"] = file["observations"][:3]
    dataset = opened(path)
    assert [item.key for item in dataset.info.dropped] == ["virtual/0/observations"]
    assert dataset.info.transitions == sum(toy.lengths)


def with_next(tmp_path: Path, rows: dict[int, float]) -> Path:
    path = write_published(tmp_path, TOYS["mujoco-v2"])
    with h5py.File(path, "r+") as file:
        for row, value in rows.items():
            file["next_observations"][row, 1] = value
    return path


def test_next_observations_of_last_rows_are_the_final_observations(tmp_path: Path) -> None:
    batch = whole(with_next(tmp_path, {4: -7.0, 16: -9.0}))
    assert batch.lengths.tolist() == [5, 7, 1, 4]
    final = batch.observations["observation",][batch.next_rows[batch.last_rows]]
    assert final[:, 1].tolist() == [-7.0, 1008 + 1 / 64, 2002 + 1 / 64, -9.0]


def test_many_final_observations_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = with_next(tmp_path, {4: -7.0})
    kept = whole(path)
    monkeypatch.setattr(successors, "KEPT", 0)
    dataset = opened(path)
    assert dataset.after is not None
    assert dataset.after.final is None
    assert_same_batch(dataset.read(dataset.parts(1 << 50)[0]), kept)
    assert dataset.read(dataset.parts(1)[1]).observations["observation",][-1, 0] == 1008


def test_wider_next_observations_widen_the_observations(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["bullet"])
    with h5py.File(path, "r+") as file:
        wide = file["next_observations"][()].astype("f8")
        wide[2] += 1e-12
        del file["next_observations"]
        file["next_observations"] = wide
    observation = whole(path).observations["observation",]
    assert observation.dtype == np.float64
    assert observation[3, 0] == wide[2, 0] != np.float32(wide[2, 0])


def test_columns_of_the_users_own_are_kept(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["adroit"])
    with h5py.File(path, "r+") as file:
        file["costs"] = np.arange(15, dtype=">i4")
        file["more/deep"] = np.arange(15, dtype="u1")
    batch = whole(path)
    assert batch.steps["extra", "costs"].tolist() == list(range(15))
    assert batch.steps["extra", "costs"].dtype == np.dtype("int32").newbyteorder("=")
    assert batch.steps["extra", "more", "deep"].dtype == np.uint8


def test_flags_that_are_neither_0_nor_1_are_set_and_noted(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["kitchen"])
    with h5py.File(path, "r+") as file:
        file["terminals"][1] = 0.5
        file["terminals"][3] = np.nan
    dataset = opened(path)
    assert dataset.lengths.tolist() == [2, 2, 6, 3]
    assert (
        "2 values of terminals are neither 0 nor 1: all but 0 count as set." in dataset.info.notes
    )


def test_a_toy_of_one_step_episodes(tmp_path: Path) -> None:
    toy = ToyD4RL("hopper-medium-v2", ((1, "terminal"), (1, "timeout"), (1, "none")))
    batch = whole(write_published(tmp_path, toy))
    assert batch.observations["observation",][:, 0].tolist() == [1, 1, 1001, 1001, 2001, 2001]
    assert batch.steps[TRUNCATED].ravel().tolist() == [False, True, True]
