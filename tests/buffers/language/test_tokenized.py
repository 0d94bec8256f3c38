"""TorchRL's loaders of text: equal tensors on the same rows, and a cache that is a dataset."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from offline_data.buffers.language import data as ours
from offline_data.buffers.language import tokenize
from offline_data.errors import NotFoundError
from offline_data.testing.servers import HubServer
from offline_data.testing.text_toy import SENTENCES, train_tokenizer

LENGTH = 20


class Auto:
    """Takes the place of `transformers.AutoTokenizer`."""

    @staticmethod
    def from_pretrained(*_: Any, **__: Any) -> Any:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast(
            tokenizer_object=train_tokenizer(),
            **dict.fromkeys(["eos_token", "pad_token"], "<|end|>"),
        )


def rows(kind: str) -> list[dict[str, str]]:
    rng = np.random.default_rng(0)
    known = " ".join(SENTENCES).split()

    def words(least: int, most: int) -> str:
        return " ".join(rng.choice(known, rng.integers(least, most)))

    if kind == "prompts":
        return [{"prompt": words(3, 6), "label": " " + words(1, 14)} for _ in range(40)]
    found = [
        {"prompt": words(3, 6), "chosen": words(3, 9), "rejected": words(3, 9)} for _ in range(40)
    ]
    found[4]["rejected"] = found[4]["chosen"] = "the same words as the other one"
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of what `datasets` saves, as far as it is read here."""
    folder = tmp_path_factory.mktemp("saved")
    for kind in ("pairs", "prompts"):
        place = folder / kind / "train"
        place.mkdir(parents=True)
        table = pa.Table.from_pylist(rows(kind))
        with pa.ipc.new_stream(str(place / "data-00000-of-00001.arrow"), table.schema) as sink:
            sink.write_table(table)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": kind}
        (place / "state.json").write_text(json.dumps(state))
    return folder


@pytest.fixture(scope="module")
def by_datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    datasets = pytest.importorskip("datasets", reason="writes the files that are read")
    folder = tmp_path_factory.mktemp("datasets")
    for kind in ("pairs", "prompts"):
        parts = {"train": datasets.Dataset.from_list(rows(kind))}
        datasets.DatasetDict(parts).save_to_disk(str(folder / kind))
    return folder


def from_dataset(kind: Any, folder: Path, root: Path) -> Any:
    return kind.from_dataset(
        "train", str(folder), LENGTH, root_dir=root, from_disk=True, tokenizer_class=Auto
    )


def leaves(data: Any) -> dict[str, torch.Tensor]:
    flat = data.to_tensordict().flatten_keys(".")
    return {key: leaf for key, leaf in flat.items() if isinstance(leaf, torch.Tensor)}


def assert_equal(mine: Any, theirs: Any) -> None:
    found, expected = leaves(mine), leaves(theirs)
    assert found.keys() == expected.keys()
    for key, leaf in expected.items():
        assert found[key].dtype == leaf.dtype
        assert torch.equal(found[key], leaf), key


@pytest.fixture
def torchrl(monkeypatch: pytest.MonkeyPatch) -> Any:
    import transformers

    monkeypatch.setattr(os, "environ", os.environ)  # `Dataset.map` puts a copy in its place
    monkeypatch.setattr(transformers, "AutoTokenizer", Auto)  # TorchRL ignores its tokenizer_class
    return pytest.importorskip("torchrl.data")


def test_pairs_beside_torchrl(by_datasets: Path, tmp_path: Path, torchrl: Any) -> None:
    mine = from_dataset(ours.PairwiseDataset, by_datasets / "pairs", tmp_path)
    theirs = torchrl.PairwiseDataset.from_dataset(
        "train",
        str(by_datasets / "pairs"),
        LENGTH,
        root_dir=tmp_path / "rl",
        from_disk=True,
        num_workers=1,
    )
    assert 10 < len(mine) < 39  # short and equal ones are left out
    assert_equal(mine, theirs)


def test_prompts_beside_torchrl(by_datasets: Path, tmp_path: Path, torchrl: Any) -> None:
    mine = from_dataset(ours.PromptData, by_datasets / "prompts", tmp_path)
    theirs = torchrl.PromptData.from_dataset(
        "train",
        str(by_datasets / "prompts"),
        LENGTH,
        root_dir=tmp_path / "rl",
        from_disk=True,
        num_workers=1,
    )
    # TorchRL means to leave out rows without an end, and drops the column that tells them before.
    ended = theirs.input_ids[:, -1] == 0
    assert 0 < len(mine) == int(ended.sum()) < len(theirs)
    kept = theirs[ended]
    assert_equal(mine, kept)
    assert_equal(mine.mask_label(5), kept.mask_label(5))


