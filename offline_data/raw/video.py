"""mp4 files, by PyAV, the only file that imports it: frames by number, and films."""

from __future__ import annotations

import io
import os
from bisect import bisect_left, bisect_right
from contextlib import contextmanager, suppress
from fractions import Fraction
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.base.config import silence_encoder
from offline_data.base.errors import FormatError, MissingDependencyError
from offline_data.base.files import LFS, LFS_PULL, describe_head, read_head
from offline_data.raw.nal import begins
from offline_data.raw.pixels import at_once, check_pixels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray


_RUN = 8  # frames from which on a request is a run that the next request may continue
_PROBED = 16  # frames of a file that are decoded although they are certainly key frames


class VideoFile:
    """An mp4 file, decoded from the key frame before the first wanted frame on.

    If a frame does not come from there, decoding begins at an earlier one.

    Args:
        index: `index` of an earlier object; None: read from the packets, without decoding.
        threads: Whether several threads decode. Such an object may not be freed in a forked process.
        instead: Advice for users without PyAV.
        data: Bytes of the file, if it is not on a disk; `path` then is its name in messages.

    Attributes:
        index: int64 `[F, 2]`: time of each frame in ticks of the stream, ascending, and whether it is
            a key frame, at which decoding may begin.
        times: `[F]` the same in seconds.
        marks: `[F]` whether the file says that a frame is a key frame, if `index` is read.
        dtype, shape: Those of a decoded frame: uint8 RGB `[H, W, 3]`, or uint16 `[H, W, 1]`, as
            stored, of grey ones of more than 8 bits.

    Raises:
        FormatError: It is not an mp4 file with a video, or is damaged.
        MissingDependencyError: PyAV is not installed.
    """

    def __init__(
        self,
        path: Path,
        index: NDArray[np.int64] | None = None,
        *,
        threads: bool = True,
        instead: str = "or leave videos out: --video skip",
        data: bytes | None = None,
    ) -> None:
        self._path, self._av = path, _pyav(instead)
        head = read_head(path) if data is None else data[:12]
        if head[4:8] != b"ftyp":
            hint = LFS_PULL if head.startswith(LFS) else None
            raise FormatError(f"{path} is not an mp4 file: {describe_head(head)}", hint=hint)
        with self._name_damage():
            # a name alone may be another protocol of FFmpeg
            source = f"file:{path}" if data is None else io.BytesIO(data)
            self._container = self._av.open(source, format="mp4")
            if not self._container.streams.video:
                raise FormatError(f"{path} has no video")
            self._stream = self._container.streams.video[0]
            self._codec = self._stream.codec_context
            if self._codec is None:
                raise FormatError(f"{path} has a video of an unknown codec")
            height, width = self._codec.height, self._codec.width
            if not height * width:
                raise FormatError(f"{path} has frames without pixels")
            deep = _is_deep(self._codec.pix_fmt or "")
            check_pixels((height, width, 1 if deep else 3), 1 + deep, str(path))
            if threads:  # each holds a frame
                self._codec.thread_type = "AUTO"
                most = at_once(height * width * 3)
                self._codec.thread_count = min(most, os.cpu_count() or 1)
            else:
                self._codec.thread_count = 1
            # No frame refers to those that are skipped; frame by frame in this decoder only.
            self._can_skip = self._codec.name == "h264" and not threads
            self.marks, self._doubtful = np.zeros(0, bool), list[int]()
            self.index = self._read_index() if index is None else index
        self.dtype, self.shape = ("uint16" if deep else "uint8"), (height, width, 1 if deep else 3)
        self._ticks = np.ascontiguousarray(self.index[:, 0])
        self.times = self._ticks * float(self._stream.time_base)
        self._keys = np.flatnonzero(self.index[:, 1]).tolist()
        # A reformatter of PyAV 17 and newer would keep a thread per processor.
        alone = {} if threads or int(self._av.__version__.split(".")[0]) < 17 else {"threads": 1}
        convert = self._av.video.reformatter.VideoReformatter().reformat
        self._convert = partial(convert, format="rgb24", **alone)
        self._frames: Iterator[Any] = iter(())
        self._next = len(self.times)  # number of the next frame of `_frames`
        self._begun = 0  # number of the frame at which decoding has begun
        self._wanted, self._unsent, self._last, self._drain = set[int](), set[int](), 0, False

    def close(self) -> None:
        """Close the file."""
        self._frames = iter(())  # else its frames would stay until the next garbage collection
        self._container.close()

    @property
    def nbytes(self) -> int:
        """Bytes of a decoded frame."""
        return np.dtype(self.dtype).itemsize * prod(self.shape)

    def read(self, numbers: NDArray[np.integer[Any]]) -> Iterator[NDArray[Any]]:
        """Yield frames by their numbers, which do not descend."""
        ticks = self._ticks[numbers].tolist()
        self._wanted, self._unsent, self._last = set(ticks), set(ticks), ticks[-1]
        self._drain = len(self._wanted) < _RUN
        with self._name_damage():
            self._go_to(int(numbers[0]))
            self._next = len(self._ticks)  # unless all goes well
            last: int | None = None
            pixels: NDArray[Any] = np.empty(0)
            for number, tick in zip(numbers.tolist(), ticks, strict=True):
                if number != last:
                    while (frame := self._frame_at(tick)) is None:
                        self._unsent = {one for one in ticks if one >= tick}
                        self._begin_before(number, self._begun)
                    pixels, last = self._pixels(frame), number
                    if (pixels.dtype.name, pixels.shape) != (self.dtype, self.shape):
                        raise FormatError(f"{self._path}: frame {number} has another size")
                yield pixels
            if not self._drain:
                self._next = int(numbers[-1]) + 1

    def settle_keys(self) -> None:
        """Decode the frame at each doubtful key frame, and at some others: `index` loses false ones.

        Raises `FormatError` if such a frame cannot be decoded from an earlier key frame, either.
        """
        some = np.linspace(0, len(self._keys) - 1, min(_PROBED, len(self._keys)), dtype=np.int64)
        for number in sorted({*self._doubtful, *(self._keys[place] for place in some)}):
            if not self.begins_at(number):
                self._forget(number)
                next(self.read(np.array([number])))
        self.index = self.index.copy()
        self.index[:, 1] = 0
        self.index[self._keys, 1] = 1

    def begins_at(self, number: int) -> bool:
        """Return True if decoding that begins at a frame yields this frame first."""
        tick = int(self._ticks[number])
        self._wanted = self._unsent = {tick}
        self._last, self._drain, self._next = tick, True, len(self._ticks)
        with self._name_damage():
            return self._seek(number, number) and self._frame_at(tick) is not None

    def _frame_at(self, tick: int) -> Any:
        """Return the frame of a time; None if decoding has passed it, is at its end, or fails."""
        try:
            frame = next((one for one in self._frames if one.pts >= tick), None)
        except self._av.error.FFmpegError:
            return None
        return frame if frame is not None and frame.pts == tick else None

    def _go_to(self, number: int) -> None:
        """Go on decoding up to a frame, or begin at the key frame before it where that is nearer."""
        keys = self._keys[: bisect_right(self._keys, number)]
        if number < self._next or (keys and keys[-1] > self._next):
            self._begin_before(number, number + 1)

    def _begin_before(self, number: int, limit: int) -> None:
        """Begin decoding, to reach a frame, at the last key frame below `limit`, or the first frame."""
        for begin in (*reversed(self._keys[: bisect_left(self._keys, limit)]), 0):
            if begin < limit and self._seek(begin, number):
                return
        raise FormatError(
            f"{self._path}: frame {number} cannot be decoded",
            hint="download or copy the file again",
        )

    def _seek(self, begin: int, number: int) -> bool:
        """Begin decoding at a key frame; False if that is none, or later than a frame."""
        self._container.seek(int(self._ticks[begin]), stream=self._stream)
        packets = self._container.demux(self._stream)
        first = next(packets, None)
        if first is None or first.pts is None or first.pts > self._ticks[number]:
            return False
        if begin and first.pts == self._ticks[begin] and self._is_entry(first) is False:
            self._forget(begin)
            return False
        self._frames, self._begun = self._decode(chain([first], packets)), begin
        return True

    def _forget(self, number: int) -> None:
        """Remove a key frame that is none."""
        if number in self._keys:
            self._keys.remove(number)

    def _is_entry(self, packet: Any) -> bool | None:
        return begins(self._codec.name, bytes(packet), self._codec.extradata or b"")

    def _decode(self, packets: Iterator[Any]) -> Iterator[Any]:
        """Yield frames; once all packets of wanted ones are in the decoder, it may be emptied."""
        for packet in packets:
            if self._can_skip:
                spare = packet.pts is not None and packet.pts < self._last
                spare = spare and packet.pts not in self._wanted
                self._codec.skip_frame = "NONREF" if spare else "DEFAULT"
            self._unsent.discard(packet.pts)
            yield from packet.decode()
            if self._drain and not self._unsent:
                yield from self._codec.decode(None)
                return

    def _read_index(self) -> NDArray[np.int64]:
        found: list[tuple[int, bool, bool | None]] = []
        for packet in self._container.demux(self._stream):
            if packet.pts is not None and not packet.is_discard:
                entry = packet.is_keyframe and self._is_entry(packet)
                found.append((packet.pts, packet.is_keyframe, entry))
        found.sort(key=lambda one: one[0])
        index = np.array([(tick, entry is not False) for tick, _, entry in found], np.int64)
        if not len(index) or (np.diff(index[:, 0]) == 0).any():
            raise FormatError(f"{self._path} has no frames, or two of the same time")
        self.marks = np.array([mark for _, mark, _ in found])
        self._doubtful = [number for number, one in enumerate(found) if one[2] is None]
        return index

    def _pixels(self, frame: Any) -> NDArray[Any]:
        if not _is_deep(frame.format.name):
            return np.asarray(self._convert(frame).to_ndarray())
        plane = frame.planes[0]
        rows = np.frombuffer(plane, "<u2").reshape(frame.height, plane.line_size // 2)
        return np.array(rows[:, : frame.width, None])

    @contextmanager
    def _name_damage(self) -> Iterator[None]:
        try:
            yield
        except FormatError:
            raise
        except (self._av.error.FFmpegError, OSError, ValueError, MemoryError) as error:
            raise FormatError(
                f"{self._path} cannot be decoded: {error}", hint="download or copy the file again"
            ) from error


def _is_deep(name: str) -> bool:
    """Return True for a pixel format of grey values of more than 8 bits."""
    return name.startswith("gray") and name.endswith("le")


class Mp4Writer:
    """Writes RGB frames `[H, W, 3]` of one size as an mp4 file, with a loss.

    Every second frame is a key frame, so that single frames are decoded quickly, as those of LeRobot.

    Args:
        path: The file, or a buffer for its bytes.
        size: Height and width; with an odd one, the colour of each pixel is kept in H.264.
        fps: Frames in a second.
        codec: `h264` or `av1`, which has no odd sizes.
        options: Options of the encoder; None: chosen here.
        instead: Advice for users without PyAV, or without the encoder.

    Raises:
        MissingDependencyError: PyAV is not installed, or has no such encoder.
    """

    def __init__(
        self,
        path: Path | io.BytesIO,
        size: tuple[int, int],
        fps: float,
        codec: str,
        *,
        options: Mapping[str, str] | None = None,
        instead: str = "or write images: --video none",
    ) -> None:
        self._av = _pyav(instead)
        encoder, best = ENCODERS[codec]
        if encoder not in self._av.codecs_available:
            raise MissingDependencyError(f"This PyAV has no encoder {encoder}", hint=instead[3:])
        if codec == "av1":
            silence_encoder()
        target = str(path) if isinstance(path, Path) else path
        self._container = self._av.open(target, "w", format="mp4")
        rate = Fraction(fps).limit_denominator(1000)
        self._stream: Any = self._container.add_stream(encoder, rate=rate)
        self._stream.height, self._stream.width = size
        self._stream.pix_fmt = pixel_format(size)
        self._stream.options = dict(best if options is None else options)
        with same_scheduling():
            self._stream.codec_context.open()

    def write(self, image: NDArray[np.uint8]) -> None:
        """Append a frame."""
        frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        """Write what is left, and close the file."""
        with self._container:
            self._container.mux(self._stream.encode(None))


ENCODERS = {
    "h264": ("libx264", {"crf": "18", "g": "2", "bf": "0"}),
    "av1": ("libsvtav1", {"crf": "30", "g": "2"}),
    "mpeg4": ("mpeg4", {"qscale": "2"}),
}
"""Encoders and their options by codec; those of `av1` are LeRobot's own."""


@contextmanager
def same_scheduling() -> Iterator[None]:
    """Keep the scheduling of this process in a block that opens an encoder; threads of that get it, too.

    For root, SVT-AV1 makes the thread that opens it a real-time one (`SCHED_FIFO`), which it stays, as
    do later threads and processes: others on this machine wait for them, and OpenBLAS may hang.
    """
    threads = Path("/proc/self/task")
    if not threads.is_dir():  # not on Linux
        yield
        return
    usual = os.sched_getscheduler(0), os.sched_getparam(0)
    before = {thread.name for thread in threads.iterdir()}
    try:
        yield
    finally:
        for thread in {"0", *(thread.name for thread in threads.iterdir())} - before:
            with suppress(OSError):  # it has ended
                os.sched_setscheduler(int(thread), *usual)


def pixel_format(size: tuple[int, int]) -> str:
    """Return the pixel format of an `Mp4Writer`: with an odd side, colours at full resolution."""
    return "yuv444p" if size[0] % 2 or size[1] % 2 else "yuv420p"


def write_mp4(
    frames: Iterable[NDArray[np.uint8]], size: tuple[int, int], path: Path, fps: float
) -> None:
    """Write RGB `[H, W, 3]` as H.264 in 4:2:0, lossy; an odd side gets a row or column more."""
    height, width = size
    odd = ((0, height % 2), (0, width % 2), (0, 0))
    even = (height + odd[0][1], width + odd[1][1])
    advice = "or --out FILE.gif"
    if "libx264" in _pyav(advice).codecs_available:
        writer = Mp4Writer(path, even, fps, "h264", options={"crf": "16"}, instead=advice)
    else:
        writer = Mp4Writer(path, even, fps, "mpeg4", instead=advice)
    for image in frames:
        writer.write(np.pad(image, odd, mode="edge"))
    writer.close()


def encode_mp4(
    frames: Iterable[NDArray[np.uint8]], size: tuple[int, int], keyframes: int, instead: str
) -> bytes:
    """Return RGB frames `[H, W, 3]` as an mp4 of H.264, lossy, with a key frame every `keyframes`.

    Equal frames give equal bytes on one machine. Single frames are decoded more than twice as fast
    as those of x264's defaults, in a file of about the same size.

    Raises:
        FormatError: The encoder takes no frames of this size.
        MissingDependencyError: PyAV is not installed, or has no such encoder.
    """
    buffer = io.BytesIO()
    options = {**ENCODERS["h264"][1], **_FAST_TO_DECODE, "g": str(keyframes)}
    try:
        writer = Mp4Writer(buffer, size, _PLAYED, "h264", options=options, instead=instead)
    except _pyav(instead).error.FFmpegError as error:
        raise FormatError(f"x264 encodes no frames of {size[0]} x {size[1]} pixels") from error
    for image in frames:
        writer.write(image)
    writer.close()
    return buffer.getvalue()


_FAST_TO_DECODE = {
    "preset": "veryfast",
    "tune": "fastdecode",
    "mbtree": "0",  # with it, one of some hundred runs in threads gives other bytes
    "crf": "20",  # without it, about what 18 is with it
    "sc_threshold": "0",  # else there are more key frames where a scene ends
    "threads": "1",  # the bytes depend on their number
}
_PLAYED = 30  # frames in a second, if a player shows the file; readers find frames by number


def _pyav(instead: str) -> Any:
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError(
            "MP4 files need PyAV", hint=f"pip install 'offline-data[video]', {instead}"
        ) from error
    return av
