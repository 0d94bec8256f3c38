"""Memory of decoded images: a few frames at once, in everything that decodes; pixels stay the same."""

from __future__ import annotations

import os
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.analysis.frames import film
from offline_data.base.errors import FormatError
from offline_data.base.ids import parse_id
from offline_data.formats.lerobot.source import LeRobot
from offline_data.formats.options import Options
from offline_data.pipeline.ingest.build import BuildJob, DatasetBuild
from offline_data.pipeline.ingest.reading import decode_images
from offline_data.raw import pixels
from offline_data.raw.images import decode_jpeg, decode_tiff, encode_image
from offline_data.raw.video import VideoFile
from offline_data.reports.pages.episodes import read_pictures
from offline_data.store import encoded
from offline_data.store.encoded import EncodedColumn, PixelColumn, in_threads, pixels_of
from offline_data.store.reader import DatasetReader
from offline_data.store.video import StoredVideo, VideoColumn, hash_file
from offline_data.testing.toy import toy_batch, write_toy
from tests.pictures import written
from tests.slow import slow_but
from tests.toys.lerobot import write_lerobot, write_video

KEY = ("observation", "film")
ROWS, SHAPE = 161, (180, 240, 3)
FRAME = 180 * 240 * 3
HELD = 8 * FRAME
MOST = 80 * FRAME
"""Peak that is allowed: half of the frames, for copies and what else a page needs."""
WAYS: dict[str, Callable[[DatasetReader], object]] = {
    "view": lambda reader: [frame.max() for frame in film(reader, 0).frames],
    "report": lambda reader: read_pictures(reader, KEY, np.arange(0, 160, 2), 64),
    "black": lambda reader: offline_data.check(reader.path, select=["RL050"], progress=False),
    "frozen": lambda reader: offline_data.check(reader.path, select=["RL051"], progress=False),
    "camera": lambda reader: offline_data.check(reader.path, select=["RL055"], progress=False),
    "stats": lambda reader: offline_data.stats(reader.path, progress=False),
}

KINDS = ["video", "png", "jpeg", "raw"]


