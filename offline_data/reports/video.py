"""Films of episodes as MP4 by PyAV, the only file that imports it, as GIF, or in rerun."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.errors import MissingDependencyError, UsageError
from offline_data.files import disk_errors
from offline_data.readers.images import write_gif

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from offline_data.reports.frames import Film

FORMATS = ("mp4", "gif")
"""Formats of films, by the suffix of the file."""
FASTEST = 240
"""Most frames a second."""


def write_film(film: Film, path: Path, fps: float) -> None:
    """Write a film to a `.mp4` or `.gif` file, which is there when it is whole.

    MP4 is H.264 in 4:2:0, lossy; odd sides get a last row or column repeated, because the format
    needs even ones. GIF has 256 colours a frame, exact for images of no more, and steps of 10 ms:
    `fps` is rounded to that. Frames are read and encoded one by one.

    Args:
        film: Its frames are used up.
        path: File to write; an existing one is replaced.
        fps: Frames a second, up to `FASTEST`.

    Raises:
        UsageError: Another suffix, or `fps` is out of range.
        MissingDependencyError: PyAV, or Pillow for GIF, is not installed.
        NoSpaceError, AccessError: The file cannot be written.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise UsageError(
            f"A film cannot be written as {path.name!r}: expected a name that ends in "
            f"{' or '.join(f'.{one}' for one in FORMATS)}",
            hint="--out FILE.mp4",
        )
    if not 0 < fps <= FASTEST:
        raise UsageError(f"fps is {fps:g}; expected more than 0 and at most {FASTEST}")
    with _replacing(path) as beside:
        if suffix == "gif":
            with beside.open("wb") as file:
                write_gif(file, film.frames, 1 / fps)
        else:
            _write_mp4(film, beside, fps)


def _write_mp4(film: Film, path: Path, fps: float) -> None:
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError(
            "MP4 films need PyAV", hint="pip install 'offline-data[video]', or --out FILE.gif"
        ) from error
    from fractions import Fraction

    odd = ((0, film.height % 2), (0, film.width % 2), (0, 0))
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1000))
        stream.width, stream.height = film.width + odd[1][1], film.height + odd[0][1]
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": "16"} if codec == "libx264" else {"qscale": "2"}
        for image in film.frames:
            frame = av.VideoFrame.from_ndarray(np.pad(image, odd, mode="edge"), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Give a new name beside `path`, which takes its place if the block succeeds."""
    beside = path.with_name(f".{path.stem[:80]}.{secrets.token_hex(4)}{path.suffix}")
    with disk_errors(path.parent):
        try:
            yield beside
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def open_rerun(film: Film, rewards: Any, name: str) -> None:
    """Open rerun's viewer with the frames and rewards of an episode on a timeline of steps.

    `rewards` are `[T]`. Raises `MissingDependencyError` without rerun.
    """
    try:
        import rerun
    except ImportError as error:
        raise MissingDependencyError(
            "The package rerun-sdk is not installed",
            hint="pip install rerun-sdk, or --out FILE.mp4 to write a film",
        ) from error
    rerun.init(name, spawn=True)
    for step, image in enumerate(film.frames):
        rerun.set_time("step", sequence=step)
        rerun.log(film.key, rerun.Image(image))
        if step < len(rewards):
            rerun.log("reward", rerun.Scalars(float(rewards[step])))
