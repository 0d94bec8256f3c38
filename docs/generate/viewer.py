"""Draw the viewer of the README: `PYTHONPATH=.:cli python docs/generate/viewer.py` writes two WebP files.

The page is a report of episodes that are generated here: an arm of two links, seen by two cameras,
reaches for a ball. It is photographed in chromium, which this script alone needs.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import offline_data

PICTURES = Path(__file__).resolve().parents[1] / "pictures"
THEMES = ("light", "dark")
SIZE = (1280, 860)
LARGEST = 150_000  # bytes of a picture
STEPS = 60
LINKS = (0.55, 0.45)  # lengths of the arm
HEIGHT, WIDTH = 96, 128
COLOURS = {"red": (205, 66, 60), "green": (58, 140, 84), "blue": (52, 100, 190)}
GRIPPER = (240, 196, 72)
TASK = "reach the {colour} ball"
SHOWN = (3, 12)  # episode and step in the picture


def joints(angles: NDArray[Any]) -> NDArray[Any]:
    """Return shoulder, elbow and gripper `[3, 2]` of an arm with these two angles."""
    turned = np.cumsum(angles)
    ends = np.stack([np.cos(turned), np.sin(turned)], 1) * np.array(LINKS)[:, None]
    return np.concatenate([np.zeros((1, 2)), np.cumsum(ends, 0)])


def draw(
    points: NDArray[Any], ball: NDArray[Any], colour: str, *, front: bool
) -> NDArray[np.uint8]:
    """Return an image `[96, 128, 3]`: from above, or from the front, where depth is foreshortened."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH].astype(float)
    image = np.empty((HEIGHT, WIDTH, 3))
    image[:] = (222, 226, 230)
    image[rows > (46 if front else -1)] = (186, 164, 138) if front else (196, 176, 150)

    def place(point: NDArray[Any]) -> tuple[float, float]:
        if front:
            return 64 + 52 * point[0], 84 - 34 * max(point[1], -0.1)
        return 64 + 52 * point[0], 88 - 76 * point[1]

    x, y = place(ball)
    image[(columns - x) ** 2 + (rows - y) ** 2 < 6**2] = COLOURS[colour]
    for width, shade, (first, second) in zip(
        (5.0, 4.0), ((58, 66, 78), (96, 108, 122)), (points[:2], points[1:]), strict=True
    ):
        (x0, y0), (x1, y1) = place(first), place(second)
        length = (x1 - x0) ** 2 + (y1 - y0) ** 2
        along = np.clip(((columns - x0) * (x1 - x0) + (rows - y0) * (y1 - y0)) / length, 0, 1)
        away = (columns - x0 - along * (x1 - x0)) ** 2 + (rows - y0 - along * (y1 - y0)) ** 2
        image[away < width**2] = shade
        image[(columns - x1) ** 2 + (rows - y1) ** 2 < 3**2] = GRIPPER
    return image.astype(np.uint8)


def episodes(count: int = 16) -> Iterator[dict[str, Any]]:
    """Yield episodes of an arm that is moved towards a ball, with noise; some never get there."""
    draws = np.random.default_rng(0)
    for number in range(count):
        colour = list(COLOURS)[number % len(COLOURS)]
        bearing, reach = draws.uniform(0.7, 2.4), draws.uniform(0.6, 0.9)
        ball = reach * np.array([np.cos(bearing), np.sin(bearing)])
        angles, speed = np.array([1.2, 0.9]) + draws.normal(0, 0.3, 2), draws.uniform(0.04, 0.12)
        bend = np.arccos((reach**2 - sum(one**2 for one in LINKS)) / (2 * LINKS[0] * LINKS[1]))
        offset = np.arctan2(LINKS[1] * np.sin(bend), LINKS[0] + LINKS[1] * np.cos(bend))
        goal = np.array([bearing - offset, bend])
        states, actions = [angles], []
        for _ in range(STEPS):
            actions.append(speed * (goal - angles) + draws.normal(0, 0.012, 2))
            angles = angles + actions[-1]
            states.append(angles)
        arms = [joints(one) for one in states]
        gaps = np.array([np.hypot(*(arm[2] - ball)) for arm in arms[1:]])
        yield {
            "observations": {
                "front": np.stack([draw(arm, ball, colour, front=True) for arm in arms]),
                "top": np.stack([draw(arm, ball, colour, front=False) for arm in arms]),
                "state": np.array(states, np.float32),
            },
            "actions": np.array(actions, np.float32),
            "rewards": -gaps,
            "terminations": bool(gaps[-1] < 0.05),
            "infos": {"instruction": np.array([TASK.format(colour=colour)] * (STEPS + 1))},
        }


def photograph(page: Path, theme: str) -> bytes:
    """Return a picture of a page in chromium, as WebP."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for switch in ("headless=new", "no-sandbox", "hide-scrollbars", "force-device-scale-factor=1"):
        options.add_argument(f"--{switch}")
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        scheme = [{"name": "prefers-color-scheme", "value": theme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        metrics = {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        driver.get(f"{page.as_uri()}#episode={SHOWN[0]}&t={SHOWN[1]}")
        driver.implicitly_wait(20)
        driver.find_element("css selector", "#title")
        driver.execute_async_script("setTimeout(arguments[0], 3000)")
        image = Image.open(io.BytesIO(driver.get_screenshot_as_png()))
    finally:
        driver.quit()
    written = io.BytesIO()
    image.convert("RGB").save(written, "WEBP", quality=82, method=6)
    return written.getvalue()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        stored = offline_data.convert(episodes(), "arm", root=folder, progress=False)
        page = Path(folder) / "arm.html"
        offline_data.open_dataset(stored.path).report(page)
        for theme in THEMES:
            picture = photograph(page, theme)
            if len(picture) > LARGEST:
                raise SystemExit(f"the picture has {len(picture):,} bytes, more than {LARGEST:,}")
            (PICTURES / f"viewer-{theme}.webp").write_bytes(picture)
