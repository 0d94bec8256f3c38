"""Films of episodes as MP4, as GIF, or in rerun."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data.base.errors import MissingDependencyError, UsageError
from offline_data.base.files import disk_errors
from offline_data.raw.images import write_gif
from offline_data.raw.video import write_mp4

if TYPE_CHECKING:
    from offline_data.analysis.frames import Film

FORMATS = ("mp4", "gif")  # formats of films, by the suffix of the file
FASTEST = 240  # most frames a second


def write_film(film: Film, path: Path, fps: float) -> None:
    """Write a film to a `.mp4` or `.gif` file, which is there when it is whole.

    MP4 is H.264 in 4:2:0, lossy; odd sides get a last row or column repeated, because the format
    needs even ones. GIF has 256 colours a frame, exact for images of no more, and steps of 10 ms:
    `fps`, up to `FASTEST`, is rounded to that. Frames are read and encoded one by one, and used up;
    an existing file is replaced.

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
    with _replacing(path) as staged:
        if suffix == "gif":
            with staged.open("wb") as file:
                write_gif(file, film.frames, 1 / fps)
        else:
            write_mp4(film.frames, (film.height, film.width), staged, fps)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name next to `path`, which replaces it if the block succeeds."""
    staged = path.with_name(f".{path.stem[:80]}.{secrets.token_hex(4)}{path.suffix}")
    with disk_errors(path.parent):
        try:
            yield staged
            staged.replace(path)
        finally:
            staged.unlink(missing_ok=True)


def open_rerun(film: Film, rewards: Any, name: str) -> None:
    """Open rerun with frames and rewards `[T]` by step; raises `MissingDependencyError`."""
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
