"""Text, tokenizers, options, splits, projects and calls that are refused: the cases are the lines of `refusals.json`."""

from __future__ import annotations

import gzip
import io
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tensordict import lazy_stack
from tokenizers import processors

from offline_data import Documents, TopKRewardSelector, api, open_dataset
from offline_data.base.config import Settings
from offline_data.formats.options import TextOptions
from offline_data.testing.toy import write_tokens
from offline_data.text import data, tokenizer
from offline_data.text.dataset import TextDataset
from offline_data.text.source import HubText
from offline_data.text.tokenize import _WithText
from offline_data.text.tokenizer import load_tokenizer
from tests.refusals import Refusals
from tests.text.conftest import Convert
from tests.text.test_splits import FILES, SFT, SHARDS, chosen, config, configs, split
from tests.text.test_tokenized import Auto, save
from tests.text.test_topk import dialog
from tests.toys.text import train_tokenizer, write_chat_tokenizer

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"
"""What Git LFS leaves in place of a file."""
ASKED = {"role": "user", "content": "why?"}


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(**columns: list[str]) -> bytes:
    pq.write_table(pa.table(columns), file := io.BytesIO())
    return file.getvalue()


def arrow(batch: pa.RecordBatch) -> bytes:
    with pa.ipc.new_file(file := io.BytesIO(), batch.schema) as sink:
        sink.write_batch(batch)
    return file.getvalue()


def no_columns() -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))


def null_words() -> pa.RecordBatch:
    """Rows without text, as a dictionary of no words has them."""
    indices = pa.array([0, None, 0], pa.int8())
    words = pa.DictionaryArray.from_arrays(indices, pa.array([None], "string"))
    return pa.RecordBatch.from_arrays([words], ["text"])


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of tokenizers of which each is wrong in its own way."""
    folder = tmp_path_factory.mktemp("tokenizers")
    (folder / "damaged.json").write_text('{"version": "1.0", "model": {"type": "BPE"}}')
    (folder / "folder").mkdir()
    (folder / "slow").mkdir()
    config = '{"tokenizer_class": "ByT5Tokenizer"}'  # of bytes: it needs no vocabulary
    (folder / "slow" / "tokenizer_config.json").write_text(config)
    write_chat_tokenizer(folder / "deep")
    good = json.loads((folder / "deep" / "tokenizer.json").read_text())
    nested = '{"type": "Sequence", "normalizers": [' * 300 + "]}" * 300
    deep = json.dumps({**good, "normalizer": 0}).replace(
        '"normalizer": 0', f'"normalizer": {nested}'
    )
    (folder / "deep" / "tokenizer.json").write_text(deep)
    backend = train_tokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="<|end|>", pair="$A $B", special_tokens=[("<|end|>", 0)]
    )
    backend.save(str(folder / "dropping.json"))
    backend.add_special_tokens(["[CLS]", "[SEP]"])
    backend.post_processor = processors.BertProcessing(("[SEP]", 298), ("[CLS]", 297))
    backend.save(str(folder / "bert.json"))
    return folder


def from_rows(
    kind: Any, rows: list[dict[str, Any]], length: int = 20, split: str = "train"
) -> object:
    """Load what `datasets` saved, as TorchRL's class does."""
    save(Path("saved") / "train", rows, "some")
    return kind.from_dataset(
        split, "saved", length, root_dir="root", from_disk=True, tokenizer_class=Auto
    )


def documents() -> Any:
    return open_dataset(write_tokens(Path("tokens"), [[1, 2], [3], [4, 5, 6]], [0, 1, 1]))


def lock(text: str) -> object:
    """Lock a project whose dataset has `text` in `datasets.toml`."""
    Path("datasets.toml").write_text(f'[datasets]\ntold = {{ id = "hf:a/b", text = {text} }}\n')
    return api.lock("datasets.toml", settings=Settings(Path("root"), offline=True), progress=False)


def selected(*rows: Any) -> object:
    selector = TopKRewardSelector(2, 1, "text", verbose=False)
    return selector.inv(lazy_stack(list(rows)) if len(rows) > 1 else rows[0])


def without_end() -> Any:
    cut = dialog("p", 1, 3)
    cut["next", "done"][:] = False
    return cut


NAMES: dict[str, Any] = {
    "gzip": gzip,
    "np": np,
    "torch": torch,
    "data": data,
    "lazy_stack": lazy_stack,
    "GOOD": lines({"text": "the cat"}),
    "POINTER": POINTER,
    "ASKED": ASKED,
    "Path": Path,
    "FILES": FILES,
    "SHARDS": SHARDS,
    "SFT": SFT,
    "HubText": HubText,
    "Settings": Settings,
    **{
        call.__name__: call
        for call in (
            *(lines, parquet, arrow, no_columns, null_words, load_tokenizer, TextOptions),
            *(chosen, config, configs, split, from_rows, documents, Documents),
            *(open_dataset, TopKRewardSelector, selected, dialog),
            *(without_end, TextDataset, _WithText, lock),
        )
    },
}


@pytest.mark.filterwarnings("ignore:.* pairs? of .* (is|are) dropped")
@REFUSALS.cases
def test_refusals(
    kind: str,
    text: str,
    convert: Convert,
    tokenizer_file: Path,
    chat_tokenizer: Path,
    tokenizers: Path,
    toys: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(name: str, content: bytes, **options: Any) -> object:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
        return convert(tmp_path / name.partition("/")[0], **options)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tokenizer, "MAX_LINE", 40)  # of what a chat template writes
    if kind == "tokenizers":
        shutil.copytree(tokenizers, tmp_path, dirs_exist_ok=True)
    names = {**NAMES, "read": read, "chat": partial(read, tokenizer=chat_tokenizer)}
    names |= {"FOLDER": tmp_path, "tokenizer": tokenizer_file, "toys": toys}
    known: dict[object, str] = {tmp_path: "FOLDER", tokenizer_file.parent: "FOLDER"}
    REFUSALS.check(kind, text, lambda: eval(text, names), known)  # noqa: S307
    if kind == "files":
        assert text.split("'")[1].partition("/")[0] in str(REFUSALS.known[kind][text])
    assert not list(tmp_path.rglob("manifest.json")) or kind == "calls"
