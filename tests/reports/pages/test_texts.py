"""Pages of text datasets: documents are those of the source, prompt and completion apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import offline_data
from offline_data.base.errors import UsageError
from offline_data.formats.options import TextOptions
from offline_data.reports.pages.report import episode_page, report_page
from offline_data.store.library import entry_at, list_datasets
from offline_data.text.tokenizer import load_tokenizer
from tests.pipeline.ingest.here import conversions_start_no_process
from tests.reports.pages.conftest import HOSTILE
from tests.reports.pages.parsed import Element, charts, data_of, parse
from tests.toys.text import write_tokenizer

__all__ = ["conversions_start_no_process"]

ROWS = [
    {"prompt": f"ask {n} ", "chosen": f"good {HOSTILE} {n} " * (1 + n % 3), "rejected": f"bad {n}"}
    for n in range(12)
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def report(
    folder: Path, tokenizer: Path, form: str, *, decode: bool = True, **text: Any
) -> Element:
    """Convert `ROWS` and return the page about them."""
    rows = [
        {"prompt": row["prompt"], "completion": row["chosen"]} if form == "prompt" else row
        for row in ROWS
    ]
    file = folder / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    options = TextOptions(str(tokenizer), form=form, **text)  # type: ignore[arg-type]
    stored = offline_data.convert(
        file, "x", source="text", text=options, root=folder / "root", progress=False
    )
    entry = entry_at(stored.path)
    with pytest.raises(UsageError, match="is text"):
        episode_page(entry, 0)
    found = load_tokenizer(str(tokenizer)).decode if decode else None
    return parse(report_page(entry, decode=found))


def documents(page: Element) -> list[list[dict[str, str]]]:
    """Return of each document, in order, the texts by the part that they are; two of a pair."""
    shown = data_of(page)["shown"]
    assert sorted(map(int, shown)) == [*range(len(ROWS))]
    return [
        [
            {str(pre.attributes["class"]): pre.text for pre in one.all("pre")}
            for one in parse(shown[str(number)]).all("figure")
        ]
        for number in range(len(ROWS))
    ]


def test_prompt_and_completion_stand_apart(tmp_path: Path, tokenizer: Path) -> None:
    page = report(tmp_path, tokenizer, "prompt")
    assert documents(page) == [
        [{"prompt": row["prompt"], "completion": row["chosen"]}] for row in ROWS
    ]
    (summary,) = page.all("details", id="leaves")
    assert "12 documents; 0 of 12 documents cut off (0 %)." in summary.text
    assert set(charts(summary)) == {"tokens of a document", "tokens of a prompt"}
    assert sum(charts(summary)["tokens of a document"]["series"][0]["values"]) == 12
    (entry,) = list_datasets(tmp_path / "root")
    for part, with_features in (("features", True), ("episodes", False)):
        some = parse(report_page(entry, only=[part], decode=lambda _: ""))
        assert bool(charts(some)) == with_features
        assert "Schema" in some.text
        assert bool(some.all("div", id="data")) != with_features
    data = data_of(page)
    assert (data["kind"], data["tracks"][:-1], data["cameras"]) == ("text", [], [])
    stated = [parse(data["shown"][str(n)]).all("small")[0].text for n in range(len(ROWS))]
    lengths = next(one["values"] for one in data["columns"] if one["key"] == "length")
    assert [int(one.split()[0]) for one in stated] == lengths


@pytest.mark.parametrize("pad", [False, True])
def test_chosen_stands_beside_rejected(tmp_path: Path, tokenizer: Path, pad: bool) -> None:
    page = report(tmp_path, tokenizer, "pairs", pad=pad, max_length=160)
    for number, pair in enumerate(documents(page)):
        for document, name in zip(pair, ("chosen", "rejected"), strict=True):
            assert document["prompt"] == ROWS[number]["prompt"]
            assert ROWS[number][name].startswith(document["completion"])
        (shown,) = parse(data_of(page)["shown"][str(number)]).children
        assert not isinstance(shown, str)
        assert [one.all("b")[0].text for one in shown.all("figure")] == ["chosen", "rejected"]
    cut = "8 of 12 pairs cut off (66.7 %)" if pad else "8 of 24 documents cut off (33.3 %)"
    assert f"12 pairs; {cut}." in page.text  # the chosen texts of two and three sentences
    documents_, *tokens, _ = data_of(page)["facts"]
    assert documents_ == ("12 documents" if pad else "24 documents")
    assert [one.endswith(" tokens") for one in tokens] == [True] * (not pad)
    lengths, beginnings = data_of(page)["columns"]  # others are of each of a pair
    assert (lengths["key"], len(lengths["values"])) == ("length", 12)
    words = [beginnings["words"][code] for code in beginnings["values"]]
    pairs = zip(words, ROWS, strict=True)
    assert all(one.startswith(row["prompt"].strip()) for one, row in pairs)
    assert data_of(page)["unmarked"] is not pad  # without padding, a pair is two episodes


def test_without_a_tokenizer_kept_text_or_tokens_are_shown(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "kept").mkdir()
    kept = report(tmp_path / "kept", tokenizer, "prompt", decode=False, keep_text=True)
    assert documents(kept)[0] == [{"text": ROWS[0]["prompt"] + ROWS[0]["chosen"]}]
    (tmp_path / "ids").mkdir()
    page = report(tmp_path / "ids", tokenizer, "prompt", decode=False)
    assert "`report --tokenizer NAME` decodes with one" in page.text
    ids = [int(one) for one in documents(page)[0][0]["prompt"].split()]
    assert load_tokenizer(str(tokenizer)).decode(ids) == ROWS[0]["prompt"]