@pytest.mark.parametrize("name", ["TensorDictTokenizer", "PromptTensorDictTokenizer"])
def test_tokenizers_beside_torchrl(torchrl: Any, name: str) -> None:
    some = rows("prompts")[:5]
    sample = {
        "text": [row["prompt"] for row in some],
        "prompt": [row["prompt"] for row in some],
        "label": [row["label"] for row in some],
    }
    mine, theirs = (
        getattr(where, name)(Auto.from_pretrained(), LENGTH)(sample)
        for where in (tokenize, torchrl)
    )
    assert mine.batch_size == torch.Size([5])
    assert set(mine.keys()) == set(theirs.keys())
    for key in theirs.keys():  # noqa: SIM118 -- a TensorDict iterates over its rows
        assert torch.equal(torch.as_tensor(mine[key]), torch.as_tensor(theirs[key])), key


def test_the_cache_is_a_dataset(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = from_dataset(ours.PromptData, saved / "prompts", tmp_path)

    def fails(*_: Any) -> Any:
        raise AssertionError("tokenized again")

    monkeypatch.setattr(tokenize.TokenizedDatasetLoader, "_batches", fails)
    assert_equal(first, from_dataset(ours.PromptData, saved / "prompts", tmp_path))
    assert len(list(tmp_path.rglob("manifest.json"))) == 1


def test_an_interrupted_cache_does_not_count(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tokenize.TokenizedDatasetLoader._batches
    monkeypatch.setattr(tokenize, "_ROWS", 7)

    def stops(self: Any, some: Any) -> Any:
        batches = whole(self, some)
        yield next(batches)
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenize.TokenizedDatasetLoader, "_batches", stops)
    with pytest.raises(KeyboardInterrupt):
        from_dataset(ours.PromptData, saved / "prompts", tmp_path)
    assert not list(tmp_path.rglob("manifest.json"))
    monkeypatch.setattr(tokenize.TokenizedDatasetLoader, "_batches", whole)
    assert len(from_dataset(ours.PromptData, saved / "prompts", tmp_path)) > 7


def test_round_trips(saved: Path, tmp_path: Path) -> None:
    kind: Any = ours.PairwiseDataset
    data = from_dataset(kind, saved / "pairs", tmp_path / "root")
    data.memmap(tmp_path / "copy", copy_existing=True)
    assert_equal(kind.load_memmap(tmp_path / "copy"), data)
    other = data.clone().zero_()
    other.load_state_dict(data.state_dict())
    assert_equal(other, data)


def test_batches(saved: Path, tmp_path: Path) -> None:
    options: Any = {
        "dataset_name": str(saved / "pairs"), "root_dir": tmp_path, "from_disk": True,
        "tokenizer_class": Auto,
    }  # fmt: skip
    data = from_dataset(ours.PairwiseDataset, saved / "pairs", tmp_path)
    loader = ours.get_dataloader(5, LENGTH, ours.PairwiseDataset, "cpu", infinite=False, **options)
    batches = list(loader)
    assert len(batches) == len(data) // 5
    assert isinstance(batches[0], ours.PairwiseDataset)
    seen = {tuple(row) for batch in batches for row in batch.chosen_data.input_ids.tolist()}
    assert seen <= {tuple(row) for row in data.chosen_data.input_ids.tolist()}
    endless: Any = ours.get_dataloader(5, LENGTH, ours.PairwiseDataset, "cpu", **options)
    for _ in range(2 * len(batches) + 1):
        assert len(next(endless)) == 5


def test_a_dataset_of_the_hub(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = tmp_path / "published"
    published.mkdir()
    lines = "".join(json.dumps(row) + "\n" for row in rows("prompts"))
    (published / "train.jsonl").write_text(lines)
    with HubServer({"someone/prompts": published}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        found = ours.PromptData.from_dataset(
            "train", "someone/prompts", LENGTH, root_dir=tmp_path / "root", tokenizer_class=Auto
        )
    assert_equal(found, from_dataset(ours.PromptData, saved / "prompts", tmp_path))


def test_a_split_that_is_not_there(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="has no split 'valid'; it has train"):
        ours.PromptData.from_dataset(
            "valid", str(saved / "prompts"), root_dir=tmp_path, from_disk=True, tokenizer_class=Auto
        )
