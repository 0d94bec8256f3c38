"""Kept videos in batches, workers, streams, steps and views: the frames that PyAV decodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, UsageError
from offline_data.pipeline.ingest import Options, convert
from offline_data.store.layout import OBSERVATIONS
from offline_data.store.reader import open_reader
from tests.films import FILM, LENGTHS, NEXT_FILM, write_films
from tests.toys.lerobot import write_lerobot, write_video

VID = ("observation", "images", "vid")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    return write_films(tmp_path_factory.mktemp("films"))


def roots() -> Any:
    """Return the row of observations of each transition."""
    return np.concatenate([np.arange(n) + sum(LENGTHS[:e]) + e for e, n in enumerate(LENGTHS)])


def assert_films(batch: Any, truth: Any) -> None:
    rows = roots()[batch["index"].numpy()]
    assert batch[FILM].dtype == torch.uint8
    np.testing.assert_array_equal(batch[FILM].numpy(), truth[rows])
    np.testing.assert_array_equal(batch[NEXT_FILM].numpy(), truth[rows + 1])


@pytest.mark.parametrize("in_memory", [False, True])
def test_batches(made: tuple[Path, Any], in_memory: bool) -> None:
    ds = offline_data.open_dataset(made[0], in_memory=in_memory, batch_size=13)
    for _ in range(5):
        assert_films(ds.sample(), made[1])
    assert_films(ds[3:9], made[1])
    np.testing.assert_array_equal(ds[4][FILM].numpy(), made[1][roots()[4]])


@pytest.mark.slow
def test_spawned_workers(made: tuple[Path, Any]) -> None:
    ds = offline_data.open_dataset(made[0], batch_size=4)
    ds.sample()  # containers are open here
    loader = ds.dataloader(num_workers=1, multiprocessing_context="spawn")
    count = 0
    for batch in loader:
        assert_films(batch, made[1])
        count += len(batch)
    assert count >= 10


def test_bytes_of_frames_are_refused(made: tuple[Path, Any]) -> None:
    with pytest.raises(UsageError, match="'observation/film' is a video"):
        offline_data.open_dataset(made[0], decode=False)
    assert len(offline_data.open_dataset(made[0], decode=False, keys=["action"])[:3]) == 3


def test_steps(made: tuple[Path, Any], tmp_path: Path) -> None:
    ds = offline_data.open_dataset(made[0])
    run: dict[str, Any] = {"num_workers": 0, "chunksize": 1}
    decoded = ds.preprocess("decode", dest=tmp_path / "decoded", **run)
    values = open_reader(decoded.reader.path).leaf(OBSERVATIONS, FILM)
    np.testing.assert_array_equal(values, made[1])
    kept = ds.preprocess("clip:action,low=0,high=1", dest=tmp_path / "kept", **run)
    column: Any = open_reader(kept.reader.path).leaf(OBSERVATIONS, FILM)
    assert column.encoding == "video"
    np.testing.assert_array_equal(np.asarray(column), made[1])
    png = ds.preprocess("encode:observation.film", dest=tmp_path / "png", **run)
    column = open_reader(png.reader.path).leaf(OBSERVATIONS, FILM)
    assert column.encoding == "png"
    np.testing.assert_array_equal(np.asarray(column), made[1])


def test_only_files_with_rows_are_kept(made: tuple[Path, Any], tmp_path: Path) -> None:
    ds = offline_data.open_dataset(made[0])
    part = ds.filter("length == 2").preprocess("clip:action,low=0,high=1", dest=tmp_path / "part")
    column: Any = open_reader(part.reader.path).leaf(OBSERVATIONS, FILM)
    np.testing.assert_array_equal(np.asarray(column), made[1][-3:])
    assert len(list(part.reader.path.rglob("*.mp4"))) == 1


# ---- LeRobot ----------------------------------------------------------------------------------------


def test_streams_have_the_same_frames(tmp_path: Path, settings: Settings) -> None:
    folder = write_lerobot(tmp_path / "toy", "v3.0", (5, 1, 7), videos=(2,), images=False)
    stored = convert(folder, "toy", settings, Options())
    column: Any = open_reader(stored.path).leaf(OBSERVATIONS, VID)
    assert column.encoding == "video"
    stream = offline_data.StreamingDataset(str(folder), batch_size=13, shuffle=False)
    (batch,) = list(stream)
    ds = offline_data.open_dataset(stored.path)
    assert torch.equal(batch[VID], ds[batch["index"]][VID])


def test_existing_datasets_satisfy_a_request_that_names_no_kind(
    tmp_path: Path, settings: Settings
) -> None:
    folder = write_lerobot(tmp_path / "toy", "v2.1", (5, 3), videos=(), images=False)
    kinds: tuple[Literal["keep", "png", "raw", "skip"], ...] = ("png", "raw", "keep", "skip")
    for kind in kinds:
        convert(folder, kind, settings, Options(video=kind))
        assert convert(folder, kind, settings, Options()).existed, kind
        assert convert(folder, kind, settings, Options(video=kind)).existed, kind
        assert not convert(folder, kind, settings, Options(video=kinds[kind == "png"])).existed


def test_videos_of_two_sizes(tmp_path: Path, settings: Settings) -> None:
    folder = write_lerobot(tmp_path / "toy", "v2.1", (5, 3), videos=(), images=False)
    path = sorted(folder.rglob("*.mp4"))[1]
    write_video(path, [np.zeros((16, 16, 3), np.uint8)] * 3)
    with pytest.raises(FormatError, match=r"video uint8 \[16, 16, 3\], and video uint8 \[32, 48"):
        convert(folder, "toy", settings, Options())
