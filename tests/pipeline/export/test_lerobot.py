"""LeRobot folders by an independent reading: pyarrow, PyAV and the rules of the format; and by lerobot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError, MissingDependencyError, UsageError
from offline_data.episode import EpisodeBatch
from offline_data.formats.lerobot.statistics import merge_stats, stats_of_images, stats_of_rows
from offline_data.raw.images import encode_image
from offline_data.store.encoded import EncodedColumn
from offline_data.testing.toy import toy_batch, write_toy
from tests.films import FILM, frames
from tests.pipeline.export.conftest import BATCHES, LENGTHS
from tests.slow import every_second, slow_but

ENDS = np.cumsum(LENGTHS)
ROWS = int(ENDS[-1])
VERSIONS = ("3.0", "2.1")
LEROBOT = os.environ.get("OFFLINE_DATA_LEROBOT")
"""Pythons that have lerobot, of version 0.4 and then of 0.3, separated by a comma; they then open the folders."""

Write = Callable[..., Path]


@pytest.fixture
def write(settings: Settings, tmp_path: Path) -> Write:
    """Export a batch and return the folder; `about` is the description of the dataset."""

    def export(batch: EpisodeBatch, name: str = "robot", **options: Any) -> Path:
        folder = tmp_path / "stored" / name
        if not folder.exists():
            write_toy(folder, [batch], dataset=f"local:{name}@1")
        dest = tmp_path / "out" / f"{name} {options}".replace("/", " ")
        more = {"progress": False, "settings": settings, **options}
        offline_data.export(folder, dest, to="lerobot", **more)
        return dest

    return export


def before(batch: EpisodeBatch, key: tuple[str, ...]) -> Any:
    """Return the rows of an observation before each action."""
    return np.delete(np.asarray(batch.observations[key]), ENDS + np.arange(len(ENDS)), axis=0)


def tables(folder: Path) -> pa.Table:
    """Return all rows of the data."""
    return pa.concat_tables(pq.read_table(file) for file in sorted(folder.glob("data/*/*.parquet")))


def film(path: Path) -> tuple[list[float], list[Any]]:
    """Return times and frames of an mp4 file."""
    with av.open(str(path)) as container:
        found = [(one.time, one.to_ndarray(format="rgb24")) for one in container.decode(video=0)]
    return [time for time, _ in found], [image for _, image in found]


def episodes_of(folder: Path, version: str) -> list[dict[str, Any]]:
    """Return the list of episodes."""
    if version == "2.1":
        lines = (folder / "meta/episodes.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]
    files = sorted(folder.glob("meta/episodes/*/*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def tasks_of(folder: Path, version: str) -> dict[int, str]:
    """Return the text of each task."""
    if version == "2.1":
        lines = [json.loads(one) for one in (folder / "meta/tasks.jsonl").read_text().splitlines()]
    else:
        lines = pq.read_table(folder / "meta/tasks.parquet").to_pylist()
    return {line["task_index"]: line["task"] for line in lines}


ARROW = {"bool": "bool", "float32": "float", "float64": "double", "string": "string"}


def check_by_rules(folder: Path, version: str) -> None:
    """Check all that `LeRobotDataset` relies on, by what its code does with the files."""
    info = json.loads((folder / "meta/info.json").read_text())
    rows, episodes = tables(folder), episodes_of(folder, version)
    tasks, fps = tasks_of(folder, version), info["fps"]
    assert info["codebase_version"] == f"v{version}"
    assert type(fps) is int
    assert info["total_episodes"] == len(episodes) == len(LENGTHS)
    assert info["total_frames"] == len(rows) == ROWS
    assert info["total_tasks"] == len(tasks) > 0
    assert info["splits"] == {"train": f"0:{len(LENGTHS)}"}
    assert [one["episode_index"] for one in episodes] == [*range(len(LENGTHS))]
    assert [one["length"] for one in episodes] == [*LENGTHS]
    assert sorted(tasks) == [*range(len(tasks))]
    columns = {name for name, one in info["features"].items() if one["dtype"] != "video"}
    assert set(rows.column_names) == columns
    for field in rows.schema:
        one = info["features"][field.name]
        shape, kind = one["shape"], field.type
        if one["dtype"] == "image":
            assert kind == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            assert shape[2] in {1, 3}
            continue
        if shape == [1]:
            assert str(kind) == ARROW.get(one["dtype"], one["dtype"]), field
        elif len(shape) == 1:
            assert (kind.list_size, str(kind.value_type)) == (shape[0], ARROW[one["dtype"]])
        else:
            for _ in shape:
                kind = kind.value_type
            assert str(kind) == ARROW.get(one["dtype"], one["dtype"])
    numbers = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    frame = np.arange(ROWS) - np.repeat(ENDS - LENGTHS, LENGTHS)
    assert rows["index"].to_pylist() == [*range(ROWS)]
    assert rows["episode_index"].to_pylist() == numbers.tolist()
    assert rows["frame_index"].to_pylist() == frame.tolist()
    times = rows["timestamp"].to_numpy()
    assert times.dtype == np.float32
    assert np.abs(times - frame / fps).max() <= 1e-4
    for number, one in enumerate(episodes):
        texts = [tasks[n] for n in rows["task_index"].to_numpy()[numbers == number].tolist()]
        assert one["tasks"] == [*dict.fromkeys(texts)]
        first = int(ENDS[number]) - LENGTHS[number]
        if version == "3.0":
            bounds = (one["dataset_from_index"], one["dataset_to_index"])
            assert bounds == (first, first + LENGTHS[number])
            place = (one["meta/episodes/chunk_index"], one["meta/episodes/file_index"])
            assert place == (0, 0)
            fields = {name: one[f"data/{name}"] for name in ("chunk_index", "file_index")}
        else:
            fields = {"episode_chunk": 0, "episode_index": number}
        data = pq.ParquetFile(folder / info["data_path"].format(**fields))
        group = number if version == "3.0" else 0
        assert (
            data.read_row_group(group)["index"].to_pylist()
            == rows["index"].to_pylist()[first : first + LENGTHS[number]]
        )
        for name in (n for n, f in info["features"].items() if f["dtype"] == "video"):
            begin = 0.0
            if version == "3.0":
                keys = ("chunk_index", "file_index")
                fields = {key: one[f"videos/{name}/{key}"] for key in keys}
                begin = one[f"videos/{name}/from_timestamp"]
                end = one[f"videos/{name}/to_timestamp"]
                assert end == pytest.approx(begin + LENGTHS[number] / fps)
            path = folder / info["video_path"].format(video_key=name, **fields)
            there = np.array(film(path)[0])
            wanted = begin + times[numbers == number].astype(float)
            assert np.abs(there[:, None] - wanted).min(axis=0).max() <= 1e-4
            if version == "2.1":
                assert len(there) == LENGTHS[number]


@pytest.mark.parametrize("video", ["h264", pytest.param("none", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "version"), every_second(BATCHES, VERSIONS))
def test_rules_of_the_format(name: str, version: str, video: str, write: Write) -> None:
    batch = BATCHES[name]()
    folder = write(batch, format_version=version, video=video, fps=10)
    check_by_rules(folder, version)
    state = ("observation",) if ("observation",) in batch.observations else ("observation", "state")
    rows, expected = tables(folder), before(batch, state)
    found = np.array(rows["observation.state"].to_pylist(), expected.dtype)
    np.testing.assert_array_equal(found, expected)
    action = batch.steps["action",].reshape(-1)
    np.testing.assert_array_equal(rows["action"].to_numpy(), action)
    if ("next", "reward") in batch.steps:
        reward = batch.steps["next", "reward"]
        np.testing.assert_array_equal(rows["next.reward"].to_numpy(), reward[:, 0])
    flags = [batch.steps["next", one][:, 0] for one in ("terminated", "truncated")]
    for one, flag in zip(("terminated", "truncated"), flags, strict=True):
        assert rows[f"next.{one}"].to_pylist() == flag.tolist()
    assert rows["next.done"].to_pylist() == np.logical_or(*flags).tolist()
    assert ("meta/stats.json" in {str(p.relative_to(folder)) for p in folder.glob("meta/*")}) == (
        version == "3.0"
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_texts_are_tasks_and_images_are_png_files(version: str, write: Write) -> None:
    from PIL import Image

    batch = BATCHES["nested"]()
    folder = write(batch, format_version=version, video="none", fps=10)
    rows, tasks = tables(folder), tasks_of(folder, version)
    texts = [tasks[number] for number in rows["task_index"].to_pylist()]
    assert texts == before(batch, ("observation", "mission")).tolist()
    for one, image in zip(
        rows["observation.image"].to_pylist(), before(batch, ("observation", "image")), strict=True
    ):
        assert one["bytes"].startswith(b"\x89PNG")
        import io

        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(one["bytes"]))), image)
    index = (
        json.loads(pq.read_schema(folder / "meta/tasks.parquet").metadata[b"pandas"])
        if (version == "3.0")
        else {"index_columns": ["task"]}
    )
    assert index["index_columns"] == ["task"]


def cameras() -> EpisodeBatch:
    """Return episodes with a colour, an odd-sized, a grey, and a small camera, and JPEG files."""
    batch = toy_batch(LENGTHS)
    rows = ROWS + len(LENGTHS)
    films = [np.stack(frames(rows, seed)) for seed in (1, 2, 3)]
    jpeg = [encode_image(image, "jpeg") for image in films[2]]
    observations = {
        **batch.observations,
        ("observation", "front"): films[0],
        ("observation", "images", "wrist"): films[1][:, :31, :47],
        ("observation", "grey"): films[1][..., 0],
        ("observation", "grid"): films[1][:, :7, :7],
        ("observation", "stored"): EncodedColumn.of(jpeg, ("jpeg", "uint8", (32, 48, 3))),
    }
    return replace(batch, observations=observations, episodes={})


@pytest.mark.parametrize("version", slow_but(VERSIONS[:1].__contains__, VERSIONS))
def test_several_cameras(version: str, write: Write) -> None:
    batch = cameras()
    folder = write(batch, format_version=version, video="h264", fps=10)
    check_by_rules(folder, version)
    features = json.loads((folder / "meta/info.json").read_text())["features"]
    kinds = {name: (one["dtype"], one["shape"]) for name, one in features.items()}
    assert kinds["observation.images.front"] == ("video", [32, 48, 3])
    assert kinds["observation.images.wrist"] == ("uint8", [31, 47, 3])
    assert kinds["observation.images.grey"] == ("image", [32, 48, 1])
    assert kinds["observation.images.stored"] == ("video", [32, 48, 3])
    assert kinds["observation.grid"] == ("uint8", [7, 7, 3])
    found: list[Any] = []
    for file in sorted(folder.rglob("*observation.images.front/**/*.mp4")):
        found += film(file)[1]
    wanted = before(batch, ("observation", "front"))
    assert len(found) == len(wanted)
    apart = np.abs(np.stack(found).astype(int) - wanted)
    assert apart.mean() < 4
    grid = np.array(tables(folder)["observation.grid"].to_pylist())
    np.testing.assert_array_equal(grid, before(batch, ("observation", "grid")))


def test_jpeg_files_are_copied(write: Write) -> None:
    batch = cameras()
    folder = write(batch, video="none", fps=10)
    column: Any = batch.observations["observation", "stored"]
    rows = tables(folder)["observation.images.stored"].to_pylist()
    kept = np.ones(len(column), bool)
    kept[ENDS + np.arange(len(ENDS))] = False
    assert [one["bytes"] for one in rows] == column[kept].images()


@pytest.mark.parametrize("video", ["h264", "av1"])
def test_frames_are_near_those_of_the_dataset(
    video: str, write: Write, tmp_path: Path, settings: Settings
) -> None:
    if video == "av1" and "libsvtav1" not in av.codecs_available:
        pytest.skip("this PyAV has no encoder of AV1")
    batch = replace(cameras(), observations={FILM: np.stack(frames(ROWS + len(LENGTHS), 5))})
    folder = write(batch, video=video, fps=7)
    times, images = film(next(folder.rglob("*.mp4")))
    np.testing.assert_allclose(times, np.arange(ROWS) / 7, atol=1e-6)
    apart = np.abs(np.stack(images).astype(int) - before(batch, FILM))
    assert apart.mean(axis=(1, 2, 3)).max() < 4
    noise = np.random.default_rng(0).integers(0, 256, (ROWS + len(LENGTHS), 32, 48, 3), np.uint8)
    noisy = replace(batch, observations={FILM: noise})
    with pytest.raises(IntegrityError, match=r"by more than 10 of 255 on average") as caught:
        write(noisy, "noise", video=video, fps=7)
    assert caught.value.hint is not None
    assert "--video none" in str(caught.value.shell_hint)
    assert not list((tmp_path / "out").glob("noise*"))


def test_frames_in_another_order_are_found(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from offline_data.formats.lerobot import writer as lerobot

    batch = replace(cameras(), observations={FILM: np.stack(frames(ROWS + len(LENGTHS), 5))})
    real = lerobot._iter_images
    monkeypatch.setattr(lerobot, "_iter_images", lambda column: reversed([*real(column)]))
    with pytest.raises(IntegrityError, match="'observation/images/film' differs in"):
        write(batch, fps=7)


def test_frames_per_second(settings: Settings, tmp_path: Path, write: Write) -> None:
    def losses(batch: EpisodeBatch, **options: Any) -> list[str]:
        place = tmp_path / "stored" / "robot"
        done = offline_data.export(
            place, tmp_path / "x", to="lerobot", settings=settings, dry_run=True, **options
        )
        return [str(loss) for loss in done.losses if loss.leaf == "timestamp"]

    batch = BATCHES["flat"]()
    folder = write(batch)
    assert json.loads((folder / "meta/info.json").read_text())["fps"] == 1
    assert losses(batch) == ["timestamp: frames per second are not known, and 1 is written: --fps"]
    assert not losses(batch, fps=30)
    with pytest.raises(UsageError, match=r"fps is 29\.97; expected a whole number"):
        losses(batch, fps=29.97)
    with pytest.raises(UsageError, match="video is 'vp9'; expected one of h264, av1, none"):
        losses(batch, video="vp9")
    with pytest.raises(UsageError, match=r"format_version is '2\.0'; expected one of 3\.0, 2\.1"):
        losses(batch, format_version="2.0")
    manifest = tmp_path / "stored/robot/manifest.json"
    for known, expected in (
        ({"environment": {"metadata": {"render_fps": 20}}}, []),
        ({"environment": {"render_fps": 12.4}}, ["timestamp: 12.4 frames per second become 12"]),
    ):
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **known}))
        assert losses(batch) == expected


@pytest.mark.parametrize("apart", [0.0, 5e-5, 1e-3])
def test_recorded_times(apart: float, write: Write) -> None:
    batch = BATCHES["flat"]()
    frame = np.arange(ROWS) - np.repeat(ENDS - LENGTHS, LENGTHS)
    times = (frame / 10 + apart).astype(np.float32)
    folder = write(replace(batch, steps={**batch.steps, ("timestamp",): times}), fps=10)
    rows = tables(folder)
    name = "timestamp" if apart <= 1e-4 else "extra.timestamp"
    np.testing.assert_array_equal(rows[name].to_numpy(), times)
    check_by_rules(folder, "3.0")


def test_odd_sizes_of_av1_are_refused(write: Write) -> None:
    odd = np.stack(frames(ROWS + len(LENGTHS), 5))
    odd = np.concatenate([odd, odd], axis=1)[:, :47, :33]
    batch = replace(cameras(), observations={FILM: odd})
    with pytest.raises(UsageError, match="has images of 47 x 33 pixels; av1 has even sizes only"):
        write(batch, video="av1", fps=10)
    folder = write(batch, video="h264", fps=10)
    assert film(next(folder.rglob("*.mp4")))[1][0].shape == (47, 33, 3)


def test_without_pyav(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingDependencyError) as caught:
        write(BATCHES["nested"](), fps=10)
    assert caught.value.shell_hint == (
        "pip install 'offline-data[video]', or write images: --video none"
    )
    write(BATCHES["nested"](), fps=10, video="none")


def test_statistics_are_those_of_all_rows(write: Write) -> None:
    batch = BATCHES["nested"]()
    folder = write(batch, video="none", fps=10)
    found = json.loads((folder / "meta/stats.json").read_text())
    state = before(batch, ("observation", "state")).astype(float)
    image = before(batch, ("observation", "image"))[..., 0] / 255
    for name, values in (("observation.state", state), ("observation.image", image)):
        one = {key: np.array(value).reshape(-1) for key, value in found[name].items()}
        flat = values if values.ndim == 2 else values.reshape(-1, 1)
        np.testing.assert_allclose(one["min"], np.repeat(flat.min(axis=0), 3)[:3])
        np.testing.assert_allclose(one["max"], np.repeat(flat.max(axis=0), 3)[:3])
        np.testing.assert_allclose(one["mean"], np.repeat(flat.mean(axis=0), 3)[:3])
        np.testing.assert_allclose(one["std"], np.repeat(flat.std(axis=0), 3)[:3])
        assert one["count"].tolist() == [ROWS]
    for q in (1, 10, 50, 90, 99):
        quantile = np.quantile(state, q / 100, axis=0)
        np.testing.assert_allclose(found["observation.state"][f"q{q:02d}"], quantile)
    assert np.shape(found["observation.image"]["q50"]) == (3, 1, 1)
    listed = pq.read_table(folder / "meta/episodes/chunk-000/file-000.parquet")
    for number, row in enumerate(listed.to_pylist()):
        values = state[ENDS[number] - LENGTHS[number] : ENDS[number]]
        for q in (1, 10, 50, 90, 99):
            quantile = np.quantile(values, q / 100, axis=0)
            np.testing.assert_allclose(row[f"stats/observation.state/q{q:02d}"], quantile)


def test_merged_statistics() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 2)) for n in (3, 1, 40)]
    total: dict[str, Any] = {}
    for part in parts:
        total = merge_stats(total, {"x": stats_of_rows(part)})
    rows = np.concatenate(parts)
    for name in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(total["x"][name], getattr(rows, name)(axis=0))
    weights = [len(part) / len(rows) for part in parts]
    expected = sum(
        w * np.quantile(part, 0.9, axis=0) for w, part in zip(weights, parts, strict=True)
    )
    np.testing.assert_allclose(total["x"]["q90"], expected)
    images = rng.integers(0, 256, (5, 6, 7, 3), np.uint8)
    found = stats_of_images(images)
    pixels = images.reshape(-1, 3) / 255
    np.testing.assert_allclose(found["std"][:, 0, 0], pixels.std(axis=0))
    expected = np.quantile(pixels, 0.1, axis=0, method="inverted_cdf")
    np.testing.assert_allclose(found["q10"][:, 0, 0], expected)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["lerobot_generated_v30/full", "lerobot_generated_v21/full"])
def test_a_set_of_lerobot_is_the_same_after_a_round_trip(
    name: str, version: str, realdata: Path, settings: Settings, tmp_path: Path
) -> None:
    offline_data.convert(realdata / name, "robot", settings=settings, progress=False)
    dest = tmp_path / "out"
    done = offline_data.export(
        "local:robot",
        dest,
        to="lerobot",
        format_version=version,
        video="none",
        settings=settings,
        progress=False,
    )
    assert {loss.leaf.split("/")[0] for loss in done.losses} == {"episodes"}
    source, made = (
        pa.concat_tables(pq.read_table(file) for file in sorted(one.glob("data/*/*.parquet")))
        for one in (realdata / name, dest)
    )
    for column in source.column_names:
        if column != "observation.images.cam":
            assert made[column].to_pylist() == source[column].to_pylist(), column
    about = [json.loads((one / "meta/info.json").read_text()) for one in (realdata / name, dest)]
    assert about[0]["fps"] == about[1]["fps"]
    for feature, one in about[0]["features"].items():
        new = about[1]["features"][feature]
        dtype = "image" if one["dtype"] == "video" else one["dtype"]
        shown = (dtype, one["shape"], one["names"])
        assert (new["dtype"], new["shape"], new["names"]) == shown


_SCRIPT = """
import sys, json, av, numpy as np
import lerobot.datasets.lerobot_dataset as module

