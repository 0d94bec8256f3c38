"""The viewer in Chromium: time to the first frame of a page, of the next episode, and of a seek.

Measured in the page: from the start of the navigation, or of the key press, to the animation frame in
which every camera has a decoded picture of that episode and step. The server computes findings and the
quality of episodes meanwhile, as it does for a user. Pages are opened in a new tab of a running browser.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image

from benchmarks.timing import Row
from benchmarks.video import write as write_videos
from benchmarks.video import write_film
from offline_data.base.config import resolve_settings
from offline_data.episode import EpisodeBatch
from offline_data.pipeline.ingest import Options, convert
from offline_data.reports.pages.browse import DatasetServer
from offline_data.store.encoded import EncodedColumn
from offline_data.store.manifest import Manifest
from offline_data.store.writer import DatasetWriter

EPISODES, STEPS, CAMERAS, SIDE = 10_000, 4, 4, 96
OURS = "offline-data"

_SHOWN = """
window.shown = () => {
  const tiles = [...document.querySelectorAll(".camera img, .camera video")];
  return tiles.length > 0 && tiles.every(one => one.tagName === "IMG"
    ? one.complete && one.naturalWidth > 0 : one.readyState > 1 && !one.seeking);
};
(function wait() {
  if (window.shown()) window.first ??= performance.now();
  else requestAnimationFrame(wait);
})();
"""
"""Run in each page before its own script; `first` is when the first episode is shown."""

_PRESSED = """
const [key, done] = arguments, before = document.title, begin = performance.now();
const sources = () => [...document.querySelectorAll(".camera img")].map(one => one.src).join();
const old = sources();
document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
(function wait() {
  const changed = key === "j" ? document.title !== before && sources() !== old : true;
  if (changed && window.shown()) done(performance.now() - begin); else requestAnimationFrame(wait);
})();
"""


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure a dataset of many episodes with pictures, and one with kept videos."""
    many, root = int(EPISODES * scale), folder / "root"
    _write_pictures(root, many)
    films = [folder / "film.mp4"]
    write_film(films[0], 0, max(60, int(300 * scale)))
    source, _ = write_videos(folder / "source", films, max(60, int(300 * scale)))
    settings = resolve_settings(root=root)
    kept = convert(source, "videos", settings, options=Options())
    with _served(settings) as server, _browser() as driver:
        driver.get(server.url)
        case = f"{many:,} episodes, {CAMERAS} cameras of {SIDE} × {SIDE}"
        opened, following = [], []
        for _ in range(repeats):
            opened.append(_open(driver, server, "local:pictures@1"))
            following += [_press(driver, "j") for _ in range(3)]
        yield Row(case, "page to first frame", "", _ms(opened), "< 1 s")
        yield Row(case, "next episode", "", _ms(following), "< 0.5 s")
        seeks, opened = [], []
        for _ in range(repeats):
            opened.append(_open(driver, server, str(kept.id)))
            seeks += [_press(driver, key) for key in ("End", "Home", "ArrowRight")]
        case = "kept H.264 of 480 × 640, a key frame every 30"
        yield Row(case, "page to first frame", "", _ms(opened), "< 1 s")
        yield Row(case, "seek", "", _ms(seeks), "< 0.2 s")


def _write_pictures(root: Path, episodes: int) -> None:
    rng = np.random.default_rng(0)
    files = []
    for _ in range(64):
        coarse = rng.integers(0, 256, (8, 8, 3), np.uint8).repeat(SIDE // 8, 0).repeat(SIDE // 8, 1)
        file = io.BytesIO()
        Image.fromarray(coarse).save(file, "JPEG")
        files.append(file.getvalue())
    folder = root / "local" / "pictures" / "1"
    folder.parent.mkdir(parents=True)
    name = "local:pictures@1"
    header = Manifest(name, "local", "pictures", "1", "compact", tables={}, counts={})
    with DatasetWriter(folder, header, audit="none") as writer:
        for first in range(0, episodes, 1000):
            writer.append(_batch(rng, min(1000, episodes - first), files))
        writer.finish()


def _batch(rng: np.random.Generator, episodes: int, files: list[bytes]) -> EpisodeBatch:
    lengths = np.full(episodes, STEPS)
    rows, every = episodes * STEPS, episodes * (STEPS + 1)
    ends = np.zeros((rows, 1), bool)
    ends[STEPS - 1 :: STEPS] = True
    cameras: dict[tuple[str, ...], Any] = {
        ("observation", f"camera_{number}"): EncodedColumn.of(
            [files[place] for place in rng.integers(0, len(files), every)],
            ("jpeg", "uint8", (SIDE, SIDE, 3)),
        )
        for number in range(CAMERAS)
    }
    state = rng.normal(0, 1, (every, 7)).astype(np.float32)
    return EpisodeBatch(
        lengths=lengths,
        steps={
            ("action",): rng.normal(0, 1, (rows, 7)).astype(np.float32),
            ("next", "reward"): rng.random((rows, 1)),
            ("next", "terminated"): ends,
            ("next", "truncated"): ends & False,
        },
        observations={("observation", "state"): state, **cameras},
        final_observation=np.ones(episodes, bool),
    )


@contextmanager
def _served(settings: Any) -> Iterator[DatasetServer]:
    with DatasetServer(settings) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


@contextmanager
def _browser() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for switch in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "no-first-run",
        "disable-dev-shm-usage",
    ):
        options.add_argument(f"--{switch}")
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _SHOWN})
    yield driver
    driver.quit()


def _open(driver: Any, server: DatasetServer, name: str) -> float:
    host = f"http://127.0.0.1:{server.server_port}"
    driver.get(f"{host}/")
    driver.get(f"{host}/dataset?id={quote(name)}")
    wait: Callable[[], Any] = lambda: driver.execute_script("return window.first ?? null")
    while (first := wait()) is None:
        pass
    return float(first)


def _press(driver: Any, key: str) -> float:
    return float(driver.execute_async_script(_PRESSED, key))


def _ms(times: list[float]) -> str:
    return f"{median(times):,.0f} ms (most {max(times):,.0f})"
