"""Frames at another time than rows, more frames than rows, times of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from offline_data.raw.video import VideoFile
from offline_data.store.reader import open_reader
from offline_data.store.video import StoredVideo, VideoColumn, hash_file
from tests.analysis.checks.planted import Write, changed, clean_batch, found
from tests.films import decoded
from tests.raw.test_key_frames import ENCODERS, marked
from tests.raw.test_key_frames import write as write_film
from tests.slow import every_second


def test_frames_off_time(write: Write) -> None:
    shift = np.array([0.02, 0.04, 0.051], np.float32)  # of frames of 0.1 s
    batch = changed(clean_batch(), episodes={("frame_shift", "images", "top"): shift})
    path = write(batch, about={"fps": 10})
    (one,) = found(path, "RL054")
    assert (one.leaf, one.episode, one.row, one.count) == ("observation/images/top", 2, 32, 2)
    assert one.message == (
        "2 of 3 episodes have frames at another time than the rows, by up to 0.051 s (0.51 frames)"
    )
    assert found(path, "RL054", frames=0.6) == []
    for fps in (None, "10", -1, 10**300, float("nan")):
        assert found(write(batch, about={"fps": fps}), "RL054") == []


def test_extra_frames(write: Write) -> None:
    extra: Any = {("extra_frames", "images", "top"): np.array([0, 3, 1], np.int32)}
    path = write(changed(clean_batch(), episodes=extra))
    (one,) = found(path, "RL057")
    assert (one.leaf, one.episode, one.row, one.count) == ("observation/images/top", 1, 12, 2)
    assert one.message == "2 of 3 episodes have more frames than rows, by up to 3"
    assert found(path, "RL057", frames=3) == []
    none = {key: np.zeros(3, np.int32) for key in extra}
    assert found(write(changed(clean_batch(), episodes=none)), "RL057") == []


LENGTHS = clean_batch().lengths
ROWS = np.concatenate([np.arange(n) for n in LENGTHS])
TIMES: dict[str, tuple[Any, int, float]] = {
    "even": (ROWS / 10, 0, 0),
    "rounded to float32 after hours": (ROWS / 1e-4, 0, 0),
    "one row": (ROWS / 10 + 0.013 * (np.arange(len(ROWS)) == 14), 1, 0.013),
    "begin late": (ROWS / 10 + 0.5, len(ROWS), 0.5),
    "of another rate": (ROWS / 20, len(ROWS) - len(LENGTHS), 0.05 * (max(LENGTHS) - 1)),
    "of the whole set": (
        np.arange(len(ROWS)) / 10,
        len(ROWS) - int(LENGTHS[0]),
        0.1 * int(LENGTHS[:-1].sum()),
    ),
    "missing": (np.where(np.arange(len(ROWS)) == 3, np.nan, ROWS / 10), 1, 0),
}


@pytest.mark.parametrize("name", TIMES)
def test_timestamps(name: str, write: Write) -> None:
    times, count, most = TIMES[name]
    fps = 1e-4 if "hours" in name else 10
    column: Any = {("timestamp",): times.astype(np.float32)[:, None]}
    path = write(changed(clean_batch(), steps=column), about={"fps": fps})
    findings = found(path, "RL058")
    assert [one.count for one in findings] == [count] * (count > 0)
    for one in findings:
        verb = "differs" if count == 1 else "differ"
        said = f"{count} of {len(times)} rows {verb} from row / 10 fps by up to {most:.3g} s"
        assert (one.leaf, one.message) == ("timestamp", said)
    assert found(path, "RL058", seconds=1e3) == [] or name == "missing"
    for other in (None, "10", -1):
        assert (
            found(write(changed(clean_batch(), steps=column), about={"fps": other}), "RL058") == []
        )


FILM = ("observation", "film")


@pytest.mark.parametrize(
    ("name", "listed"),
    every_second(
        ["intra refresh", "intra refresh without B frames", "open groups"],
        ["as the container marks", "settled"],
    ),
)
def test_false_key_frames(name: str, listed: str, write: Write, tmp_path: Path) -> None:
    film = write_film(tmp_path / "x.mp4", name)
    opened = VideoFile(film)
    opened.settle_keys()
    index = opened.index if listed == "settled" else marked(film)
    stored = StoredVideo(film, *hash_file(film), known=index)
    frames = np.array([(0, n % 40) for n in range(int(LENGTHS.sum()) + 3)], np.int32)
    column: Any = VideoColumn([stored], frames, ("video", "uint8", (64, 96, 3)))
    path = write(changed(clean_batch(), observations={FILM: column}))
    findings = found(path, "RL056")
    wrong = int(index[:, 1].sum() - opened.index[:, 1].sum())
    assert wrong == 0 or ENCODERS[name][2]
    assert [one.message for one in findings] == [
        f"Frames after {wrong} of {index[:, 1].sum()} examined key frames can only be decoded from an earlier one"
    ] * (wrong > 0)
    if wrong:
        assert (findings[0].leaf, findings[0].severity) == ("observation/film", "warning")
        number = int(np.flatnonzero(index[:, 1])[1])
        assert findings[0].row == number - (number >= LENGTHS[0])  # of rows of observations
    rows: Any = open_reader(path).leaf("observations", FILM)
    truth = np.stack([decoded(film)[n] for n in frames[:, 1]])
    np.testing.assert_array_equal(np.asarray(rows[np.arange(len(rows))]), truth)


def test_frames_that_no_key_frame_yields(write: Write, tmp_path: Path) -> None:
    film = write_film(tmp_path / "x.mp4", "av1")
    index = VideoFile(film).index
    frames = np.array([(0, n % 40) for n in range(int(LENGTHS.sum()) + 3)], np.int32)
    column: Any = VideoColumn(
        [StoredVideo(film, *hash_file(film), known=index)], frames, ("video", "uint8", (64, 96, 3))
    )
    path = write(changed(clean_batch(), observations={FILM: column}))
    number = int(np.flatnonzero(index[:, 1])[1])
    (copy,) = path.rglob("*.mp4")
    with av.open(str(copy)) as container:
        packet = [bytes(one) for one in container.demux(video=0) if one.is_keyframe][1]
    data = copy.read_bytes().replace(packet, packet[:8] + bytes(len(packet) - 8))
    copy.unlink()  # a hard link to the film
    copy.write_bytes(data)
    (one,) = found(path, "RL056")
    assert (one.severity, one.count, one.row) == ("error", 1, number)
    assert (
        one.message
        == f"Frames after 1 of {index[:, 1].sum()} examined key frames cannot be decoded"
    )
