"""Pages in headless Chromium: what runs, what is drawn, what is loaded, how it looks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from offline_data.base.config import Settings
from offline_data.document.html import element, table_of
from offline_data.reports.pages.browse import DatasetServer
from offline_data.reports.pages.compare import compare_page
from offline_data.reports.pages.page import page as html_page
from offline_data.reports.pages.page import section
from offline_data.reports.pages.report import report_page
from offline_data.store.library import Entry, list_datasets
from tests.reports.pages.conftest import HOSTILE

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

    def __init__(self, driver: Any, url: str, *, width: int = 1280, theme: str = "light") -> None:
        from selenium.webdriver.support.wait import WebDriverWait

        self.driver = driver
        self._wait = WebDriverWait(driver, 60, poll_frequency=0.02)
        media = [{"name": "prefers-color-scheme", "value": theme}]
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get_log("performance")
        driver.get_log("browser")
        driver.get(url)
        self.until(
            "document.querySelectorAll('.plot svg .axis').length || !document.querySelector('.plot')"
        )

    def __call__(self, script: str) -> Any:
        return self.driver.execute_script(script if "return " in script else f"return {script}")

    def until(self, condition: str) -> None:
        self._wait.until(lambda _: self(condition))

    def point_at(self, selector: str, share: float = 0.5) -> str:
        """Move the pointer over a part of the width of an element; returns the text that appears."""
        self(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = self(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
        at = {"x": box["left"] + share * box["width"], "y": box["top"] + box["height"] / 2}
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **at})
        self.until("document.querySelector('.tip:not([hidden])')")
        return str(self("document.querySelector('.tip:not([hidden])').textContent"))

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


@pytest.fixture(scope="module")
def report(rich: Entry, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("report") / "rich.html"
    file.write_bytes(report_page(rich))
    return file.as_uri()


def test_a_report_is_drawn_and_loads_nothing(chromium: Any, report: str) -> None:
    page = Browser(chromium, report)
    page.check()
    assert page.requests == [report]
    assert HOSTILE in page("document.querySelector('#state').textContent")
    assert page("document.images.length") > 20
    drawn = page(
        "[...document.querySelectorAll('.plot')].filter(one => one.checkVisibility()).length"
    )
    assert page("document.querySelectorAll('.plot svg').length") == drawn > 5
    # lengths 7, 1 and 30: one episode in the last bin
    assert "episodes: 1 (33.3 %)" in page.point_at("#returns figure:nth-child(2) svg", 0.978)


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_report_is_legible_in_both_themes(
    chromium: Any, report: str, theme: str, width: int
) -> None:
    page = Browser(chromium, report, width=width, theme=theme)
    page("document.querySelectorAll('details').forEach(one => one.open = true)")
    page("document.querySelectorAll('article').forEach(one => one.hidden = false)")
    page.until("[...document.querySelectorAll('.plot')].every(one => one.querySelector('svg'))")
    page.check()
    overlaps = page("""
      return [...document.querySelectorAll('.plot svg')].flatMap(svg => {
        const boxes = [...svg.querySelectorAll('text:not([transform])')].map(one => one.getBoundingClientRect());
        return boxes.filter((a, i) => boxes.some((b, j) => i < j && a.left < b.right && b.left < a.right
          && a.top + 3 < b.bottom && b.top + 3 < a.bottom)).map(() => svg.getAttribute('aria-label'));
      });""")
    assert overlaps == []
    colours = "return [document.body, document.querySelector('section')].map(one => getComputedStyle(one).backgroundColor)"
    before = page(colours)
    page("document.getElementById('theme').click()")
    assert all(old != new for old, new in zip(before, page(colours), strict=True))
    page.check()
    page("document.getElementById('theme').click()")
    assert page(colours) == before
    page("localStorage.clear()")


@pytest.mark.slow
def test_values_can_be_read_with_the_keyboard(chromium: Any, report: str) -> None:
    from selenium.webdriver.common.keys import Keys

    page = Browser(chromium, report)
    page("document.querySelector('#episodes .plot svg').focus()")
    chart = chromium.switch_to.active_element
    chart.send_keys(Keys.ARROW_RIGHT)
    page.until("document.querySelector('.tip:not([hidden])')")
    tip = "document.querySelector('.tip:not([hidden])').textContent"
    assert page(tip) == "step 0\nnext/reward: 7"
    assert page("location.hash") == ""
    page("document.activeElement.blur()")
    assert page("document.querySelector('.tip:not([hidden])')") is None


TIME = "document.querySelector('.time').textContent"
LEVEL = """
const image = document.querySelector("article:not([hidden]) .camera img");
const canvas = document.createElement("canvas");
[canvas.width, canvas.height] = [1, 1];
canvas.getContext("2d").drawImage(image, 0, 0, 1, 1);
return image.complete ? canvas.getContext("2d").getImageData(0, 0, 1, 1).data[0] : -1;
"""
"""The grey level of the first camera's image."""