def picture(number: int) -> Any:
    """Return a grey frame; those of the film are alike but for their brightness."""
    return np.full(SHAPE, 20 + number, np.uint8)


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The frames of one episode in each kind of column."""
    path = tmp_path_factory.mktemp("film") / "film.mp4"
    write_video(path, [picture(n) for n in range(ROWS)])
    stored = StoredVideo(path, *hash_file(path), known=VideoFile(path).index)
    pairs = np.array([(0, n) for n in range(ROWS)], np.int32)
    found: dict[str, Any] = {"video": VideoColumn([stored], pairs, ("video", "uint8", SHAPE))}
    for kind in ("png", "jpeg"):
        images = [written(picture(n), kind) for n in range(ROWS)]
        found[kind] = EncodedColumn.of(images, (kind, "uint8", SHAPE))
    return found


def batch_of(column: Any) -> Any:
    batch = toy_batch([ROWS - 1])
    return replace(batch, observations={**batch.observations, KEY: column})


@pytest.fixture(scope="module")
def datasets(columns: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("datasets")
    for kind, column in {**columns, "raw": np.asarray(columns["png"])}.items():
        write_toy(folder / kind, [batch_of(column)])
    return {kind: folder / kind for kind in (*columns, "raw")}


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("way", "kind"),
    slow_but(lambda way, kind: [*WAYS].index(way) % 2 == KINDS.index(kind) // 2, WAYS, KINDS),
)
def test_a_few_frames_at_once(
    datasets: dict[str, Path], monkeypatch: pytest.MonkeyPatch, way: str, kind: str
) -> None:
    monkeypatch.setattr(pixels, "HELD", HELD)
    reader = DatasetReader(datasets[kind])
    WAYS[way](reader)  # imports, and what is kept
    assert peak_of(lambda: WAYS[way](reader)) < MOST < ROWS * FRAME / 2


@pytest.mark.parametrize(
    ("kind", "layout"),
    slow_but(lambda *case: case == ("png", "ted"), KINDS[:3], ["compact", "ted"]),
)
def test_pixels_are_written_and_audited_a_few_at_once(
    columns: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, layout: Any
) -> None:
    whole = np.asarray(columns[kind])
    monkeypatch.setattr(pixels, "HELD", HELD)
    # its array is freed without a page of it being touched
    monkeypatch.setattr("offline_data.store.writer.keep_freed_memory", lambda: None)
    (batch,) = decode_images(iter([batch_of(columns[kind])]))
    assert isinstance(batch.observations[KEY], PixelColumn)
    assert peak_of(lambda: write_toy(tmp_path / "d", [batch], layout=layout)) < MOST
    reader = DatasetReader(tmp_path / "d")
    assert reader.manifest.audit["rows"] == ROWS - 1
    rows = np.arange(ROWS - 1)
    for after in (False, True):
        found = reader.observations_at(KEY, rows, after=after)
        np.testing.assert_array_equal(found, whole[rows + after])


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("how", ["raw", "png", "keep"])
def test_lerobot_videos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Any, skip: bool
) -> None:
    raw = write_lerobot(tmp_path / "raw", "v3.0", (90, 1, 4), images=False, videos=())
    release = replace(
        LeRobot().release_of(raw, "x"), options=Options(video=how, skip_bad_episodes=skip)
    )
    frame = 32 * 48 * 3

    def build(name: str) -> DatasetReader:
        dataset = LeRobot().open(release, raw)
        options = Options(video=how, audit="all", skip_bad_episodes=skip)
        job = BuildJob(parse_id("local:x@1"), "lerobot", "compact", tmp_path, options)
        with DatasetBuild(dataset, job, 1, tmp_path / name) as steps:
            while steps.step():
                pass
        return DatasetReader(tmp_path / name)

    expected = build("whole")
    monkeypatch.setattr(pixels, "HELD", 16 * frame)
    found = build("few")
    key, rows = ("observation", "images", "vid"), np.arange(95)
    assert expected.manifest.audit["rows"] == 95
    assert list(found.observation_leaves) == list(expected.observation_leaves)
    for after in (False, True):
        np.testing.assert_array_equal(
            found.observations_at(key, rows, after=after),
            expected.observations_at(key, rows, after=after),
        )


def test_a_frame_that_is_larger_than_the_limit(
    columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    image, path = picture(0), columns["video"]._files[0].path
    jpeg, tiff = encode_image(image, "jpeg"), encode_image(image[..., 0].astype("u2"), "tiff")
    monkeypatch.setattr(pixels, "HELD", FRAME)
    decode_jpeg(jpeg, "x")
    monkeypatch.setattr(pixels, "HELD", FRAME // 4)
    size = r"\[180, 240(, [13])?\], \d+\.\d KiB decoded; expected at most 31\.6 KiB"
    for read in (
        lambda: VideoFile(path),
        lambda: decode_jpeg(jpeg, "x"),
        lambda: decode_tiff(tiff, SHAPE[:2], "x"),
        lambda: EncodedColumn.of([jpeg], ("jpeg", "uint8", SHAPE)),
        lambda: columns["png"][:1],
    ):
        with pytest.raises(FormatError, match=f"has images of {size}"):
            read()


def test_pixels_of_a_small_column_are_an_array(columns: dict[str, Any]) -> None:
    found = pixels_of(columns["png"][:3])
    assert isinstance(found, np.ndarray)
    lazy = PixelColumn(columns["png"])
    np.testing.assert_array_equal(lazy[3], picture(3))
    both = lazy[[1, 2]].joined_with([lazy[5:6]])
    np.testing.assert_array_equal(np.asarray(both), np.asarray(columns["png"][[1, 2, 5]]))


def test_decoded_images_are_not_held_by_calls_that_wait_for_a_thread() -> None:
    in_threads(lambda _: None, 4)  # makes the pool, where there are several processors
    busy, pool = threading.Event(), encoded._pools.get(os.getpid())
    waiting = [pool.submit(busy.wait) for _ in range(pool._max_workers)] if pool else []
    image = np.zeros(1)
    held = weakref.ref(image)
    try:
        in_threads(partial(image.__setitem__, 0), 1 + len(waiting))
        del image
        assert held() is None
    finally:
        busy.set()
