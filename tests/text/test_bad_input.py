"""Text that is left out, a hub that does not answer, tokenizers that take endless memory or time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from offline_data.base.errors import FormatError, NetworkError
from offline_data.formats.options import TextOptions
from offline_data.text.tokenizer import load_tokenizer
from tests.text.conftest import Convert
from tests.toys.text import write_chat_tokenizer

GOOD = {"role": "user", "content": "why?"}


@pytest.mark.parametrize(
    ("column", "good", "bad"),
    [
        ("text", "the cat", [7, "\ud800"]),
        ("messages", [GOOD], ["hello", [{**GOOD, "content": "\ud800"}]]),
    ],
)
def test_rows_that_are_not_of_the_form_can_be_left_out(
    convert: Convert, tmp_path: Path, chat_tokenizer: Path, column: str, good: Any, bad: Any
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({column: one}) + "\n" for one in (good, *bad, good)))
    reader = convert(path, tokenizer=chat_tokenizer, skip_bad_episodes=True)
    assert np.asarray(reader.episodes["row",]).tolist() == [0, 3]
    assert [one["reason"][:5] for one in reader.manifest.skipped] == ["row 1", "row 2"]


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("We couldn't connect to the hub") from httpx.ConnectError("no route")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", unreachable)
    monkeypatch.setattr("offline_data.text.tokenizer.require_network", lambda: None)
    with pytest.raises(NetworkError, match="'a/b' is not on this disk, and the hub does not"):
        load_tokenizer("a/b")


def hostile(folder: Path, what: str) -> Path:
    """Write a tokenizer that takes endless memory or time; returns its file or folder."""
    write_chat_tokenizer(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    if what == "id":
        tokenizer["model"]["vocab"]["zz"] = 2**31 + 5
    if what == "normalizer":
        blown = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10**7}
        tokenizer["normalizer"] = blown
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    template = {
        "text": "{{ 'x' * 4294967296 }}",
        "loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    }
    (folder / "chat_template.jinja").write_text(template.get(what, "why?"))
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("id", "Tokenizer .* cannot be loaded: the process that did so was ended by SIGABRT"),
        ("normalizer", "x.jsonl, or tokenizer .*, is damaged: .* was ended by SIGABRT"),
        ("text", "row 0: The chat template fails: MemoryError"),
        ("loop", "or tokenizer .*, is damaged: the process that read it took too much processor"),
    ],
)
def test_hostile_tokenizers_have_limits(
    convert: Convert, tmp_path: Path, processes: None, what: str, said: str
) -> None:
    path = tmp_path / "x.jsonl"
    turns = [{"role": "user", "content": "a cat and a dog"}]
    path.write_text("".join(json.dumps({"messages": turns, "text": "a" * 999}) + "\n"))
    form = "text" if what == "normalizer" else "messages"
    with pytest.raises(FormatError, match=said):
        convert(path, tokenizer=hostile(tmp_path / "tokenizer", what), form=form)
    assert not list((tmp_path / "root").rglob("manifest.json"))


def test_options_survive_json() -> None:
    options = TextOptions("a/b.json", "pairs", {"chosen": "good"}, max_length=7, pad=True)
    assert TextOptions.from_record(json.loads(json.dumps(options.to_json()))) == options
    assert options.recorded()["tokenizer"] == "b.json"
