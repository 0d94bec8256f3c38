"""Files of a configuration and a split: by the card of a dataset, else by their names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_data import TextOptions, api
from offline_data.base.config import Settings
from offline_data.base.errors import NotFoundError
from offline_data.store.reader import DatasetReader
from offline_data.text.forms import PRESETS
from offline_data.text.splits import data_files, files_of_config, files_of_split
from tests.pipeline.ingest.here import conversions_start_no_process, processes
from tests.toys.servers import HubServer

__all__ = ["conversions_start_no_process", "processes"]


def configs(*found: Any) -> dict[str, Any]:
    return {"configs": list(found)}


def config(name: str, *data: Any, **more: Any) -> dict[str, Any]:
    return {"config_name": name, "data_files": list(data), **more}


def split(name: str, *paths: str) -> dict[str, Any]:
    return {"split": name, "path": list(paths) if len(paths) > 1 else paths[0]}


def chosen(
    paths: list[str], wanted: str = "train", card: Any = None, config: str = ""
) -> list[str]:
    return files_of_split(*files_of_config(paths, card or {}, config, "hf:a/b"), wanted, "hf:a/b")


SHARDS = ["data/test-00000-of-00001.parquet", *(f"data/train-0000{n}-of-00002.parquet" for n in range(2))]  # fmt: skip
SFT = [f"data/{name}-00000-of-00001.parquet" for name in ("test_gen", "train_gen", "train_sft")]


@pytest.mark.parametrize(
    ("paths", "wanted", "expected"),
    [
        (SHARDS, "train", SHARDS[1:]),
        (SHARDS, "", SHARDS),
        (SFT, "train_sft", SFT[2:]),
        (SFT, "test", SFT[:1]),
        (["a.csv", "b.csv"], "train", ["a.csv", "b.csv"]),
        (["x/train.jsonl", "y/train.jsonl", "y/test.jsonl"], "train", ["x/train.jsonl", "y/train.jsonl"]),
        (["train/a.csv", "train/b.csv", "test/a.csv"], "train", ["train/a.csv", "train/b.csv"]),
        (["Stories-train.txt", "Stories-valid.txt"], "validation", ["Stories-valid.txt"]),
        (["Stories-train.txt", "data/train-00000-of-00001.parquet"], "train", ["data/train-00000-of-00001.parquet"]),
        (["dev.csv", "train.csv"], "valid", ["dev.csv"]),
        (["train.parquet", "data/train-00000-of-00001.parquet"], "train", ["data/train-00000-of-00001.parquet"]),
    ],
)  # fmt: skip
def test_by_names(paths: list[str], wanted: str, expected: list[str]) -> None:
    assert chosen(paths, wanted) == expected


FILES = ["de/a.csv", "de/b.csv", "en/a.csv", "en/deep/c.csv", "held.csv"]


@pytest.mark.parametrize(
    ("card", "name", "wanted", "expected"),
    [
        (configs(config("x", split("train", "de/*"), split("test", "held.csv"))), "", "train", FILES[:2]),
        (configs(config("x", split("train", "de/*"), split("test", "held.csv"))), "", "test", FILES[4:]),
        (configs(config("x", split("train", "de/*"), split("test", "held.csv"))), "", "", [*FILES[:2], FILES[4]]),
        (configs(config("x", split("train", "*/a.csv", "held.csv"))), "x", "train", ["de/a.csv", "en/a.csv", "held.csv"]),
        (configs(config("x", split("train", "en/**"))), "", "train", FILES[2:4]),
        (configs(config("x", split("train", "*/a.csv"), split("train", "de/*"))), "", "train", ["de/a.csv", "en/a.csv", "de/b.csv"]),
        (configs(config("x", split("train", "held.csv", "de/*"))), "", "train", [FILES[4], *FILES[:2]]),
        (configs(config("x", split("train", "./de/*"))), "", "train", FILES[:2]),
        (configs(config("x", split("train", "*.csv"), data_dir="./en/")), "", "train", ["en/a.csv"]),
        (configs({"config_name": "x", "data_dir": "./de"}), "", "train", FILES[:2]),
        (configs({"config_name": "x", "data_dir": "."}), "", "train", FILES),
        ({}, "default", "train", FILES),
        (configs(config("x", split("train", "**/[bc].csv"))), "", "train", ["de/b.csv", "en/deep/c.csv"]),
        (configs(config("x", "held.csv")), "", "train", FILES[4:]),
        (configs(config("x", split("dev", "held.csv"))), "", "valid", FILES[4:]),
        (configs(config("x", "de/*"), config("y", "en/*")), "y", "train", ["en/a.csv"]),
        (configs(config("x", "de/*"), config("default", "en/*")), "", "train", ["en/a.csv"]),
        (configs(config("x", "de/*"), config("y", "en/*", default=True)), "", "train", ["en/a.csv"]),
        (configs(config("x", split("train", "*.csv"), data_dir="en")), "", "train", ["en/a.csv"]),
        (configs({"config_name": "x", "data_dir": "de"}), "", "train", FILES[:2]),
        (configs({"config_name": "x", "data_files": "held.csv"}), "", "train", FILES[4:]),
        (configs(config("x", "de/*")), "en", "train", FILES[2:4]),
        ({"configs": config("x", "de/*")}, "", "train", FILES[:2]),
    ],
)  # fmt: skip
def test_by_the_card(card: Any, name: str, wanted: str, expected: list[str]) -> None:
    assert chosen(FILES, wanted, card, name) == expected


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["a.csv", "requirements.txt", "README.md"], ["a.csv"]),
        (["a.txt", "b.txt.gz"], ["a.txt", "b.txt.gz"]),
        (["a.csv", ".ipynb_checkpoints/a-checkpoint.csv", ".b.csv", "__MACOSX/a.csv"], ["a.csv"]),
        (["data.arrow", "dataset_info.json", "state.json"], ["data.arrow"]),
        (["train/data.arrow", "dataset_dict.json"], ["train/data.arrow"]),
        (["config.json"], []),
    ],
)
def test_files_that_are_no_data(paths: list[str], expected: list[str]) -> None:
    assert data_files(paths) == expected


def turns(*contents: str) -> list[dict[str, str]]:
    roles = ("user", "assistant") * len(contents)
    return [{"role": role, "content": one} for role, one in zip(roles, contents, strict=False)]


PAIR = {"prompt": "why?", "chosen": turns("why?", "moon"), "rejected": turns("why?", "mat")}
ASKED = "<|user|>why?<|end|><|assistant|>"

# Names of files and columns as the hub has them: rows by path, the first the one that is read.
PUBLISHED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "CarperAI/openai_summarize_tldr": (
        {
            f"data/{name}-00000-of-00001-e8c59e5cf7bce1c0.parquet": {"prompt": name, "label": " x"}
            for name in ("train", "test", "valid")
        },
        ["train x"],
    ),
    "CarperAI/openai_summarize_comparisons": (
        {
            f"data/{name}-00000-of-00001-3cbd295cedeecf91.parquet": {
                "prompt": name, "chosen": "a", "rejected": "b",
            }
            for name in ("train", "test", "valid1", "valid2")
        },
        ["train\na", "train\nb"],
    ),
    "Anthropic/hh-rlhf": (
        {
            **{
                f"{name}/{part}.jsonl": {"chosen": f"{part} {name}", "rejected": "x"}
                for part in ("train", "test")
                for name in ("harmless-base", "helpful-base")
            },
            "red-team-attempts/red_team_attempts.jsonl": {"transcript": "x"},
        },
        ["train harmless-base", "x", "train helpful-base", "x"],
    ),
    "HuggingFaceH4/ultrachat_200k": (
        {
            f"data/{name}-00000-of-00003-a3ecf92756993583.parquet": {
                "prompt": name, "prompt_id": "1", "messages": turns(name, "moon"),
            }
            for name in ("train_sft", "train_gen", "test_sft", "test_gen")
        },
        ["<|user|>train_sft<|end|><|assistant|>moon<|end|>"],
    ),
    "HuggingFaceH4/ultrafeedback_binarized": (
        {
            f"data/{name}-00000-of-00001.parquet": {
                **PAIR, "messages": turns(name, "x"), "score_chosen": 8.0, "score_rejected": 7.5,
            }
            for name in ("train_prefs", "train_sft", "train_gen", "test_prefs")
        },
        [f"{ASKED}moon<|end|>", f"{ASKED}mat<|end|>"],
    ),
    "HuggingFaceH4/no_robots": (
        {
            f"data/{name}-00000-of-00001.parquet": {
                "prompt": "x", "prompt_id": "1", "messages": turns("why?", name), "category": "QA",
            }
            for name in ("train", "test")
        },
        [f"{ASKED}train<|end|>"],
    ),
    "openai/gsm8k": (
        {
            f"{name}/{part}-00000-of-00001.parquet": {"question": name, "answer": part}
            for part in ("train", "test")
            for name in ("main", "socratic")
        },
        ["main\ntrain"],
    ),
    "tatsu-lab/alpaca": (
        {
            "data/train-00000-of-00001-a09b74b3ef9c3b56.parquet": {
                "instruction": "a", "input": "", "output": "b", "text": "a\nb",
            }
        },
        ["a\nb"],
    ),
    "allenai/tulu-3-sft-mixture": (
        {
            f"data/train-0000{n}-of-00006.parquet": {
                "id": str(n), "messages": turns("why?", str(n)), "source": "x",
            }
            for n in range(2)
        },
        [f"{ASKED}0<|end|>", f"{ASKED}1<|end|>"],
    ),
    "roneneldan/TinyStories": (
        {
            "data/train-00000-of-00004-2d5a1467fff1081b.parquet": {"text": "a story"},
            "data/validation-00000-of-00001-869c898b519ad725.parquet": {"text": "another"},
            "TinyStories-train.txt": "a story",
            "TinyStoriesV2-GPT4-train.txt": "a story",
            "TinyStories-valid.txt": "another",
        },
        ["a story"],
    ),
    "Salesforce/wikitext": (
        {
            f"{name}/{part}-00000-of-00001.parquet": {"text": f"{name} {part}"}
            for part in ("train", "test", "validation")
            for name in ("wikitext-103-raw-v1", "wikitext-2-raw-v1")
        },
        ["wikitext-103-raw-v1 train"],
    ),
    "stanfordnlp/imdb": (
        {
            f"plain_text/{name}-00000-of-00001.parquet": {"text": name, "label": 0}
            for name in ("train", "test", "unsupervised")
        },
        ["train"],
    ),
}  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with HubServer(lfs_size=1 << 30) as running:
        yield running


def publish(hub: HubServer, folder: Path, name: str, files: dict[str, Any]) -> None:
    for path, row in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(row, str):
            file.write_text(row)
        elif file.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist([row]), file)
        else:
            file.write_text(json.dumps(row))
    hub.commit(name, folder)


def texts(hub: HubServer, name: str, tokenizer: Path, root: Path, **options: Any) -> list[str]:
    settings = Settings(root, hub_endpoint=hub.url, workers=1)
    text = TextOptions(str(tokenizer), keep_text=True, **options)
    stored = api.download(name, text=text, settings=settings, progress=False)
    reader = DatasetReader(stored.path)
    return list(reader.as_text(("text",), np.asarray(reader.episodes["text",]), "episodes"))


@pytest.mark.parametrize("name", PRESETS)
def test_presets_read_what_the_hub_publishes(
    hub: HubServer, name: str, tmp_path: Path, chat_tokenizer: Path
) -> None:
    files, expected = PUBLISHED[name]
    publish(hub, tmp_path / "published", name, files)
    assert texts(hub, f"hf:{name}", chat_tokenizer, tmp_path / "root") == expected


def test_a_card_with_configurations_and_a_licence(
    hub: HubServer, tmp_path: Path, tokenizer_file: Path
) -> None:
    card = """---
license: mit
configs:
- config_name: main
  default: true
  data_files:
  - split: train
    path: rows/a.jsonl
  - split: held
    path:
    - rows/[bc].jsonl
- config_name: other
  data_files: rows/c.jsonl
---
# Stories
"""
    files = {f"rows/{name}.jsonl": {"text": f"the {name}"} for name in "abc"}
    publish(hub, tmp_path / "published", "a/b", {"README.md": card, **files})
    where = (hub, "hf:a/b", tokenizer_file, tmp_path / "root")
    assert texts(*where) == ["the a"]
    assert texts(*where, split="held") == ["the b", "the c"]
    assert texts(*where, split="") == ["the a", "the b", "the c"]
    assert texts(hub, "hf:a/b:other", tokenizer_file, tmp_path / "root") == ["the c"]
    with pytest.raises(NotFoundError, match="hf:a/b has no split 'test'; it has held, train"):
        texts(*where, split="test")
    manifests = [json.loads(one.read_text()) for one in tmp_path.glob("root/**/manifest.json")]
    assert {one["licence"] for one in manifests} == {"mit"}
