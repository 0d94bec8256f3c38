"""LeRobot datasets: every value against pyarrow's reading, defects by name, the hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, OfflineError, UsageError
from offline_data.base.ids import parse_id
from offline_data.episode import EpisodeBatch
from offline_data.episode.joining import concatenate
from offline_data.episode.notes import count_rows
from offline_data.formats.base import Release, RemoteFile
from offline_data.formats.lerobot import dataset as module
from offline_data.formats.lerobot.source import LeRobot
from offline_data.formats.lerobot.video import frames_of_rows
from offline_data.formats.registry import source_accepting
from offline_data.pipeline.ingest import Options, convert, download
from offline_data.pipeline.ingest.resolve import apply_options
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.raw import arrow
from offline_data.raw.images import encode_image
from offline_data.raw.video import VideoFile
from offline_data.store.encoded import EncodedColumn
from offline_data.store.reader import open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from tests.refusals import Refusals
from tests.slow import every_second, slow_but
from tests.toys.lerobot import (
    FEATURES,
    FPS,
    LENGTHS,
    TASKS,
    VIDEO,
    edit_table,
    toy_frame,
    toy_image,
    write_lerobot,
    write_video,
)
from tests.toys.servers import HubServer

REFUSALS = Refusals.beside(__file__)
CAM = "observation.images.cam"
KEY_CAM = ("observation", "images", "cam")
VERSIONS = ("v2.0", "v2.1", "v3.0")


class TestContract(SourceContract):
    @pytest.fixture(params=slow_but(lambda name: "here" not in name, ["v2.1", "v3.0", "v3.0 here"]))
    def case(
        self, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> SourceCase:
        version, _, here = request.param.partition(" ")
        raw = write_lerobot(tmp_path / "raw", version, (60, 1, 9, 8), files=(1,), videos=(2,))
        release = LeRobot().release_of(raw, "toy")
        if not here:
            monkeypatch.setattr(module, "_SHARD_BYTES", 1)
            paths = sorted(p.relative_to(raw).as_posix() for p in raw.rglob("*") if p.is_file())
            files = tuple(RemoteFile(one, (f"https://host.invalid/{one}",)) for one in paths)
            opening = tuple(one for one in paths if one.startswith("meta"))
            release = Release("me/toy", "3f2a", files, opening=opening)
        return SourceCase(LeRobot(), release, raw)


# ---- every value -------------------------------------------------------------------------------------


def refused(kind: str, name: str, folder: Path) -> None:
    REFUSALS.check(kind, name, lambda: read(folder), {folder: "RAW"})


def read(folder: Path, **options: Any) -> EpisodeBatch:
    release = replace(LeRobot().release_of(folder, "mine"), options=Options(**options))
    opened = LeRobot().open(release, folder)
    return concatenate([batch for shard in opened.shards() for batch in opened.read(shard)])


def rows_of(folder: Path) -> list[list[dict[str, Any]]]:
    """Read the rows of all episodes by pyarrow alone, with the text of their tasks."""
    rows = [
        row
        for path in sorted(folder.glob("data/*/*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    if (folder / "meta/tasks.jsonl").exists():
        lines = (folder / "meta/tasks.jsonl").read_text().splitlines()
        tasks = {one["task_index"]: one["task"] for one in map(json.loads, lines)}
    else:
        table = pq.read_table(folder / "meta/tasks.parquet").to_pylist()
        tasks = {one["task_index"]: one["__index_level_0__"] for one in table}
    rows = [{**row, "task": tasks[row["task_index"]]} for row in rows]
    count = max(row["episode_index"] for row in rows) + 1
    episodes = [[row for row in rows if row["episode_index"] == e] for e in range(count)]
    return [sorted(one, key=lambda row: row["frame_index"]) for one in episodes]


def frames_of(folder: Path, camera: str) -> list[list[Any]]:
    """Return the frames of all episodes, decoded by PyAV from the first to the last of each file."""

    def decoded(path: Path) -> list[Any]:
        with av.open(str(path)) as container:
            return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]

    paths = sorted(folder.glob(f"videos/chunk-*/{camera}/*.mp4"))
    if paths:
        return [decoded(path) for path in paths]
    table = [
        row for path in folder.glob("meta/episodes/*/*") for row in pq.read_table(path).to_pylist()
    ]
    fps = json.loads((folder / "meta/info.json").read_text())["fps"]
    found = []
    for row in sorted(table, key=lambda row: row["episode_index"]):
        number = row[f"videos/{camera}/file_index"]
        frames = decoded(folder / f"videos/{camera}/chunk-000/file-{number:03d}.mp4")
        begin = round(row[f"videos/{camera}/from_timestamp"] * fps)
        found.append(frames[begin : begin + row["length"]])
    return found


def assert_frames(batch: EpisodeBatch, folder: Path, camera: str) -> None:
    frames = frames_of(folder, camera)
    column: Any = batch.observations[tuple(camera.split("."))]
    expected = np.stack([frame for one in frames for frame in [*one, one[-1]]])
    np.testing.assert_array_equal(np.asarray(column), expected)
    key = ("frame_shift", *camera.split(".")[1:])
    shift: Any = batch.episodes[key]
    assert shift.dtype == np.float32
    assert (shift < 1e-4).all()


def assert_values(batch: EpisodeBatch, folder: Path) -> None:
    """Compare every leaf of every row."""
    episodes = rows_of(folder)
    features = json.loads((folder / "meta/info.json").read_text())["features"]
    steps = [row for one in episodes for row in one]
    seen = [row for one in episodes for row in [*one, one[-1]]]
    numbering = {"episode_index", "frame_index", "index", "task_index"}
    expected: dict[str, Any] = {"task": [row["task"] for row in steps]}
    for name in features.keys() - numbering - {"next.done"}:
        if features[name]["dtype"] != "video":
            rows = seen if name.startswith("observation") else steps
            expected[name.replace(".", "/")] = [row[name] for row in rows]
    done = [bool(row.get("next.done")) for row in steps]
    ends = np.cumsum([len(one) for one in episodes]) - 1
    expected["next/terminated"] = done
    expected["next/truncated"] = [i in ends and not done[i] for i in range(len(steps))]
    found = {"/".join(key): c for key, c in {**batch.steps, **batch.observations}.items()}
    for name in features:
        if features[name]["dtype"] == "video" and any(folder.glob("videos/**/*.mp4")):
            assert_frames(batch, folder, name)
            del found[name.replace(".", "/")]
    assert found.keys() == expected.keys() | ({"episode"} & found.keys())
    for key, values in expected.items():
        column: Any = found[key]
        assert len(column) == len(values), key
        if isinstance(column, EncodedColumn):
            assert column.images() == [one["bytes"] for one in values], key
        elif column.dtype == object:
            assert column.tolist() == values, key
        else:
            name = key.replace("/", ".")
            if name in features:
                assert column.dtype == features[name]["dtype"], key
                assert list(column.shape[1:]) == features[name]["shape"], key
            flat = np.array(values, column.dtype).reshape(column.shape)
            np.testing.assert_array_equal(column, flat, err_msg=key)
    assert batch.lengths.tolist() == [len(one) for one in episodes]
    assert not batch.final_observation.any()
    assert batch.episodes["episode_index",].tolist() == list(range(len(episodes)))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_value_after_the_disk(version: str, tmp_path: Path, settings: Settings) -> None:
    folder = write_lerobot(tmp_path / "toy", version, videos=(1,))
    stored = convert(folder, "toy", settings, Options(audit="all"))
    reader = open_reader(stored.path)
    assert_values(reader.episode_batch(0, reader.episode_count), folder)
    manifest = stored.manifest
    assert manifest.about["codebase_version"] == version
    assert manifest.about["features"]["action"]["names"] == ["x", "y"]
    assert manifest.spaces["observation"]["images/cam"] == "image [8, 9, 3]"
    assert any("next.done is terminated" in note for note in manifest.notes)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_toy_values_say_where_they_are(version: str, tmp_path: Path) -> None:
    batch = read(write_lerobot(tmp_path / "toy", version))
    code = [1000 * e + t + 1 for e, n in enumerate(LENGTHS) for t in range(n)]
    assert batch.steps["action",][:, 0].tolist() == [-one for one in code]
    images: Any = batch.observations["observation", "images", "cam"]
    expected = [toy_image(e, min(t, n - 1)) for e, n in enumerate(LENGTHS) for t in range(n + 1)]
    np.testing.assert_array_equal(np.asarray(images), np.stack(expected))
    texts = [TASKS[e % 2] for e, n in enumerate(LENGTHS) for _ in range(n)]
    assert batch.steps["task",].tolist() == texts


@pytest.mark.parametrize(
    "name", ["lerobot_generated_v21", "lerobot_generated_v30", "lerobot_v30_record-test"]
)
def test_files_of_lerobot_itself(name: str, realdata: Path, settings: Settings) -> None:
    parts = ["full", "lowdim"] if "generated" in name else [""]
    for part in parts:
        folder = realdata / name / part
        assert source_accepting(folder).name == "lerobot"
        stored = convert(folder, f"toy{part}", settings, Options(audit="all"))
        reader = open_reader(stored.path)
        assert_values(reader.episode_batch(0, reader.episode_count), folder)


def test_videos_that_are_not_there_are_named(realdata: Path, settings: Settings) -> None:
    stored = convert(realdata / "lerobot_v30_record-test", "toy", settings, Options())
    videos = ["observation.images.front", "observation.images.top"]
    assert [one["key"] for one in stored.manifest.dropped] == videos
    (note,) = (one for one in stored.manifest.notes if "videos of" in one)
    assert all(f"videos/{camera}/chunk-000/file-000.mp4" in note for camera in videos)
    assert "convert again with --force" in note
    assert ("next", "reward") not in open_reader(stored.path).step_leaves


# ---- video -----------------------------------------------------------------------------------------------


KEY = ("observation", "images", "vid")


@pytest.mark.parametrize(("version", "shard"), every_second(["v2.1", "v3.0"], [1, 1 << 30]))
def test_frames(version: str, shard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHARD_BYTES", shard)
    lengths = (5, 1, 14, 2, 7)
    folder = write_lerobot(
        tmp_path / "toy", version, lengths, files=(3,), videos=(2,), images=False
    )
    batch = read(folder)
    assert_values(batch, folder)
    images: Any = batch.observations[KEY]
    assert images.encoding == "video"
    grey = np.asarray(images)[..., 0].mean((1, 2))
    expected = [
        40 * e + 4 * min(t, n - 1) + 20 for e, n in enumerate(lengths) for t in range(n + 1)
    ]
    np.testing.assert_allclose(grey, expected, atol=2)
    encoded: Any = read(folder, video="png").observations[KEY]
    assert encoded.encoding == "png"
    np.testing.assert_array_equal(np.asarray(encoded), np.asarray(images))
    pixels = read(folder, video="raw").observations[KEY]
    assert isinstance(pixels, np.ndarray)
    np.testing.assert_array_equal(pixels, np.asarray(images))
    skipped = read(folder, video="skip")
    assert KEY not in skipped.observations
    assert ("frame_shift", "images", "vid") not in skipped.episodes


def test_any_frames_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    write_video(path, [toy_frame(0, t) for t in range(40)])
    with av.open(str(path)) as container:
        truth = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    film = VideoFile(path)
    np.testing.assert_allclose(film.times, np.arange(40) / FPS)
    random = np.random.default_rng(0)
    for _ in range(30):
        numbers = np.sort(random.integers(0, 40, random.integers(1, 6)))
        for number, frame in zip(numbers, film.read(numbers), strict=True):
            np.testing.assert_array_equal(frame, truth[number])
    film.close()


def test_times_of_frames() -> None:
    rows = np.arange(4) / 10
    times = np.arange(12) / 10

    def found(times: Any, bounds: Any, rows: Any = rows) -> tuple[list[int], float]:
        numbers, apart, _ = frames_of_rows(times, bounds, rows, 10)
        return numbers.tolist(), round(apart, 6)

    assert found(times, (0.3, 0.7)) == ([3, 4, 5, 6], 0.0)
    assert found(times[:7], (0.3, None)) == ([3, 4, 5, 6], 0.0)
    assert found(times, (0.3, None)) == ([3, 4, 5, 6], 0.0)  # more frames than rows: the nearest
    assert found(times[:4] + 0.7, (None, None)) == ([0, 1, 2, 3], 0.7)  # a constant offset
    assert found(times[:4] + np.array([0, 0.03, -0.03, 0.04]), (None, None)) == ([0, 1, 2, 3], 0.04)
    assert found(times, (0.34, 0.74)) == ([3, 4, 5, 6], 0.04)  # begins drift
    assert found(times[:5], (None, None), np.array([0.1, 0.12, 0.3])) == ([1, 1, 3], 0.02)
    assert found(times[:1], (None, None), rows[:1]) == ([0], 0.0)
    for times_, bounds, rows_, said in [
        (times[:3], (None, None), rows, "row 3, at 0.300 s: the nearest is at 0.200 s"),
        (times[:4], (None, None), np.array([0, 0.1, 0.2, 0.36]), "row 3, at 0.360 s"),
        (times, (0.3, 0.7), np.array([0, 0.1, 0.2, 0.4]), "row 3, at 0.700 s"),
        (times, (1.5, None), rows, "there is no frame"),
        (times[:5], (None, None), np.array([0.1, np.nan, 0.3]), "row 1"),
    ]:
        with pytest.raises(FormatError, match=said):
            frames_of_rows(times_, bounds, rows_, 10)


def test_a_film_that_begins_late(tmp_path: Path) -> None:
    folder = write_lerobot(tmp_path / "toy", videos=())
    path = folder / "videos/chunk-000/observation.images.vid/episode_000000.mp4"
    write_video(path, [toy_frame(0, t) for t in range(5)], ticks=[250, 350, 450, 550, 650])
    batch = read(folder)
    column: Any = batch.observations[KEY]
    with av.open(str(path)) as container:
        truth = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    np.testing.assert_array_equal(np.asarray(column)[:5], truth)


def test_depth(tmp_path: Path) -> None:
    pytest.importorskip("av", minversion="14")  # older ones write no ffv1 in mp4
    folder = write_lerobot(tmp_path / "toy", videos=(), lengths=(3, 2, 4))
    depth = [
        [(1000 * e + 64 * t + np.arange(32 * 48).reshape(32, 48)) % 4096 for t in range(n)]
        for e, n in enumerate((3, 2, 4))
    ]
    for e, frames in enumerate(depth):
        path = folder / f"videos/chunk-000/observation.images.vid/episode_{e:06d}.mp4"
        write_video(path, [one.astype(np.uint16) for one in frames], codec="ffv1", form="gray12le")
    column: Any = read(folder).observations[KEY]
    assert (column.dtype, column.shape[1:]) == (np.uint16, (32, 48, 1))
    expected = [one for frames in depth for one in [*frames, frames[-1]]]
    np.testing.assert_array_equal(np.asarray(column)[..., 0], np.stack(expected))


SHORT = b"a film of two frames"
FILMS: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda whole: whole[: len(whole) // 2],
    "damaged": lambda whole: whole.replace(b"\x00\x00\x01", b"\xff\xff\xff"),
    "a pointer": lambda _: b"version https://git-lfs.github.com/spec/v1",
    "empty": lambda _: b"",
    "no film": lambda _: b"\0\0\0\x18ftypisom" + bytes(40),
    "too few frames": lambda _: SHORT,
    "absent": lambda _: b"absent",
}


@REFUSALS.of("films", FILMS)
def test_films_that_cannot_be_used(name: str, tmp_path: Path) -> None:
    folder = write_lerobot(tmp_path / "toy", videos=())
    path = folder / "videos/chunk-000/observation.images.vid/episode_000002.mp4"
    path.write_bytes(content := FILMS[name](path.read_bytes()))
    if content == SHORT:
        write_video(path, [toy_frame(2, t) for t in range(2)])
    elif name == "absent":
        path.unlink()
    refused("films", name, folder)
    if name != "absent":
        batch = read(folder, skip_bad_episodes=True)
        assert batch.episodes["episode_index",].tolist() == [0, 1, 3]


# ---- rows by value -------------------------------------------------------------------------------------


def mixed(table: pa.Table) -> pa.Table:
    return table.take(np.random.default_rng(3).permutation(len(table)))


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_rows_in_another_order(version: str, tmp_path: Path) -> None:
    folder = write_lerobot(tmp_path / "toy", version)
    for path in folder.glob("data/*/*.parquet"):
        edit_table(path, mixed)
    assert_values(read(folder), folder)


def test_many_episodes_in_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [1 + n * n % 17 for n in range(40)]
    folder = write_lerobot(tmp_path / "toy", "v3.0", lengths, files=(13, 14, 30), images=False)
    monkeypatch.setattr(module, "_VALUES", 400)
    edit_table(folder / "data/chunk-000/file-002.parquet", lambda table: table)  # one row group
    assert_values(read(folder), folder)


def lacking(*names: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.drop_columns([*names])


@pytest.mark.parametrize("names", [["episode_index"], ["frame_index"], ["frame_index", "index"]])
def test_what_is_certain_without_some_columns(names: list[str], tmp_path: Path) -> None:
    whole = read(write_lerobot(tmp_path / "whole"))
    found = read(write_lerobot(tmp_path / "toy", edit=lacking(*names)))
    for key, column in whole.steps.items():
        assert found.steps[key].tolist() == column.tolist()


def test_tasks_in_a_column(tmp_path: Path) -> None:
    def with_task(table: pa.Table) -> pa.Table:
        texts = [TASKS[n % 2] for n in table["task_index"].to_pylist()]
        return table.drop_columns(["task_index"]).append_column("task", pa.array(texts))

    folder = write_lerobot(tmp_path / "toy", "v3.0", edit=with_task)
    (folder / "meta/tasks.parquet").unlink()
    assert read(folder).steps["task",].tolist()[:6] == [TASKS[0]] * 5 + [TASKS[1]]
    folder = write_lerobot(tmp_path / "numbers", "v3.0")
    (folder / "meta/tasks.parquet").unlink()
    assert read(folder).steps["task",].tolist()[:6] == [0] * 5 + [1]


def test_other_templates_and_metadata(tmp_path: Path) -> None:
    folder = write_lerobot(tmp_path / "a", "v2.1", codebase_version="v3.0")
    assert_values(read(folder), folder)
    wrong = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    folder = write_lerobot(tmp_path / "b", "v3.0", data_path=wrong)
    assert_values(read(folder), folder)
    folder = write_lerobot(tmp_path / "c", "v3.0", files=())
    routes = ["data/chunk_index", "data/file_index"]
    edit_table(folder / "meta/episodes/chunk-000/file-000.parquet", lacking(*routes))
    assert_values(read(folder), folder)


def test_a_shape_of_nothing_and_more_features(tmp_path: Path) -> None:
    features = {**FEATURES, "next.reward": {"dtype": "float32", "shape": []}}
    features["wide"] = {"dtype": "float32", "shape": []}
    features["language"] = {"dtype": "language", "shape": [1]}
    features["action.grip"] = {"dtype": "int64", "shape": [1]}

    def edit(table: pa.Table) -> pa.Table:
        code = table["next.reward"].cast(pa.float64())
        for name, column in {"wide": code, "extra": code}.items():
            table = table.append_column(name, column)
        return table.append_column("action.grip", table["index"])

    batch = read(write_lerobot(tmp_path / "toy", features=features, edit=edit))
    assert batch.steps["next", "reward"].shape == (13, 1)
    assert batch.steps["wide",].dtype == np.float32
    assert batch.steps["wide",].shape == (13,)
    assert batch.steps["action_grip",][:, 0].tolist() == list(range(13))
    assert [one.key for one in batch.dropped] == ["extra"]
    info = LeRobot().open(LeRobot().release_of(tmp_path / "toy", "x"), tmp_path / "toy").info
    assert [one.key for one in info.dropped] == ["language"]


def test_names_without_observation(tmp_path: Path) -> None:
    names = {"observation.state": "state", "action": "actions", CAM: "wrist_image"}

    def edit(table: pa.Table) -> pa.Table:
        return table.rename_columns([names.get(n, n) for n in table.column_names])

    features = {names.get(name, name): one for name, one in FEATURES.items()}
    batch = read(write_lerobot(tmp_path / "toy", features=features, edit=edit))
    assert ("action",) in batch.steps
    assert batch.observations.keys() >= {("observation", "state"), ("observation", "wrist_image")}


def pictures(encoding: str, shape: Any, dtype: Any = np.uint8) -> Callable[[pa.Table], pa.Table]:
    """Put one image, of the codes 0, 1, …, into all rows."""
    image = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    one = {"bytes": encode_image(image, encoding), "path": None}
    return lambda table: put(CAM, [one] * len(table))(table)


def test_images_of_other_kinds(tmp_path: Path) -> None:
    folder = write_lerobot(tmp_path / "jpeg", edit=pictures("jpeg", (8, 9, 3)))
    column: Any = read(folder).observations[KEY_CAM]
    assert (column.encoding, column.shape[1:]) == ("jpeg", (8, 9, 3))
    folder = write_lerobot(tmp_path / "depth", edit=pictures("png", (8, 9), np.uint16))
    depth = np.asarray(read(folder).observations[KEY_CAM])
    assert depth[0, 0, :, 0].tolist() == list(range(9))


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
@pytest.mark.parametrize("shape", [[8, 9], [8, 9, 1], [1, 8, 9]])
def test_tiff_images_of_depth(dtype: Any, shape: list[int], tmp_path: Path) -> None:
    folder = write_depth(tmp_path / "toy", shape, dtype)
    column: Any = read(folder).observations[KEY_CAM]
    depth = np.asarray(column)
    assert (depth.dtype, depth.shape) == (dtype, (sum(LENGTHS) + len(LENGTHS), 8, 9, 1))
    assert (depth[..., 0] == np.arange(72).reshape(8, 9)).all()
    assert isinstance(column, EncodedColumn) == (dtype == np.uint16)


def write_depth(folder: Path, shape: list[int], dtype: Any) -> Path:
    features = {**FEATURES, CAM: {"dtype": "image", "shape": shape, "names": None}}
    return write_lerobot(folder, edit=pictures("tiff", (8, 9), dtype), features=features)


TIFF: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:40],
    "of colours": lambda _: encode_image(np.zeros((8, 9, 3), np.uint8), "tiff"),
    "of another size": lambda _: encode_image(np.zeros((4, 9), np.uint16), "tiff"),
    "of bytes": lambda _: encode_image(np.zeros((8, 9), np.uint8), "tiff"),
}


@REFUSALS.of("tiff", TIFF)
def test_tiff_images_that_are_not_read(name: str, tmp_path: Path) -> None:
    def spoil(table: pa.Table) -> pa.Table:
        files = table[CAM].to_pylist()
        files[3]["bytes"] = TIFF[name](files[3]["bytes"])
        return put(CAM, files)(table)

    folder = write_depth(tmp_path / "toy", [8, 9], np.uint16)
    edit_table(folder / "data/chunk-000/episode_000000.parquet", spoil)
    refused("tiff", name, folder)


def test_codes_of_depth_are_explained(tmp_path: Path, settings: Settings) -> None:
    told = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5, "use_log": True}
    info = {f"video.{name}": value for name, value in told.items()}
    features = {**FEATURES, "observation.images.vid": {**VIDEO, "info": info}}
    folder = write_lerobot(tmp_path / "toy", videos=(), features=features)
    stored = convert(folder, "toy", settings, Options())
    (note,) = (one for one in stored.manifest.notes if "codes of depth" in one)
    formula = note.partition("metres are ")[2].rstrip(".")
    metres = [eval(formula, {"exp": np.exp, "log": np.log, "code": code}) for code in (0, 4095)]  # noqa: S307
    np.testing.assert_allclose(metres, [0.01, 10.0])


def test_done_before_the_last_row(tmp_path: Path) -> None:
    def edit(table: pa.Table) -> pa.Table:
        done = pc.less(table["frame_index"], 2)
        return table.set_column(table.column_names.index("next.done"), "next.done", done)

    batch = read(write_lerobot(tmp_path / "toy", edit=edit))
    assert batch.steps["next", "terminated"][:5, 0].tolist() == [True, True, False, False, False]
    assert batch.steps["next", "truncated"][:5, 0].tolist() == [False] * 4 + [True]
    assert count_rows(2 + 0 + 2 + 2, module.NOTE_EARLY) in batch.notes


def test_timestamps_off_the_grid(tmp_path: Path) -> None:
    def edit(table: pa.Table) -> pa.Table:
        time = pc.add(table["timestamp"], pa.scalar(0.013, pa.float32()))
        return table.set_column(table.column_names.index("timestamp"), "timestamp", time)

    off = read(write_lerobot(tmp_path / "off", edit=edit))
    assert count_rows(int(off.lengths.sum()), module.NOTE_OFF_GRID) in off.notes
    notes = read(write_lerobot(tmp_path / "on")).notes
    assert not any(module.NOTE_OFF_GRID in note for note in notes)


# ---- defects ---------------------------------------------------------------------------------------------


def put(name: str, values: Any) -> Callable[[pa.Table], pa.Table]:
    """Return what sets a column, to a list or a function of the numpy column."""

    def edit(table: pa.Table) -> pa.Table:
        column = values(table[name].to_numpy()) if callable(values) else values
        return table.set_column(table.column_names.index(name), name, pa.array(column))

    return edit


EPISODES = "meta/episodes/chunk-000/file-000.parquet"
V2_FIRST = "data/chunk-000/episode_000000.parquet"
FIRST, SECOND = "data/chunk-000/file-000.parquet", "data/chunk-000/file-001.parquet"
DEFECTS: dict[str, tuple[str, Callable[[pa.Table], pa.Table]]] = {
    "a row is missing": (FIRST, lambda t: t.slice(1)),
    "the last row is missing": (SECOND, lambda t: t.slice(0, 6)),
    "a frame twice": (FIRST, put("frame_index", [0, 1, 1, 3, 4, 0])),
    "a gap of index": (FIRST, put("index", [0, 1, 3, 4, 5, 6])),
    "an episode of another file": (FIRST, put("episode_index", [0] * 5 + [2])),
    "an episode that is not listed": (SECOND, put("episode_index", [2] * 3 + [9] * 4)),
    "an episode without rows": (FIRST, lambda t: t.slice(0, 5)),
    "an unknown task": (FIRST, put("task_index", [0, 0, 7, 0, 0, 1])),
    "no order": (FIRST, lacking("frame_index", "index", "timestamp")),
    "no episode": (FIRST, lacking("episode_index")),
    "no action": (FIRST, lacking("action")),
    "a value is missing": (FIRST, put("next.reward", [0.1, None, 2, 3, 4, 5])),
    "rows of another length": (FIRST, put("action", [[1.0]] * 6)),
    "rows of several lengths": (FIRST, put("action", [[1.0]] * 5 + [[1.0, 2.0]])),
    "text for numbers": (FIRST, put("next.success", ["a"] * 6)),
    "fractions for bool": (FIRST, put("next.success", [0.5] * 6)),
    "no PNG": (FIRST, put("observation.images.cam", [{"bytes": b"x"}] * 6)),
    "an image elsewhere": (FIRST, put("observation.images.cam", [{"path": "/etc/x"}] * 6)),
    "an episode twice": (EPISODES, put("episode_index", [3, 1, 1, 0])),
    "an episode is not listed": (EPISODES, lambda t: t.slice(1)),
    "a gap of episodes": (EPISODES, put("episode_index", [4, 3, 1, 0])),
    "too many episodes": (EPISODES, lambda t: pa.concat_tables([put("episode_index", [4])(t.slice(0, 1)), t])),
    "a negative length": (EPISODES, put("length", [4, 3, 1, -5])),
    "lengths of text": (EPISODES, put("length", ["a"] * 4)),
    "no lengths": (EPISODES, lacking("length")),
    "no routes": (EPISODES, lacking("data/file_index")),
    "a file that is not there": (EPISODES, put("data/file_index", [2, 1, 0, 0])),
    "a task twice": ("meta/tasks.parquet", put("task_index", [1, 1])),
    "tasks without text": ("meta/tasks.parquet", lacking("__index_level_0__")),
}  # fmt: skip
"""A file, and what is changed in it."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of version 3, not to be changed."""
    folder = write_lerobot(tmp_path_factory.mktemp("sound") / "toy", "v3.0")
    assert_values(read(folder), folder)
    return folder


