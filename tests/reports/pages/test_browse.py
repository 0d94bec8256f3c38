"""The server of pages: who gets an answer, and which."""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from offline_data.analysis.episodes import episode_quality
from offline_data.base.config import Settings
from offline_data.base.errors import AccessError
from offline_data.reports.pages.browse import DatasetServer
from offline_data.store.library import Entry
from offline_data.store.reader import open_reader
from tests.reports.pages.conftest import HOSTILE
from tests.reports.pages.parsed import Element, charts, parse

RICH = "id=local%3Arich%401"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def page(self) -> Element:
        return parse(self.content)


@dataclass(frozen=True)
class Client:
    server: DatasetServer

    def __call__(
        self, path: str, method: str = "GET", *, cookie: str | None = "", host: str = ""
    ) -> Answer:
        """Ask for a path with the right cookie and host unless given; None: no cookie."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=60)
        sent = {"Host": host} if host else {}
        if cookie is not None:
            sent["Cookie"] = cookie or f"{self.server.cookie}={self.server.token}"
        connection.request(method, path, headers=sent)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return Answer(answer.status, dict(answer.getheaders()), content)


@pytest.fixture(scope="module")
def ask(pages_root: Path) -> Iterator[Client]:
    with DatasetServer(Settings(root=pages_root, offline=True)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Client(server)
        server.shutdown()
        thread.join()


def test_the_secret_address_sets_a_cookie_that_admits(ask: Client) -> None:
    address = urlsplit(ask.server.url)
    assert (address.hostname, address.port) == ("127.0.0.1", ask.server.server_port)
    opened = ask(address.path, cookie=None)
    cookie, *flags = opened.headers["Set-Cookie"].split("; ")
    assert (opened.status, set(flags)) == (200, {"HttpOnly", "SameSite=Strict", "Path=/"})
    (onward,) = opened.page.all("meta")
    assert onward.attributes["content"] == "0; url=/"
    assert ask("/", cookie=cookie).status == 200


@pytest.mark.parametrize("path", ["/", "/dataset?" + RICH, "/part/findings?" + RICH, "/nothing"])
def test_without_the_token_nothing_is_shown(ask: Client, path: str) -> None:
    wrong = f"{ask.server.cookie}={ask.server.token[:-1]}"
    for cookie in (None, wrong, f"{ask.server.cookie}=é", ask.server.token, "=;=", "\x7f=,;x"):
        refused = ask(path, cookie=cookie)
        assert (refused.status, b"rich" in refused.content) == (403, False)
    assert ask("/open/" + ask.server.token[:-1], cookie=None).status == 403
    assert "Set-Cookie" not in ask("/open/x", cookie=None).headers


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "[::1]:80"])
def test_other_hosts_are_refused(ask: Client, host: str) -> None:
    assert ask("/", host=host).status == 403
    assert ask(urlsplit(ask.server.url).path, host=host, cookie=None).status == 403
    assert ask("/", host=f"localhost:{ask.server.server_port}").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(ask: Client, method: str) -> None:
    refused = ask("/", method)
    assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/dataset/local/rich/1/manifest.json",
        "/manifest.json",
        "/dataset?id=../../etc",
        "/dataset?id=local:rich@1/../../other/1",
        "/dataset?id=/etc/passwd",
        "/dataset?id=local%3Arich",
        "/dataset?id=local:absent@1",
        "/dataset",
        "/episode?number=0&" + RICH,
        "/part/episode?number=3&" + RICH,
        "/part/episode?number=-1&" + RICH,
        "/part/episode?number=%C2%B2&" + RICH,
        "/part/findings?id=no",
    ],
)
def test_what_is_not_there_is_not_found(ask: Client, path: str) -> None:
    found = ask(path)
    assert found.status == 404
    assert b"root:x:" not in found.content
    assert b"digests" not in found.content


def test_head_answers_without_content_and_every_answer_is_protected(ask: Client) -> None:
    whole, head = ask("/"), ask("/", "HEAD")
    assert (head.status, head.content) == (200, b"")
    assert head.headers["Content-Length"] == str(len(whole.content))
    for answer in (whole, head, ask("/nothing"), ask("/", cookie=None), ask("/", "POST")):
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ")
        assert policy.endswith("; frame-ancestors 'none'")
        assert "Python" not in answer.headers["Server"]


def test_the_list_leads_to_each_dataset(ask: Client) -> None:
    (section,) = ask("/").page.all("section", id="datasets")
    rows = [[cell.text for cell in row.all("td")] for row in section.all("tr")[1:]]
    assert [row[:3] for row in rows] == [["local:other@1", "38", "3"], ["local:rich@1", "38", "3"]]
    names = [(one.all("b")[0].text, one.all("small")[0].text) for one in section.all("a")]
    assert names == [("local:other", "@1"), ("local:rich", "@1")]
    links = [link.attributes["href"] for link in section.all("a")]
    assert links[1] == "/dataset?" + RICH
    assert [ask(str(link)).status for link in links] == [200, 200]


def test_the_page_of_a_dataset_loads_its_parts(
    ask: Client, rich: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ask("/dataset?" + RICH).page
    assert HOSTILE in page.all("section", id="state")[0].text
    assert not page.all("div", class_="plot")
    loaded = [
        one.attributes["data-load"] for one in page.all("div") if "data-load" in one.attributes
    ]
    assert loaded == [
        "/part/findings?" + RICH,
        f"/part/episodes?{RICH}&page=0",
        "/part/distributions?" + RICH,
    ]
    (player,) = page.all("div", class_="player")
    assert player.attributes["data-address"] == "/part/episode?" + RICH
    found = ask(str(loaded[0])).page
    assert "non-finite-values" in found.text
    assert "observation/state, episode 0, row 3" in found.text
    episodes = ask(str(loaded[1])).page
    rows = [[cell.text for cell in row.all("td")] for row in episodes.all("tr")[1:]]
    assert [[*row[:2], *row[3:6]] for row in rows] == [
        ["Episode 0", "terminated", "", "7", "21"],
        ["Episode 1", "terminated", "", "1", "7"],
        ["Episode 2", "truncated", "", "30", "675"],
    ]
    titles = [cell.text for cell in episodes.all("th")]
    assert titles[2:6] == ["Outlier in", "Return so far", "Steps", "Return"]
    assert titles[6:] == ["Idle", "Jerk", "Jerk p95", "Velocity"]
    quality = episode_quality(open_reader(rich.path))
    for number, row in enumerate(rows):
        (known,) = quality.rows(np.array([number]))
        values = [known[name] for name in ("idle", "jerk", "jerk_p95", "velocity")]
        assert row[6:] == ["" if value is None else f"{value:.4g}" for value in values]
        assert row[2] == ", ".join(known["outliers"]).replace("_", " ")
    assert [one.attributes["href"] for one in episodes.all("a")] == [
        f"#episode={number}" for number in range(3)
    ]
    assert len(episodes.all("path")) == 3
    shown = charts(ask(str(loaded[2])).page)
    assert sum(shown["return"]["series"][0]["values"]) == 3
    monkeypatch.setattr("offline_data.reports.pages.browse._AT_ONCE", 0)
    asked = [one.attributes.get("data-ask") for one in ask("/dataset?" + RICH).page.all("button")]
    assert {loaded[0], loaded[2]} <= set(asked)


def test_an_episode_has_its_images_and_curves(ask: Client) -> None:
    part = ask(f"/part/episode?{RICH}&number=2").page
    (article,) = part.all("article")
    assert (article.attributes["data-episode"], article.attributes["data-length"]) == ("2", "30")
    blocks = [json.loads(one.text) for one in article.all("script")]
    reward = next(one for one in blocks if one.get("title") == "next/reward")
    assert reward["steps"] == list(range(30))
    assert reward["series"][0]["values"] == list(range(8, 38))
    assert reward["marks"] == [[29, "truncated"]]
    cameras = [one for one in blocks if "files" in one]
    assert len(cameras) == 4
    for one in cameras:
        assert (one["steps"], one["kind"]) == (list(range(30)), "image/webp")
        assert all(base64.b64decode(file)[8:12] == b"WEBP" for file in one["files"])


def test_a_damaged_dataset_is_an_error_of_its_page(pages_root: Path, tmp_path: Path) -> None:
    import shutil

    root = tmp_path / "root"
    shutil.copytree(pages_root, root)
    next((root / "local" / "rich" / "1" / "steps").glob("rows*")).unlink()
    with DatasetServer(Settings(root=root, offline=True)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        failed = Client(server)("/part/distributions?" + RICH)
        listed = Client(server)("/")
        server.shutdown()
        thread.join()
    assert (failed.status, b"is missing" in failed.content) == (500, True)
    assert listed.status == 200


def test_a_port_in_use_is_an_error(ask: Client) -> None:
    settings = replace(ask.server.settings)
    with pytest.raises(AccessError, match=f"Port {ask.server.server_port} "):
        DatasetServer(settings, ask.server.server_port)
