"""Frames of kept and of decoded videos, compared with LeRobot's method on the same mp4 files.

Its method: open the file for each query, seek to the key frame before the first frame, decode up to the
last one by PyAV; every decoded frame becomes RGB, or (stricter) only the wanted ones, or (strictest) files
also stay open. Videos that `encode:format=h264` wrote again are compared with torchcodec on the published ones, too. All results are uint8 in memory; LeRobot's conversion to floats is not counted. Files are in the page cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from fractions import Fraction
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

import offline_data
from benchmarks.memory import added_mib
from benchmarks.timing import Row, interleaved
from offline_data.base.config import resolve_settings
from offline_data.pipeline.ingest import Options, convert
from tests.toys.lerobot import CAMERA, FEATURES, FPS, V2_VIDEO, VIDEO, write_lerobot

HEIGHT, WIDTH, GOP, WINDOW, BATCH = 480, 640, 30, 16, 16
STEPS = 300
"""Frames of a file."""
RAW = 10
"""Most files whose frames are stored as pixels: 2.8 GB."""
LEAF = ("observation", "images", "vid")

Query = Sequence[int]
"""Rows, of one file and ascending."""


def write_film(path: Path, seed: int, steps: int) -> None:
    """Write a video of a noisy pattern that moves by up to 3 pixels a frame."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (30, 40, 3)).repeat(32, 0).repeat(32, 1)
    pattern = np.clip(coarse + rng.normal(0, 4, coarse.shape), 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=Fraction(FPS))
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {"g": str(GOP), "preset": "veryfast", "crf": "23"}
        y, x = 240, 320
        for dy, dx in rng.integers(-3, 4, (steps, 2)).tolist():
            y, x = (y + dy) % HEIGHT, (x + dx) % WIDTH
            pixels = np.ascontiguousarray(pattern[y : y + HEIGHT, x : x + WIDTH])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))