def decode(path, wanted, tolerance, backend=None, **_):
    import torch
    with av.open(str(path)) as container:
        found = [(f.time, f.to_ndarray(format="rgb24")) for f in container.decode(video=0)]
    images = []
    for time in wanted:
        near, image = min(found, key=lambda one: abs(one[0] - time))
        assert abs(near - time) < tolerance, (near, time)
        images.append(torch.from_numpy(image).permute(2, 0, 1) / 255)
    return torch.stack(images)

module.decode_video_frames = decode
for path in sys.argv[1:]:
    dataset = module.LeRobotDataset("some/one", root=path)
    rows = [dataset[n] for n in range(len(dataset))]
    part = module.LeRobotDataset(
        "some/one", root=path, delta_timestamps={"action": [-0.1, 0.0, 0.1]}
    )  # of all episodes: 0.3 fails with some and delta_timestamps
    print(json.dumps({
        "episodes": dataset.num_episodes,
        "state": [row["observation.state"].tolist() for row in rows],
        "task": [row["task"] for row in rows],
        "image": [round(row["observation.image"].mean().item() * 255) for row in rows
                  if "observation.image" in row],
        "windows": [part[n]["action"].reshape(-1).tolist() for n in range(4, 9)],
        "pad": [part[n]["action_is_pad"].tolist() for n in range(4, 9)],
        "mean": np.array(dataset.meta.stats["observation.state"]["mean"]).tolist(),
    }))
