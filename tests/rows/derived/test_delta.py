"""`delta_timestamps` against LeRobot's rule, written out by hand with pyarrow and PyAV."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import UsageError
from offline_data.pipeline.ingest import Options, convert
from offline_data.pipeline.jobs.executors import InProcess
from tests.slow import slow_but
from tests.toys.lerobot import CAMERA, write_lerobot

STATE, VID = "observation.state", CAMERA
DELTAS = {STATE: [-0.2, -0.1, 0.0], VID: [-0.1, 0.0], "action": [0.1 * n for n in range(8)]}
Convert = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lerobot")


@pytest.fixture(scope="module")
def converted(folder: Path) -> Convert:
    """Convert a folder; each once."""
    made: dict[Any, Path] = {}
    settings = Settings(root=folder / "root", offline=True, workers=1)

    def convert_once(source: Path, video: Any = "keep") -> Path:
        name = f"{source.parent.name}-{source.name}-{video}"
        if name not in made:
            options = Options(video=video)
            made[name] = convert(source, name, settings, options, executor=InProcess()).path
        return made[name]

    return convert_once


@pytest.fixture(scope="module")
def filmed(folder: Path) -> dict[str, Path]:
    """Episodes of 5, 1, 9 and 3 rows with a camera, of both versions."""
    return {
        version: write_lerobot(
            folder / version, version, (5, 1, 9, 3), files=(1,), videos=(2,), images=False
        )
        for version in ("v2.1", "v3.0")
    }


@pytest.fixture(scope="module")
def plain(folder: Path, converted: Convert) -> Path:
    """Episodes of 5, 1, 3 and 4 rows, of which two are truncated, without a camera."""
    return converted(write_lerobot(folder / "plain", "v3.0", (5, 1, 3, 4), images=False))


class Oracle:
    """LeRobot's rows: query indices clamped to the episode, `KEY_is_pad`, frames by their times."""

    def __init__(self, folder: Path, camera: str) -> None:
        files = sorted(folder.glob("data/*/*.parquet"))
        self.rows = [row for path in files for row in pq.read_table(path).to_pylist()]
        self.rows.sort(key=lambda row: row["index"])
        self.fps = json.loads((folder / "meta/info.json").read_text())["fps"]
        self.camera, self.frames = camera, {}
        episodes = [
            r for p in folder.glob("meta/episodes/*/*") for r in pq.read_table(p).to_pylist()
        ]
        if (folder / "meta/episodes.jsonl").exists():
            lines = (folder / "meta/episodes.jsonl").read_text().splitlines()
            episodes = [json.loads(line) for line in lines]
        self.episodes = {one["episode_index"]: one for one in episodes}
        starts = np.cumsum([0, *(self.episodes[e]["length"] for e in sorted(self.episodes))])
        self.bounds = {e: (int(starts[e]), int(starts[e + 1])) for e in self.episodes}
        for path in folder.rglob("*.mp4"):
            with av.open(str(path)) as container:
                stream = container.streams.video[0]
                self.frames[path.relative_to(folder).as_posix()] = [
                    (float(one.pts * stream.time_base), one.to_ndarray(format="rgb24"))
                    for one in container.decode(video=0)
                ]

    def frame(self, row: int) -> Any:
        found = self.rows[row]
        episode = self.episodes[found["episode_index"]]
        if f"videos/{self.camera}/file_index" in episode:
            number = episode[f"videos/{self.camera}/file_index"]
            name = f"videos/{self.camera}/chunk-000/file-{number:03d}.mp4"
            begin = episode[f"videos/{self.camera}/from_timestamp"]
        else:
            (name,) = (
                one for one in self.frames
                if one.endswith(f"{self.camera}/episode_{found['episode_index']:06d}.mp4")
            )  # fmt: skip
            begin = 0.0
        query = begin + found["timestamp"]
        return min(self.frames[name], key=lambda one: abs(one[0] - query))[1]

    def item(self, row: int, deltas: dict[str, list[float]]) -> dict[str, Any]:
        first, stop = self.bounds[self.rows[row]["episode_index"]]
        item: dict[str, Any] = {}
        for key, seconds in deltas.items():
            wanted = [row + round(d * self.fps) for d in seconds]
            clamped = [max(first, min(stop - 1, one)) for one in wanted]
            item[f"{key}_is_pad"] = [one < first or one >= stop for one in wanted]
            values = [self.frame(n) if key == self.camera else self.rows[n][key] for n in clamped]
            item[key] = np.array(values)
        return item


