"""Pages in headless Chromium: what runs, what is drawn, what is loaded, how it looks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import OfflineDataError
from offline_data.document.html import element, table_of
from offline_data.episode import EpisodeBatch
from offline_data.pipeline.preprocess.engine import dry_run
from offline_data.pipeline.preprocess.job import Job
from offline_data.reports.pages.compare import compare_page
from offline_data.reports.pages.page import page as html_page
from offline_data.reports.pages.page import section
from offline_data.reports.pages.report import report_page
from offline_data.store.library import Entry, list_datasets
from offline_data.store.marks import Mark, Marks, read_marks, write_marks
from tests.reports.pages.conftest import HOSTILE, rich_batch, write
from tests.reports.pages.test_browse import RICH, served

pytestmark = pytest.mark.slow

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
SWITCHES = (
    "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
    "disable-background-networking", "disable-component-update", "disable-sync",
    "disable-dev-shm-usage",
)  # fmt: skip

CONTRAST = """
const luminance = colour => {
  const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(part => {
    const share = part / 255;
    return share <= .04045 ? share / 12.92 : ((share + .055) / 1.055) ** 2.4;
  });
  return .2126 * r + .7152 * g + .0722 * b;
};
const behind = element => {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (!/, 0\\)$/.test(colour)) return colour;
  }
};
let least = 21;
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  if (!own || !element.getClientRects().length || element.tagName === "SCRIPT") continue;
  const style = getComputedStyle(element);
  const front = element instanceof SVGElement ? style.fill : style.color;
  const pair = [luminance(front), luminance(behind(element.closest("svg")?.parentElement ?? element))];
  least = Math.min(least, (Math.max(...pair) + .05) / (Math.min(...pair) + .05));
}
return least;
"""
"""The least contrast of any text with what is behind it, by WCAG 2."""


OVERLAPS = """
return [...document.querySelectorAll('.plot svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text:not([transform])')].map(one => one.getBoundingClientRect());
  return boxes.filter((a, i) => boxes.some((b, j) => i < j && a.left + 2 < b.right && b.left + 2 < a.right
    && a.top + 3 < b.bottom && b.top + 3 < a.bottom)).map(() => svg.getAttribute('aria-label'));
});
"""
"""Charts with texts over each other."""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser without a window that logs every request and every line of its console."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    for program in (CHROMIUM, DRIVER):
        if not program.exists():
            pytest.skip(f"{program} is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for switch in SWITCHES:
        options.add_argument(f"--{switch}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


class Browser:
    """A page in the browser."""

    def __init__(
        self,
        driver: Any,
        url: str,
        *,
        width: int = 1280,
        theme: str = "light",
        motion: str = "no-preference",
    ) -> None:
        from selenium.webdriver.support.wait import WebDriverWait

        self.driver = driver
        self._wait = WebDriverWait(driver, 60, poll_frequency=0.02)
        media = {"prefers-color-scheme": theme, "prefers-reduced-motion": motion}
        features = [{"name": name, "value": value} for name, value in media.items()]
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.get("about:blank")  # another episode in the address alone loads no page
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get_log("performance")
        driver.get_log("browser")
        driver.get(url)
        self.until(
            "[...document.querySelectorAll('.plot')].every(one => !one.checkVisibility()"
            " || one.querySelector('svg .axis'))"
        )
        self.until(
            "!document.body.matches('.viewer') || document.querySelector('#title').textContent"
            " || !document.querySelector('#missing').hidden"
        )

    def __call__(self, script: str) -> Any:
        return self.driver.execute_script(script if "return " in script else f"return {script}")

    def until(self, condition: str) -> None:
        from selenium.common.exceptions import TimeoutException

        try:
            self.wait_for(lambda: self(condition))
        except TimeoutException:
            raise AssertionError(condition) from None

    def wait_for(self, condition: Callable[[], object]) -> None:
        self._wait.until(lambda _: condition())

    def text(self, selector: str) -> str:
        return str(self(f"document.querySelector({selector!r}).textContent"))

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self(
            f"[...document.querySelectorAll({selector!r})].map(one => one.textContent)"
        )
        return found

    def press(self, keys: str) -> None:
        """Press keys where the focus is; those before one with Shift are held."""
        from selenium.webdriver import ActionChains
        from selenium.webdriver.common.keys import Keys

        if keys.startswith(Keys.SHIFT):
            keyboard = ActionChains(self.driver).key_down(Keys.SHIFT).send_keys(keys[1:])
            keyboard.key_up(Keys.SHIFT).perform()
        else:
            ActionChains(self.driver).send_keys(keys).perform()

    def filter(self, where: str) -> None:
        """Write into the field above the list."""
        self.driver.execute_script(
            "const [field] = document.querySelectorAll('#where'); field.value = arguments[0];"
            "field.dispatchEvent(new Event('input'));",
            where,
        )

    def mouse(self, kind: str, **at: Any) -> None:
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, **at})

    def point_at(self, selector: str, share: float = 0.5) -> str:
        """Move the pointer over a part of the width of an element; returns the text that appears."""
        self(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = self(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
        at = {"x": box["left"] + share * box["width"], "y": box["top"] + box["height"] / 2}
        self.mouse("mouseMoved", **at)
        self.until("document.querySelector('.tip:not([hidden])')")
        return self.text(".tip:not([hidden])")

    def check(self) -> None:
        """Assert that nothing ran, failed or overflowed, that images are there and texts legible."""
        assert self.driver.get_log("browser") == []
        assert self("document.title") != "run"
        assert self("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
        assert self("document.documentElement.scrollWidth <= innerWidth")
        assert self(CONTRAST) >= 4.5

    @property
    def requests(self) -> list[str]:
        events = [
            json.loads(one["message"])["message"] for one in self.driver.get_log("performance")
        ]
        sent = [one["params"] for one in events if one["method"] == "Network.requestWillBeSent"]
        # Chromium's own new-tab page may still be loading in this tab: those are not the page's.
        own = self.driver.current_url.split("#")[0]
        urls = [one["request"]["url"] for one in sent if one["documentURL"].split("#")[0] == own]
        return [url for url in urls if not url.startswith("data:")]


def many_batch() -> EpisodeBatch:
    """Return 60 truncated episodes with texts, missing values and numbers of more than six digits."""
    rng, count = np.random.default_rng(1), 60
    lengths = np.r_[1, 1, rng.integers(2, 30, count - 2)]
    rows, last = int(lengths.sum()), np.cumsum(lengths) - 1
    rewards = rng.normal(0, 1, (rows, 1))
    rewards[last[5]] = np.nan
    limits = np.tile([2.5, np.inf, -np.inf, np.nan], count // 4)
    truncated = np.zeros((rows, 1), bool)
    truncated[last] = True
    words = ["stack the red cup", 'open the "door"', None, f"wipe {HOSTILE}"]
    return EpisodeBatch(
        lengths=lengths,
        steps={
            ("action",): np.clip(rng.normal(0, 1, (rows, 2)), -1, 1).astype(np.float32),
            ("next", "reward"): rewards,
            ("next", "terminated"): np.zeros((rows, 1), bool),
            ("next", "truncated"): truncated,
        },
        observations={("observation",): np.cumsum(rng.normal(0, 1, (rows + count, 3)), 0)},
        final_observation=np.ones(count, bool),
        episodes={
            ("task",): np.array([words[n % 4] for n in range(count)], object),
            ("operator",): np.array([["ann", "bob", None][n % 3] for n in range(count)], object),
            ("score",): 1234567.25 + np.arange(count),
            ("seed",): rng.integers(0, 2**40, count),
            ("limit",): limits,
        },
    )


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Entry:
    """`local:many@1`, of which episode 3 is bad, 4 good and 7 has a note."""
    entry = write(tmp_path_factory.mktemp("many") / "root", "many", many_batch())
    given = {3: Mark("bad"), 4: Mark("good", HOSTILE), 7: Mark(None, "look again")}
    write_marks(entry.path, entry.manifest, lambda marks: replace(marks, episodes=given))
    return entry


def html_file(folder: Path, content: bytes) -> str:
    file = folder / "page.html"
    file.write_bytes(content)
    return file.as_uri()


@pytest.fixture(scope="module")
def report(rich: Entry, tmp_path_factory: pytest.TempPathFactory) -> str:
    return html_file(tmp_path_factory.mktemp("report"), report_page(rich))


@pytest.fixture(scope="module")
def many_report(many: Entry, tmp_path_factory: pytest.TempPathFactory) -> str:
    return html_file(tmp_path_factory.mktemp("many"), report_page(many))


def test_a_report_is_drawn_and_loads_nothing(chromium: Any, report: str) -> None:
    page = Browser(chromium, report)
    page.check()
    assert page.requests == [report]
    assert page.text("#title") == f"go 0 {HOSTILE}"
    assert page.text("h1") == "local:rich@1"
    assert page.text("#facts") == "Episode 0 · 7 steps · return 21 · terminated"
    assert page.text(".facts").startswith("3 episodes · 38 steps · 4 cameras · ")
    labels = page("[...document.querySelectorAll('.camera span')].map(one => one.lastChild.data)")
    assert labels == ["camera", "pixels", "stack", "depth"]
    assert page("document.querySelectorAll('.thumbnails img').length") == 7
    assert page.text(".words") == f"go 0 {HOSTILE}"
    assert "depth: uint16 from 0 (black) to 6000 (white)." in page.text("#said")
    assert "The dataset states no rate: played at 10 steps/s." in page.text("#said")
    assert page.texts("tbody tr td.text") == [f"go {n} {HOSTILE}" for n in range(3)]
    page("document.querySelector('#findings summary').click()")
    assert "Where: observation/state, episode 0, row 3" in page.text("#findings .drop")
    page("document.querySelector('#about summary').click()")
    assert HOSTILE in page.text("#about .drop")
    page("document.querySelector('#leaves summary').click()")
    page.until("document.querySelectorAll('#leaves .plot svg .axis').length > 5")
    # of 38 actions in four bars, the first
    zeros = int((np.asarray(rich_batch().steps["action",]) == 0).sum())
    assert f": {zeros} (" in page.point_at("#leaves .plot[data-title], #leaves .plot", 0.12)
    page.check()


LEVEL = """
const image = document.querySelectorAll(".camera img")[arguments[0] ?? 0];
const canvas = document.createElement("canvas");
[canvas.width, canvas.height] = [1, 1];
if (!image?.complete) return -1;
canvas.getContext("2d").drawImage(image, 0, 0, 1, 1);
return canvas.getContext("2d").getImageData(0, 0, 1, 1).data[0];
"""
"""The grey level of a camera's image."""


