"""Elements and pages: everything is escaped, and a page may load nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from offline_data.document.html import Html, element, facts, table_of, text
from offline_data.reports.pages import charts as drawn
from offline_data.reports.pages import page as page_module
from offline_data.reports.pages.markdown import render
from offline_data.reports.pages.page import data_block, page
from tests.reports.pages.parsed import charts, parse

HOSTILE = '</script></style><img src=x onerror="alert(1)">\'\u202e&amp;\x00\ud800'


def test_texts_stay_texts_in_content_and_attributes() -> None:
    made = element("p", HOSTILE, [element("b", HOSTILE), None], title=HOSTILE, hidden=False)
    (found,) = parse(made).children
    assert not isinstance(found, str)
    clean = (
        HOSTILE.replace("\u202e", "\ufffd").replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    )
    assert found.text == clean * 2
    assert found.attributes == {"title": clean}
    assert [one.name for one in found.all("*")] == ["b"]


def test_long_texts_are_cut_and_passwords_hidden() -> None:
    assert len(text("x" * 50_000)) == 10_001
    assert text("https://me:hush@host.example/?token=f00") == "https://***@host.example/?token=***"


def test_data_in_a_page_is_json_that_cannot_end_its_element() -> None:
    made = data_block({"title": HOSTILE, "values": [1.5, None]})
    assert charts(parse(made)) == {HOSTILE: {"title": HOSTILE, "values": [1.5, None]}}
    assert made.count("<") == 2
    with pytest.raises(ValueError, match="JSON"):
        data_block([float("nan")])


def test_tables_and_lists_of_facts() -> None:
    found = parse(table_of(("NAME", "COUNT"), [("a<b", 3), (element("b", "x"), 4)], numbers=1))
    assert [[cell.text for cell in row.all("td")] for row in found.all("tr")[1:]] == [
        ["a<b", "3"],
        ["x", "4"],
    ]
    assert {cell.text for cell in found.all("*", class_="number")} == {"COUNT", "3", "4"}
    listed = parse(facts({"kept": 0, "empty": "", "none": None, "list": []}))
    assert [one.text for one in listed.all("*")] == ["kept0", "kept", "0"]


def test_descriptions_keep_safe_markup_only() -> None:
    source = (
        "See [`it`](https://a.b/c_d), http://me:hush@h.c/x and *this*.\n\n- **one**\n  more\n- two\n"
        "[x](javascript:alert(1)) ![i](https://i.j/k.png) <script>alert(1)</script> "
        '[a](https://x.y/"onclick="z)\n# T ' + HOSTILE + "\n" + "**" * 3000
    )
    made = parse(render(source))
    assert {one.name for one in made.all("*")} <= {"p", "ul", "li", "a", "b", "em", "code"}
    for link in made.all("a"):
        assert str(link.attributes["href"]).startswith(("https://", "http://"))
        assert set(link.attributes) == {"href", "rel"}
    assert made.all("a")[0].text == "it"
    assert [one.text for one in made.all("li")][:1] == ["one more"]
    assert "javascript:alert(1)" in made.text
    assert "hush" not in made.text


def test_colours_are_told_apart_without_red_and_green() -> None:
    style = (Path(page_module.__file__).parent / "page.css").read_text(encoding="utf-8")
    deuteranopia = np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.01182, 0.04294, 0.968881]]
    )  # fmt: skip
    # Machado, Oliveira & Fernandes 2009, severity 1, on linear RGB
    palettes = re.findall(r"--s1: (#\w+); --s2: (#\w+); --s3: (#\w+); --s4: (#\w+)", style)
    assert len(set(palettes)) == 2
    for palette in palettes:
        rgb = np.array([[int(one[i : i + 2], 16) for i in (1, 3, 5)] for one in palette]) / 255
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        seen = np.clip(linear @ deuteranopia.T, 0, 1) ** (1 / 2.2)
        apart = [np.abs(a - b).max() for a, b in combinations(seen, 2)]
        assert min(apart) > 0.12, palette


@pytest.mark.parametrize("served", [False, True])
def test_the_policy_of_a_page_allows_its_own_style_and_script_only(served: bool) -> None:
    made = parse(page(HOSTILE, element("p", "content"), links=[("#x", HOSTILE)], served=served))
    (policy,) = [one for one in made.all("meta") if one.attributes.get("http-equiv")]
    assert policy.attributes["http-equiv"] == "Content-Security-Policy"
    rules = dict(rule.split(" ", 1) for rule in str(policy.attributes["content"]).split("; "))
    (style,), (script,) = made.all("style"), made.all("script")
    folder = Path(page_module.__file__).parent
    for content, names in (
        (style.text, ("page.css", "viewer.css")),
        (
            script.text,
            ("page.js", "list.js", "viewer.js"),
        ),
    ):
        assert content == "".join((folder / name).read_text(encoding="utf-8") for name in names)
    for name, content in (("style-src", style.text), ("script-src", script.text)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules.pop(name) == f"'sha256-{digest}'"
    own = "'self'" if served else "'none'"
    assert rules == {
        "default-src": "'none'",
        "base-uri": "'none'",
        "img-src": "data: 'self'" if served else "data:",
        "media-src": own,
        "form-action": own,
        **({"connect-src": "'self'"} if served else {}),
    }
    assert not any("style" in one.attributes for one in made.all("*"))


def test_numbers_of_charts_have_six_digits_and_nan_is_null() -> None:
    values = np.array([[1 / 3, np.nan], [-np.inf, 1e20]])
    assert drawn.numbers(values) == [0.333333, None, None, 1e20]
    assert drawn.numbers(np.array([True, False])) == [1, 0]
    made = drawn.lines("<a>", [0, 1], {"x": [np.nan, 2], "y": [1, 2]}, marks=[(1, "end")])
    assert charts(parse(made)) == {
        "<a>": {
            "kind": "lines",
            "title": "<a>",
            "x": "step",
            "steps": [0, 1],
            "series": [{"name": "x", "values": [None, 2.0]}, {"name": "y", "values": [1, 2]}],
            "marks": [[1, "end"]],
        }
    }
    assert isinstance(made, Html)