def test_an_episode_plays_and_the_address_names_episode_and_time(
    chromium: Any, report: str
) -> None:
    from selenium.webdriver.common.keys import Keys

    page = Browser(chromium, f"{report}#episode=2&t=0.5")
    page.until(f"{TIME} === 'step 15 of 30, 0.50 s'")  # 30 steps a second: no rate is stated
    first = 10  # rows of observations before episode 2, each 6 levels brighter in `camera`
    page.until(f"return Math.abs((() => {{{LEVEL}}})() - {6 * (first + 15)}) < 5")
    cursor = """
      const plot = document.querySelector("article:not([hidden]) .plot"), line = plot.querySelector(".now");
      return [Number(line.getAttribute("x1")), plot.chart.x(15), line.getAttribute("visibility")];"""
    at, expected, shown = page(cursor)
    assert (at, shown) == (pytest.approx(expected), "visible")

    def press(key: str) -> None:
        chromium.switch_to.active_element.send_keys(key)

    press(Keys.ARROW_RIGHT)
    assert page("location.hash") == "#episode=2&t=0.533"
    press(Keys.ARROW_LEFT)
    assert page("location.hash") == "#episode=2&t=0.5"
    page("document.querySelector('.controls input').value = 3")
    page("document.querySelector('.controls input').dispatchEvent(new Event('input'))")
    press(" ")
    page.until(f"{TIME} === 'step 29 of 30, 0.97 s'")
    page.until("document.querySelector('.play').textContent === 'Play'")
    assert page("location.hash") == "#episode=2&t=0.967"
    page.until(f"return Math.abs((() => {{{LEVEL}}})() - {6 * (first + 29)}) < 5")
    press("k")
    page.until("document.querySelector('article:not([hidden])').dataset.episode === '1'")
    page.until("location.hash === '#episode=1' || location.hash === '#episode=1&t=0'")
    press("j")
    page.until("document.querySelector('article:not([hidden])').dataset.episode === '2'")
    page("location.hash = '#episode=9'")
    page.until(f"{TIME} === 'Episode 9 is not in this file.'")
    page.check()


@pytest.mark.slow
def test_tables_sort_filter_and_have_pages(chromium: Any, tmp_path: Path) -> None:
    rows = [(element("b", f"set-{n}"), f"{n % 7 * 1000:,}", f"{n}.5 KiB") for n in range(120)]
    search = element("input", id="search", type="search", aria_label="Search")
    listed = table_of(("Dataset", "Rows", "Size"), rows, numbers=2)
    file = tmp_path / "table.html"
    file.write_bytes(html_page("Tables", section("datasets", "Sets", search, listed)))
    page = Browser(chromium, file.as_uri())
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


@pytest.mark.slow
def test_a_comparison_is_drawn(chromium: Any, pages_root: Path, tmp_path: Path) -> None:
    file = tmp_path / "both.html"
    file.write_bytes(compare_page(list_datasets(pages_root)))
    page = Browser(chromium, file.as_uri())
    page.check()
    assert page.requests == [file.as_uri()]
    assert page.point_at(".plot svg").count("%") == 2


@pytest.mark.slow
def test_the_datasets_of_a_root_can_be_browsed(chromium: Any, pages_root: Path) -> None:
    with DatasetServer(Settings(root=pages_root, offline=True)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            page = Browser(chromium, server.url)
            page.until("location.pathname === '/' && document.querySelector('#search')")
            page("document.querySelector('#search').value = 'rich'")
            page("document.querySelector('#search').dispatchEvent(new Event('input'))")
            rows = "[...document.querySelectorAll('tbody tr')].map(one => one.hidden)"
            assert page(rows) == [True, False]
            page("document.querySelectorAll('tbody a')[1].click()")
            page.until("document.querySelector('#distributions .plot svg')")
            page.until("document.querySelector('#findings .finding')")
            page.until("document.querySelectorAll('#episodes a').length === 3")
            page.check()
            current = "document.querySelector('#episodes a[aria-current=true]')?.textContent"
            page.until(f"{current} === 'Episode 0'")
            page("document.querySelectorAll('#episodes a')[2].click()")
            page.until("document.querySelector('article[data-episode=\"2\"] .plot svg')")
            page.until(f"{current} === 'Episode 2'")
            page.check()
            assert page(TIME) == "step 0 of 30, 0.00 s"
            assert {urlsplit(url).netloc for url in page.requests} == {
                f"127.0.0.1:{server.server_port}"
            }
        finally:
            server.shutdown()
            thread.join()
