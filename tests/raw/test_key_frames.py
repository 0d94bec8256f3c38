"""Frames of mp4 files whose marks of key frames are right, or those of intra refresh."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.raw.nal import begins
from offline_data.raw.video import VideoFile
from tests.slow import slow_but

COUNT = 40
ENCODERS: dict[str, tuple[str, dict[str, str], bool]] = {
    "intra refresh": ("libx264", {"x264-params": "intra-refresh=1:keyint=12"}, True),
    "intra refresh without B frames": ("libx264", {"x264-params": "intra-refresh=1:keyint=9:bframes=0:ref=1"}, True),
    "intra refresh once": ("libx264", {"x264-params": "intra-refresh=1:keyint=infinite"}, False),
    "open groups": ("libx264", {"x264-params": "open-gop=1:keyint=10:bframes=3:scenecut=0"}, False),
    "closed groups": ("libx264", {"g": "5", "bf": "2"}, False),
    "every frame": ("libx264", {"g": "1"}, False),
    "hevc, open groups": ("libx265", {"x265-params": "keyint=10:open-gop=1:log-level=none"}, False),
    "hevc, intra refresh": ("libx265", {"x265-params": "intra-refresh=1:keyint=12:bframes=0:log-level=none"}, False),
    "av1": ("libsvtav1", {"g": "6", "preset": "12"}, False),
    "mpeg4": ("mpeg4", {"g": "6", "qscale": "2"}, False),
}  # fmt: skip
"""Encoder and options, and whether some marks are wrong."""


def write(path: Path, name: str) -> Path:
    encoder, options, _ = ENCODERS[name]
    if encoder not in av.codecs_available:
        pytest.skip(f"no {encoder} here")
    y, x = np.mgrid[:64, :96]
    noise = np.random.default_rng(0).integers(0, 60, (64, 96, 3))
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream(encoder, rate=10)
        stream.height, stream.width, stream.pix_fmt, stream.options = 64, 96, "yuv420p", options
        for number in range(COUNT):
            bars = np.stack([(7 * number + 3 * y + 5 * x + 40 * c) % 180 for c in range(3)], -1)
            frame = av.VideoFrame.from_ndarray((noise + bars).astype(np.uint8), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write a film once."""
    folder = tmp_path_factory.mktemp("films")
    return cache(lambda name: write(folder / f"{name}.mp4", name))


def marked(path: Path) -> NDArray[np.int64]:
    """Return the index as the container marks key frames."""
    with av.open(str(path)) as container:
        packets = [
            (one.pts, one.is_keyframe) for one in container.demux(video=0) if one.pts is not None
        ]
    return np.array(sorted(packets), np.int64)


@cache
def true_frames(path: Path) -> list[Any]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.parametrize(
    ("name", "index", "threads"),
    slow_but(
        lambda name, index, threads: (threads and index == "read") or name == "intra refresh",
        ENCODERS,
        ["read", "as marked", "settled"],
        [True, False],
    ),
)
def test_every_frame_is_that_of_decoding_from_the_first(
    name: str, index: str, threads: bool, films: Callable[[str], Path]
) -> None:
    path = films(name)
    truth = true_frames(path)
    marks = marked(path)
    film = VideoFile(path, marks if index == "as marked" else None, threads=threads)
    if index == "settled":
        film.settle_keys()
    found = film.index[:, 1].astype(bool)
    if ENCODERS[name][2] and index != "as marked":
        assert found.sum() < marks[:, 1].sum()
    else:
        np.testing.assert_array_equal(film.index, marks)
    for number in np.random.default_rng(0).permutation(COUNT):
        (pixels,) = film.read(np.array([number]))
        np.testing.assert_array_equal(pixels, truth[number], err_msg=str(number))
    for some in ([12, 13], [3, 14, 25], [11, 12, 13, 14, 15, 16, 17, 18, 19, 30], [39], [0, 39]):
        for number, pixels in zip(some, film.read(np.array(some)), strict=True):
            np.testing.assert_array_equal(pixels, truth[number], err_msg=str(number))
    film.close()


@pytest.mark.parametrize("name", ["av1", "mpeg4", "closed groups"])
def test_a_frame_that_no_key_frame_yields(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.mp4", name)
    with av.open(str(path)) as container:
        packet = [bytes(one) for one in container.demux(video=0) if one.is_keyframe][3]
    path.write_bytes(path.read_bytes().replace(packet, packet[:8] + bytes(len(packet) - 8)))
    film = VideoFile(path)
    number = int(np.flatnonzero(film.index[:, 1])[3])
    with pytest.raises(FormatError, match=f"frame {number} cannot be decoded"):
        film.settle_keys()
    assert len(list(film.read(np.array([0, 1, 2])))) == 3


AVCC, HVCC = b"\1\x64\0\x1f\xff", b"\1" + bytes(20) + b"\xff"


def unit(*data: int) -> bytes:
    return len(data).to_bytes(4, "big") + bytes(data)


IDR, SLICE, NOT_SEI = unit(0x65, 0x88), unit(0x41, 0x9A), unit(0x06, 5, 1, 0xFF, 0x80)
REFRESH, AT_ONCE = unit(0x06, 6, 1, 0b00101_100, 0x80), unit(0x06, 6, 1, 0b1_1_0_00_100, 0x80)
AFTER_OTHERS = unit(0x06, 5, 255, 2, *[7] * 257, 6, 1, 0b00101_100, 0x80)
LONG = unit(0x06, 6, 4, 0, 0, 3, 1, 0x88, 0x80)
PACKETS: dict[str, tuple[str, bytes, bytes, bool | None]] = {
    "IDR": ("h264", IDR, AVCC, True),
    "IDR after messages": ("h264", NOT_SEI + IDR, AVCC, True),
    "a refresh": ("h264", REFRESH + SLICE, AVCC, False),
    "a refresh after other messages": ("h264", AFTER_OTHERS + SLICE, AVCC, False),
    "a refresh in escaped bytes": ("h264", LONG + SLICE, AVCC, False),
    "whole at once": ("h264", AT_ONCE + SLICE, AVCC, None),
    "neither": ("h264", SLICE, AVCC, None),
    "no length": ("h264", IDR, b"", None),
    "not of mp4": ("h264", b"\0\0\0\1\x65", b"\0\0\0\1\x67\x64", None),
    "hevc IDR": ("hevc", unit(19 << 1, 1, 0xAF), HVCC, True),
    "hevc CRA": ("hevc", unit(21 << 1, 1, 0xAF), HVCC, None),
    "hevc refresh": ("hevc", unit(39 << 1, 1, 6, 1, 0b00100_100, 0x80), HVCC, False),
    "hevc refresh that has begun": ("hevc", unit(39 << 1, 1, 6, 1, 0b00101_100, 0x80), HVCC, None),
    "another codec": ("av1", b"", b"", True),
}  # fmt: skip


@pytest.mark.parametrize("name", PACKETS)
def test_packets(name: str) -> None:
    codec, data, header, expected = PACKETS[name]
    assert begins(codec, data, header) is expected
    if codec != "av1" and expected is not None:
        for stop in range(len(data)):
            begins(codec, data[:stop], header)


def test_any_bytes() -> None:
    random = np.random.default_rng(0)
    for _ in range(2000):
        data = random.bytes(int(random.integers(0, 60)))
        begins("h264", b"\0\0\0" + data, AVCC)
        begins("hevc", data, HVCC)
