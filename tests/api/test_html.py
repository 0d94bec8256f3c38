"""What a notebook shows: small, and without any markup of what was downloaded."""

from __future__ import annotations

import base64
import io
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensordict import TensorDict

import offline_data
from offline_data.buffers.dataset import Dataset
from offline_data.store.layout import MANIFEST
from offline_data.store.library import Listing
from offline_data.store.manifest import dump_manifest
from offline_data.testing.toy import toy_batch, write_toy
from offline_data_cli.main import main

EVIL = "<script>alert(1)</script><img src=x onerror='y'>\"&"


class Shown(HTMLParser):
    """Tags, attributes and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.titles: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.open.append(tag)
        assert {name for name, _ in attrs} <= {"class", "scope", "tabindex", "title"}
        self.titles += [value for name, value in attrs if name == "title"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


ALLOWED = {
    "h3",
    "dl",
    "dt",
    "dd",
    "div",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "code",
    "p",
    "span",
}


@pytest.fixture
def evil(tmp_path: Path) -> Dataset:
    """A dataset whose every text is markup."""
    batch = toy_batch([3, 2, 4])
    ids = np.array([EVIL, None, "x" * 5000], dtype=object)
    batch = replace(
        batch,
        observations={**batch.observations, ("observation", "<b>leaf<"): np.ones((12, 1))},
        episodes={("id",): ids, ("<i>",): np.arange(3)},
    )
    manifest = write_toy(tmp_path / "toy", [batch])
    (tmp_path / "toy" / MANIFEST).chmod(0o644)
    told = replace(manifest, licence=EVIL)
    (tmp_path / "toy" / MANIFEST).write_text(dump_manifest(told))
    return Dataset(tmp_path / "toy", 2)


def test_nothing_downloaded_is_markup(evil: Dataset) -> None:
    shown: list[Callable[[], str]] = [
        evil._repr_html_,
        evil.episodes._repr_html_,
        evil.episode(0)._repr_html_,
        evil.filter(lambda episodes: episodes["length"] > 2)._repr_html_,
    ]
    for show in shown:
        page = Shown(show())
        assert page.tags <= ALLOWED
        assert max(map(len, page.texts)) <= 160
    assert EVIL in Shown(evil._repr_html_()).texts
    assert EVIL in Shown(evil.episodes._repr_html_()).texts
    assert EVIL in Shown(evil.episode(0)._repr_html_()).texts
    assert "observation/<b>leaf<" in Shown(evil._repr_html_()).texts


def test_it_says_what_there_is(toys: Callable[..., Path]) -> None:
    ds = Dataset(toys([3, 1, 2], unknown_final=[1]), 16)
    page = Shown(ds._repr_html_())
    for text in ("Dataset local:toy@1", "6", "3", "16", "next/reward", "[1]"):
        assert text in page.texts
    page = Shown(ds.episodes_at([2])._repr_html_())
    assert "DatasetView local:toy@1" in page.texts
    assert page.texts[page.texts.index("Steps") + 1] == "2"
    page = Shown(ds.episode(1)._repr_html_())
    assert page.texts[page.texts.index("Length") + 1] == "1"
    assert page.texts[page.texts.index("Final observation") + 1] == "not known"
    assert page.texts[page.texts.index("Ends") + 1] == "truncated"


def test_long_tables_are_cut(toys: Callable[..., Path]) -> None:
    ds = Dataset(toys([1] * 1234))
    page = ds.episodes._repr_html_()
    assert len(re.findall("<tr>", page)) == 11
    assert "and 1,224 more" in page
    assert len(page) < 4000
    some = ds.episodes_at([7, 5])
    rows = [row.split("</td>") for row in some.episodes._repr_html_().split("<tr>")[2:]]
    column = some.episodes.keys().index("id") + 1
    assert [row[column].removeprefix("<td>") for row in rows] == ["7", "5"]


def test_results_are_tables(evil: Dataset) -> None:
    path = evil.data_path
    (path / "foreign<b>").touch()
    results: dict[str, Any] = {
        "info": offline_data.info(path),
        "info of a catalogue": offline_data.info("d4rl:pen-human-v1", root=path.parent),
        "check": offline_data.check(path, progress=False),
        "stats": offline_data.stats(path),
        "align": offline_data.align(path),
        "diff": offline_data.diff(path, path),
        "list": offline_data.list_datasets(root=path.parent),
        "search": offline_data.search("door human"),
        "quality": evil.episodes.quality(),
        "verify": offline_data.verify(path),
    }
    for name, result in results.items():
        page = Shown(result._repr_html_())
        assert page.tags <= {*ALLOWED, "ul", "li", "pre"}, name
        assert ("table" in page.tags) == (name not in {"diff", "info of a catalogue"}), name
        assert len(repr(result)) < 5000
        assert max(map(len, repr(result).splitlines())) < 300, name
    assert EVIL in Shown(results["info"]._repr_html_()).texts
    assert "foreign<b>" in Shown(results["verify"]._repr_html_()).texts
    assert "offline-data download d4rl:pen-human-v1" in repr(results["info of a catalogue"])


def test_findings_are_a_list_and_one_report(toys: Callable[..., Path], capsys: Any) -> None:
    path = toys([3, 1, 2], unknown_final=[1])
    found = offline_data.check(path, progress=False)
    assert isinstance(found, list)
    assert found == [*found] == pickle.loads(pickle.dumps(found))  # noqa: S301 -- our own
    assert {one.code for one in found} >= {"RL002", "RL016"}
    main(["check", str(path)])
    assert capsys.readouterr().out == f"{found!r}\n"
    page = Shown(found._repr_html_())
    assert page.texts[:4] == ["local:toy@1", "Code", "Severity", "Finding"]
    assert page.texts[-1] == found.summary
    for one in found:
        assert {one.code, one.severity} <= {*page.texts}, one
        assert any(text.endswith(one.message) for text in page.texts), one
    none = offline_data.check(path, select=["RL020"], progress=False)
    assert none == []
    assert Shown(none._repr_html_()).texts == [repr(none)] == [none.summary]


def test_long_lists_and_texts_are_cut() -> None:
    found = offline_data.search("d4rl")
    assert len(found) > 100
    assert len(found[0:2]) == 2
    lines = repr(found).splitlines()
    assert len(lines) == 62  # a header, 60 rows, and how many more
    assert lines[-1] == f"and {len(found) - 60:,} more"
    page = found._repr_html_()
    assert page.count("<tr>") == 61
    assert f"<p>and {len(found) - 60:,} more</p>" in page
    long = "<b>" + "x" * 5000 + "y"
    listed = Listing((replace(found[0], summary=long),))
    shown = Shown(listed._repr_html_())
    (title,) = shown.titles
    assert title.startswith("<b>xxx")
    assert title.endswith("xxxy")
    assert len(title) == 800
    assert max(map(len, shown.texts)) == 80


@pytest.mark.parametrize(
    ("shape", "dtype"), [((10, 12, 3), "uint8"), ((3, 10, 12), "uint8"), ((200, 240, 3), "uint8"), ((10, 12), "uint16")]
)  # fmt: skip
def test_an_episode_of_pixels_shows_frames(
    tmp_path: Path, shape: tuple[int, ...], dtype: str
) -> None:
    """Eight of twenty, compared with the values that were written; large ones have each third pixel."""
    numbers = np.random.default_rng(0)
    written = numbers.integers(0, np.iinfo(dtype).max, size=(26, *shape), dtype=dtype)
    batch = toy_batch([4, 20])
    write_toy(tmp_path / "toy", [replace(batch, observations={("observation", "<i>"): written})])
    page = Dataset(tmp_path / "toy", 2).episode(1)._repr_html_()
    pictures = re.findall(
        r'<img src="data:image/png;base64,([\w+/=]+)" alt="step (\d+)" title="step \2" height="96">',
        page,
    )
    rows = [int(row) for _, row in pictures]
    assert rows == [0, 3, 5, 8, 11, 14, 16, 19]
    assert "<code>observation/&lt;i&gt;</code>" in page
    frames = written[5:][rows]  # five observations are of the first episode
    if dtype == "uint16":
        low, high = int(frames.min()), int(frames.max())
        frames = np.rint(255 * (frames.astype(float) - low) / (high - low)).astype("uint8")
    frames = frames.transpose(0, 2, 3, 1) if shape[0] == 3 else frames
    for (data, _), frame in zip(pictures, frames, strict=True):
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
        step = 3 if shape[0] == 200 else 1
        grey = frame.ndim == 2
        assert np.array_equal(shown[..., 0] if grey else shown, frame[::step, ::step])


def test_an_episode_without_pixels_or_pillow_shows_no_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = toy_batch([3])
    frames = np.zeros((4, 10, 12, 3), np.uint8)
    write_toy(tmp_path / "toy", [replace(batch, observations={("observation",): frames})])
    episode = Dataset(tmp_path / "toy", 2).episode(0)
    assert episode._repr_html_().count("<img") == 3
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "<img" not in episode._repr_html_()
    assert "<h3>Episode 0</h3>" in episode._repr_html_()


def test_a_notebook_shows_frames_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = toy_batch([3, 4])
    frames = np.arange(9, dtype=np.uint8)[:, None, None, None] * np.ones((1, 10, 12, 3), np.uint8)
    write_toy(tmp_path / "toy", [replace(batch, observations={("observation",): frames})])
    write_toy(tmp_path / "plain", [batch])
    shown: dict[type, Any] = {}
    formatter = SimpleNamespace(for_type=shown.__setitem__)
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": formatter}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    ds = Dataset(tmp_path / "toy", 4)
    drawn = ds.sample()
    page = shown[TensorDict](drawn)
    data = re.findall(r'<img src="data:image/png;base64,([\w+/=]+)" alt="row \d"', page)
    found = [np.asarray(Image.open(io.BytesIO(base64.b64decode(one)))) for one in data]
    np.testing.assert_array_equal(found, drawn["observation"].numpy())
    assert "<code>next/reward</code>" in page
    for text in (
        Dataset(tmp_path / "plain", 4).sample(),
        drawn.exclude("index"),
        drawn[0],
        drawn[:0],
    ):
        assert shown[TensorDict](text) is None
