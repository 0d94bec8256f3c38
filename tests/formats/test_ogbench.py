"""OGBench: every leaf of every row against numpy's reading, rewards against OGBench's formulas, damage."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError, UsageError
from offline_data.base.ids import parse_id
from offline_data.formats.base import PART_BYTES, Release
from offline_data.formats.catalogues import read_rows
from offline_data.formats.ogbench import source as ogbench
from offline_data.formats.ogbench.names import DEFAULT_TASKS, Name, goals
from offline_data.formats.ogbench.source import OGBench
from offline_data.formats.registry import FolderOfDatasetsError, source_accepting
from offline_data.pipeline.ingest import Options, convert, download
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from tests.toys.ogbench import toy_arrays, write_ogbench
from tests.toys.servers import FileServer, HubServer
from tests.toys.stored import read_shards

ROWS = (4, 2, 6, 3)


class TestContract(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        source = OGBench()
        release = source.resolve("antmaze-large-navigate-v0", None, Settings(tmp_path))
        write_ogbench(tmp_path / "raw" / release.files[0].path, toy_arrays("antmaze", ROWS))
        return SourceCase(source, release, tmp_path / "raw" / release.files[0].path)


def read(name: str, raw: Path) -> list[Any]:
    release = OGBench().resolve(name, None, Settings(raw))
    dataset = OGBench().open(release, raw)
    return [batch for shard in dataset.shards() for batch in dataset.read(shard)]


def as_ogbench_has_it(path: Path) -> dict[str, NDArray[Any]]:
    """Do what `load_dataset(add_info=True)` does with a file, by numpy alone."""
    with np.load(path) as file:
        arrays = dict(file)
    last = arrays.pop("terminals").astype(bool)
    starts = np.flatnonzero(np.r_[True, last[:-1]])
    rows = {name: column[~last] for name, column in arrays.items()}
    after = np.r_[False, ~last[:-1]]
    rows["next_observations"] = arrays["observations"][after]
    rows["starts"] = starts
    rows["ends"] = np.r_[last[1:], True][~last]
    return rows


@pytest.mark.parametrize(
    ("name", "kind", "image"),
    [
        ("pointmaze-medium-navigate-v0", "pointmaze", False),
        ("antmaze-large-navigate-v0", "antmaze", False),
        ("visual-cube-single-play-v0", "cube", True),
        ("scene-play-v0", "scene", False),
        ("powderworld-easy-play-v0", "powderworld", True),
    ],
)
def test_every_leaf_of_every_row(
    tmp_path: Path, settings: Settings, name: str, kind: str, image: bool
) -> None:
    path = write_ogbench(tmp_path / f"{name}.npz", toy_arrays(kind, ROWS, image=image))
    expected = as_ogbench_has_it(path)
    stored = convert(path, "toy", settings, Options(audit="all"))
    reader = open_reader(stored.path)
    table = reader.transitions_at(np.arange(reader.transitions))
    assert reader.lengths.tolist() == [rows - 1 for rows in ROWS]
    same(table["observation",], expected["observations"])
    same(table["next", "observation"], expected["next_observations"])
    same(table["action",], expected["actions"])
    same(table["next", "truncated"][:, 0], expected["ends"])
    assert not table["next", "terminated"].any()
    assert ("next", "reward") not in reader.step_leaves
    for info in ("qpos", "qvel", "button_states"):
        assert (("info", info) in table) == (info in expected)
        if info in expected:
            same(table["info", info], expected[info])
    assert np.asarray(reader.episodes["final_observation",]).all()


@pytest.fixture
def file_server() -> Iterator[FileServer]:
    with FileServer({}) as server:
        yield server


def same(found: Any, expected: NDArray[Any]) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def reward_of_ogbench(name: Name, arrays: dict[str, NDArray[Any]]) -> tuple[Any, Any]:
    """Compute `relabel_dataset` a second time, row by row, from the goals' own file."""
    kind, variant = name.kind
    goal = goals()[kind][variant][(name.task or 0) - 1]
    rewards, masks = [], []
    for row in range(len(arrays["actions"])):
        got = []
        if kind == "maze":
            at = arrays["qpos"][row, :2].astype(float)
            got = [np.hypot(*(at - goal)) <= (1.0 if "pointmaze" in name.stem else 0.5)]
        elif kind == "antsoccer":
            got = [np.hypot(*(arrays["qpos"][row, 15:17].astype(float) - goal)) <= 0.5]
        else:
            for number, cube in enumerate(goal.get("cubes", [])):
                at = arrays["qpos"][row, 14 + 7 * number : 17 + 7 * number].astype(float)
                got.append(sum((at - cube) ** 2) ** 0.5 <= 0.04)
            for number, button in enumerate(goal.get("buttons", [])):
                got.append(arrays["button_states"][row, number] == button)
            for number, part in ((23, "drawer"), (24, "window")):
                if part in goal:
                    got.append(abs(float(arrays["qpos"][row, number]) - goal[part]) <= 0.04)
        rewards.append(sum(map(bool, got)) - len(got))
        masks.append(float(not all(got)))
    return np.array(rewards, np.float32)[:, None], np.array(masks, np.float32)[:, None]


