from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from offline_data.base.errors import NotFoundError, UsageError
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.episode import Key
from offline_data.store.arrays import STYLES
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.testing.toy import toy_batch, write_toy

STATE = "observation/state"
LEFT_OUT = 9
NAMES = {
    "observations": ("observation", "state"),
    "actions": ("action",),
    "rewards": ("next", "reward"),
    "next_observations": ("next", "observation", "state"),
    "terminals": ("next", "terminated"),
    "timeouts": ("next", "truncated"),
}


def assert_rows(
    arrays: dict[str, NDArray[Any]], truth: dict[Key, NDArray[Any]], rows: list[int]
) -> None:
    for name, array in arrays.items():
        want = truth[NAMES[name]][rows]
        want = want[:, 0] if name in {"rewards", "terminals", "timeouts"} else want
        assert array.dtype == want.dtype, name
        np.testing.assert_array_equal(array, want, name)


def test_rows_are_those_with_a_known_next(
    ds: BaseDatasetExperienceReplay, truth: dict[Key, NDArray[Any]]
) -> None:
    every = list(range(11))
    arrays = ds.to_numpy("episodes", observation_key=STATE)
    assert_rows(arrays, truth, every)
    assert list(arrays) == ["observations", "actions", "rewards", "terminals", "timeouts"]
    every.remove(LEFT_OUT)
    arrays = ds.to_numpy(observation_key=STATE)
    assert_rows(arrays, truth, every)
    assert list(arrays) == list(NAMES)[:5]


VIEWS: dict[str, tuple[Callable[[Any], Any], list[int]]] = {
    "an episode": (lambda ds: ds.episodes_at([2]), [4, 5, 6, 7]),
    "in another order": (lambda ds: ds.episodes_at([2, 0]), [4, 5, 6, 7, 0, 1, 2]),
    "without what is unknown": (lambda ds: ds.episodes_at([3, 4]), [8, 10]),
    "out of order": (lambda ds: ds.subset([4, 6, 5, 7]), [4, 6, 5, 7]),
    "rows": (lambda ds: ds.subset([6, 6, 1]), [6, 6, 1]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(ds: BaseDatasetExperienceReplay, truth: dict[Key, NDArray[Any]], name: str) -> None:
    make, rows = VIEWS[name]
    assert_rows(make(ds).to_numpy(observation_key=STATE), truth, rows)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_are_copies_unless_asked_for_otherwise(
    toys: Callable[..., Path], layout: LayoutName
) -> None:
    """Writing to those that are not is tried in a process of its own, in `test_memory_safety`."""
    ds = BaseDatasetExperienceReplay(toys([5, 4, 3], layout=layout))
    for view in (ds, ds.episodes_at([1]), ds.subset([3, 1])):
        for style in STYLES:
            before, written = view.to_numpy(style), view.to_numpy(style)
            for array in written.values():
                assert array.flags.owndata
                assert array.flags.c_contiguous
                torch.from_numpy(array).zero_()
            for found in (view.to_numpy(style), view.to_numpy(style, copy=False)):
                for name, array in found.items():
                    np.testing.assert_array_equal(array, before[name])
        arrays = view.to_numpy("episodes", copy=False)
        assert arrays["actions"].flags.owndata == (len(view) == 2)


def cut_as_d4rl_does(data: dict[str, NDArray[Any]]) -> list[dict[str, NDArray[Any]]]:
    """Cut a dataset as D4RL's `sequence_dataset` does where there are `timeouts`."""
    episodes, begin = [], 0
    for row in range(len(data["rewards"])):
        if bool(data["terminals"][row]) or bool(data["timeouts"][row]):
            episodes.append({name: array[begin : row + 1] for name, array in data.items()})
            begin = row + 1
    assert begin == len(data["rewards"]), "rows are left over"
    return episodes


def qlearning_as_d4rl_makes_it(data: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Make what D4RL's `qlearning_dataset` gives where there are `timeouts`."""
    rows = [i for i in range(len(data["rewards"]) - 1) if not data["timeouts"][i]]
    after = [i + 1 for i in rows]
    return {
        "observations": data["observations"][rows].astype(np.float32),
        "actions": data["actions"][rows].astype(np.float32),
        "next_observations": data["observations"][after].astype(np.float32),
        "rewards": data["rewards"][rows].astype(np.float32),
        "terminals": data["terminals"][rows],
    }


ENDS = {"terminated": (True, False), "truncated": (False, True), "both": (True, True)}
ENDS["neither"] = (False, False)


@pytest.fixture(params=LAYOUTS, scope="module")
def mixed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, list[tuple[int, int]]]:
    """A dataset whose episodes end in every way, some without a final observation; its bounds."""
    folder, lengths = tmp_path_factory.mktemp("mixed") / "toy", [20] * 12 + [1, 1, 2, 7]
    toy = toy_batch(lengths, unknown_final=[0, 1, 2, 3, 12, 14])
    ends = np.cumsum(lengths)
    for name, which in (("terminated", 0), ("truncated", 1)):
        flags = np.zeros((int(ends[-1]), 1), bool)
        flags[ends - 1, 0] = [list(ENDS.values())[e % 4][which] for e in range(len(lengths))]
        toy.steps["next", name] = flags  # type: ignore[index]
    write_toy(folder, [toy], layout=request.param)
    bounds = list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))
    return BaseDatasetExperienceReplay(folder), bounds