def test_one_cursor_shows_the_frame_the_values_and_the_text_of_a_step(
    chromium: Any, report: str
) -> None:
    page = Browser(chromium, f"{report}#episode=2&t=15")

    def shows(step: int) -> None:
        page.until(f"document.querySelector('#step').textContent.startsWith('step {step} of 29')")
        page.until(f"return Math.abs((() => {{{LEVEL}}})() - {6 * (10 + step)}) < 5")
        page.until(
            f"return Math.abs((i => {{{LEVEL.replace('arguments[0]', 'i')}}})(1) - {10 + step}) < 2"
        )
        assert page.text(".words").startswith(f"go {(8 + step) // 4} <")
        numbers = [float(one) for one in page.texts(".name li span")[:2]]  # reward, and its sum
        assert numbers == [8 + step, sum(range(8, 9 + step))]
        cursor = page("document.querySelector('#cursor').getBoundingClientRect().toJSON()")
        over = page("document.querySelector('#over').getBoundingClientRect().toJSON()")
        middle = (cursor["left"] + cursor["right"]) / 2
        assert middle - over["left"] == pytest.approx((step + 0.5) / 30 * over["width"], abs=1)

    shows(15)
    over = page("document.querySelector('#over').getBoundingClientRect().toJSON()")
    at = {"x": over["left"] + 4.5 / 30 * over["width"], "y": over["top"] + 100, "button": "left"}
    page.mouse("mousePressed", clickCount=1, **at)
    shows(4)
    at["x"] = over["left"] + 26.5 / 30 * over["width"]
    page.mouse("mouseMoved", **at)
    page.mouse("mouseReleased", clickCount=1, **at)
    page.mouse("mouseMoved", **{**at, "x": over["left"] + 20})
    shows(26)
    page("document.querySelector('#end').value = 'stop'")
    page("document.querySelector('#end').dispatchEvent(new Event('change'))")
    page("document.querySelector('#play').click()")
    page.until("document.querySelector('#play').textContent.startsWith('▶')")
    shows(29)
    page.check()