@REFUSALS.of("tables", DEFECTS)
def test_defects_of_tables(name: str, sound: Path, tmp_path: Path) -> None:
    path, edit = DEFECTS[name]
    folder = shutil.copytree(sound, tmp_path / "toy")
    edit_table(folder / path, edit)
    refused("tables", name, folder)


INFOS: dict[str, dict[str, Any]] = {
    "version 1": {"codebase_version": "v1.6"},
    "a later version": {"codebase_version": "v4.0"},
    "no version": {"codebase_version": None},
    "a version of words": {"codebase_version": "main"},
    "lance": {"storage_format": "lance"},
    "no frames": {"fps": 0},
    "features of text": {"features": {"action": "x"}},
    "no features": {"features": None},
    "a wrong shape": {"features": {"action": {"dtype": "float32", "shape": "x"}}},
    "a template that leaves": {"data_path": "../{episode_index}"},
    "fewer episodes": {"total_episodes": 3},
    "no episodes": {"total_episodes": 0},
}  # fmt: skip


@REFUSALS.of("info", INFOS)
def test_defects_of_info(name: str, tmp_path: Path) -> None:
    refused("info", name, write_lerobot(tmp_path / "toy", **INFOS[name]))


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_bad_episodes_are_left_out(version: str, tmp_path: Path) -> None:
    folder = write_lerobot(tmp_path / "toy", version)
    path = folder / ("data/chunk-000/episode_000002.parquet" if version == "v2.1" else SECOND)
    edit_table(path, lambda table: table.slice(1))
    with pytest.raises(FormatError, match="episode 2: its frame_index is 1"):
        read(folder)
    batch = read(folder, skip_bad_episodes=True)
    assert batch.episodes["episode_index",].tolist() == [0, 1, 3]
    assert "episode 2" in batch.skipped[0].where


