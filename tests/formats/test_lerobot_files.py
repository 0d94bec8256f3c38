"""LeRobot datasets whose list of episodes is not that of their files: rows are found by their numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError
from offline_data.base.ids import parse_id
from offline_data.formats.corrections import CORRECTIONS
from offline_data.formats.lerobot import dataset as module
from offline_data.pipeline.ingest import Options, convert, download
from offline_data.pipeline.ingest.stream import ShardReader, plan_stream
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.store.manifest import Manifest
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify_files
from tests.analysis.checks.planted import found
from tests.films import decoded
from tests.formats.test_lerobot import CAM, EPISODES, assert_values, fetched, put, read
from tests.raw.test_key_frames import write as write_film
from tests.slow import every, every_second, slow_but
from tests.toys.lerobot import (
    CAMERA,
    FEATURES,
    FPS,
    IMAGE,
    edit_table,
    toy_frame,
    write_lerobot,
    write_lines,
    write_video,
)
from tests.toys.lerobot import (
    LENGTHS as TOY,
)
from tests.toys.servers import HubServer

LENGTHS = (5, 1, 3, 4, 2, 6)
LISTED = {
    "as lerobot's converter": [0, 0, 0, 1, 1, 2],
    "all in one": [0, 0, 0, 0, 0, 0],
    "the last file is not listed": [0, 0, 1, 1, 1, 1],
    "backwards": [2, 2, 1, 1, 0, 0],
}
"""Number of the listed data file of each episode; the rows are in 0, 0, 1, 1, 2, 2."""


def write_stale(folder: Path, name: str) -> Path:
    write_lerobot(folder, "v3.0", LENGTHS, files=(2, 4), videos=(3,))
    edit_table(folder / EPISODES, put("data/file_index", LISTED[name][::-1]))
    return folder


@pytest.mark.parametrize(("name", "shard"), every_second(LISTED, [1, 1 << 30]))
def test_rows_in_another_file(
    name: str, shard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SHARD_BYTES", shard)
    folder = write_stale(tmp_path / "toy", name)
    assert_values(read(folder), folder)
    assert_values(read(folder, skip_bad_episodes=True), folder)


@pytest.mark.slow
def test_of_the_hub_the_next_file_is_fetched_where_rows_are_lacking(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SHARD_BYTES", 1)
    stale = write_stale(tmp_path / "stale", "as lerobot's converter")
    good = write_lerobot(tmp_path / "good", "v3.0", LENGTHS, files=(2, 4), videos=(3,))
    with HubServer({"me/stale": stale, "me/good": good}) as server:
        online = replace(settings, offline=False, hub_endpoint=server.url)
        for name, folder in (("stale", stale), ("good", good)):
            plan = plan_stream(f"lerobot:me/{name}", online)
            assert len(plan.shards) > 2
            for order in (range(len(plan.shards)), range(len(plan.shards))[::-1]):
                pieces = list(ShardReader(plan, online).pieces(order))
                lengths = dict[int, int]()
                for batch in (piece.batch for piece in pieces):
                    numbers = batch.episodes["episode_index",].tolist()
                    lengths |= dict(zip(numbers, batch.lengths.tolist(), strict=True))
                assert sorted(lengths.items()) == [*enumerate(LENGTHS)]
            got = download(parse_id(f"lerobot:me/{name}"), online, Options(), executor=InProcess())
            reader = open_reader(got.path)
            assert_values(reader.episode_batch(0, reader.episode_count), folder)
            paths = [file["path"] for file in got.manifest.files]
            assert len(paths) == len(set(paths))
        assert not list(online.downloads.rglob("*.parquet"))
        begin = len(server.requests)
        for name, files in {"stale": {0, 1}, "good": {0}}.items():
            download(
                parse_id(f"lerobot:me/{name}"),
                online,
                Options(episodes=(0, 3 if name == "stale" else 2)),
                executor=InProcess(),
            )
            names = {one for one in fetched(server, begin) if one.endswith("parquet")}
            assert names == {f"file-00{n}.parquet" for n in files}
            begin = len(server.requests)


# ---- gaps, features without a column, images by path ------------------------------------------------------

NUMBERS = [0, 2, 5, 6]


def with_gaps(table: pa.Table) -> pa.Table:
    return put("episode_index", lambda column: np.array(NUMBERS)[column])(table)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_gaps_in_the_numbers_of_episodes(version: str, tmp_path: Path) -> None:
    whole = read(write_lerobot(tmp_path / "whole", version, videos=(2,)))
    folder = write_lerobot(tmp_path / "toy", version, videos=(2,))
    for path in folder.glob("data/*/*.parquet"):
        edit_table(path, with_gaps)
    if version == "v3.0":
        edit_table(folder / EPISODES, with_gaps)
    else:
        lines = (folder / "meta/episodes.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        write_lines(
            folder / "meta/episodes.jsonl",
            [{**row, "episode_index": NUMBERS[row["episode_index"]]} for row in rows],
        )
        for file in sorted(folder.glob("*/**/episode_00000*"), reverse=True):
            number = NUMBERS[int(file.stem[-6:])]
            parts = file.relative_to(folder).as_posix().replace("chunk-001", "chunk-000")
            chunk = parts.replace("chunk-000", f"chunk-00{number // 3}")
            target = (folder / chunk).with_name(f"episode_{number:06d}{file.suffix}")
            target.parent.mkdir(parents=True, exist_ok=True)
            file.rename(target)
    batch = read(folder)
    assert batch.episodes["episode_index",].tolist() == NUMBERS
    for table in ("steps", "observations"):
        for key, column in getattr(whole, table).items():
            np.testing.assert_array_equal(
                np.asarray(getattr(batch, table)[key]), np.asarray(column)
            )


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize(
    "name",
    ["observation.force", "next.value", "observation.images.other", "next.reward", "timestamp"],
)
def test_a_feature_that_no_file_has(
    name: str, version: str, tmp_path: Path, settings: Settings
) -> None:
    kind = (
        {"dtype": "image", "shape": [8, 9, 3]}
        if "images" in name
        else {"dtype": "float32", "shape": [1]}
    )
    features = {**FEATURES, name: kind}
    folder = write_lerobot(
        tmp_path / "toy",
        version,
        features=features,
        edit=lambda table: table.drop_columns([name] if name in table.column_names else []),
    )
    stored = convert(folder, "toy", settings, Options(strict=True))
    assert any(f"lists the feature {name}, which no file has" in n for n in stored.manifest.notes)
    leaves = open_reader(stored.path)
    assert tuple(name.split(".")) not in {**leaves.step_leaves, **leaves.observation_leaves}
    path = sorted(folder.glob("data/*/*.parquet"))[1]
    edit_table(
        path, lambda t: t.append_column(name, t["action"].combine_chunks().flatten()[: len(t)])
    )
    with pytest.raises(FormatError, match=f"no column {name}, which meta/info.json lists"):
        read(folder)


SAID: dict[str, str | None] = {
    "images/{}/episode_{:06d}/frame_{:06d}.png": None,
    "/home/me/.cache/lerobot/x/images/{}/episode_{:06d}/frame_{:06d}.png": None,
    "C:\\data\\images\\{}\\episode_{:06d}\\frame_{:06d}.png": None,
    "images/{}/episode_{:06d}/other_{:06d}.png": "which is not in",
    "../outside/images/{}/../episode_{:06d}/frame_{:06d}.png": "which is not in",
}
"""Paths of images, and what the error says; None: they are read."""


@pytest.mark.parametrize(
    ("version", "form", "path"),
    every(4, ["v2.1", "v3.0"], ["bytes and path", "path in a struct", "text"], SAID),
)
def test_images_by_path(version: str, form: str, path: str, tmp_path: Path) -> None:
    whole = read(write_lerobot(tmp_path / "whole", version))

    folder = write_by_path(tmp_path / "toy", version, form, path)
    if said := SAID[path]:
        with pytest.raises(FormatError, match=said):
            read(folder)
        return
    key = tuple(CAM.split("."))
    column: Any = read(folder).observations[key]
    other: Any = whole.observations[key]
    assert column.images() == other.images()


def write_by_path(folder: Path, version: str, form: str, path: str) -> Path:
    def edit(table: pa.Table) -> pa.Table:
        episodes, frames = table["episode_index"].to_pylist(), table["frame_index"].to_pylist()
        for e, t, image in zip(episodes, frames, table[CAM].to_pylist(), strict=True):
            file = folder / f"images/{CAM}/episode_{e:06d}/frame_{t:06d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(image["bytes"])
        names = [path.format(CAM, e, t) for e, t in zip(episodes, frames, strict=True)]
        rows = {
            "bytes and path": pa.array([{"bytes": None, "path": one} for one in names], IMAGE),
            "path in a struct": pa.array([{"path": one} for one in names]),
            "text": pa.array(names),
        }
        return put(CAM, rows[form])(table)

    written = write_lerobot(folder.with_suffix(".raw"), version, edit=edit)
    for one in written.iterdir():
        one.rename(folder / one.name)
    return folder


def test_images_of_the_hub_by_path(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SHARD_BYTES", 1)
    folder = write_by_path(tmp_path / "toy", "v2.1", "bytes and path", next(iter(SAID)))
    with HubServer({"me/toy": folder}) as server:
        online = replace(settings, offline=False, hub_endpoint=server.url)
        options = Options(episodes=(1, 3))
        got = download(parse_id("lerobot:me/toy"), online, options, executor=InProcess())
        assert open_reader(got.path).lengths.tolist() == [1, 3]
        names = [file["path"] for file in got.manifest.files if file["path"].endswith("png")]
        assert len(names) == 4


# ---- videos of another rate or length --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("episode", "seconds", "rate"),
    every(4, [0, 1, 2], ["as many as rows", "as long as rows", "longer"], [15, 20, 30, 60]),
)
def test_a_video_of_another_rate(rate: int, seconds: str, episode: int, tmp_path: Path) -> None:
    lengths = (8, 9, 10)
    folder = write_lerobot(tmp_path / "toy", lengths=lengths, videos=(), images=False)
    rows = lengths[episode]
    count = {"as many as rows": rows, "as long as rows": rows * rate // FPS}.get(
        seconds, 8 * rate // FPS * 2
    )
    write_video(
        folder / f"videos/chunk-000/{CAMERA}/episode_{episode:06d}.mp4",
        [toy_frame(0, t) for t in range(count)],
        ticks=[round(100 * n * FPS / rate) for n in range(count)],
    )
    with pytest.raises(
        FormatError, match=r"it has [0-9.]+ frames per second; meta/info\.json says 10"
    ) as caught:
        read(folder)
    assert "--video skip; --skip-bad-episodes leaves it out" in str(caught.value.shell_hint)
    kept = read(folder, skip_bad_episodes=True)
    assert kept.episodes["episode_index",].tolist() == [n for n in range(3) if n != episode]


def test_a_film_of_all_episodes_of_another_rate(tmp_path: Path) -> None:
    folder = write_lerobot(tmp_path / "toy", "v3.0", (8, 9, 10), videos=(), images=False)
    write_video(
        folder / f"videos/{CAMERA}/chunk-000/file-000.mp4",
        [toy_frame(0, t) for t in range(27)],
        ticks=[round(100 * n / 3) for n in range(27)],
    )
    with pytest.raises(FormatError, match=r"it has 30\.\d frames per second"):
        read(folder)
    assert not len(read(folder, skip_bad_episodes=True).lengths)


@pytest.mark.parametrize("video", ["keep", "png", "raw"])
def test_more_frames_than_rows_are_counted(video: Any, tmp_path: Path, settings: Settings) -> None:
    folder = write_lerobot(tmp_path / "toy", videos=(), images=False)
    for episode, more in ((1, 3), (3, 1)):
        path = folder / f"videos/chunk-00{episode // 3}/{CAMERA}/episode_{episode:06d}.mp4"
        write_video(path, [toy_frame(episode, t) for t in range(TOY[episode] + more)])
    stored = convert(folder, "toy", settings, Options(video=video))
    reader = open_reader(stored.path)
    assert np.asarray(reader.episodes["extra_frames", "images", "vid"]).tolist() == [0, 3, 0, 1]
    (one,) = found(stored.path, "RL057")
    assert (one.leaf, one.episode, one.count) == ("observation/images/vid", 1, 2)


@pytest.mark.parametrize(
    ("name", "version"),
    slow_but(
        lambda *case: case == ("intra refresh", "v2.1"),
        ["intra refresh", "intra refresh without B frames", "closed groups"],
        ["v2.1", "v3.0"],
    ),
)
def test_videos_with_intra_refresh(
    name: str, version: str, tmp_path: Path, settings: Settings
) -> None:
    folder = write_lerobot(tmp_path / "toy", version, (40,), files=(), videos=(), images=False)
    (film,) = folder.rglob("*.mp4")
    write_film(film, name)
    truth = [*decoded(film), decoded(film)[-1]]
    columns = {}
    for video in ("keep", "png", "raw"):
        stored = convert(folder, f"toy-{video}", settings, Options(video=video, audit="all"))
        columns[video] = open_reader(stored.path).leaf(
            "observations", ("observation", "images", "vid")
        )
        assert found(stored.path, "RL056") == []
        assert not list(verify_files(stored.path, stored.manifest))
    for row in np.random.default_rng(0).permutation(41):
        for video, column in columns.items():
            np.testing.assert_array_equal(
                np.asarray(column[row : row + 1])[0], truth[row], err_msg=video
            )


REASONS = {
    "data/chunk-000/file-000.parquet, episode 2: it has 0 rows; meta/episodes says 9": ["left out"],
    "videos/x.mp4: no frame is within half a frame of row 2, at 0.200 s": ["kept episodes"],
    "videos/x.mp4: there is no frame for its 5 rows": ["kept episodes"],
    "its frame_index is 1": [],
}


@pytest.mark.parametrize("reason", REASONS)
def test_datasets_of_earlier_versions(reason: str) -> None:
    skipped = ({"where": "episode 2", "reason": reason},)
    old = Manifest("local:x@1", "local", "x", "1", "compact", {}, {}, skipped=skipped)
    known = [one.problem for one in CORRECTIONS["lerobot"] if one.affects(old)]
    assert [" ".join(one.split()[:2]) for one in known] == REASONS[reason]
