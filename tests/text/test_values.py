"""Tokens on disk are those of the tokenizer, called by the test on rows that the test wrote."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, processors
from tokenizers.models import WordLevel

import offline_data
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.formats.options import TextOptions
from offline_data.store.reader import DatasetReader
from offline_data.text.tokenizer import Tokenizer as OurTokenizer
from offline_data.text.tokenizer import pin_tokenizer
from tests.slow import every
from tests.text.conftest import Convert
from tests.toys.text import CHAT_TEMPLATE, train_tokenizer

TEXTS = [
    "the cat sat",
    'a "dog", barked\nat the moon',
    "",
    "why?",
    "ünï😀 \x00 cödé",
    None,
    "x" * 40,
]
PAIRS = [
    {"prompt": "why did the", "chosen": " chicken cross", "rejected": " road"},
    {"prompt": "a", "chosen": " dog barked at the moon", "rejected": ""},
    {"prompt": "", "chosen": "", "rejected": ""},
]


def documents(reader: DatasetReader) -> list[list[int]]:
    ids = np.asarray(reader.step(("input_ids",)))
    return [row.tolist() for row in np.split(ids, np.cumsum(reader.lengths)[:-1])]


@pytest.fixture
def tokens(tokenizer_file: Path) -> Any:
    backend = Tokenizer.from_file(str(tokenizer_file))
    return lambda text: backend.encode(text).ids


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    elif path.suffix == ".arrow":
        table = pa.Table.from_pylist(rows)
        opener = pa.ipc.new_stream if "stream" in path.name else pa.ipc.new_file
        with opener(str(path), table.schema) as sink:
            sink.write_table(table, max_chunksize=2)
    elif ".csv" in path.name or ".tsv" in path.name:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "wt", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(
                file, list(rows[0]), delimiter="\t" if ".tsv" in path.name else ","
            )
            writer.writeheader()
            writer.writerows(rows)
    elif ".json" in path.suffixes:
        array = json.dumps(rows, indent=1).encode()
        path.write_bytes(gzip.compress(array) if path.suffix == ".gz" else array)
    else:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "x.parquet",
        "x.arrow",
        "stream.arrow",
        "x.jsonl",
        "x.jsonl.gz",
        "x.json",
        "x.json.gz",
        "x.csv",
        "x.tsv.gz",
    ],
)
def test_formats_of_files(convert: Convert, tokens: Any, tmp_path: Path, name: str) -> None:
    texts = [text for text in TEXTS if text is not None]
    if sys.version_info < (3, 11) and "sv" in name:  # whose csv module does not know NUL
        texts = [text.replace("\0", "") for text in texts]
    reader = convert(write(tmp_path / name, [{"text": text} for text in texts]))
    assert documents(reader) == [tokens(text) for text in texts if text]
    assert np.asarray(reader.episodes["row",]).tolist() == [0, 1, 3, 4, 5]
    (skipped,) = reader.manifest.skipped
    assert skipped["where"] == name
    assert skipped["reason"].startswith("1 row has no text")


def test_missing_texts_are_counted(convert: Convert, tmp_path: Path) -> None:
    reader = convert(write(tmp_path / "x.parquet", [{"text": text} for text in TEXTS]))
    assert reader.manifest.skipped[0]["reason"].startswith("2 rows have no text")


def test_a_line_of_plain_text_is_a_document(convert: Convert, tokens: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"the cat\r\n\r\n\n  a dog \nlast")
    assert documents(convert(path)) == [tokens(one) for one in ("the cat", "  a dog ", "last")]


def test_ends_rewards_and_texts(convert: Convert, tokens: Any, tmp_path: Path) -> None:
    rows = [{"text": text, "score": n / 2} for n, text in enumerate(["the cat sat", "x" * 40], 1)]
    reader = convert(write(tmp_path / "x.jsonl", rows), max_length=6, keep_text=True)
    short, cut = tokens("the cat sat"), tokens("x" * 40)[:6]
    assert documents(reader) == [short, cut]
    last = np.cumsum(reader.lengths) - 1
    flags = {
        name: np.asarray(reader.step(("next", name)))[:, 0] for name in ("terminated", "truncated")
    }
    assert np.flatnonzero(flags["terminated"]).tolist() == [last[0]]
    assert np.flatnonzero(flags["truncated"]).tolist() == [last[1]]
    reward = np.asarray(reader.step(("next", "reward")))[:, 0]
    assert reward[last].tolist() == [0.5, 1.0]
    assert reward.sum() == 1.5
    texts = reader.as_text(("text",), np.asarray(reader.episodes["text",]), "episodes")
    assert texts.tolist() == ["the cat sat", "x" * 40]


@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_prompts(convert: Convert, tokens: Any, tmp_path: Path, layout: str) -> None:
    rows = [{"q": "why did the", "a": " chicken"}, {"q": "", "a": "road"}, {"q": "a dog", "a": ""}]
    columns = {"prompt": "q", "completion": "a"}
    path = write(tmp_path / "x.jsonl", rows)
    reader = convert(path, form="prompt", columns=columns, separator="\n", layout=layout)
    whole = [tokens(f"{row['q']}\n{row['a']}") for row in rows]
    prompts = [len(tokens(row["q"] + "\n")) for row in rows]
    assert documents(reader) == whole
    assert np.asarray(reader.episodes["prompt_length",]).tolist() == prompts
    mask = np.asarray(reader.step(("completion_mask",))).tolist()
    assert mask == [i >= n for ids, n in zip(whole, prompts, strict=True) for i in range(len(ids))]


def test_padded_prompts(convert: Convert, tokens: Any, tmp_path: Path) -> None:
    rows = [{"prompt": "why did the", "completion": " chicken cross the road and then"}] * 2
    rows.append({"prompt": "a", "completion": " dog"})
    reader = convert(write(tmp_path / "x.jsonl", rows), max_length=9, pad=True)
    ids, mask = (np.asarray(reader.step((key,))) for key in ("input_ids", "attention_mask"))
    for i, row in enumerate(rows):
        found = tokens(row["prompt"] + row["completion"])[:9]
        assert ids[i].tolist() == found + [0] * (9 - len(found))  # <|end|> pads
        assert mask[i].tolist() == [True] * len(found) + [False] * (9 - len(found))
    assert np.asarray(reader.step(("prompt_rindex",))).tolist() == [
        len(tokens(row["prompt"])) - 1 for row in rows
    ]
    assert np.asarray(reader.step(("next", "truncated")))[:, 0].tolist() == [True, True, False]


def test_pairs(convert: Convert, tokens: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", PAIRS)
    reader = convert(path)
    expected = [
        tokens(row["prompt"] + row[role]) for row in PAIRS[:2] for role in ("chosen", "rejected")
    ]
    assert documents(reader) == expected
    columns = {role: role for role in ("prompt", "chosen", "rejected")}
    about = {"form": "pairs", "columns": columns, "separator": "", "eos": None}
    assert reader.manifest.about["text"] == about
    assert np.asarray(reader.episodes["chosen",]).tolist() == [True, False, True, False]
    assert np.asarray(reader.episodes["row",]).tolist() == [0, 0, 1, 1]
    padded = convert(path, max_length=30, pad=True, keep_text=True)
    for n, role in enumerate(("chosen", "rejected")):
        ids = np.asarray(padded.step((f"{role}_data", "input_ids")))
        mask = np.asarray(padded.step((f"{role}_data", "attention_mask")))
        assert [row[here].tolist() for row, here in zip(ids, mask, strict=True)] == expected[n::2]
        texts = padded.as_text((role,), np.asarray(padded.episodes[role,]), "episodes")
        assert texts.tolist() == [row["prompt"] + row[role] for row in PAIRS[:2]]


def test_pairs_stay_together_in_a_split(convert: Convert, tmp_path: Path) -> None:
    rows = [{"prompt": "why", "chosen": f" a {n}", "rejected": f" {n}"} for n in range(9)]
    reader = convert(write(tmp_path / "x.jsonl", rows))
    ds = offline_data.open_dataset(reader.path)
    views = ds.split(train=0.7, test=0.3, seed=1)
    found = {name: view.episodes["row"].tolist() for name, view in views.items()}
    assert {name: len(numbers) for name, numbers in found.items()} == {"train": 12, "test": 6}
    assert sorted(found["train"] + found["test"]) == sorted([*range(9), *range(9)])
    for name, view in views.items():
        assert view.episodes["chosen"].tolist() == [True, False] * (len(found[name]) // 2)
        assert found[name][::2] == found[name][1::2]
        made = ds.preprocess([f"split:{name},train=0.7,test=0.3,seed=1"], dest=tmp_path / name)
        assert np.asarray(made.reader.episodes["row",]).tolist() == found[name]


def test_pairs_without_a_prompt(convert: Convert, tokens: Any, tmp_path: Path) -> None:
    rows = [{"chosen": "the cat", "rejected": "a dog"}]
    reader = convert(write(tmp_path / "x.jsonl", rows))
    assert documents(reader) == [tokens("the cat"), tokens("a dog")]
    assert np.asarray(reader.episodes["prompt_length",]).tolist() == [0, 0]


def test_conversations(convert: Convert, tokens: Any, tmp_path: Path, chat_tokenizer: Path) -> None:
    assert "<|end|>" in CHAT_TEMPLATE
    turns = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "the moon"}]
    rows: list[dict[str, Any]] = [{"messages": turns}, {"messages": turns[:1]}]
    reader = convert(write(tmp_path / "x.parquet", rows), tokenizer=chat_tokenizer)
    asked = "<|user|>why?<|end|>"
    whole = [asked + "<|assistant|>the moon<|end|>", asked]
    assert documents(reader) == [tokens(text) for text in whole]
    prompt = len(tokens(asked + "<|assistant|>"))
    assert np.asarray(reader.episodes["prompt_length",]).tolist() == [prompt, 0]


def test_pairs_of_conversations(
    convert: Convert, tokens: Any, tmp_path: Path, chat_tokenizer: Path
) -> None:
    def turns(answer: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": "why?"}, {"role": "assistant", "content": answer}]

    rows = [{"prompt": "why?", "chosen": turns("the moon"), "rejected": turns("a mat")}]
    reader = convert(write(tmp_path / "x.jsonl", rows), tokenizer=chat_tokenizer)
    begin = "<|user|>why?<|end|><|assistant|>"
    assert documents(reader) == [tokens(f"{begin}{one}<|end|>") for one in ("the moon", "a mat")]


MARKS = ["<s>", "</s>", "[CLS]", "[SEP]", "[xx]"]


def template(single: str, pair: str | None = None) -> Any:
    names = [("<|end|>", 0), *((name, 300 + n) for n, name in enumerate(MARKS))]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=names)


def marked(folder: Path, processor: Any, *, name: str = "marked.json") -> tuple[Path, Tokenizer]:
    """Write a tokenizer that adds tokens to texts; returns its file and the tokenizer."""
    backend = train_tokenizer()
    vocabulary = json.loads(backend.to_str())["model"]["vocab"]
    filler = [f"filler{n}" for n in range(300 - len(vocabulary))]
    backend.add_special_tokens([*filler, *MARKS])
    backend.post_processor = processor
    backend.save(str(folder / name))
    return folder / name, backend


PROCESSORS = {
    "end": template("$A </s>"),
    "begin": template("<s> $A"),
    "both": template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "two": template("$A </s> [xx]", "$A </s> $B </s> [xx]"),
    "sequence": processors.Sequence([processors.ByteLevel(), template("<s> $A </s>")]),
    "bert": processors.BertProcessing(("[SEP]", 303), ("[CLS]", 302)),
    "roberta": processors.RobertaProcessing(("</s>", 301), ("<s>", 300)),
    "none": processors.ByteLevel(),
}


@pytest.mark.parametrize(("name", "length"), every(4, PROCESSORS, [None, 7, 9, 30]))
def test_loss_masks_by_offsets(
    convert: Convert, tmp_path: Path, name: str, length: int | None
) -> None:
    """The prompt is what the tokenizer made of its characters, and what it adds before these."""
    file, backend = marked(tmp_path, PROCESSORS[name])
    pairs = [
        ("why did the", " chicken cross the road?"),
        ("a dog", ""),
        ("", "the moon"),
        ("x" * 9, " cat"),
    ]
    rows = [{"prompt": prompt, "completion": end} for prompt, end in pairs]
    if length is not None:
        backend.enable_truncation(length)
    ids, mask = [], []
    for prompt, end in pairs:
        whole = backend.encode(prompt + end)
        marks, stops = np.array(whole.special_tokens_mask), np.array(whole.offsets)[:, 1]
        text = np.flatnonzero(marks == 0)
        learnt = (np.arange(len(marks)) >= text[0]) & (marks.astype(bool) | (stops > len(prompt)))
        if whole.overflowing and not learnt[text].any():
            learnt[:] = False  # it was cut off within the prompt
        ids.append(whole.ids)
        mask.append(learnt.tolist())
    path = write(tmp_path / "x.jsonl", rows)
    packed = convert(path, tokenizer=file, form="prompt", eos="no", max_length=length)
    assert documents(packed) == ids
    lengths = np.cumsum(packed.lengths)[:-1]
    found = np.split(np.asarray(packed.step(("completion_mask",))), lengths)
    assert [one.tolist() for one in found] == mask
    assert np.asarray(packed.episodes["prompt_is_prefix",]).all()
    assert not any("prompt" in note for note in packed.manifest.notes)
    if length is not None:
        padded = convert(path, tokenizer=file, form="prompt", eos="no", max_length=length, pad=True)
        last = [one.index(True) - 1 if True in one else len(one) - 1 for one in mask]
        assert np.asarray(padded.step(("prompt_rindex",))).tolist() == last


def test_prompts_that_are_no_prefix_are_counted(convert: Convert, tmp_path: Path) -> None:
    rows = [{"prompt": "the c", "completion": "at"}, {"prompt": "the", "completion": " cat"}] * 3
    reader = convert(write(tmp_path / "x.jsonl", rows))
    said = [note for note in reader.manifest.notes if "prompt" in note]
    assert len(said) == 1
    assert said[0].startswith(
        "x.jsonl: 3 of 6 documents do not begin with the tokens of the prompt"
    )


END = 301
"""Id of `</s>`, the end-of-text token that `marked` tokenizers name."""


@pytest.mark.parametrize("pad", [False, True], ids=["packed", "padded"])
def test_documents_end_with_the_end_of_text(
    convert: Convert, tokens: Any, tmp_path: Path, pad: bool
) -> None:
    """It counts to `max_length`; a document in which it has no place is cut off."""
    file, _ = marked(tmp_path, processors.ByteLevel())
    texts = ["the cat", "why did the", "a dog</s>", "the moon", "x" * 40]
    length = len(tokens("why did the"))
    assert length == len(tokens("the moon")) + 1
    path = write(tmp_path / "x.jsonl", [{"text": text} for text in texts])
    reader = convert(path, tokenizer=file, max_length=length, pad=pad)
    whole = [[*tokens(text.removesuffix("</s>")), END] for text in texts]
    expected = [ids[:length] for ids in whole]
    cut = [len(ids) > length for ids in whole]
    assert cut == [False, True, False, False, True]
    assert np.asarray(reader.episodes["truncated",]).tolist() == cut
    assert reader.manifest.about["text"]["eos"] == END
    recorded = reader.manifest.converter["options"]["text"]
    assert recorded["eos"] == "auto"
    if pad:
        ids, mask = (np.asarray(reader.step((key,))) for key in ("input_ids", "attention_mask"))
        assert [row[inside].tolist() for row, inside in zip(ids, mask, strict=True)] == expected
        return
    assert documents(reader) == expected
    batch = offline_data.Documents(offline_data.open_dataset(reader.path))[:]
    labels = [[one for one in row if one != -100] for row in batch["labels"].tolist()]
    assert labels == expected


@pytest.mark.parametrize("form", ["prompt", "pairs"])
def test_completions_end_with_the_end_of_text(
    convert: Convert, tokens: Any, tmp_path: Path, form: str
) -> None:
    file, _ = marked(tmp_path, template("<s> $A"))
    rows = [{"prompt": "the", "completion": " cat", "chosen": " cat", "rejected": " dog"}]
    reader = convert(write(tmp_path / "x.jsonl", rows), tokenizer=file, form=form)
    ends = [" cat", " dog"][: 2 if form == "pairs" else 1]
    assert documents(reader) == [[300, *tokens(f"the{end}"), END] for end in ends]
    mask = np.asarray(reader.step(("completion_mask",))).tolist()
    assert mask == [one for end in ends for one in [False, False, *[True] * len(tokens(end)), True]]


@pytest.mark.parametrize(
    ("processor", "eos", "ends"),
    [
        ("none", "no", []),
        ("none", "yes", [END]),
        ("end", "auto", [END]),
        ("end", "yes", [END]),
        ("two", "yes", [END, 304]),
        ("bert", "auto", [303, END]),
        ("bert", "no", [303]),
    ],
)
def test_end_of_text_by_option_and_post_processor(
    convert: Convert, tokens: Any, tmp_path: Path, processor: str, eos: str, ends: list[int]
) -> None:
    file, _ = marked(tmp_path, PROCESSORS[processor])
    reader = convert(write(tmp_path / "x.jsonl", [{"text": "the cat"}]), tokenizer=file, eos=eos)
    (found,) = documents(reader)
    assert found[found.index(tokens("the cat")[0]) :] == [*tokens("the cat"), *ends]


@pytest.mark.parametrize(("eos", "ends"), [("auto", []), ("no", []), ("yes", [0])])
def test_conversations_end_as_their_template_says(
    convert: Convert, tokens: Any, tmp_path: Path, chat_tokenizer: Path, eos: str, ends: list[int]
) -> None:
    folder = shutil.copytree(chat_tokenizer, tmp_path / "chat")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE.replace("<|end|>", "."))
    turns = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "the moon"}]
    path = write(tmp_path / "x.jsonl", [{"messages": turns}])
    reader = convert(path, tokenizer=folder, eos=eos)
    assert documents(reader) == [[*tokens("<|user|>why?.<|assistant|>the moon."), *ends]]


def test_options_that_change_nothing_keep_their_dataset(tmp_path: Path) -> None:
    """Datasets of before there was `eos` are found again where it would make no difference."""
    same, _ = marked(tmp_path, processors.ByteLevel(), name="same.json")
    backend = train_tokenizer()
    backend.save(str(tmp_path / "nameless.json"))
    backend.post_processor = template("$A [SEP]")
    backend.save(str(tmp_path / "masks.json"))
    cases: tuple[tuple[str, Any, str | None], ...] = (
        ("same.json", None, "auto"),
        ("nameless.json", None, None),
        ("masks.json", None, "auto"),
        ("masks.json", "text", None),
    )
    for file, form, eos in cases:
        options = pin_tokenizer(TextOptions(str(tmp_path / file), form))
        assert options.eos == eos
        before = {k: v for k, v in options.recorded().items() if k != "eos"}
        assert options.are_recorded_as(before) == (eos is None)
        assert TextOptions.from_record(json.loads(json.dumps(options.to_json()))) == options
    assert pin_tokenizer(TextOptions(str(same), eos="no")).eos == "no"


def test_settings_beside_tokenizer_json_are_part_of_its_digest(
    convert: Convert, tmp_path: Path, chat_tokenizer: Path
) -> None:
    """End, padding and chat template decide about tokens; files alone and records of before do not."""
    backend = train_tokenizer()
    backend.add_special_tokens(["</s>"])
    kinds: dict[str, dict[str, str]] = {
        "alone": {},
        "same": {"eos_token": "</s>"},
        "end": {"eos_token": "<|end|>", "pad_token": "</s>"},
        "pad": {"eos_token": "</s>", "pad_token": "<|end|>"},
        "chat": {"eos_token": "</s>", "chat_template": CHAT_TEMPLATE},
    }
    digests = {}
    for name, settings in kinds.items():
        (folder := tmp_path / name).mkdir()
        backend.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        digests[name] = pin_tokenizer(TextOptions(str(folder))).tokenizer_sha256
    assert digests["alone"] == digests["same"]
    assert len(set(digests.values())) == 4

    path = write(tmp_path / "x.jsonl", [{"text": "the cat"}])
    for name, end in (("same", "</s>"), ("end", "<|end|>")):
        reader = convert(path, tokenizer=tmp_path / name)
        assert documents(reader)[0][-1] == backend.token_to_id(end)
    locked = convert(path, tokenizer=tmp_path / "end", tokenizer_sha256=digests["alone"])
    assert documents(locked)[0][-1] == backend.token_to_id("<|end|>")


@pytest.mark.parametrize(
    ("words", "pad"),
    [(["<pad>", "</s>"], 0), (["a", "</s>", "<|endoftext|>"], 2), (["a", "</s>"], 1), (["a"], 0)],
)
def test_the_token_that_pads(words: list[str], pad: int) -> None:
    vocabulary = {word: number for number, word in enumerate(words)}
    assert OurTokenizer(Tokenizer(WordLevel(vocabulary, words[0]))).pad == pad


def test_special_tokens_of_the_tokenizer(convert: Convert, tmp_path: Path) -> None:
    file, backend = marked(tmp_path, template("<|end|> $A"))
    rows = [{"text": "the cat sat on the mat"}]
    reader = convert(write(tmp_path / "x.jsonl", rows), tokenizer=file, max_length=3)
    assert documents(reader) == [backend.encode(rows[0]["text"]).ids[:3]]
    assert np.asarray(reader.episodes["truncated",]).tolist() == [True]


def test_many_rows_in_batches(convert: Convert, tokens: Any, tmp_path: Path) -> None:
    texts = [f"the cat {n} sat" for n in range(2345)]
    reader = convert(write(tmp_path / "x.jsonl", [{"text": text} for text in texts]))
    assert documents(reader) == [tokens(text) for text in texts]
    assert np.asarray(reader.episodes["row",]).tolist() == list(range(2345))


def test_a_folder_of_files_in_order_of_names(convert: Convert, tokens: Any, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    write(folder / "b.jsonl", [{"text": "second"}])
    write(folder / "a.parquet", [{"text": "first"}])
    write(folder / "more" / "c.csv", [{"text": "third"}])
    (folder / "README.md").write_text("nothing")
    assert documents(convert(folder)) == [tokens(one) for one in ("first", "second", "third")]


def test_splits_of_a_folder(convert: Convert, tokens: Any, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("train", "test"):
        write(folder / f"{name}.csv", [{"text": f"the {name}"}])
    for split, found in (("train", ["train"]), ("test", ["test"]), ("", ["test", "train"])):
        assert documents(convert(folder, split=split)) == [tokens(f"the {one}") for one in found]
    with pytest.raises(NotFoundError, match="has no split 'valid'; it has test, train"):
        convert(folder, split="valid")
    assert documents(convert(folder / "test.csv")) == [tokens("the test")]


@pytest.mark.parametrize("saved", ["set", "splits"])
def test_what_datasets_saves(convert: Convert, tokens: Any, tmp_path: Path, saved: str) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["the cat", "a dog"]})
    both = rows if saved == "set" else datasets.DatasetDict({"train": rows, "test": rows})
    both.save_to_disk(str(tmp_path / "saved"))
    assert documents(convert(tmp_path / "saved")) == [tokens("the cat"), tokens("a dog")]


def test_rows_that_lack_a_column(convert: Convert, tokens: Any, tmp_path: Path) -> None:
    """Blocks of rows are alike, whichever columns the rows of one have."""
    rows = [{"prompt": "the", "completion": " cat"}] * 1000 + [{"prompt": "a"}, {"other": "x"}]
    path = write(tmp_path / "x.jsonl", rows)
    path.write_bytes(b"\n" * 1200 + path.read_bytes())
    reader = convert(path)
    assert documents(reader) == [tokens("the cat")] * 1000 + [tokens("a")]
    (skipped,) = reader.manifest.skipped
    assert "1 row has no text" in skipped["reason"]


def test_rows_of_nothing(convert: Convert, tokens: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [{"text": "a dog"}] * 1000 + [{}] * 1000 + [{"text": "x"}])
    reader = convert(path)
    assert documents(reader)[999:] == [tokens("a dog"), tokens("x")]
    assert np.asarray(reader.episodes["row",])[-1] == 2000
    assert "1,000 rows have no text" in reader.manifest.skipped[0]["reason"]


def test_scores_that_some_rows_lack(convert: Convert, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": "a", "score": 2}] + [{"text": "a"}] * 1500
    reward = np.asarray(convert(write(tmp_path / "x.jsonl", rows)).step(("next", "reward")))
    assert reward[0] == 2
    assert np.isnan(reward[1:]).all()
    late = write(tmp_path / "late.jsonl", rows[1:1001] + rows[:1])
    with pytest.raises(FormatError, match="row 1000: score is 2, but the first rows have none"):
        convert(late)


def test_columns_that_are_not_asked_for(convert: Convert, tokens: Any, tmp_path: Path) -> None:
    never = pa.array([2**62], pa.timestamp("us"))  # beyond Python's dates
    pq.write_table(pa.table({"text": ["a dog"], "time": never}), tmp_path / "x.parquet")
    assert documents(convert(tmp_path / "x.parquet")) == [tokens("a dog")]


@pytest.mark.parametrize("pad", [False, True], ids=["packed", "padded"])
@pytest.mark.parametrize("form", ["prompt", "pairs"])
def test_prompts_that_merge_with_what_follows(
    convert: Convert, tokens: Any, tmp_path: Path, form: str, pad: bool
) -> None:
    pairs = [("the", " cat"), ("the c", "at sat"), ("a dog", ""), ("", "moon"), ("why did th", "e")]
    rows = [
        {"prompt": prompt, "completion": end, "chosen": end, "rejected": "?"}
        for prompt, end in pairs
    ]
    path = write(tmp_path / "x.jsonl", rows)
    reader = convert(path, form=form, pad=pad, max_length=9 if pad else None)
    kept = [[p + end, p + "?"][: 2 if form == "pairs" else 1] for p, end in pairs]
    expected = [
        [tokens(text)[: len(tokens(p))] == tokens(p) for text in texts]
        for (p, _), texts in zip(pairs, kept, strict=True)
    ]
    found = np.asarray(reader.episodes["prompt_is_prefix",]).tolist()
    assert (
        found == [all(one) for one in expected]
        if pad
        else [one for both in expected for one in both]
    )
    assert set(found) == {True, False}
    (finding,) = offline_data.check(reader.path, select=["RL102"])[:1]
    assert (finding.about, finding.count) == ("border", found.count(False))
    assert finding.episode == found.index(False)


def test_a_prompt_that_fills_the_length(convert: Convert, tmp_path: Path) -> None:
    rows = [{"prompt": "why did the chicken cross the road?", "completion": " why"}] * 2
    reader = convert(write(tmp_path / "x.jsonl", rows), max_length=3)
    assert np.asarray(reader.episodes["prompt_is_prefix",]).all()
    found = {one.code: one.count for one in offline_data.check(reader.path)}
    assert (found["RL103"], found["RL104"]) == (2, 2)


def test_the_manifest_names_special_tokens(
    convert: Convert, tmp_path: Path, chat_tokenizer: Path
) -> None:
    path = write(tmp_path / "x.jsonl", [{"text": "the cat</s> sat"}])
    backend = train_tokenizer()
    backend.add_special_tokens(["<s>", "</s>", "<mask>"])
    backend.save(str(tmp_path / "marks.json"))
    known = {name: backend.token_to_id(f"<{mark}s>") for name, mark in (("bos", ""), ("eos", "/"))}
    told = {}
    for tokenizer in (tmp_path / "marks.json", chat_tokenizer):
        reader = convert(path, tokenizer=tokenizer)
        told[tokenizer.name] = {
            k: reader.manifest.about["tokenizer"][k] for k in ("special", "chat")
        }
        found = [one.message for one in offline_data.check(reader.path, select=["RL106"])]
        assert len(found) == (tokenizer != chat_tokenizer)
    assert told == {
        "marks.json": {"special": known, "chat": False},
        chat_tokenizer.name: {"special": {"eos": 0, "pad": 0}, "chat": True},
    }


@pytest.mark.parametrize("options", [{}, {"pad": True, "max_length": 8}])
@pytest.mark.parametrize("form", ["text", "prompt", "pairs"])
def test_every_leaf_is_documented(
    convert: Convert, tmp_path: Path, form: str, options: dict[str, Any]
) -> None:
    rows = [{**PAIRS[0], "text": "the cat", "completion": " sat"}]
    path = write(tmp_path / "rows.jsonl", rows)
    reader = convert(path, form=form, keep_text=True, **options)
    page = (Path(__file__).parents[2] / "cache_layout.md").read_text(encoding="utf-8")
    known = re.findall(r"`([\w/]+)`", page.split("## Text\n")[1].split("\n## ")[0])
    sides = {f"{side}/attention_mask" for side in ("chosen_data", "rejected_data")}
    leaves = {"/".join(key) for key in reader.step_leaves if key[0] not in {"next", "episode"}}
    usual = {"start", "length", "return", "terminated", "truncated", "final_observation"}
    columns = {"/".join(key) for key in reader.episodes} - usual
    assert columns
    assert leaves | columns <= {*known, *sides}
