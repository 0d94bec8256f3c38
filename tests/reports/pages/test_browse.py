"""The server of pages: who gets an answer, and which."""

from __future__ import annotations

import http.client
import io
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import av
import numpy as np
import pytest
from PIL import Image

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import AccessError
from offline_data.formats.options import TextOptions
from offline_data.reports.pages.browse import DatasetServer
from offline_data.reports.pages.report import report_page
from offline_data.store.library import Entry, entry_at
from offline_data.store.marks import Mark, marks_file, read_marks
from offline_data.store.reader import open_reader
from offline_data.store.video import VideoColumn
from offline_data.testing.toy import toy_batch
from offline_data.text.tokenizer import load_tokenizer
from tests.films import FILM, SHAPE, film
from tests.pipeline.ingest.here import conversions_start_no_process
from tests.reports.pages.conftest import HOSTILE, LENGTHS, rich_batch, write
from tests.reports.pages.parsed import Element, charts, data_of, levels, parse
from tests.toys.text import write_tokenizer

__all__ = ["conversions_start_no_process"]

RICH = "id=local%3Arich%401"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def page(self) -> Element:
        return parse(self.content)

    @property
    def json(self) -> Any:
        assert (self.status, self.headers["Content-Type"]) == (200, "application/json")
        return json.loads(self.content)