NUMBER = "Number(new URLSearchParams(location.hash.slice(1)).get('episode'))"
STEP = "Number(document.querySelector('#seek').value)"
CAMERA = "[...document.querySelectorAll('.camera')].findIndex(one => one.ariaPressed === 'true')"
FOCUS = "document.activeElement.id"
MARKS = "[...document.querySelectorAll('td.mark')].map(one => one.textContent.trim()).join()"


def test_the_keys_do_what_their_list_says(chromium: Any, report: str) -> None:
    from selenium.webdriver.common.keys import Keys

    page = Browser(chromium, f"{report}#episode=0")
    play, pinned = (
        "document.querySelector('#play').innerText[0]",
        "document.querySelector('#pin').ariaPressed",
    )
    speed, end = "document.querySelector('#speed').value", "document.querySelector('#end').value"
    help_open, full = "document.querySelector('#help').open", "Boolean(document.fullscreenElement)"
    no = "no mark"
    for keys, script, expected in [
        (Keys.ARROW_RIGHT, STEP, 1), (Keys.ARROW_RIGHT, STEP, 2), (Keys.ARROW_LEFT, STEP, 1),
        (Keys.SHIFT + Keys.ARROW_RIGHT, STEP, 6), (Keys.HOME, STEP, 0), (Keys.END, STEP, 6),
        (Keys.SHIFT + Keys.ARROW_LEFT, STEP, 0), (Keys.ARROW_LEFT, STEP, 0),
        ("k", "document.querySelector('#toast').textContent", "This is the first episode of the list"),
        ("j", NUMBER, 1), ("j", NUMBER, 2), ("j", NUMBER, 2), ("k", NUMBER, 1), ("j", NUMBER, 2),
        (" ", play, "❚"), (" ", play, "▶"), ("[", speed, "0.5"), ("]", speed, "1"), ("]", speed, "2"),
        ("l", end, "next"), ("l", end, "stop"), ("l", end, "loop"),
        ("1", CAMERA, 0), ("3", CAMERA, 2), ("3", CAMERA, -1), ("4", CAMERA, 3), (Keys.ESCAPE, CAMERA, -1),
        ("9", CAMERA, -1), ("f", full, True), ("f", full, False),
        ("c", pinned, "true"), ("k", "document.querySelectorAll('.camera').length", 8), ("c", pinned, "false"),
        ("/", FOCUS, "where"), ("j", NUMBER, 1), (Keys.BACKSPACE, "document.querySelector('#where').value", ""),
        (Keys.ESCAPE, FOCUS, ""), ("?", help_open, True), ("j", NUMBER, 1), (Keys.ESCAPE, help_open, False),
        ("G", MARKS, f"{no},✓good,{no}"), ("j", NUMBER, 2), ("b", MARKS, f"{no},✓good,✕bad"), ("g", NUMBER, 0),
        ("e", "document.querySelector('#toast').textContent", "Copied the expression"),
    ]:  # fmt: skip
        page.press(keys)
        page.until(f"({script}) === {json.dumps(expected)}")
    assert "Shift: ten" in page.text("#help")
    page("document.querySelector('#letters').click()")
    page.press("j")
    page.press(Keys.ARROW_RIGHT)
    page.until(f"{STEP} === 1")
    assert page(NUMBER) == 0
    page("localStorage.clear()")
    page.check()


