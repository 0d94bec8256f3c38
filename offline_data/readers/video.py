"""mp4 files, by PyAV, the only file that imports it: frames by number, and films."""

from __future__ import annotations

from contextlib import contextmanager
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.errors import FormatError, MissingDependencyError
from offline_data.files import describe_head, read_head

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray


_MOST_PIXELS = 1 << 26  # 200 MB of one frame
_SKIP = "or leave videos out: --video skip"


class VideoFile:
    """An mp4 file, decoded from the key frame before the first wanted frame on.

    Attributes:
        times: `[F]` seconds of its frames, ascending, from its packets: nothing is decoded for them.

    Raises:
        FormatError: It is not an mp4 file with a video, or is damaged.
        MissingDependencyError: PyAV is not installed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        head = read_head(path)
        if head[4:8] != b"ftyp":
            raise FormatError(f"{path} is not an mp4 file: {describe_head(head)}")
        with self._name_damage():
            # a name alone may be another protocol of FFmpeg
            self._container = _pyav(_SKIP).open(f"file:{path}", format="mp4")
            if not self._container.streams.video:
                raise FormatError(f"{path} has no video")
            self._stream = self._container.streams.video[0]
            self._stream.thread_type = "AUTO"
            found = [
                (packet.pts, packet.is_keyframe)
                for packet in self._container.demux(self._stream)
                if packet.pts is not None and not packet.is_discard
            ]
            self._scale = float(self._stream.time_base)
        found.sort()
        self._ticks = np.array([pts for pts, _ in found], np.int64)
        if not len(found) or (np.diff(self._ticks) == 0).any():
            raise FormatError(f"{path} has no frames, or two of the same time")
        self._keys = np.flatnonzero([key for _, key in found])
        self.times = self._ticks * self._scale
        self._frames: Iterator[Any] = iter(())
        self._next = len(found)

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def read(self, numbers: NDArray[np.intp]) -> Iterator[NDArray[Any]]:
        """Yield frames by their numbers, which do not descend: uint8 RGB `[H, W, 3]`.

        Grey ones of more than 8 bits are uint16 `[H, W, 1]`, as stored.
        """
        number, pixels, shape = -1, None, None
        frame: Any = None
        with self._name_damage():
            self._go_to(int(numbers[0]))
            self._next = len(self.times)  # unless all goes well
            for wanted in numbers.tolist():
                while number < wanted:
                    frame = next(self._frames, None)
                    if frame is None:
                        raise FormatError(f"{self._path} ends before frame {wanted}")
                    number, pixels = int(np.searchsorted(self._ticks, frame.pts)), None
                if number > wanted or frame.pts != self._ticks[number]:
                    raise FormatError(f"{self._path}: frame {wanted} cannot be decoded")
                pixels = _pixels(frame) if pixels is None else pixels
                shape = shape or pixels.shape
                if pixels.shape != shape:
                    raise FormatError(f"{self._path}: frame {wanted} has another size")
                yield pixels
            self._next = number + 1

    def _go_to(self, number: int) -> None:
        """Go on decoding up to a frame, or begin at the key frame before it where that is nearer."""
        size = self._stream.codec_context
        if not 0 < size.height * size.width <= _MOST_PIXELS:
            raise FormatError(f"{self._path} has frames of {size.width} x {size.height} pixels")
        keys = self._keys[: np.searchsorted(self._keys, number, side="right")]
        if number >= self._next and (not len(keys) or keys[-1] <= self._next):
            return
        for tick in (int(self._ticks[number]), int(self._ticks[0])):
            self._container.seek(tick, stream=self._stream)
            frames = self._container.decode(self._stream)
            first = next(frames, None)
            if first is not None and first.pts <= self._ticks[number]:
                self._frames = chain([first], frames)
                return
        raise FormatError(f"{self._path}: frame {number} cannot be decoded")

    @contextmanager
    def _name_damage(self) -> Iterator[None]:
        try:
            yield
        except FormatError:
            raise
        except (_pyav(_SKIP).error.FFmpegError, OSError, ValueError, MemoryError) as error:
            raise FormatError(
                f"{self._path} cannot be decoded: {error}", hint="download or copy the file again"
            ) from error


def _pixels(frame: Any) -> NDArray[Any]:
    name = frame.format.name
    if not (name.startswith("gray") and name.endswith("le")):
        return np.asarray(frame.to_ndarray(format="rgb24"))
    plane = frame.planes[0]
    rows = np.frombuffer(plane, "<u2").reshape(frame.height, plane.line_size // 2)
    return np.array(rows[:, : frame.width, None])


def write_mp4(
    frames: Iterable[NDArray[np.uint8]], size: tuple[int, int], path: Path, fps: float
) -> None:
    """Write RGB frames `[H, W, 3]` as H.264 in 4:2:0, lossy; an odd side gets a row or column more.

    Raises `MissingDependencyError`.
    """
    av = _pyav("or --out FILE.gif")
    height, width = size
    odd = ((0, height % 2), (0, width % 2), (0, 0))
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1000))
        stream.width, stream.height = width + odd[1][1], height + odd[0][1]
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": "16"} if codec == "libx264" else {"qscale": "2"}
        for image in frames:
            frame = av.VideoFrame.from_ndarray(np.pad(image, odd, mode="edge"), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def _pyav(instead: str) -> Any:
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError(
            "MP4 files need PyAV", hint=f"pip install 'offline-data[video]', {instead}"
        ) from error
    return av