"""


@pytest.mark.skipif(not LEROBOT, reason="OFFLINE_DATA_LEROBOT does not name a Python with lerobot")
@pytest.mark.parametrize("version", VERSIONS)
def test_lerobot_reads_it(version: str, write: Write) -> None:
    pythons = dict(zip(VERSIONS, str(LEROBOT).split(","), strict=False))
    if version not in pythons:
        pytest.skip("no Python with lerobot of this version")
    names = [("nested", "h264"), ("nested", "none"), ("discrete", "none"), ("flat", "h264")]
    folders = [
        write(BATCHES[name](), name, format_version=version, video=video, fps=10)
        for name, video in names
    ]
    process = subprocess.run(
        [pythons[version], "-c", _SCRIPT, *map(str, folders)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
    )
    assert process.returncode == 0, process.stderr[-2000:]
    for (name, _), line in zip(names, process.stdout.splitlines(), strict=True):
        batch, found = BATCHES[name](), json.loads(line)
        nested = name == "nested"
        state = before(batch, ("observation", "state") if nested else ("observation",))
        assert found["episodes"] == len(LENGTHS)
        np.testing.assert_allclose(found["state"], state.astype(np.float32))
        np.testing.assert_allclose(found["mean"], state.mean(axis=0), rtol=1e-6)
        if nested:
            assert found["task"] == before(batch, ("observation", "mission")).tolist()
            mean = before(batch, ("observation", "image")).mean(axis=(1, 2, 3))
            np.testing.assert_allclose(found["image"], mean, atol=2)
        action = batch.steps["action",].reshape(-1)[4:9]
        rows = np.arange(5)[:, None] + [-1, 0, 1]
        np.testing.assert_allclose(found["windows"], action[rows.clip(0, 4)])
        assert found["pad"] == ((rows < 0) | (rows > 4)).tolist()