def test_marks_move_on_and_come_back(
    chromium: Any, report: str, many: Entry, tmp_path: Path
) -> None:
    from selenium.webdriver.common.keys import Keys

    tally, no = "document.querySelector('#tally').textContent", "no mark"
    page = Browser(chromium, f"{report}#episode=1")
    for key, number, marks in (
        ("b", 2, f"{no},✕bad,{no}"), ("u", 0, f"{no},✕bad,?unsure"), ("j", 1, f"{no},✕bad,?unsure"),
        ("x", 1, f"{no},{no},?unsure"), ("z", 1, f"{no},✕bad,?unsure"), ("k", 0, f"{no},✕bad,?unsure"),
        ("g", 0, "✓good,✕bad,?unsure"), ("g", 0, f"{no},✕bad,?unsure"), ("U", 0, "?unsure,✕bad,?unsure"),
        ("B", 0, "✕bad,✕bad,?unsure"), ("z", 0, "?unsure,✕bad,?unsure"), ("z", 0, f"{no},✕bad,?unsure"),
    ):  # fmt: skip
        page.press(key)
        page.until(f"({NUMBER}) === {number} && ({MARKS}) === {json.dumps(marks)}")
    page.press("n")
    page.press("a note" + Keys.ENTER)
    assert page(tally) == "0 good, 1 bad, 1 unsure, 1 left"
    assert page.text("#expression") == 'mark != "bad"'
    assert page.text("#count") == "keeps 2 of 3"
    assert page("document.querySelector('tr[data-number=\"1\"]').className").strip() == "rejected"
    again = Browser(chromium, f"{report}#episode=0")
    assert again(MARKS) == f"{no},✕bad,?unsure"
    assert again("document.querySelector('#note').value") == "a note"
    downloads = {"behavior": "allow", "downloadPath": str(tmp_path)}
    chromium.execute_cdp_cmd("Browser.setDownloadBehavior", downloads)
    again("document.querySelector('#download').click()")
    file = tmp_path / "local-rich.marks.json"
    again.wait_for(file.exists)
    kept = Marks.of_download(file.read_bytes())
    assert kept.episodes == {0: Mark(None, "a note"), 1: Mark("bad"), 2: Mark("unsure")}
    assert kept.dataset == "local:rich@1"
    again("localStorage.clear()")
    again.check()