def test_folders_that_are_no_dataset(realdata: Path, tmp_path: Path, settings: Settings) -> None:
    def check(name: str, path: Path, **more: Any) -> None:
        call = partial(convert, path, "toy", settings, Options(), **more)
        REFUSALS.check("folders", name, call, {tmp_path: "FOLDER", realdata: "REAL"})

    (pointer,) = (realdata / "lerobot_lfs_pointers").rglob("*.parquet")
    folder = write_lerobot(tmp_path / "toy", "v3.0", videos=(1,))
    edit_table(folder / EPISODES, lacking("videos/observation.images.vid/from_timestamp"))
    check("videos without a begin", folder)
    folder = write_lerobot(tmp_path / "pointers", "v3.0")
    for name, path in {"pointer to rows": FIRST, "pointer to metadata": "meta/info.json"}.items():
        (folder / path).write_bytes(pointer.read_bytes())
        check(name, folder)
    check("pointers only", realdata / "lerobot_lfs_pointers", source="lerobot")
    (tmp_path / "old/meta_data").mkdir(parents=True)
    (tmp_path / "old/meta_data/info.json").write_text("{}")
    check("version 1", tmp_path / "old")


BROKEN = [b"", b"[1]\n", b"{}\n", b'{"episode_index": 1e400}\n', b"PAR1" + bytes(40)]
FILES = {
    f"{path} {number}": (path, content)
    for path in ("meta/episodes.jsonl", "meta/tasks.jsonl", "meta/info.json", V2_FIRST)
    for number, content in enumerate(BROKEN)
    if (path, content) != ("meta/tasks.jsonl", b"")
}


