"""Frames of videos: which one belongs to a row, and columns of them.

```
times of frames in the file         0.0  0.1  0.2  0.3  0.4  0.5  0.6
rows of two episodes                0    1    2  | 0    1    2    3        the second begins at 0.3
```

As many frames as rows: they belong together in order, if none is further from its row than half a frame
after the median difference is taken off. Otherwise a row gets the nearest frame, within half a frame, of a
video with as many frames per second.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural
from offline_data.store.encoded import EncodedColumn, encode_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_LEAST = 0.75  # part of `1 / fps` below which frames are those of another rate
AT_ONCE = 8  # most frames that are encoded at once, in threads


def frames_of_rows(
    times: NDArray[Any],
    bounds: tuple[float | None, float | None],
    rows: NDArray[Any],
    fps: float,
) -> tuple[NDArray[np.intp], float, int]:
    """Return the frame of each row, the largest difference of their times, and the frames beyond rows.

    Args:
        times: Seconds of all frames of a file, ascending.
        bounds: Seconds at which the episode begins and the next one does; None: the file.
        rows: Seconds of the rows of the episode, counted from where it begins.

    Raises:
        FormatError: No frame is within half a frame of a row, or frames follow each other
            in less than three quarters of `1 / fps`.

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
            return np.arange(first, stop), float(abs(apart).max()), 0
    if stop <= first:
        raise FormatError(f"there is no frame for its {plural(len(rows), 'row')}")
    between = float(np.median(np.diff(times[first:stop]))) if stop - first > 2 else 1 / fps
    if between * fps < _LEAST:
        raise FormatError(
            f"it has {1 / between:.3g} frames per second; meta/info.json says {fps:g} "
            f"({plural(stop - first, 'frame')}, {plural(len(rows), 'row')})",
            hint="correct fps if it is wrong, or leave videos out: --video skip",
        )
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
            f"at {times[near[row]]:.3f} s ({plural(stop - first, 'frame')}, {plural(len(rows), 'row')})"
        )
    return near, float(apart.max()), max(0, stop - first - len(rows))


def as_pixels(frames: Iterator[NDArray[Any]], shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Return frames as an array `[T + 1, …]`, the last one twice."""
    out = np.empty(shape, dtype)
    for row, frame in enumerate(frames):
        out[row] = frame
    out[-1] = out[-2]
    return out


def as_png(frames: Iterator[NDArray[Any]], name: str, at_once: int) -> Any:
    """Return frames as PNG images, the last one twice; some at once are encoded, in threads."""
    images: list[bytes] = []
    while some := list(islice(frames, at_once)):
        first = some[0]
        images += encode_rows(some, "png", compress_level=1)
    images.append(images[-1])
    return EncodedColumn.of(images, ("png", first.dtype.name, first.shape), name)