@dataclass(frozen=True)
class Client:
    server: DatasetServer

    def __call__(
        self,
        path: str,
        method: str = "GET",
        *,
        cookie: str | None = "",
        host: str = "",
        body: str = "",
        kind: str | None = "application/json",
        length: str = "",
        byte_range: str | None = None,
    ) -> Answer:
        """Ask for a path with the right cookie and host unless given; None: no cookie."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=60)
        sent = {"Host": host} if host else {}
        if cookie is not None:
            sent["Cookie"] = cookie or f"{self.server.cookie}={self.server.token}"
        if kind and method == "POST":
            sent["Content-Type"] = kind
        if length:
            sent["Content-Length"] = length
        if byte_range:
            sent["Range"] = byte_range
        connection.request(method, path, body or None, sent)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return Answer(answer.status, dict(answer.getheaders()), content)


@contextmanager
def served(root: Path) -> Iterator[Client]:
    """Serve the pages of a root in this process."""
    with DatasetServer(Settings(root=root, offline=True)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Client(server)
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def ask(pages_root: Path) -> Iterator[Client]:
    with served(pages_root) as client:
        yield client


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
    counts = [(row[1].partition("@")[0], row[2], *row[6:8]) for row in rows]
    assert counts == [(f"local:{name}", "images", "38", "3") for name in ("other", "rich")]
    assert [row[4] for row in rows] == ["not stated", HOSTILE]
    links = [str(link.attributes["href"]) for link in section.all("a")]
    assert links[1] == "/dataset?" + RICH
    assert [ask(link).status for link in links] == [200, 200]
    pictures = [str(one.attributes["src"]) for one in section.all("img")]
    camera = ask(pictures[1])
    assert camera.headers["Content-Type"] == "image/webp"
    level = np.asarray(Image.open(io.BytesIO(camera.content))).mean()
    assert level == pytest.approx(8 * 6, abs=3)  # of the middle episode, of one step


def test_the_page_of_a_dataset_has_the_list_and_addresses_of_the_rest(
    ask: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of(ask("/dataset?" + RICH).page)
    values = {one["key"]: one.get("values") for one in data["columns"]}
    assert (data["listed"], values["length"], values["return"]) == (3, [*LENGTHS], [21, 7, 675])
    assert not {"shown", "findings"} & {*data}
    assert data["asked"] == ""
    for part in ("leaves", "findings", "quality"):
        assert data["served"][part] == f"/part/{part}?{RICH}"
        assert ask(data["served"][part]).status == 200
    monkeypatch.setattr("offline_data.reports.pages.browse._AT_ONCE", 0)
    assert data_of(ask("/dataset?" + RICH).page)["asked"].startswith(" (reads ")


def test_parts_are_those_of_a_report(ask: Client, rich: Entry) -> None:
    report = data_of(parse(report_page(rich)))
    episode = ask(f"/part/episode?{RICH}&number=2").json
    known = report["shown"]["2"]
    assert episode["cameras"] == episode["videos"] == {}
    for name in ("number", "length", "final", "steps", "tracks", "texts", "notes"):
        assert episode[name] == known[name]
    assert ask("/part/quality?" + RICH).json == report["columns"][-5:]
    findings = ask("/part/findings?" + RICH).json
    assert findings == report["findings"]
    assert ask("/part/count?" + RICH).content.decode() == findings["line"]
    leaves = ask("/part/leaves?" + RICH)
    assert "action" in charts(leaves.page)
    assert leaves.headers["Content-Type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize(
    ("query", "steps", "names"),
    [
        ("first=3&stop=6", (3, 4, 5), "camera pixels stack depth"),
        ("first=0&stop=30&every=12&camera=1", (0, 12, 24), "pixels"),
        ("stop=1", (0,), "camera pixels stack depth"),
        ("stop=30&every=0&camera=1&side=0", tuple(range(30)), "pixels"),
        ("first=29&stop=30&camera=0&side=999999999999999", (29,), "camera"),
        ("first=9&stop=999999999999999&every=999999999999999&camera=0", (9,), "camera"),
    ],
)
def test_frames_are_the_pictures_of_the_steps(
    ask: Client, query: str, steps: tuple[int, ...], names: str
) -> None:
    answer = ask(f"/part/frames?{RICH}&number=2&side=160&{query}")
    assert answer.headers["Content-Type"] == "application/json"
    assert [*answer.json] == [f"observation/{name}" for name in names.split()]
    for name, camera in answer.json.items():
        assert camera["steps"] == [*steps]
        if name.endswith(("pixels", "camera")):
            factor = 6 if name.endswith("camera") else 1
            expected = [factor * (10 + step) for step in steps]
            assert levels(camera) == pytest.approx(expected, abs=3 * (factor > 1))


@pytest.mark.parametrize(
    "query",
    [
        "number=0&first=0&stop=8",
        "number=0&first=7&stop=7",
        "number=0&first=5&stop=4",
        "number=0",
        "number=3&stop=1",
        "number=0&stop=999999999999999",
        "number=0&first=999999999999998&stop=999999999999999",
        "number=0&first=-1&stop=2",
        "number=0&stop=1e9",
        "number=0&stop=1&every=-1",
        "number=0&stop=1&side=%C2%B2",
        "number=0&stop=1&camera=4",
        "number=0&stop=1&camera=999999999999999",
        "number=0&stop=1&camera=-1",
        "number=99999999999999999999&stop=1",
    ],
)
def test_frames_that_are_not_there_are_not_found(ask: Client, query: str) -> None:
    answer = ask(f"/part/frames?{RICH}&side=160&{query}")
    assert (answer.status, answer.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert len(answer.content) < 200


@pytest.fixture
def marking(tmp_path: Path) -> Iterator[tuple[Client, Entry]]:
    """A server of a root of its own, whose dataset gets marks."""
    entry = write(tmp_path / "root", "rich", rich_batch())
    with served(tmp_path / "root") as ask:
        yield ask, entry


def test_marks_are_kept_on_the_disk(marking: tuple[Client, Entry]) -> None:
    ask, entry = marking
    for number, mark, note in ((2, "bad", HOSTILE), (0, "good", ""), (1, "", "only a note")):
        sent = json.dumps({"number": number, "mark": mark, "note": note})
        answer = ask("/part/marks?" + RICH, "POST", body=sent)
        assert (answer.status, answer.json) == (200, {"kept": number})
    found = read_marks(entry.path, entry.manifest).episodes
    assert found == {0: Mark("good"), 1: Mark(None, "only a note"), 2: Mark("bad", HOSTILE)}
    marks = data_of(ask("/dataset?" + RICH).page)["marks"]
    assert marks["1"] == {"mark": "", "note": "only a note"}
    assert marks["2"] == {"mark": "bad", "note": HOSTILE}
    ask("/part/marks?" + RICH, "POST", body='{"number": 2, "mark": "", "note": ""}')
    assert {*read_marks(entry.path, entry.manifest).episodes} == {0, 1}


GOOD = '{"number": 1, "mark": "good", "note": ""}'


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (403, {"cookie": None}),
        (403, {"host": "evil.example"}),
        (404, {"path": "/part/marks?id=local:absent@1"}),
        (404, {"path": "/part/marks"}),
        (405, {"path": "/part/episode?" + RICH}),
        (405, {"path": "/"}),
        (415, {"kind": "text/plain"}),
        (415, {"kind": "application/x-www-form-urlencoded"}),
        (415, {"kind": None}),
        (413, {"body": GOOD[:-2] + "x" * (1 << 16) + '"}'}),
        (413, {"length": "-1"}),
        (413, {"length": "\u00b2"}),
        (413, {"length": "9" * 30}),
        (400, {"body": ""}),
        (400, {"body": "{"}),
        (400, {"body": "[" * 60_000}),
        (400, {"body": "[]"}),
        (400, {"body": GOOD.replace("1", "3")}),
        (400, {"body": GOOD.replace("1", "-1")}),
        (400, {"body": GOOD.replace("1", "1.5")}),
        (400, {"body": GOOD.replace("1", '"1"')}),
        (400, {"body": GOOD.replace("1", "true")}),
        (400, {"body": GOOD.replace("1", "1" + "0" * 400)}),
        (400, {"body": GOOD.replace("good", "best")}),
        (400, {"body": GOOD.replace('"good"', "null")}),
        (400, {"body": GOOD.replace('"note": ""', '"note": 1')}),
        (400, {"body": GOOD.replace('""', json.dumps("x" * 2_001))}),
        (400, {"body": GOOD.replace('""', '"", "other": 1')}),
        (400, {"body": '{"number": 1}'}),
    ],
    ids=lambda one: str(one)[:60],
)
def test_other_marks_are_refused(
    marking: tuple[Client, Entry], status: int, sent: dict[str, Any]
) -> None:
    ask, entry = marking
    given = {"path": "/part/marks?" + RICH, "body": GOOD, **sent}
    answer = ask(method="POST", **given)
    assert answer.status == status
    assert (answer.headers.get("Allow") == "GET, HEAD") == (status == 405)
    assert b"Traceback" not in answer.content
    assert not marks_file(entry.path).exists()


def test_documents_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = write_tokenizer(tmp_path)
    file = tmp_path / "rows.txt"
    file.write_text("".join(f"the cat {n} {HOSTILE * (1 + n)}\n" for n in range(3)))
    options = TextOptions(str(tokenizer))
    root = tmp_path / "root"
    stored = offline_data.convert(file, "x", source="text", text=options, root=root, progress=False)
    decode = load_tokenizer(str(tokenizer)).decode
    monkeypatch.setattr("offline_data.reports.pages.browse.find_decoder", lambda *_: decode)
    with served(root) as ask:
        address = "id=" + quote(str(entry_at(stored.path).id), safe="")
        data = data_of(ask("/dataset?" + address).page)
        assert (data["kind"], data["listed"]) == ("text", len(data["columns"][0]["values"]))
        shown = ask(data["served"]["document"] + "&number=1").page
        assert f"the cat 1 {HOSTILE}" in shown.all("pre")[0].text
        assert not shown.all("script")
        assert "tokens of a document" in charts(ask(data["served"]["leaves"]).page)
        for number in ("3", "-1", "x"):
            assert ask(f"{data['served']['document']}&number={number}").status == 404


def test_a_damaged_dataset_is_an_error_of_its_page(pages_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(pages_root, root)
    next((root / "local" / "rich" / "1" / "steps").glob("rows*")).unlink()
    with served(root) as ask:
        for path in ("/part/leaves?", "/part/episode?number=0&", "/dataset?"):
            failed = ask(path + RICH)
            assert (failed.status, b"is missing" in failed.content) == (500, True)
        listed = ask("/")
    assert listed.status == 200
    assert b"local:other" in listed.content


def test_a_port_in_use_is_an_error(ask: Client) -> None:
    with pytest.raises(AccessError, match=f"Port {ask.server.server_port} "):
        DatasetServer(ask.server.settings, ask.server.server_port)


FILMS = "id=local%3Afilms%401"


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Entry]]:
    """A server of `local:films@1`, whose first two episodes are in one mp4 file, the others in another."""
    root, batch = tmp_path_factory.mktemp("films"), toy_batch((3, 1, 11, 2))
    files = [film(root, number, count) for number, count in enumerate((6, 15))]
    pairs = np.array([(n, k) for n, count in enumerate((6, 15)) for k in range(count)], np.int32)
    column: Any = VideoColumn(files, pairs, ("video", "uint8", SHAPE))
    batch = replace(batch, observations={**batch.observations, FILM: column})
    entry = write(root / "root", "films", batch)
    with served(root / "root") as client:
        yield client, entry


def test_a_kept_video_shows_the_frame_of_each_step(
    films: tuple[Client, Entry], tmp_path: Path
) -> None:
    ask, entry = films
    reader, played = open_reader(entry.path), 0
    for number, (start, length) in enumerate(zip(reader.starts, reader.lengths, strict=True)):
        videos = ask(f"/part/episode?{FILMS}&number={number}").json["videos"]
        for times in videos.values():
            played += 1
            answer = ask(f"/part/video?{FILMS}&number={number}&camera=observation%2Ffilm")
            assert (answer.status, answer.headers["Content-Type"]) == (206, "video/mp4")
            path = tmp_path / f"{number}.mp4"
            path.write_bytes(answer.content)
            with av.open(str(path)) as container:
                shown = [
                    (float(one.pts * one.time_base), one.to_ndarray(format="rgb24"))
                    for one in container.decode(video=0)
                ]
            rows = np.arange(start, start + length)
            stored = np.concatenate([*reader.decoded_at(FILM, rows)])
            assert len(times) == length
            for time, expected in zip(times, stored, strict=True):
                frame = [pixels for since, pixels in shown if since <= time][-1]
                np.testing.assert_array_equal(frame, expected)
    assert played == 4


@pytest.mark.parametrize(
    ("asked", "first", "stop"),
    [
        (None, 0, None), ("bytes=0-", 0, None), ("bytes=5-9", 5, 10), ("bytes=7-999999999", 7, None),
        ("bytes=9-5", None, None), ("bytes=99999999-", None, None), ("bytes=-5", None, None),
        ("bytes=x-", None, None), ("bytes=0-1,3-4", None, None), ("bytes=²-", None, None),
    ],
)  # fmt: skip
def test_ranges_of_a_video_are_its_bytes(
    films: tuple[Client, Entry], asked: str | None, first: int | None, stop: int | None
) -> None:
    ask, entry = films
    answer = ask(f"/part/video?{FILMS}&number=0&camera=observation%2Ffilm", byte_range=asked)
    if first is None:
        assert answer.status == 404
        return
    files = [one.read_bytes() for one in entry.path.rglob("*.mp4")]
    span, _, size = answer.headers["Content-Range"].removeprefix("bytes ").partition("/")
    assert span == f"{first}-{first + len(answer.content) - 1}"
    assert answer.content in [file[first:stop] for file in files if len(file) == int(size)]


@pytest.mark.parametrize("query", ["number=9&camera=observation%2Ffilm", "number=0&camera=x", ""])
def test_videos_that_are_not_there_are_not_found(films: tuple[Client, Entry], query: str) -> None:
    ask, _ = films
    assert ask(f"/part/video?{FILMS}&{query}").status == 404
    assert ask(f"/part/video?{RICH}&{query}").status == 404


def test_a_search_finds_what_is_not_on_the_disk(ask: Client) -> None:
    found = ask("/part/search?q=cartpole").page
    commands = [one.text for one in found.all("code")]
    assert commands
    assert all(one.startswith("offline-data ") for one in commands)
    odd = ask("/part/search?q=" + quote(HOSTILE * 9)).page
    assert odd.all("h2")[0].text == "Not on this disk: 0"
    assert not odd.all("script")
