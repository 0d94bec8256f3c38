"""`to_numpy`: rows, views and copies, and each style against D4RL's own readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import offline_data
from offline_data.base.errors import NotFoundError, UsageError
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.mixtures.dataset_mixture import DatasetMixture
from offline_data.episode import Key
from offline_data.store.arrays import MASK, STYLES
from offline_data.store.content import digest_of
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.store.library import entry_at
from offline_data.store.reader import open_reader
from offline_data.testing.toy import toy_batch, write_toy
from tests.formats.test_ogbench import read
from tests.toys.d4rl import TOYS, write_published
from tests.toys.ogbench import LOADERS, toy_arrays, write_ogbench

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


def test_rows_are_those_with_a_known_next(ds: Dataset, truth: dict[Key, NDArray[Any]]) -> None:
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
def test_views(ds: Dataset, truth: dict[Key, NDArray[Any]], name: str) -> None:
    make, rows = VIEWS[name]
    assert_rows(make(ds).to_numpy(observation_key=STATE), truth, rows)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_are_copies_unless_asked_for_otherwise(
    toys: Callable[..., Path], layout: LayoutName
) -> None:
    """Writing to those that are not is tried in a process of its own, in `test_memory_safety`."""
    ds = Dataset(toys([5, 4, 3], layout=layout))
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
    return Dataset(folder), bounds


def test_episodes_are_what_flags_cut(mixed: tuple[Any, list[tuple[int, int]]]) -> None:
    ds, bounds = mixed
    data = ds.to_numpy("episodes")
    found = cut_as_d4rl_does(data)
    assert [len(episode["rewards"]) for episode in found] == [b - a for a, b in bounds]
    for number, episode in enumerate(found):
        own = ds[slice(*bounds[number])]
        np.testing.assert_array_equal(episode["observations"], own["observation", "state"])
        np.testing.assert_array_equal(episode["actions"], own["action"])
        np.testing.assert_array_equal(episode["rewards"], own["next", "reward"][:, 0])
        np.testing.assert_array_equal(episode["terminals"], own["next", "terminated"][:, 0])
        assert not episode["timeouts"][:-1].any()
    view = ds.subset(slice(5, 70)).subset([*range(30), *range(40, 65), 3, 4])
    lengths = [15, 15, 15, 10, 2]
    assert [len(e["rewards"]) for e in cut_as_d4rl_does(view.to_numpy("episodes"))] == lengths


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
    ds = Dataset(tmp_path / "toy")
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
    ds = Dataset(tmp_path / "toy")
    with pytest.raises(
        UsageError,
        match="1 row is terminated or truncated before the end of an episode, first row 2",
    ):
        ds.to_numpy("episodes")
    assert len(ds.to_numpy()["rewards"]) == 9
    assert len(ds.episodes_at([1]).to_numpy("episodes")["rewards"]) == 4


def test_no_row_at_all(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy", [toy_batch([1, 1], first_episode=1, unknown_final=(1,))])
    ds = Dataset(tmp_path / "toy").episodes_at([0])
    assert [len(ds.to_numpy(style)["rewards"]) for style in STYLES] == [0, 1, 0, 1, 0]
    empty = ds.episodes_at([])
    assert [len(empty.to_numpy(style)["rewards"]) for style in STYLES] == [0, 0, 0, 0, 0]
    assert [array.shape for array in ds.to_numpy().values()] == [(0, 3), (0, 1), (0,), (0, 3), (0,)]


def test_an_observation_beside_the_observations(ds: Dataset) -> None:
    codes = ds.to_numpy(observation_key="info/code")["observations"]
    assert codes[:3].tolist() == [1001, 1002, 1003]


def test_a_dataset_that_was_deleted(own_folder: Path) -> None:
    ds = Dataset(own_folder)
    ds.delete()
    with pytest.raises(NotFoundError):
        ds.to_numpy(observation_key=STATE)


def get_dataset(path: Path) -> dict[str, NDArray[Any]]:
    """Do what D4RL's `OfflineEnv.get_dataset` does with a file, without what has no rows."""
    names: list[str] = []

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith("metadata/"):
            names.append(name)

    with h5py.File(path, "r") as file:
        file.visititems(visit)
        data = {name: file[name][:] for name in names}
    for name in ("rewards", "terminals"):
        data[name] = data[name].reshape(len(data["observations"]))
    return data