def test_marks_of_a_served_page_are_kept_on_the_disk(chromium: Any, tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    entry = write(tmp_path / "root", "rich", rich_batch())
    with served(tmp_path / "root") as client:
        page = Browser(chromium, client.server.url)
        page.until("location.pathname === '/'")
        address = f"{client.server.url.partition('/open')[0]}/dataset?{RICH}#episode=1"
        page = Browser(chromium, address)
        page.until("document.querySelector('#findings summary').textContent.includes('error')")
        page.press("b")
        page.until(f"{NUMBER} === 2")
        page.press("n")
        page.press(HOSTILE + Keys.ENTER)
        expected = {1: Mark("bad"), 2: Mark(None, HOSTILE)}
        page.wait_for(lambda: read_marks(entry.path, entry.manifest).episodes == expected)
        page = Browser(chromium, address.replace("=1", "=2"))
        assert page("document.querySelector('#note').value") == HOSTILE
        assert page(MARKS) == "no mark,✕bad,no mark"
        page.until(f"return Math.abs((() => {{{LEVEL}}})() - 60) < 5")
        page.until("document.querySelector('[data-key=jerk]')")
        page.check()
        assert {urlsplit(url).netloc for url in page.requests} == {
            f"127.0.0.1:{client.server.server_port}"
        }
        page("[window.once, window.fetch] = [window.fetch, () => Promise.reject(Error('gone'))]")
        page.press("G")
        page.until(
            "document.querySelector('#kept').textContent.startsWith('The mark of episode 2 is not kept: ')"
        )
        page("window.fetch = window.once")
        page.press("U")
        page.wait_for(
            lambda: read_marks(entry.path, entry.manifest).episodes[2] == Mark("unsure", HOSTILE)
        )


EXPRESSIONS = (
    "length > 12", "5 < length <= 20", "return >= percentile(return, 90)",
    "return > mean(return) and length < 20", "length < 5 or not return > 0", "not not length > 3",
    "operator in ['ann', \"bob\"]", "operator not in ['ann']", "operator in []", "operator != 'bob'",
    "operator == 'ann' or task == 'open the \"door\"'", "jerk > 0.1", "jerk != jerk", "not jerk > 1",
    "return == return", "return * 2 - length / 3 > 1", "-return < 3 % 2", "score > 1234570.25",
    "score == 1234570.25", "seed % 7 in (1, 2, 3)", "seed > mean(seed)", "length == min(length)",
    "max(velocity) > velocity", "number in [1, 5, 59, 70]", "50 <= number != 55", "truncated and not terminated",
    "not truncated", "True == truncated", "truncated + length > 9", "percentile(length + number, 25.5) > length",
    "mark == ''", "mark != 'bad' and length > 3", "note == 'look again'", "mark in ['bad', 'good']",
    "limit > 5", "limit < 5", "limit == limit", "limit == max(limit)", "-limit > 1e300", "limit != 2.5",
    "length / (number - 3) > 1", "(length > 3) == (return > 0)", "idle <= 0.5 and outliers > 0",
)  # fmt: skip

REFUSED = (
    "operator > 3", "operator == 3", "length == '3'", "length + operator > 1", "return >", "unknown > 3",
    "length in 5", "foo(length) > 2", "3 > 2", "length and truncated", "length > 3 length", "not operator",
    "percentile(length, 120) > 3", "operator == task", "min(operator) > 2", "length > (3", "length ** 2 > 4",
)  # fmt: skip


SELECT = """
return arguments[0].map(where => {
  const [field, count, copy] = ["where", "count", "copy"].map(name => document.getElementById(name));
  field.value = where;
  field.dispatchEvent(new Event("input"));
  const rows = Number(document.querySelector(".rows table").ariaRowCount ?? 0) - 1;
  const said = count.textContent, wrong = said.startsWith("Not") === (field.ariaInvalid === "true");
  return [rows, copy.disabled ? "" : document.getElementById("expression").textContent, wrong ? said : "?"];
});
"""
"""Rows, expression and count of the list for each text in the field above it."""


def test_a_selection_counts_what_filter_keeps(chromium: Any, many: Entry, many_report: str) -> None:
    settings = Settings(root=many.path.parents[2], offline=True, workers=1)

    def kept(where: str) -> int | None:
        """Return the episodes of `offline-data filter --dry-run`, None if it refuses."""
        try:
            job = Job(many.path, (f"filter:{where}",), "kept")
            return int(dry_run(job, settings)["episodes"])
        except OfflineDataError as error:
            return 0 if "leaves none" in error.message else None

    page = Browser(chromium, many_report)
    found = page.driver.execute_script(SELECT, [*EXPRESSIONS, *REFUSED])
    wrong = []
    for where, (rows, expression, count) in zip(EXPRESSIONS, found, strict=False):
        known = (kept(where), f"keeps {kept(expression)} of 60")
        if known != (rows, count):
            wrong.append((where, expression, known, (rows, count)))
    for where, (rows, expression, count) in zip(REFUSED, found[len(EXPRESSIONS) :], strict=True):
        assert kept(where) is None
        if (rows, expression) != (0, "") or not count.startswith("Not an expression: "):
            wrong.append((where, rows, expression, count))
    assert wrong == []
    page.check()


def test_words_columns_and_histograms_become_expressions(
    chromium: Any, many: Entry, many_report: str
) -> None:
    page, batch = Browser(chromium, many_report), many_batch()
    lengths = np.asarray(batch.lengths)

    def order() -> list[int]:
        page("document.querySelector('.rows').scrollTop = 0")
        page.until(
            "document.querySelector('.rows tbody tr')?.ariaRowIndex === '2' || !document.querySelector('tr[data-number]')"
        )
        found: list[int] = page(
            "[...document.querySelectorAll('tr[data-number]')].map(one => Number(one.dataset.number))"
        )
        return found

    page.filter("RED cup")
    cups = [*range(0, 60, 4)]
    assert page.text("#expression") == f'(number in {cups}) and mark != "bad"'.replace(
        "(number", "number"
    ).replace("])", "]")
    assert page.text("#count") == "keeps 15 of 60"
    page.filter("look AGAIN")  # of a note
    assert order() == [7]
    page.filter("no such words")
    assert page.text("#count") == "keeps 0 of 60"
    assert page("document.querySelector('#copy').disabled")
    page.filter("length < 5 or return > 3")
    assert page.text("#expression") == '(length < 5 or return > 3) and mark != "bad"'
    page.filter("")
    column = {"length": lengths.astype(float)}
    column["return"] = np.add.reduceat(
        np.asarray(batch.steps["next", "reward"])[:, 0], np.cumsum([0, *lengths[:-1]])
    )
    for key, values in column.items():
        button = f"document.querySelector('th[data-key={key}] button')"
        for direction in (-1, 1):
            page(f"{button}.click()")
            expected = sorted(
                range(60), key=lambda n: (np.isnan(values[n]), direction * values[n], n)
            )
            assert order()[:12] == expected[:12]
            said = page(f"document.querySelector('th[data-key={key}]').getAttribute('aria-sort')")
            assert said == ("descending" if direction < 0 else "ascending")
    chip = "[...document.querySelectorAll('#chips button')].find(one => one.textContent.startsWith('Lowest'))"
    assert page(f"{chip}.textContent") == "Lowest 5 % by return"
    page(f"{chip}.click()")
    assert page("document.querySelector('#where').value") == "return <= percentile(return, 5)"
    worst = np.flatnonzero(column["return"] <= np.nanpercentile(column["return"], 5))
    assert sorted(order()) == worst.tolist()
    page(
        "[...document.querySelectorAll('#chips button')].find(one => one.ariaPressed === 'true').click()"
    )
    assert page("document.querySelector('#where').value") == ""
    bars = page("""
      const plot = [...document.querySelectorAll('.histogram')].find(one => one.textContent.startsWith('Steps')).querySelector('.bars');
      plot.scrollIntoView({block: 'center'});
      return plot.getBoundingClientRect().toJSON();""")
    y, (low, high) = bars["top"] + 20, (lengths.min(), lengths.max())
    for kind, share in (("mousePressed", 0.25), ("mouseMoved", 0.5), ("mouseReleased", 0.5)):
        page.mouse(kind, x=bars["left"] + share * bars["width"], y=y, button="left", clickCount=1)
    first, field, last = page("document.querySelector('#where').value").split(" <= ")
    assert (float(first), float(last)) == pytest.approx(
        (low + (high - low) / 4, low + (high - low) / 2), abs=0.3
    )
    assert field == "length"
    chosen = np.flatnonzero((float(first) <= lengths) & (lengths <= float(last)))
    assert sorted(order()) == chosen.tolist()
    field = "document.querySelector('[aria-label=\"Steps to\"]')"
    page(f"{field}.value = '7'")
    page(f"{field}.dispatchEvent(new Event('change'))")
    assert page("document.querySelector('#where').value").endswith(" <= length <= 7")
    page("document.querySelector('#command').click()")
    page.until("document.querySelector('#toast').textContent === 'Copied the command'")
    page.check()


def test_columns_may_have_any_name(chromium: Any, tmp_path: Path) -> None:
    names = (
        "curve",
        "mark",
        "note",
        "ends",
        "number",
        "outliers",
        "jerk",
        "constructor",
        "<b onclick=x>",
    )
    batch = many_batch()
    episodes: dict[tuple[str, ...], Any] = {(name,): np.arange(60) * 7.5 for name in names}
    entry = write(tmp_path / "root", "odd", replace(batch, episodes=episodes))
    settings = Settings(root=tmp_path / "root", offline=True, workers=1)
    page = Browser(chromium, html_file(tmp_path, report_page(entry)))
    for where in ("mark > 300", "constructor > 300", "jerk > 300", "number > 57"):
        page.filter(where)
        expected = dry_run(Job(entry.path, (f"filter:{where}",), "kept"), settings)["episodes"]
        assert (where, page.text("#count")) == (where, f"keeps {expected} of 60")
    page.filter("")
    page.press("b")
    assert page.text("#expression") == 'marks.mark != "bad"'
    page("localStorage.clear()")
    page.check()


def test_the_address_restores_all_but_marks(chromium: Any, report: str) -> None:
    state = "episode=2&t=4&sort=length&down=&where=length+%3E+1&camera=1&pin=0&speed=2&end=next"
    page = Browser(chromium, f"{report}#{state}")
    page.until("document.querySelectorAll('.camera').length === 8")
    page.until(f"{STEP} === 4")
    assert page(
        "[document.querySelector('#speed').value, document.querySelector('#end').value]"
    ) == ["2", "next"]
    assert page("document.querySelector('#where').value") == "length > 1"
    assert page(
        "[...document.querySelectorAll('tr[data-number]')].map(one => one.dataset.number)"
    ) == ["2", "0"]
    assert (
        page("document.querySelector('th[data-key=length]').getAttribute('aria-sort')")
        == "descending"
    )
    page.until(
        f"new URLSearchParams(location.hash.slice(1)).toString() === new URLSearchParams('{state}').toString()"
    )
    assert page("document.querySelectorAll('.dashed').length") > 0
    page.press("c")
    page.until("document.querySelectorAll('.camera').length === 4")
    assert page(CAMERA) == 1
    for odd in (
        "episode=9&t=1",
        "episode=-1&t=x&sort=__proto__&camera=99&pin=77&speed=3&end=x",
        "%%%&episode=1e3",
    ):
        page = Browser(chromium, f"{report}#{odd}")
        missing = page("document.querySelector('#missing').hidden") is False
        assert missing == odd.startswith("episode=9")
        assert ("Episode 9 is not in this file." in page.text("#missing")) == missing
        assert (page.text("#title") == "Episode 9") == missing
        page.check()


def test_less_motion_starts_no_film_by_itself(chromium: Any, report: str) -> None:
    for motion, symbol in (("reduce", "▶"), ("no-preference", "❚")):
        page = Browser(chromium, f"{report}#episode=1", motion=motion)
        page.press(" ")
        page.press("j")
        page.until(f"{NUMBER} === 2")
        assert page("document.querySelector('#play').innerText[0]") == symbol


@pytest.fixture(scope="module")
def long_report(tmp_path_factory: pytest.TempPathFactory) -> str:
    count = 10_000
    flags = np.ones((count, 1), bool)
    batch = EpisodeBatch(
        lengths=np.ones(count, np.int64),
        steps={
            ("action",): np.zeros((count, 1), np.float32),
            ("next", "reward"): np.arange(count, dtype=float)[::-1, None],
            ("next", "terminated"): flags,
            ("next", "truncated"): ~flags,
        },
        observations={("observation",): np.arange(2.0 * count)[:, None]},
        final_observation=flags[:, 0],
    )
    folder = tmp_path_factory.mktemp("long")
    return html_file(folder, report_page(write(folder / "root", "long", batch), budget=40_000))


def test_a_list_of_ten_thousand_episodes_has_the_rows_that_are_seen(
    chromium: Any, long_report: str
) -> None:
    page = Browser(chromium, long_report)
    rows = "document.querySelectorAll('tr[data-number]').length"
    elements = "document.querySelectorAll('*').length"
    assert 20 < page(rows) < 200
    page("document.querySelector('.rows').scrollTop = 28 * 5000")
    page.until("document.querySelector('tr[data-number=\"5010\"]')")
    seen = page("""
      const box = document.querySelector('.rows').getBoundingClientRect();
      return document.elementFromPoint(box.left + 40, box.top + 100).closest('tr').dataset.number;""")
    assert abs(int(seen) - 5000) < 8
    page("document.querySelector('.rows').scrollTop = 1e9")
    page.until("document.querySelector('tr[data-number=\"9999\"]')")
    assert 20 < page(rows) < 200
    assert page(elements) < 3000
    page.filter("return < 100")
    assert page.text("#count") == "keeps 100 of 10,000"
    assert page(elements) < 3000
    page.check()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1600, 2560])
