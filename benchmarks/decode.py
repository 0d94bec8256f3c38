"""Batches of JPEG images: this package in threads, compared with Pillow in one and many threads."""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing import Row, interleaved
from offline_data.store.encoded import EncodedColumn

IMAGES, SIDE = 256, 224


def run(folder: Path, *, repeats: int, scale: float) -> list[Row]:  # noqa: ARG001 - in memory
    """Decode the same images in each way; see `Row`."""
    from PIL import Image

    count = max(8, int(IMAGES * scale))
    images = [_jpeg(number) for number in range(count)]
    column = EncodedColumn.of(images, ("jpeg", "uint8", (SIDE, SIDE, 3)))

    def pillow(data: bytes) -> NDArray[Any]:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image)

    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ThreadPoolExecutor(threads) as pool:
        jobs = {
            "offline-data": lambda: np.asarray(column),
            "Pillow, one thread": lambda: np.stack([pillow(data) for data in images]),
            f"Pillow, {threads} threads": lambda: np.stack(list(pool.map(pillow, images))),
        }
        results = [job() for job in jobs.values()]
        if not all(np.array_equal(results[0], one) for one in results):
            raise SystemExit("the decoders give different pixels")
        seconds = interleaved(jobs, repeats=repeats)
    ours = seconds["offline-data"]
    case = f"{count} JPEGs of {SIDE} x {SIDE} ({column.nbytes / count / 1024:.0f} KiB each)"
    return [
        Row(
            case, name, f"{took / ours:.2f}×", f"{1000 * took:.0f} ms, {count / took:,.0f} images/s"
        )
        for name, took in seconds.items()
    ]


def _jpeg(number: int) -> bytes:
    """Return an image with about the detail of a photograph."""
    from PIL import Image

    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (28, 28, 3), np.uint8))
    smooth = np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC)).astype(float)
    pixels = np.clip(smooth + rng.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()