def write(folder: Path, films: Sequence[Path], steps: int) -> tuple[Path, list[Path]]:
    """Write a dataset of version 2.1 with these videos; returns it and its videos."""
    features = {name: one for name, one in FEATURES.items() if one["dtype"] != "image"}
    features[CAMERA] = {**VIDEO, "shape": [HEIGHT, WIDTH, 3]}
    lengths = [steps] * len(films)
    more: dict[str, Any] = {"features": features, "video_path": V2_VIDEO}
    write_lerobot(folder, "v2.1", lengths, images=False, **more)
    places = []
    for number, film in enumerate(films):
        place = V2_VIDEO.format(episode_chunk=number // 3, video_key=CAMERA, episode_index=number)
        places.append(folder / place)
        places[-1].parent.mkdir(parents=True, exist_ok=True)
        os.link(film, places[-1])
    return folder, places


def by_lerobot(
    films: Sequence[Path],
    steps: int,
    query: Query,
    *,
    convert_all: bool,
    kept: dict[Path, Any] | None = None,
) -> NDArray[np.uint8]:
    """Return the frames of a query as LeRobot's `decode_video_frames` finds them.

    `kept` are open files, which stay open; None: the file is opened and closed.
    """
    wanted = np.array([row % steps / FPS for row in query])
    times, frames, film = [], [], films[query[0] // steps]
    if kept is not None and film not in kept:
        kept[film] = av.open(str(film))
    with av.open(str(film)) if kept is None else nullcontext(kept[film]) as container:
        stream = container.streams.video[0]
        container.seek(int(wanted[0] / stream.time_base), stream=stream)
        for frame in container.decode(stream):
            times.append(frame.time)
            frames.append(frame.to_ndarray(format="rgb24") if convert_all else frame)
            if times[-1] >= wanted[-1]:
                break
        nearest = np.abs(np.array(times) - wanted[:, None]).argmin(axis=1)
        found = [frames[n] for n in nearest]
        pixels = found if convert_all else [one.to_ndarray(format="rgb24") for one in found]
    return np.stack(pixels)


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure kept videos, their memory, and frames stored as pixels; `scale` gives fewer files."""
    count, steps = max(2, int(50 * scale)), STEPS
    films = [folder / f"{number}.mp4" for number in range(count)]
    for number, film in enumerate(films):
        write_film(film, number, steps)
    kept, places = write(folder / "set", films, steps)
    stored = _convert(kept, folder, "keep")
    yield from _compare(stored, places, "kept", repeats, targets=("≥ 1.2×", "≥ 2×", "", "≥ 3×"))
    added = added_mib(_OPEN, _READ, stored, str(steps), field="RssAnon")
    yield Row(
        f"memory of {count} open decoders", "offline-data", "", f"{added / count:.1f} MiB each"
    )
    yield from _encoded_again(folder, stored, places, repeats)
    few, places = write(folder / "few", films[:RAW], steps)
    raw = _convert(few, folder, "raw")
    yield from _compare(raw, places, "decoded before", repeats, targets=("≥ 10×",) * 4)


def _encoded_again(
    folder: Path, stored: Path, films: list[Path], repeats: int, keyframes: int = 2
) -> Iterator[Row]:
    """Measure 64 random frames of the same videos, encoded again by the step `encode`."""
    steps, rng = STEPS, np.random.default_rng(0)
    kept = offline_data.open_dataset(stored, delta_timestamps={LEAF: [0.0]})
    step = f"encode:format=h264,keyframes={keyframes}"
    again = folder / "again"
    offline_data.open_dataset(stored).preprocess(step, dest=again, progress=False)
    batches: list[list[Query]] = [
        [[row] for row in rng.integers(len(films) * steps, size=64).tolist()] for _ in range(4)
    ]
    jobs: dict[str, Callable[[list[Query]], NDArray[Any]]] = {
        "offline-data": partial(
            _ours, offline_data.open_dataset(again, delta_timestamps={LEAF: [0.0]})
        ),
        "offline-data, kept videos": partial(_ours, kept),
        "PyAV, wanted frames to RGB, files open": partial(_theirs, films, steps, False, kept={}),
    }
    name = f"64 random frames of {len(films)} videos with a key frame every {keyframes} frames"
    jobs |= _torchcodec(films, steps)
    seconds = interleaved(
        {who: partial(_next, job, cycle(batches)) for who, job in jobs.items()},
        repeats=repeats,
        calls=1,
    )
    for who, took in seconds.items():
        ours = who == "offline-data"
        ratio = f"{took / seconds['offline-data']:.2f}×"
        yield Row(name, who, ratio, f"{1000 * took:.2f} ms", "≥ 3×" if ours else "")
    sizes = [
        sum(path.stat().st_size for path in folder.rglob("*.mp4")) for folder in (again, stored)
    ]
    yield Row(name, "bytes of mp4 files", f"{sizes[0] / sizes[1]:.2f}×", f"{sizes[0] / 1e6:.1f} MB")


def _torchcodec(films: list[Path], steps: int) -> dict[str, Callable[[list[Query]], NDArray[Any]]]:
    """Return the job of torchcodec, LeRobot's default decoder; without it there is none."""
    try:
        from torchcodec.decoders import VideoDecoder
    except (ImportError, RuntimeError):  # not installed, or without FFmpeg's libraries
        return {}
    decoders = [VideoDecoder(str(film), dimension_order="NHWC") for film in films]
    return {"torchcodec, published videos, files open": partial(_by_torchcodec, decoders, steps)}


def _by_torchcodec(decoders: list[Any], steps: int, batch: list[Query]) -> NDArray[Any]:
    found = {}
    for number in {query[0] // steps for query in batch}:
        rows = [row for query in batch if query[0] // steps == number for row in query]
        frames = decoders[number].get_frames_at([row % steps for row in rows]).data.numpy()
        found.update(zip(rows, frames, strict=True))
    return np.stack([found[row] for query in batch for row in query])


_OPEN = """\
import offline_data
ds = offline_data.open_dataset(sys.argv[1], delta_timestamps={('observation', 'images', 'vid'): [0.0]})
ds[[0]]"""
_READ = "for row in range(17, len(ds), int(sys.argv[2])): ds[[row]]"


def _convert(path: Path, folder: Path, video: Any) -> Path:
    settings = resolve_settings(root=folder / f"root-{video}")
    return convert(path, "bench", settings, Options(video=video), source="lerobot").path


def _compare(
    stored: Path, films: list[Path], kind: str, repeats: int, targets: Sequence[str]
) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    steps, count = STEPS, len(films)
    frames = offline_data.open_dataset(stored, delta_timestamps={LEAF: [0.0]})
    deltas = [n / FPS for n in range(WINDOW)]
    windows = offline_data.open_dataset(stored, delta_timestamps={LEAF: deltas})
    firsts = (steps * rng.integers(count, size=60) + rng.integers(steps - WINDOW, size=60)).tolist()
    cases: list[tuple[str, Any, list[list[Query]], int]] = [
        ("one random frame", frames, [[[row]] for row in firsts], 30),
        (
            "64 random frames",
            frames,
            [[[row] for row in rng.integers(count * steps, size=64).tolist()] for _ in range(4)],
            1,
        ),
        (
            f"one window of {WINDOW} frames",
            windows,
            [[range(row, row + WINDOW)] for row in firsts],
            20,
        ),
        (
            f"{BATCH} windows of {WINDOW} frames",
            windows,
            [
                [range(row, row + WINDOW) for row in batch.tolist()]
                for batch in (
                    steps * rng.integers(count, size=(4, BATCH))
                    + rng.integers(steps - WINDOW, size=(4, BATCH))
                )
            ],
            1,
        ),
    ]
    theirs = partial(_theirs, films, steps)
    for (name, ds, batches, calls), target in zip(cases, targets, strict=True):
        jobs: dict[str, Callable[[list[Query]], NDArray[Any]]] = {
            "offline-data": partial(_ours, ds),
            "PyAV, wanted frames to RGB, files open": partial(theirs, False, kept={}),
            "PyAV, wanted frames to RGB": partial(theirs, False),
            "PyAV, all frames to RGB, as LeRobot": partial(theirs, True),
        }
        for batch in batches[:4]:
            pixels = [job(batch) for job in jobs.values()]
            if not all(np.array_equal(pixels[0], one) for one in pixels):
                raise SystemExit(f"{name}: the frames differ")
        jobs |= _torchcodec(films, steps)  # it rounds colours in another way
        seconds = interleaved(
            {who: partial(_next, job, cycle(batches)) for who, job in jobs.items()},
            repeats=repeats,
            calls=calls,
        )
        for who, took in seconds.items():
            yield Row(
                f"{name} of {count} {kind} videos of {steps} frames, {HEIGHT} x {WIDTH}",
                who,
                f"{took / seconds['offline-data']:.2f}×",
                f"{1000 * took:.2f} ms",
                target if who == "offline-data" else "",
            )


def _next(job: Callable[[list[Query]], Any], batches: Iterator[list[Query]]) -> None:
    job(next(batches))


def _ours(ds: Any, batch: list[Query]) -> NDArray[Any]:
    found = ds[[query[0] for query in batch]][LEAF].numpy()
    frames: NDArray[Any] = found.reshape(-1, HEIGHT, WIDTH, 3)
    return frames


def _theirs(
    films: list[Path],
    steps: int,
    convert_all: bool,
    batch: list[Query],
    kept: dict[Path, Any] | None = None,
) -> NDArray[Any]:
    return np.concatenate(
        [by_lerobot(films, steps, query, convert_all=convert_all, kept=kept) for query in batch]
    )