def test_pages_are_legible_in_both_themes(
    chromium: Any, report: str, many_report: str, theme: str, width: int
) -> None:
    for address in (f"{report}#episode=2", f"{many_report}#episode=4", f"{report}#episode=0&pin=2"):
        page = Browser(chromium, address, width=width, theme=theme)
        page.check()
        page("document.querySelectorAll('main details').forEach(one => one.open = true)")
        page("document.querySelectorAll('header details').forEach(one => one.open = true)")
        page.until(
            "[...document.querySelectorAll('.plot')].every(one => one.querySelector('svg') || !one.checkVisibility())"
        )
        page.check()
        assert page(OVERLAPS) == []
        sizes = page(
            "[...document.querySelectorAll('.camera img')].map(one => one.getBoundingClientRect().width)"
        )
        assert all(size >= 60 for size in sizes)
    colours = "return [document.body, document.querySelector('aside')].map(one => getComputedStyle(one).backgroundColor)"
    before = page(colours)
    page("document.getElementById('theme').click()")
    assert all(old != new for old, new in zip(before, page(colours), strict=True))
    page.check()
    page("localStorage.clear()")


def test_values_of_charts_can_be_read_with_the_keyboard(chromium: Any, report: str) -> None:
    from selenium.webdriver.common.keys import Keys

    page = Browser(chromium, report)
    page("document.querySelector('#leaves').open = true")
    page.until("document.querySelector('#leaves .plot svg')")
    page("document.querySelector('#leaves .plot svg').focus()")
    page.press(Keys.ARROW_RIGHT)
    tip = "document.querySelector('.tip:not([hidden])')?.textContent"
    page.until(f"{tip}?.startsWith('0')")
    assert page(STEP) == 0
    page("document.activeElement.blur()")
    assert page("document.querySelector('.tip:not([hidden])')") is None