def near_goals(name: Name, arrays: dict[str, NDArray[Any]], seed: int) -> None:
    """Put parts of a third of the rows to their goals, some just out of reach."""
    kind, variant = name.kind
    goal, rng = goals()[kind][variant][(name.task or 0) - 1], np.random.default_rng(seed)

    def chosen() -> NDArray[np.bool_]:
        return rng.random(len(arrays["actions"])) < 0.4

    if kind in {"maze", "antsoccer"}:
        first = 15 if kind == "antsoccer" else 0
        rows = chosen()
        offsets = rng.uniform(-0.6, 0.6, (int(rows.sum()), 2))
        arrays["qpos"][rows, first : first + 2] = goal + offsets
        return
    for number, cube in enumerate(goal.get("cubes", [])):
        rows = chosen()
        offsets = rng.uniform(-0.035, 0.035, (int(rows.sum()), 3))
        arrays["qpos"][rows, 14 + 7 * number : 17 + 7 * number] = cube + offsets
    for number, button in enumerate(goal.get("buttons", [])):
        arrays["button_states"][chosen(), number] = button
    for number, part in ((23, "drawer"), (24, "window")):
        if part in goal:
            arrays["qpos"][chosen(), number] = goal[part] + 0.01


@pytest.mark.parametrize("task", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("domain", "kind"),
    [
        ("pointmaze-medium-navigate", "pointmaze"),
        ("antmaze-giant-stitch", "antmaze"),
        ("humanoidmaze-large-navigate", "humanoidmaze"),
        ("antmaze-teleport-explore", "antmaze"),
        ("antsoccer-arena-navigate", "antsoccer"),
        ("cube-triple-noisy", "cube"),
        ("visual-cube-single-play", "cube"),
        ("scene-play", "scene"),
        ("puzzle-3x3-play", "puzzle"),
    ],
)
def test_rewards_and_masks_of_tasks(tmp_path: Path, domain: str, kind: str, task: int) -> None:
    name = f"{domain}-singletask-task{task}-v0"
    parsed = Name.parse(name)
    assert parsed is not None
    arrays = toy_arrays(kind, [30, 20], seed=task)
    near_goals(parsed, arrays, task)
    write_ogbench(tmp_path / f"{domain}-v0.npz", arrays)
    rows = as_ogbench_has_it(tmp_path / f"{domain}-v0.npz")
    (batch,) = read(name, tmp_path)
    rewards, masks = reward_of_ogbench(parsed, rows)
    assert len(np.unique(rewards)) > 1
    same(batch.steps["next", "reward"], rewards)
    same(batch.steps["next", "mask"], masks)
    assert not batch.steps["next", "terminated"].any()


def test_the_goals_are_those_of_the_published_table(design: Path) -> None:
    table = json.loads((design / "ids" / "ogbench_goals.json").read_text())
    assert table["_default_task"] == DEFAULT_TASKS
    for variant, tasks in goals()["maze"].items():
        assert tasks == [one["goal_xy"] for one in table["maze"][variant]]
    for variant, tasks in goals()["puzzle"].items():
        for ours, theirs in zip(tasks, table["puzzle"][variant], strict=True):
            text = theirs["goal_button_states"].removeprefix("np.array(").partition(")")[0]
            assert ours["buttons"] == np.array(json.loads(text)).ravel().tolist()


@pytest.fixture
def design() -> Path:
    folder = Path(__file__).resolve().parents[3] / "shared" / "design"
    if not folder.is_dir():
        pytest.skip("the published tables are not here")
    return folder


def test_oracle_representations(tmp_path: Path) -> None:
    arrays = toy_arrays("scene", ROWS)
    write_ogbench(tmp_path / "scene-play-v0.npz", arrays)
    (batch,) = read("scene-play-oraclerep-v0", tmp_path)
    qpos = arrays["qpos"].astype(np.float64)
    expected = np.column_stack(
        [
            (qpos[:, 14:17] - [0.425, 0, 0]) * 10,
            arrays["button_states"],
            qpos[:, 23] * 18,
            qpos[:, 24] * 15,
        ]
    )
    np.testing.assert_allclose(batch.observations["oracle_reps",], expected, rtol=1e-6)
    (maze,) = read("antmaze-large-navigate-oraclerep-v0", _maze(tmp_path))
    assert maze.observations["oracle_reps",].shape == (sum(ROWS), 2)