@REFUSALS.of("broken", FILES)
def test_broken_files(name: str, tmp_path: Path) -> None:
    path, content = FILES[name]
    folder = write_lerobot(tmp_path / "toy", images=False)
    (folder / path).write_bytes(content)
    refused("broken", name, folder)


def test_a_file_that_unpacks_to_more_than_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "_SMALL", 1 << 16)
    monkeypatch.setattr(arrow, "_RATIO", 16)
    folder = write_lerobot(tmp_path / "toy", images=False)
    path, rows = folder / "data/chunk-000/episode_000000.parquet", 200_000
    columns = dict.fromkeys(pq.read_schema(path).names, pa.array(np.zeros(rows, np.int64)))
    pq.write_table(pa.table(columns), path, compression="zstd")
    with pytest.raises(FormatError, match="unpacks to"):
        read(folder)


# ---- the hub -------------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    for version in ("v2.1", "v3.0"):
        folder = write_lerobot(tmp_path / "hub" / version, version, videos=(2,))
        (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    (tmp_path / "hub/none").mkdir()
    (tmp_path / "hub/none/x.txt").touch()
    (tmp_path / "hub/v1/meta_data").mkdir(parents=True)
    (tmp_path / "hub/v1/meta_data/info.json").touch()
    repositories = {f"me/{path.name}": path for path in (tmp_path / "hub").iterdir()}
    with HubServer(repositories) as server:
        yield server


@pytest.mark.parametrize("version", slow_but(lambda version: version == "v3.0", ["v2.1", "v3.0"]))
def test_download(
    version: str,
    hub: HubServer,
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_SHARD_BYTES", 1)
    online = replace(settings, offline=False, hub_endpoint=hub.url)
    got = download(parse_id(f"lerobot:me/{version}"), online, Options(), executor=InProcess())
    reader = open_reader(got.path)
    assert_values(reader.episode_batch(0, reader.episode_count), tmp_path / "hub" / version)
    assert got.manifest.licence == "apache-2.0"
    commit = str(got.id.revision)
    assert LeRobot().resolve(f"me/{version}", commit, online).revision == commit


def test_episodes_fetch_only_their_files(hub: HubServer, settings: Settings) -> None:
    online = replace(settings, offline=False, hub_endpoint=hub.url)
    for name, names in {
        "v2.1": {f"episode_00000{e}.{end}" for e in (1, 2) for end in ("parquet", "mp4")},
        "v3.0": {"file-000.parquet", "file-001.parquet", "file-000.mp4", "file-001.mp4"},
    }.items():
        begin = len(hub.requests)
        options = Options(episodes=(1, 3))
        got = download(parse_id(f"lerobot:me/{name}"), online, options, executor=InProcess())
        assert fetched(hub, begin) == names
        assert open_reader(got.path).lengths.tolist() == [1, 3]
    begin = len(hub.requests)
    options = Options(episodes=(0, 2))
    download(parse_id("lerobot:me/v3.0"), online, options, executor=InProcess())
    assert fetched(hub, begin) == {"file-000.parquet", "file-000.mp4"}


def fetched(hub: HubServer, begin: int) -> set[str]:
    """Return the names of the files of data that were asked for from a request on."""
    paths = {request.path.partition("?")[0] for request in hub.requests[begin:]}
    return {path.rpartition("/")[2] for path in paths if "/data/" in path or "/videos/" in path}


# ---- features that are asked for -----------------------------------------------------------------------

ALWAYS = {
    *(("next", name) for name in ("reward", "success", "terminated", "truncated")),
    *(("action",), ("timestamp",), ("task",)),
}


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_features_are_chosen_before_they_are_fetched(
    version: str, hub: HubServer, tmp_path: Path, settings: Settings
) -> None:
    online = replace(settings, offline=False, hub_endpoint=hub.url)
    dataset = parse_id(f"lerobot:me/{version}")
    only = "observation.state, observation.images.cam"
    got = download(dataset, online, Options(only=only), executor=InProcess())
    assert not {name for name in fetched(hub, 0) if name.endswith(".mp4")}
    reader = open_reader(got.path)
    batch, whole = reader.episode_batch(0, 4), read(tmp_path / "hub" / version)
    assert batch.steps.keys() - {("episode",)} == ALWAYS
    images = [("observation", "images", "cam"), ("observation", "state")]
    assert sorted(batch.observations) == images
    for key in batch.observations:
        column: Any = batch.observations[key]
        np.testing.assert_array_equal(np.asarray(column), np.asarray(whole.observations[key]))
    gone = "observation.environment_state, observation.flag, observation.images.vid"
    assert f"Features that were not requested: {gone}." in got.manifest.notes
    assert not got.manifest.dropped
    # one that is there serves without the network; the whole dataset is another one
    offline = replace(online, offline=True)
    again = Options(only="observation.images.cam,observation.state")
    assert download(dataset, offline, again).path == got.path
    for others in (Options(), Options(only="observation.flag")):
        with pytest.raises(OfflineError, match="not on this disk"):
            download(dataset, offline, others)


def test_names_of_features(tmp_path: Path, settings: Settings) -> None:
    folder = write_lerobot(tmp_path / "toy", videos=())
    below = read(folder, only="observation.images")
    assert sorted(key[-1] for key in below.observations) == ["cam", "vid"]
    assert not read(folder, only="action").observations
    for wrong in ("observation.images.ca", "observation.image", "", "episode_index"):
        call = partial(convert, folder, "toy", settings, Options(only=wrong))
        REFUSALS.check("features", wrong, call, {tmp_path: "FOLDER"})
    stored = convert(folder, "toy", settings, Options(only="observation.images.cam", strict=True))
    assert stored.manifest.spaces["observation"] == {"images/cam": "image [8, 9, 3]"}
    with pytest.raises(UsageError, match="Features of d4rl cannot be chosen"):
        apply_options(Options(only="a"), Release("x", "1"), "d4rl")


def test_what_the_hub_does_not_have(hub: HubServer, settings: Settings) -> None:
    online = replace(settings, offline=False, hub_endpoint=hub.url)
    for name in ("me/other", "me", "me/none", "me/v1"):
        REFUSALS.check("hub", name, partial(LeRobot().resolve, name, None, online))
    with pytest.raises(OfflineError):
        LeRobot().resolve("lerobot/pusht", None, settings)