def test_episodes_are_what_flags_cut(mixed: tuple[Any, list[tuple[int, int]]]) -> None:
    ds, bounds = mixed
    data = ds.to_numpy("episodes")
    found = cut_as_d4rl_does(data)
    assert [len(episode["rewards"]) for episode in found] == [b - a for a, b in bounds]
    for number, episode in enumerate(found):
        own = ds[slice(*bounds[number])]
        np.testing.assert_array_equal(episode["observations"], own["observation", "state"])
        np.testing.assert_array_equal(episode["actions"], own["action"])
        np.testing.assert_array_equal(episode["terminals"], own["next", "terminated"][:, 0])
        assert not episode["timeouts"][:-1].any()
    view = ds.subset(slice(5, 70)).subset([*range(30), *range(40, 65), 3, 4])
    lengths = [15, 15, 15, 10, 2]
    assert [len(e["rewards"]) for e in cut_as_d4rl_does(view.to_numpy("episodes"))] == lengths


def returns_by_counting(data: dict[str, NDArray[Any]], longest: int) -> list[tuple[float, int]]:
    """Add up episodes as scripts do that know no time-outs, and count to `longest` instead."""
    found, total, length = [], 0.0, 0
    for reward, end in zip(data["rewards"], data["terminals"], strict=True):
        total, length = total + float(reward), length + 1
        if end or length == longest:
            found.append((total, length))
            total, length = 0.0, 0
    assert length == 0, "rows are left over"
    return found


def test_counting_steps_gives_the_episodes(toys: Callable[..., Path]) -> None:
    lengths = [5, 8, 2, 8, 1, 8]  # odd ones time out after 8 steps
    ds = BaseDatasetExperienceReplay(toys(lengths, unknown_final=(1, 5)))
    found = returns_by_counting(ds.to_numpy("episodes"), 8)
    assert [length for _, length in found] == lengths
    assert [total for total, _ in found] == pytest.approx(ds.episodes["return"].tolist())
    with pytest.raises(AssertionError):  # as with D4RL's own function
        returns_by_counting(ds.to_numpy("qlearning"), 8)


def test_qlearning_is_d4rls(mixed: tuple[Any, list[tuple[int, int]]]) -> None:
    ds, _ = mixed
    for buffer in (ds, ds.episodes_at([5, 0, 15, 3]), ds.subset(slice(13, 77))):
        want = qlearning_as_d4rl_makes_it(buffer.to_numpy("episodes"))
        found = buffer.to_numpy("qlearning")
        assert list(found) == list(want)
        for name, array in want.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)


def test_qlearning_drops_time_outs_where_d4rl_would_count_wrongly(tmp_path: Path) -> None:
    """Without `timeouts`, D4RL counts the row that terminated an episode as the next one's first."""
    lengths, horizon = [5, 8, 8], 8
    toy = toy_batch(lengths)
    last = np.cumsum(lengths) - 1
    toy.steps["next", "terminated"][:] = toy.steps["next", "truncated"][:] = False
    toy.steps["next", "terminated"][last[0]] = toy.steps["next", "truncated"][last[1:]] = True
    write_toy(tmp_path / "toy", [toy])
    ds = BaseDatasetExperienceReplay(tmp_path / "toy")
    every, found = (
        ds.to_numpy(style, observation_key=STATE) for style in ("episodes", "qlearning")
    )
    dropped: list[int] = []
    count = 0
    for row in range(20):
        if count == horizon - 1:
            dropped.append(row)
            count = 0
            continue
        count = 1 if every["terminals"][row] else count + 1
    assert dropped == [last[1] - 1, last[2] - 1]
    rows = [row for row in range(20) if row != last[1]]
    np.testing.assert_array_equal(found["actions"], every["actions"][rows])
    after = every["observations"][np.array(rows) + 1]
    np.testing.assert_array_equal(found["next_observations"], after)


def test_flags_inside_episodes_cannot_be_cut_by(tmp_path: Path) -> None:
    toy = toy_batch([5, 4])
    toy.steps["next", "terminated"][2] = True
    write_toy(tmp_path / "toy", [toy])
    ds = BaseDatasetExperienceReplay(tmp_path / "toy")
    with pytest.raises(
        UsageError,
        match="1 row is terminated or truncated before the end of an episode, first row 2",
    ):
        ds.to_numpy("episodes")
    assert len(ds.to_numpy()["rewards"]) == 9
    assert len(ds.episodes_at([1]).to_numpy("episodes")["rewards"]) == 4
    with pytest.raises(UsageError, match="style is 'd4rl'; expected one of transitions"):
        ds.to_numpy("d4rl")  # type: ignore[arg-type]


def test_no_row_at_all(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy", [toy_batch([1, 1], first_episode=1, unknown_final=(1,))])
    ds = BaseDatasetExperienceReplay(tmp_path / "toy").episodes_at([0])
    assert [len(ds.to_numpy(style)["rewards"]) for style in STYLES] == [0, 1, 0, 1]
    empty = ds.episodes_at([])
    assert [len(empty.to_numpy(style)["rewards"]) for style in STYLES] == [0, 0, 0, 0]
    assert [array.shape for array in ds.to_numpy().values()] == [(0, 3), (0, 1), (0,), (0, 3), (0,)]


def test_which_observation(ds: BaseDatasetExperienceReplay) -> None:
    with pytest.raises(UsageError, match="observation is 3 leaves") as error:
        ds.to_numpy()
    assert "set observation_key=… to one of observation/state" in str(error.value.hint)
    with pytest.raises(UsageError, match="goal is 0 leaves"):
        ds.to_numpy(observation_key="goal")
    codes = ds.to_numpy(observation_key="info/code")["observations"]
    assert codes[:3].tolist() == [1001, 1002, 1003]


def test_refusals(own_folder: Path) -> None:
    with pytest.raises(UsageError, match="whole episodes"):
        BaseDatasetExperienceReplay(own_folder, split_trajs=True).to_numpy(observation_key=STATE)
    ds = BaseDatasetExperienceReplay(own_folder)
    ds.delete()
    with pytest.raises(NotFoundError):
        ds.to_numpy(observation_key=STATE)