def _maze(folder: Path) -> Path:
    write_ogbench(folder / "antmaze-large-navigate-v0.npz", toy_arrays("antmaze", ROWS))
    return folder


@pytest.mark.parametrize(
    ("name", "environment", "task"),
    [
        ("antmaze-large-navigate-v0", "antmaze-large-v0", None),
        ("antmaze-large-navigate-singletask-v0", "antmaze-large-singletask-task1-v0", 1),
        ("antsoccer-medium-stitch-singletask-v0", "antsoccer-medium-singletask-task4-v0", 4),
        (
            "visual-cube-double-play-singletask-task5-v0",
            "visual-cube-double-singletask-task5-v0",
            5,
        ),
        ("puzzle-4x6-play-singletask-v0-val", "puzzle-4x6-singletask-task2-v0", 2),
        ("scene-play-singletask-v0", "scene-singletask-task2-v0", 2),
        ("cube-quadruple-play-100m-v0", "cube-quadruple-v0", None),
    ],
)
def test_names(name: str, environment: str, task: int | None) -> None:
    parsed = Name.parse(name)
    assert parsed is not None
    assert (parsed.environment, parsed.task) == (environment, task)
    assert parsed.base in read_rows("ogbench")


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("antmaze-large-navigat-v0", "There is no ogbench:antmaze-large-navigat-v0", "navigate"),
        ("antmaze-large-navigate-singletask-task6-v0", "no task 6 of antmaze-large", "task1"),
        ("powderworld-easy-play-singletask-v0", "no tasks for powderworld-easy", "powderworld"),
        ("../x", r"There is no ogbench:\.\./x", "list"),
    ],
)
def test_unknown_names(settings: Settings, name: str, message: str, hint: str) -> None:
    with pytest.raises(NotFoundError, match=message) as found:
        OGBench().resolve(name, None, settings)
    assert hint in str(found.value.shell_hint)


def test_a_folder_with_both_files_has_splits(tmp_path: Path, settings: Settings) -> None:
    folder = tmp_path / "sets"
    write_ogbench(folder / "x-v0.npz", toy_arrays("antmaze", ROWS))
    write_ogbench(folder / "x-v0-val.npz", toy_arrays("antmaze", (5,)))
    assert source_accepting(folder).name == "ogbench"
    with pytest.raises(UsageError, match="has 2 splits: train, val"):
        convert(folder, "toy", settings, Options())
    stored = convert(folder, "toy", settings, Options(split="val"))
    assert (stored.transitions, stored.episodes) == (4, 1)


def test_a_folder_of_several_datasets_is_not_one(tmp_path: Path, settings: Settings) -> None:
    folder = tmp_path / "sets"
    for name in ("x-v0", "y-v0"):
        write_ogbench(folder / f"{name}.npz", toy_arrays("antmaze", ROWS))
    with pytest.raises(FolderOfDatasetsError, match="2 datasets"):
        convert(folder, "toy", settings, Options())


def test_downloaded_with_a_note_where_the_file_differs(
    tmp_path: Path, file_server: FileServer
) -> None:
    name = "antmaze-large-navigate-singletask-task2-v0"
    path = write_ogbench(tmp_path / "x.npz", toy_arrays("antmaze", ROWS))
    file_server.files["/antmaze-large-navigate-v0.npz"] = path.read_bytes()
    mirrors = ((ogbench.HOST, file_server.url),)
    settings = Settings(tmp_path / "root", mirrors=mirrors)
    stored = download(parse_id(f"ogbench:{name}"), settings, Options(audit="all"))
    assert stored.episodes == len(ROWS)
    assert stored.manifest.environment == {"id": "antmaze-large-singletask-task2-v0"}
    notes = " ".join(stored.manifest.notes)
    assert "record 1,000 trajectories; the file has 4" in notes
    assert "those of task 2" in notes


