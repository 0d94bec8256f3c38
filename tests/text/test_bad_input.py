"""Text that cannot be read, and tokenizers that cannot be loaded, are errors that say where."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import processors

from offline_data.base.errors import (
    FormatError,
    NetworkError,
    NotFoundError,
    OfflineDataError,
    UsageError,
)
from offline_data.formats.options import TextOptions
from offline_data.text import tokenizer
from offline_data.text.tokenizer import load_tokenizer
from tests.text.conftest import Convert
from tests.toys.text import train_tokenizer, write_chat_tokenizer

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"
GOOD = json.dumps({"text": "the cat"}) + "\n"
FILES: dict[str, tuple[bytes, str]] = {
    "columns.jsonl": (b'{"body": "x"}\n', "has no columns of a known form; it has 'body'"),
    "line.jsonl": (GOOD.encode() + b"{oops\n", "line 2, is not JSON"),
    "deep.jsonl": (b"[" * 100_000, "is not JSON|too deep|nested"),
    "list.jsonl": (GOOD.encode() + b"[1]\n", r"line 2, is \[1\]; expected an object"),
    "number.jsonl": (b'{"text": 7}\n', "row 0: text is 7; expected text"),
    "surrogate.jsonl": (
        GOOD.encode() + b'{"text": "\\ud800"}\n',
        "row 1: text has half of a surrogate",
    ),
    "array.json": (b'[{"text": "x"}, 3]', "item 1, is 3; expected an object"),
    "latin.txt": ("é".encode("latin-1"), "is not UTF-8"),
    "ragged.csv": (b"text,n\na,1\nb\n", "line 3, has 1 cell; expected 2"),
    "quote.csv": (b'text\n"open\n', "is not CSV"),
    "empty.csv": (b"", "is empty: expected a line of column names"),
    "cut.jsonl.gz": (gzip.compress(GOOD.encode() * 999)[:-20], "damaged or cut short"),
    "plain.jsonl.gz": (GOOD.encode(), "damaged or cut short"),
    "x.parquet": (b"PAR1" + b"\0" * 40, "damaged or cut short"),
    "page.parquet": (b"<!DOCTYPE html>", "is not a Parquet file"),
    "x.arrow": (b"ARROW1\0\0" + b"\0" * 40, "damaged or cut short"),
    "twice.csv": (b"text,text\na,b\n", "has 2 columns called 'text'"),
    "large.jsonl": (b'{"text": "a", "score": 1e39}\n', r"row 0: score is 1e\+39; expected a number"),
    "long.jsonl": (
        b'{"text": "a", "score": %s}\n' % (b"1" * 400),
        "row 0: score is an integer of .* expected a number",
    ),
    "cut.parquet": (b"", "damaged or cut short"),
    **{f"lfs.{kind}": (POINTER, "is a Git LFS pointer") for kind in (
        "parquet", "arrow", "jsonl", "json", "csv", "txt", "txt.gz"
    )},
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files(convert: Convert, tmp_path: Path, name: str) -> None:
    content, expected = FILES[name]
    if name == "cut.parquet":
        pq.write_table(pa.table({"text": ["the cat"] * 99}), tmp_path / name)
        content = (tmp_path / name).read_bytes()[:-40]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match=expected) as caught:
        convert(tmp_path / name)
    assert name in caught.value.message
    assert not list((tmp_path / "root").rglob("manifest.json"))


def test_rows_that_are_not_of_the_form_can_be_left_out(convert: Convert, tmp_path: Path) -> None:
    rows = [{"text": "the cat"}, {"text": 7}, {"text": "\ud800"}, {"text": "a dog"}]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = convert(path, skip_bad_episodes=True)
    assert np.asarray(reader.episodes["row",]).tolist() == [0, 3]
    assert [one["reason"][:5] for one in reader.manifest.skipped] == ["row 1", "row 2"]


def test_a_missing_column_names_those_there_are(convert: Convert, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"question": "why?", "answer": "so"}\n')
    with pytest.raises(
        FormatError, match=r"no column 'prompt'.*it has 'question', 'answer'"
    ) as caught:
        convert(path, form="prompt")
    assert caught.value.shell_hint == "name the column: --column prompt=NAME"
    assert caught.value.hint == "name the column: text=TextOptions(columns={'prompt': NAME})"


def test_conversations_need_a_template(convert: Convert, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "why?"}]}))
    with pytest.raises(UsageError, match="has no chat template") as caught:
        convert(path, skip_bad_episodes=True)
    assert "a tokenizer of a chat model" in str(caught.value.hint)


def test_an_end_of_text_that_the_tokenizer_does_not_name(convert: Convert, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("the cat")
    with pytest.raises(UsageError, match=r"tokenizer\.json names no end-of-text token") as caught:
        convert(tmp_path / "x.txt", eos="yes")
    assert "choose text=TextOptions(eos='auto')" in str(caught.value.hint)


@pytest.mark.parametrize("pad", [False, True], ids=["packed", "padded"])
@pytest.mark.parametrize("length", [1, 2])
def test_a_length_that_special_tokens_fill(
    convert: Convert, tmp_path: Path, pad: bool, length: int
) -> None:
    backend = train_tokenizer()
    backend.add_special_tokens(["[CLS]", "[SEP]"])
    backend.post_processor = processors.BertProcessing(("[SEP]", 298), ("[CLS]", 297))
    backend.save(str(tmp_path / "bert.json"))
    (tmp_path / "x.txt").write_text("the cat sat on the mat")
    with pytest.raises(UsageError, match=f"max_length is {length}, .* adds 2 to each") as caught:
        convert(tmp_path / "x.txt", tokenizer=tmp_path / "bert.json", max_length=length, pad=pad)
    assert caught.value.hint == "expected at least 3"


def test_a_revision_of_a_file(convert: Convert, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("the cat")
    with pytest.raises(UsageError, match="is on this disk: it has no revision 'v1'"):
        convert(tmp_path / "x.txt", tokenizer_revision="v1")


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("We couldn't connect to the hub") from httpx.ConnectError("no route")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", unreachable)
    monkeypatch.setattr("offline_data.text.tokenizer.require_network", lambda: None)
    with pytest.raises(NetworkError, match="'a/b' is not on this disk, and the hub does not"):
        load_tokenizer("a/b")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("hello", "messages is 'hello'; expected a list of turns"),
        ([{"role": "user", "content": "\ud800"}], "messages has half of a surrogate pair"),
    ],
)
def test_conversations_that_are_none(
    convert: Convert, tmp_path: Path, chat_tokenizer: Path, messages: object, said: str
) -> None:
    path = tmp_path / "x.jsonl"
    good = [{"role": "user", "content": "why?"}]
    path.write_text(json.dumps({"messages": good}) + "\n" + json.dumps({"messages": messages}))
    with pytest.raises(FormatError, match=f"row 1: {said}"):
        convert(path, tokenizer=chat_tokenizer)
    assert convert(path, tokenizer=chat_tokenizer, skip_bad_episodes=True).episode_count == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"form": "pairs"}, "no column 'chosen', which form pairs needs"),
        ({"columns": {"score": "zz"}}, "no column 'zz', which was named"),
    ],
)
def test_columns_that_there_are_not(
    convert: Convert, tmp_path: Path, options: dict[str, object], said: str
) -> None:
    (tmp_path / "x.jsonl").write_text(GOOD)
    with pytest.raises(FormatError, match=said):
        convert(tmp_path / "x.jsonl", **options)


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


def test_a_template_that_writes_too_much(
    convert: Convert, tmp_path: Path, chat_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "MAX_LINE", 9)
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "why?"}]}))
    with pytest.raises(FormatError, match="row 0: The chat template writes more than 9 characters"):
        convert(path, tokenizer=chat_tokenizer)


def test_turns_without_a_role(convert: Convert, tmp_path: Path, chat_tokenizer: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"messages": [{"from": "user"}]}))
    with pytest.raises(FormatError, match="expected turns with role and content"):
        convert(path, tokenizer=chat_tokenizer)


def test_only_empty_rows(convert: Convert, tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("\n\n")
    with pytest.raises(NotFoundError):
        convert(path)


def test_arrow_without_columns_or_words(convert: Convert, tmp_path: Path) -> None:
    nothing = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    words = pa.DictionaryArray.from_arrays(
        pa.array([0, None, 0], pa.int8()), pa.array([None], "string")
    )
    nulls = pa.RecordBatch.from_arrays([words], ["text"])
    for name, batch, kind, said in (
        ("columns", nothing, FormatError, "columns.arrow has 2 rows without columns"),
        ("words", nulls, NotFoundError, "no episodes; skipped words.arrow: 3 rows have no text"),
    ):
        with pa.ipc.new_file(str(tmp_path / f"{name}.arrow"), batch.schema) as sink:
            sink.write_batch(batch)
        with pytest.raises(kind, match=said):
            convert(tmp_path / f"{name}.arrow")


def test_folder_without_text(convert: Convert, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "README.md").write_text("nothing")
    with pytest.raises(FormatError, match=r"has no text: expected \.parquet"):
        convert(folder)


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("", UsageError, "no tokenizer was named"),
        ("./nothing.json", NotFoundError, "nothing.json"),
        ("./nothing", NotFoundError, "There is no tokenizer at"),
        ("nobody/nothing", NotFoundError, "cannot be loaded"),
        ("damaged.json", FormatError, "is not a tokenizer.json"),
        ("folder", FormatError, "is not a tokenizer"),
        ("slow", FormatError, r"has no fast version \(tokenizer.json\)"),
        ("deep", FormatError, "is not a tokenizer: .*recursion limit"),
        ("dropping.json", FormatError, "its post-processor drops the text"),
    ],
)
def test_tokenizers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: type[OfflineDataError],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.json").write_text('{"version": "1.0", "model": {"type": "BPE"}}')
    (tmp_path / "folder").mkdir()
    (tmp_path / "slow").mkdir()
    config = '{"tokenizer_class": "ByT5Tokenizer"}'  # of bytes: it needs no vocabulary
    (tmp_path / "slow" / "tokenizer_config.json").write_text(config)
    write_chat_tokenizer(tmp_path / "deep")
    good = json.loads((tmp_path / "deep" / "tokenizer.json").read_text())
    deep = '{"type": "Sequence", "normalizers": [' * 300 + "]}" * 300
    changed = json.dumps({**good, "normalizer": 0}).replace(
        '"normalizer": 0', f'"normalizer": {deep}'
    )
    (tmp_path / "deep" / "tokenizer.json").write_text(changed)
    single = [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}]
    known = {"<|end|>": {"id": "<|end|>", "ids": [0], "tokens": ["<|end|>"]}}
    pair = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    good["post_processor"] = {
        "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": known
    }  # fmt: skip
    (tmp_path / "dropping.json").write_text(json.dumps(good))
    with pytest.raises(kind, match=said):
        load_tokenizer(name, offline=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"form": "chat"}, "expected one of text, prompt, pairs, messages"),
        ({"max_length": 0}, "expected 1 to"),
        ({"pad": True}, "Padded rows need a length"),
        ({"tokenizer_sha256": "0" * 63}, "expected 64 hex digits"),
        ({"columns": {"promt": "x"}}, "There is no role 'promt'"),
        ({"eos": "on"}, "eos is 'on'; expected one of auto, yes, no"),
    ],
)
def test_options(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        TextOptions("x.json", **options)  # type: ignore[arg-type]


def test_options_survive_json() -> None:
    options = TextOptions("a/b.json", "pairs", {"chosen": "good"}, max_length=7, pad=True)
    assert TextOptions.from_record(json.loads(json.dumps(options.to_json()))) == options
    assert options.recorded()["tokenizer"] == "b.json"
    with pytest.raises(FormatError, match="has the unknown key 'max_lenght'") as caught:
        TextOptions.from_record({"max_lenght": 3})
    assert caught.value.hint == "did you mean max_length?"