def assert_windows(ds: Any, oracle: Oracle, deltas: dict[str, list[float]], rows: Any) -> None:
    batch = ds[torch.as_tensor(rows)]
    for n, row in enumerate(rows):
        for name, expected in oracle.item(int(row), deltas).items():
            found = batch[tuple(name.split("."))][n].numpy()
            np.testing.assert_array_equal(found, expected.astype(found.dtype) if isinstance(
                expected, np.ndarray) else expected, err_msg=f"{name} of row {row}")  # fmt: skip


@pytest.mark.parametrize(
    ("version", "video"),
    slow_but(lambda *both: both == ("v3.0", "keep"), ["v2.1", "v3.0"], ["keep", "raw"]),
)
def test_windows_are_lerobots(
    version: str, video: str, filmed: dict[str, Path], converted: Convert
) -> None:
    path = converted(filmed[version], video)
    ds = offline_data.open_dataset(path, delta_timestamps=DELTAS)
    assert ds[:2]["observation", "images", "vid"].shape == (2, 2, 32, 48, 3)
    assert ds[:2]["action_is_pad"].dtype == torch.bool
    assert ("next", STATE) not in ds[:2].keys(True)
    assert_windows(ds, Oracle(filmed[version], VID), DELTAS, range(18))


@pytest.mark.parametrize(
    "name",
    slow_but("lerobot_generated_v30".__eq__, ["lerobot_generated_v21", "lerobot_generated_v30"]),
)
def test_windows_of_files_that_lerobot_wrote(name: str, realdata: Path, converted: Convert) -> None:
    folder = realdata / name / "full"
    features = json.loads((folder / "meta/info.json").read_text())["features"]
    camera = next(key for key, one in features.items() if one["dtype"] == "video")
    oracle = Oracle(folder, camera)
    step = 1 / oracle.fps
    deltas = {camera: [-step, 0.0], "action": [n * step for n in range(-1, 8)]}
    ds = offline_data.open_dataset(converted(folder), delta_timestamps=deltas)
    ends = [n for first, stop in oracle.bounds.values() for n in (first, first + 1, stop - 1)]
    assert_windows(ds, oracle, deltas, ends)


def test_nothing_else_changes(plain: Path) -> None:
    batch = offline_data.open_dataset(plain, 4096, delta_timestamps={"action": [0.0]}).sample()
    stored = offline_data.open_dataset(plain)[batch["index"]]
    assert torch.equal(batch["action"][:, 0], stored["action"])
    assert torch.equal(batch["observation", "state"], stored["observation", "state"])
    assert not batch["action_is_pad"].any()
    window: Any = {"action": [0.1]}
    only = offline_data.open_dataset(plain, keys=["action"], delta_timestamps=window)
    assert only[:3]["action"].shape == (3, 1, 2)