def test_tables_sort_filter_and_have_pages(chromium: Any, tmp_path: Path) -> None:
    rows = [(element("b", f"set-{n}"), f"{n % 7 * 1000:,}", f"{n}.5 KiB") for n in range(120)]
    search = element("input", id="search", type="search", aria_label="Search")
    listed = table_of(("Dataset", "Rows", "Size"), rows, numbers=2)
    content = html_page("Tables", section("datasets", "Sets", search, listed))
    page = Browser(chromium, html_file(tmp_path, content))
    shown = "[...document.querySelectorAll('tbody tr')].filter(one => !one.hidden)"
    names = f"{shown}.map(one => one.cells[0].textContent)"
    assert page(names) == [f"set-{n}" for n in range(50)]
    page("document.querySelectorAll('.pager button')[0].click()")
    assert page(names) == [f"set-{n}" for n in range(50, 100)]
    assert page("document.querySelector('.pager span').textContent") == "51 to 100 of 120"
    page("document.querySelectorAll('th button')[2].click()")
    page("document.querySelectorAll('th button')[2].click()")
    assert page(names)[:3] == ["set-119", "set-118", "set-117"]
    assert page("document.querySelectorAll('th')[2].getAttribute('aria-sort')") == "descending"
    page("document.querySelectorAll('th button')[1].click()")
    assert page(names)[:2] == ["set-119", "set-112"]
    page("document.querySelector('#search').value = 'set-3'")
    page("document.querySelector('#search').dispatchEvent(new Event('input'))")
    assert sorted(page(names)) == sorted(["set-3", *(f"set-{n}" for n in range(30, 40))])
    page.check()