def test_sets_of_many_files_are_shards(tmp_path: Path, file_server: FileServer) -> None:
    name = "cube-double-play-100m-v0"
    for number in range(3):
        path = write_ogbench(tmp_path / f"{number}.npz", toy_arrays("cube", ROWS, seed=number))
        file = f"cube-double-play-v0-{number:03d}.npz"
        file_server.files[f"/{name}/{file}"] = path.read_bytes()
    page = "".join(
        f'<a href="cube-double-play-v0-00{number}{end}.npz">x</a>'
        for number in (2, 0, 1)
        for end in ("", "-val")
    )
    file_server.files[f"/{name}/"] = f'{page}<a href="../evil-000.npz">'.encode()
    settings = Settings(tmp_path / "root", mirrors=((ogbench.HOST, file_server.url),))
    stored = download(parse_id(f"ogbench:{name}"), settings, Options(audit="all"))
    assert (stored.episodes, stored.transitions) == (12, 3 * (sum(ROWS) - 4))
    reader = open_reader(stored.path)
    expected = np.concatenate([as_ogbench_has_it(tmp_path / f"{n}.npz")["qpos"] for n in range(3)])
    table = reader.transitions_at(np.arange(reader.transitions))
    same(table["info", "qpos"], expected)


def test_the_copy_on_the_hub_where_the_host_has_nothing(
    tmp_path: Path, file_server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ogbench, "HOST", file_server.url)
    remote = tmp_path / "remote"
    whole, shards = "antmaze-large-navigate-v0", "cube-double-play-100m-v0"
    write_ogbench(remote / f"{whole}.npz", toy_arrays("antmaze", ROWS))
    for number in range(2):
        file = remote / shards / f"cube-double-play-v0-00{number}.npz"
        write_ogbench(file, toy_arrays("cube", ROWS, seed=number))
    with HubServer({ogbench.MIRROR: remote}) as hub:
        settings = Settings(tmp_path / "root", hub_endpoint=hub.url)
        for name, episodes in ((whole, 4), (shards, 8)):
            stored = download(parse_id(f"ogbench:{name}"), settings, Options(audit="all"))
            assert stored.episodes == episodes


@pytest.mark.slow
def test_reading_holds_some_megabytes(tmp_path: Path) -> None:
    rows = [101] * 40
    arrays = toy_arrays("pointmaze", rows)
    arrays["observations"] = np.zeros((sum(rows), 128, 128, 3), np.uint8)
    arrays["observations"][:, 0, 0, 0] = np.arange(len(arrays["observations"])) % 251
    path = write_ogbench(tmp_path / "x-v0.npz", arrays)
    size = arrays.pop("observations").nbytes
    dataset = OGBench().open(OGBench().release_of(path, "x"), path)
    tracemalloc.start()
    seen = sum(batch.transitions for batch in dataset.read(dataset.shards()[0]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == 40 * 100
    assert peak < 4 * PART_BYTES < size


def _drop(name: str) -> Any:
    return lambda arrays: {key: column for key, column in arrays.items() if key != name}


def _put(name: str, column: Any) -> Any:
    return lambda arrays: {**arrays, name: column}


BAD = {
    "no actions": (_drop("actions"), "has no array 'actions'"),
    "fewer actions": (_put("actions", np.zeros((3, 2), np.float32)), "'actions' is float32"),
    "flags of two columns": (_put("terminals", np.zeros((15, 2), bool)), "'terminals' is bool"),
    "no rows": (_put("terminals", np.zeros(0, bool)), "'observations' is|'terminals' is"),
    "one row": (_put("terminals", np.ones(15, bool)), "trajectory 0 has one row"),
    "text": (_put("observations", np.full((15, 3), "x")), "'observations' is"),
    "empty rows": (_put("observations", np.zeros((15, 0), np.float32)), "rows of 'observations'"),
    "columns first": (
        _put("observations", np.asfortranarray(np.zeros((15, 3), np.float32))),
        "columns one after the other",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_files_that_do_not_fit(tmp_path: Path, what: str) -> None:
    change, message = BAD[what]
    path = write_ogbench(tmp_path / "x.npz", change(toy_arrays("antmaze", ROWS)))
    with pytest.raises(FormatError, match=message) as found:
        read_shards(OGBench(), Release("x", "1", local=path))
    assert "x.npz" in found.value.message


def test_damaged_and_lying_members(tmp_path: Path) -> None:
    path = write_ogbench(tmp_path / "x.npz", toy_arrays("antmaze", ROWS))
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("observations.npy").header_offset + 100
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    with pytest.raises(FormatError, match=r"x\.npz, array 'observations'"):
        read_shards(OGBench(), Release("x", "1", local=path))


def test_real_files(realdata: Path, tmp_path: Path, settings: Settings) -> None:
    """Files of OGBench's own loop, through its reading."""
    folder = realdata / "ogbench_generated"
    for path in sorted(folder.glob("*.npz")):
        stored = convert(path, path.stem, settings, Options(audit="all"), source="ogbench")
        expected = as_ogbench_has_it(path)
        reader: DatasetReader = open_reader(stored.path)
        table = reader.transitions_at(np.arange(reader.transitions))
        same(table["next", "observation"], expected["next_observations"])
        same(table["action",], expected["actions"])
