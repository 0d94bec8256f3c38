"""Tokenizing a text dataset, compared with `datasets.map(batched=True, num_proc=2)`.

The text is that of docstrings, since words drawn at random repeat more than those of a language.
Both read the same JSON lines, tokenize with the same tokenizer and truncation, and write a dataset
that can be memory-mapped; tokens are compared.
"""

from __future__ import annotations

import ast
import json
import shutil
import sysconfig
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

import offline_data
from benchmarks.timing import Row, interleaved
from offline_data.base.config import Settings
from offline_data.formats.options import TextOptions
from offline_data.store.reader import DatasetReader

TARGET = "1.2×"
DOCUMENTS, LENGTH = 20_000, 512


def run(folder: Path, *, repeats: int, scale: float) -> list[Row]:
    """Tokenize the same documents in each way; see `Row`."""
    from datasets import Dataset, disable_progress_bars, load_dataset
    from transformers import PreTrainedTokenizerFast

    disable_progress_bars()
    files = _write(folder, int(DOCUMENTS * scale))
    backend = _tokenizer(files[0])
    backend.save(str(folder / "tokenizer.json"))
    fast = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    number = count()
    made: dict[str, Path] = {}

    def ours(workers: int) -> None:
        root = made["ours"] = folder / f"ours{next(number)}"
        offline_data.convert(
            folder / "texts",
            "texts",
            source="text",
            text=TextOptions(str(folder / "tokenizer.json"), max_length=LENGTH),
            settings=Settings(root, workers=workers),
            audit="none",
            progress=False,
        )

    def tokenize(rows: dict[str, list[str]]) -> Any:
        return {"input_ids": fast(rows["text"], truncation=True, max_length=LENGTH)["input_ids"]}

    def theirs() -> None:
        out = made["theirs"] = folder / f"theirs{next(number)}"
        data = load_dataset(
            "json",
            data_files=[str(file) for file in files],
            cache_dir=str(out / "cache"),
            split="train",
        )
        mapped = data.map(tokenize, batched=True, num_proc=2, remove_columns=["text"])
        mapped.save_to_disk(str(out / "saved"), num_proc=2)

    jobs = {"offline-data, 2 workers": lambda: ours(2), "datasets, num_proc=2": theirs}
    seconds = interleaved(
        jobs,
        repeats=repeats,
        before=lambda: (
            [shutil.rmtree(p, ignore_errors=True) for p in folder.glob("*ours*")] and None
        ),
    )
    ours(2)
    theirs()
    reader = DatasetReader(next((made["ours"] / "local" / "texts").iterdir()))
    saved = Dataset.load_from_disk(str(made["theirs"] / "saved"))
    mine = np.asarray(reader.step(("input_ids",)))
    other = np.concatenate(saved.with_format("numpy")["input_ids"][:])
    if not np.array_equal(mine, other):
        raise SystemExit("the tokens differ")
    size = sum(file.stat().st_size for file in files) / 1e6
    took = seconds["offline-data, 2 workers"]
    case = f"{size:,.0f} MB of text, {len(mine) / 1e6:.1f} M tokens"
    return [
        Row(
            case,
            name,
            f"{s / took:.2f}×",
            f"{s:.1f} s, {len(mine) / s / 1e6:.2f} M tokens/s",
            TARGET if "ours" in name else "",
        )
        for name, s in seconds.items()
    ]


def _write(folder: Path, documents: int) -> list[Path]:
    """Write the docstrings of Python and of what is installed, each once, to four files."""
    (folder / "texts").mkdir()
    texts = list(islice(_docstrings(), documents))
    files = []
    for part in range(4):
        file = folder / "texts" / f"train-{part}.jsonl"
        with file.open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps({"text": text}) + "\n" for text in texts[part::4])
        files.append(file)
    return files


def _docstrings() -> Iterator[str]:
    """Yield different docstrings of 80 characters or more, file by file."""
    seen = set()
    for root in (sysconfig.get_path("stdlib"), sysconfig.get_path("platlib")):
        for path in sorted(Path(root).rglob("*.py")):
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):  # such as tests of a parser
                continue
            for node in ast.walk(tree):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                    text = ast.get_docstring(node) or ""
                    if len(text) >= 80 and text not in seen:
                        seen.add(text)
                        yield text


def _tokenizer(file: Path) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=8000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    with file.open(encoding="utf-8") as lines:
        tokenizer.train_from_iterator((json.loads(line)["text"] for line in lines), trainer)
    return tokenizer