def assert_same(found: Any, expected: dict[str, NDArray[Any]]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found[name], array, name)


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_every_column_of_the_file(tmp_path: Path, name: str, layout: Any) -> None:
    path = write_published(tmp_path, TOYS[name])
    folder = offline_data.convert(path, "toy", layout=layout, root=tmp_path / "root").path
    expected = get_dataset(path)
    ds = Dataset(folder)
    for copy in (True, False):
        assert_same(ds.to_numpy("dataset", copy=copy), expected)
    assert_same(offline_data.load_arrays(folder, "dataset"), expected)
    last = len(ds.episodes) - 1
    first = int(ds.episodes["start"][last])
    tail = {key: array[first:] for key, array in expected.items()}
    assert_same(ds.episodes_at([last]).to_numpy("dataset"), tail)
    both = DatasetMixture(ds, ds.episodes_at([last])).to_numpy("dataset")
    assert_same(both, {key: np.concatenate([expected[key], tail[key]]) for key in expected})
    if expected["terminals"].any() and layout == "compact":  # else nothing marks an end
        again = offline_data.convert(ds.to_numpy("dataset"), "again", root=tmp_path / "root")
        assert_same(offline_data.load_arrays(again.path, "dataset"), expected)


def test_real_files(realdata: Path, tmp_path: Path) -> None:
    paths = sorted((realdata / "fixtures_generated" / "d4rl").glob("*.hdf5"))
    assert len(paths) == 8
    for number, path in enumerate(paths):
        stored = offline_data.convert(path, f"set-{number}", root=tmp_path)
        expected = get_dataset(path)
        assert len(expected["rewards"]) == stored.transitions
        assert_same(Dataset(stored.path).to_numpy("dataset"), expected)


def test_timeouts_that_the_file_does_not_mark(tmp_path: Path) -> None:
    """Rows that end an episode for another reason are no time-outs of the file."""
    rows = 9
    arrays: dict[str, Any] = {
        "observations": np.arange(rows, dtype=np.float32).reshape(rows, 1),
        "actions": np.zeros((rows, 1), np.float32),
        "rewards": np.ones(rows),
        "terminals": np.zeros(rows, np.uint8),
        "timeouts": np.isin(np.arange(rows), [2, 5]),
        "next_observations": np.arange(1, rows + 1, dtype=np.float32).reshape(rows, 1),
    }
    arrays["next_observations"][7] = -1  # the episode is cut here; the last one is not marked
    folder = offline_data.convert(arrays, "mine", root=tmp_path).path
    ds = Dataset(folder)
    assert ds.to_numpy("episodes")["timeouts"].nonzero()[0].tolist() == [2, 5, 7, 8]
    assert_same(ds.to_numpy("dataset"), {name: arrays[name] for name in sorted(arrays)})
    said = {**arrays, "timeouts": np.isin(np.arange(rows), [2, 5, 7, 8])}
    whole = offline_data.convert(said, "said", root=tmp_path).path
    contents = [digest_of(entry_at(path), tmp_path) for path in (folder, whole)]
    assert contents[0] == contents[1]  # a lock of before fits
    ended = {**arrays, "terminals": np.arange(rows) == 8, "timeouts": said["timeouts"].copy()}
    ended["timeouts"][8] = False  # a terminal ends the last one
    stored = folder, whole, offline_data.convert(ended, "ended", root=tmp_path).path
    found = [("file_timeout",) in open_reader(path).episodes for path in stored]
    assert found == [True, False, False]
    part = offline_data.convert(arrays, "part", root=tmp_path, episodes=(1, None)).path
    marked = Dataset(part).to_numpy("dataset")["timeouts"]
    assert marked.nonzero()[0].tolist() == [2]


def test_other_sources_have_d4rls_names(tmp_path: Path) -> None:
    names = ["actions", "infos/code", "next_observations", "observations", "rewards"]
    for unknown in ((), (1,)):
        folder = tmp_path / f"toy{len(unknown)}"
        write_toy(folder, [toy_batch([3, 2], unknown_final=unknown)])
        found = Dataset(folder).to_numpy("dataset", observation_key="observation/state")
        own = [name for name in names if not (unknown and name == "next_observations")]
        assert {*own, "terminals", "timeouts"} <= {*found}
        assert ("next_observations" in found) == (not unknown)