def test_a_comparison_is_drawn(chromium: Any, pages_root: Path, tmp_path: Path) -> None:
    address = html_file(tmp_path, compare_page(list_datasets(pages_root)))
    page = Browser(chromium, address)
    page.check()
    assert page.requests == [address]
    assert page.point_at(".plot svg").count("%") == 2


def test_the_datasets_of_a_root_can_be_browsed(chromium: Any, pages_root: Path) -> None:
    with served(pages_root) as client:
        page = Browser(chromium, client.server.url)
        page.until("location.pathname === '/' && document.querySelector('#search')")
        page.until("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
        page.until("document.querySelectorAll('#datasets b.error').length === 2")
        page.check()
        page("document.querySelector('#search').value = 'rich'")
        page("document.querySelector('#search').dispatchEvent(new Event('input'))")
        rows = "[...document.querySelectorAll('#datasets tbody tr')].map(one => one.hidden)"
        assert page(rows) == [True, False]
        page("document.querySelectorAll('tbody a')[1].click()")
        page.until("location.pathname === '/dataset' && document.querySelector('tr.now')")
        page.until("document.querySelector('#findings .finding')")
        page("document.querySelector('#leaves').open = true")
        page.until("document.querySelector('#leaves .plot svg')")
        page("document.querySelector('tr[data-number=\"2\"] a').click()")
        page.until(f"{NUMBER} === 2")
        page.until(f"return Math.abs((() => {{{LEVEL}}})() - 60) < 5")
        page.check()
        assert {urlsplit(url).netloc for url in page.requests} == {
            f"127.0.0.1:{client.server.server_port}"
        }
