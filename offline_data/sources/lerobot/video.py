"""Frames of mp4 files, by PyAV: which frame belongs to a row, and their pixels.

```
times of frames in the file         0.0  0.1  0.2  0.3  0.4  0.5  0.6
rows of two episodes                0    1    2  | 0    1    2    3        the second begins at 0.3
```

As many frames as rows: they belong together in order, if none is further from its row than half a frame
after the median difference is taken off. Otherwise a row gets the nearest frame, within half a frame.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.errors import FormatError, MissingDependencyError
from offline_data.files import describe_head, read_head
from offline_data.readers.images import encode_image
from offline_data.store.encoded import EncodedColumn, in_threads
from offline_data.store.layout import fits_encoding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_AT_ONCE = 8
"""Frames that are encoded at once, in threads."""


def frames_of_rows(
    times: NDArray[Any],
    bounds: tuple[float | None, float | None],
    rows: NDArray[Any],
    fps: float,
) -> tuple[NDArray[np.intp], float]:
    """Return the number of the frame of each row, and the largest difference of their times.

    Args:
        times: Seconds of all frames of a file, ascending.
        bounds: Seconds at which the episode begins and the next one does; None: the file.
        rows: Seconds of the rows of the episode, counted from where it begins.
        fps: Frames in a second.

    Raises:
        FormatError: No frame is within half a frame of a row.

    Example:
        >>> frames_of_rows(np.arange(7) / 10, (0.3, None), np.arange(4) / 10, 10)[0].tolist()
        [3, 4, 5, 6]
    """
    half = 0.5 / fps * (1 + 1e-6)
    begin, end = bounds
    first = 0 if begin is None else int(np.searchsorted(times, begin - half))
    stop = len(times) if end is None else int(np.searchsorted(times, end - half))
    wanted = rows + (begin or 0.0)
    if stop - first == len(rows):
        apart = times[first:stop] - wanted
        if (abs(apart - np.median(apart)) <= half).all():
            return np.arange(first, stop), float(abs(apart).max())
    if stop <= first:
        raise FormatError(f"there is no frame for its {len(rows)} rows")
    after = np.searchsorted(times[first:stop], wanted).clip(1, max(1, stop - first - 1)) + first
    before = after - 1
    after = after.clip(max=stop - 1)
    near = np.where(wanted - times[before] <= times[after] - wanted, before, after)
    apart = abs(times[near] - wanted)
    far = np.flatnonzero(~(apart <= half))
    if len(far):
        row = int(far[0])
        raise FormatError(
            f"no frame is within half a frame of row {row}, at {wanted[row]:.3f} s: the nearest is "
            f"at {times[near[row]]:.3f} s ({stop - first} frames, {len(rows)} rows)"
        )
    return near, float(apart.max())


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
            self._container = _pyav().open(f"file:{path}", format="mp4")
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
        if not fits_encoding("png", "uint8", (size.height, size.width, 3)):
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
        except (_pyav().error.FFmpegError, OSError, ValueError, MemoryError) as error:
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


def as_column(frames: Iterator[NDArray[Any]], name: str, *, raw: bool) -> Any:
    """Return frames as PNG images, or as pixels, with the last one twice."""
    images: list[Any] = []
    while some := list(islice(frames, _AT_ONCE)):
        first = some[0]
        files: list[Any] = list(some)

        def encode(n: int, some: list[Any] = some, files: list[Any] = files) -> None:
            files[n] = encode_image(some[n], "png", compress_level=1)

        if not raw:
            in_threads(encode, len(some))
        images += files
    images.append(images[-1])
    if raw:
        return np.stack(images)
    return EncodedColumn.of(images, ("png", first.dtype.name, first.shape), name)


def _pyav() -> Any:
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError(
            "Videos need PyAV",
            hint="pip install 'offline-data[lerobot]', or leave them out: --video skip",
        ) from error
    return av