def test_a_record_that_makes_no_sense_is_ignored(tmp_path: Path) -> None:
    from offline_data.store.manifest import dump_manifest

    manifest = write_toy(tmp_path / "toy", [toy_batch([3, 2])])
    about: dict[str, Any] = {"columns": {"terminals": ["x"], "timeouts": "O", "infos": 3}}
    text = dump_manifest(replace(manifest, about=about))
    (tmp_path / "toy" / "manifest.json").write_text(text)
    found = Dataset(tmp_path / "toy").to_numpy("dataset", observation_key="observation/state")
    assert found["terminals"].dtype == bool


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", ["antmaze", "powderworld"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ogbench_is_load_datasets(tmp_path: Path, kind: str, loader: str, layout: Any) -> None:
    rows, image = (4, 2, 6, 3), kind == "powderworld"
    path = write_ogbench(tmp_path / "x.npz", toy_arrays(kind, rows, image=image))
    dtypes = (np.uint8, np.int32) if image else (np.float32, np.float32)
    expected = LOADERS[loader](path, *dtypes)
    folder = offline_data.convert(path, "toy", layout=layout, root=tmp_path / "root").path
    ds = Dataset(folder)
    for copy in (True, False):
        assert_same(ds.to_numpy("ogbench", copy=copy), expected)
    assert_same(offline_data.load_arrays(folder, "ogbench"), expected)
    tail = {name: array[-2:] for name, array in expected.items()}
    assert_same(ds.episodes_at([3]).to_numpy("ogbench"), tail)
    both = DatasetMixture(ds, ds.episodes_at([3])).to_numpy("ogbench")
    assert_same(both, {name: np.concatenate([expected[name], tail[name]]) for name in expected})


def test_ogbench_with_the_rewards_of_a_task(tmp_path: Path) -> None:
    path = write_ogbench(tmp_path / "scene-play-v0.npz", toy_arrays("scene", (4, 2, 6)))
    for name, added in (("singletask-task2", ["rewards", "masks"]), ("oraclerep", ["oracle_reps"])):
        (batch,) = read(f"scene-play-{name}-v0", path)
        write_toy(tmp_path / name, [batch])
        found = Dataset(tmp_path / name).to_numpy("ogbench")
        assert list(found)[4:] == added
        if added == ["oracle_reps"]:
            every = batch.observations["oracle_reps",]
            np.testing.assert_array_equal(found["oracle_reps"], np.delete(every, [3, 5, 11], 0))
        else:
            np.testing.assert_array_equal(found["rewards"], batch.steps["next", "reward"][:, 0])
            np.testing.assert_array_equal(found["masks"], batch.steps[MASK][:, 0])


def test_ogbench_of_other_datasets(tmp_path: Path) -> None:
    """Trajectories end at the last row whose next observation is known; masks are 0 where terminated."""
    toy = toy_batch([3, 1, 4, 2, 3], unknown_final=[0, 1, 3])
    actions: dict[Key, Any] = {("action",): toy.steps["action",].astype(np.int64)}
    write_toy(tmp_path / "toy", [replace(toy, steps={**toy.steps, **actions})])
    ds = Dataset(tmp_path / "toy")
    for found in (
        ds.to_numpy("ogbench", observation_key=STATE),
        offline_data.load_arrays(tmp_path / "toy", "ogbench", observation_key=STATE),
    ):
        codes = [1001, 1002, 1003, 3001, 3002, 3003, 3004, 4001, 5001, 5002, 5003]
        assert found["observations"][:, 0].tolist() == codes
        assert found["actions"][:, 0].tolist() == [-code for code in codes]
        assert found["terminals"].tolist() == [0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 1]
        assert found["masks"].tolist() == [1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0]
        assert [array.dtype.name for array in found.values()] == [
            *("float32", "int32", "float32", "float32", "float32", "float32"),
        ]
    part = ds.subset([0, 1, 4, 5, 8]).to_numpy("ogbench", observation_key=STATE)
    assert part["observations"][:, 0].tolist() == [1001, 1002, 3001, 3002, 4001]
    assert part["next_observations"][:, 0].tolist() == [1002, 1003, 3002, 3003, 4002]
    assert part["terminals"].tolist() == [0, 1, 0, 1, 1]