def test_views_and_loaders_draw_every_row(plain: Path) -> None:
    """Also the last rows of truncated episodes."""
    assert len(offline_data.open_dataset(plain).valid_rows) == 11
    ds = offline_data.open_dataset(plain, 4096, delta_timestamps={"action": [0.0, 0.1]})
    starts = np.cumsum([0, 5, 1, 3])

    def rows_of(batches: Any) -> list[int]:
        steps = -torch.cat([one["action"][:, 0, 0] for one in batches]).long() - 1  # 1000 e + t
        return sorted((starts[steps // 1000] + steps.numpy() % 1000).tolist())

    whole, odd = list(range(13)), [5, 9, 10, 11, 12]
    parts = ds.split(a=0.5, b=0.5)
    for view, expected in [
        (ds, whole),
        (ds.filter("number % 2 == 1"), odd),
        (ds.episodes_at([1, 3]), odd),
        (ds.subset(odd), odd),
    ]:
        assert sorted(set(rows_of([view.sample()]))) == expected
        assert rows_of(view.dataloader(batch_size=4)) == expected
        assert len(view.valid_rows) == len(expected)
    drawn = [rows_of(part.dataloader(batch_size=4)) for part in parts.values()]
    assert sorted(drawn[0] + drawn[1]) == whole
    assert [sorted(set(rows_of([part.sample()]))) for part in parts.values()] == drawn


@pytest.mark.slow
def test_streams_have_the_same_windows(filmed: dict[str, Path], converted: Convert) -> None:
    ds = offline_data.open_dataset(converted(filmed["v3.0"]), delta_timestamps=DELTAS)
    derived = offline_data.delta_timestamps(DELTAS, fps=10)
    rows = []
    for batch in offline_data.StreamingDataset(str(filmed["v3.0"]), batch_size=4, derived=derived):
        expected = ds[batch["index"]]
        rows += batch["index"].tolist()
        for key in DELTAS:
            place = tuple(key.split("."))
            mask = (*place[:-1], f"{place[-1]}_is_pad")
            assert torch.equal(batch[place], expected[place])
            assert torch.equal(batch[mask], expected[mask])
    assert sorted(rows) == [n for n in range(18) if n not in {5, 17}]  # have no next observation


def test_torchrls_class(filmed: dict[str, Path], converted: Convert) -> None:
    from offline_data.torchrl.experience_replay import LeRobotExperienceReplay as Replay

    class Local(Replay):
        source = "local"

    path = converted(filmed["v3.0"])
    deltas = {VID: [-0.1, 0.0], "action": [0.0, 0.1]}
    name, root = f"local:{path.parent.name}", path.parents[2]
    ds = Local(name, root=root, delta_timestamps=deltas, key_map={"action": "act"})
    batch = ds[torch.tensor([0, 4])]
    assert batch["observation", "image", "vid"].shape == (2, 2, 32, 48, 3)
    assert batch["observation", "image", "vid_is_pad"].tolist() == [[True, False], [False, False]]
    assert batch["act_is_pad"].tolist() == [[False, False], [False, True]]


@pytest.mark.parametrize(
    ("deltas", "options", "words"),
    [
        ({"action": [0.0, 0.05]}, {}, r"multiples of 1/10 s, which 0.05 is not"),
        ({"action": []}, {}, "empty"),
        ({"actoin": [0.0]}, {}, "no feature"),
        ({VID: [0.0]}, {"decode": False}, "decode=True"),
        ({"action": [0.0]}, {"split_trajs": True}, "whole episodes"),
    ],
)
def test_wrong_arguments(
    deltas: Any, options: Any, words: str, filmed: dict[str, Path], converted: Convert
) -> None:
    path = converted(filmed["v3.0"])
    with pytest.raises(UsageError, match=words):
        offline_data.open_dataset(path, delta_timestamps=deltas, **options)[:1]


def test_windows_are_normalised_row_by_row(plain: Path) -> None:
    scale = offline_data.normalize(["action"])
    deltas: Any = {"action": [0.0, 0.10004]}  # nearly 0.1
    ds = offline_data.open_dataset(plain, delta_timestamps=deltas, derived=scale)
    values = offline_data.open_dataset(plain)[:]["action"].double()
    expected = (values - values.mean(0)) / (values.std(0, correction=0) + 1e-3)
    found = ds[torch.tensor([1, 4])]["action"]
    torch.testing.assert_close(
        found.double(), expected[torch.tensor([[1, 2], [4, 4]])], atol=1e-5, rtol=1e-5
    )
