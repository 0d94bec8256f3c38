"""TorchRL's loaders of text: equal tensors on the same rows, and a cache that is a dataset."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import operator
import os
import pickle
import shutil
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tensordict import TensorDict

import offline_data
from offline_data.base.errors import UsageError
from offline_data.text import data as ours
from offline_data.text import stored as tokens
from offline_data.text import tokenize
from tests.toys.servers import HubServer
from tests.toys.text import SENTENCES, train_tokenizer

LENGTH = 20
ARROW = "data-00000-of-00001.arrow"
FORK: Any = multiprocessing.get_context("fork")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork\\(\\)"),
    pytest.mark.filterwarnings("ignore:.* pairs? of .* (is|are) dropped"),
]


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
        save(folder / kind / "train", rows(kind), kind)
    return folder


def save(place: Path, some: list[dict[str, Any]], fingerprint: str) -> None:
    place.mkdir(parents=True)
    table = pa.Table.from_pylist(some)
    with pa.ipc.new_stream(str(place / ARROW), table.schema) as sink:
        sink.write_table(table)
    state = {"_data_files": [{"filename": ARROW}], "_fingerprint": fingerprint}
    (place / "state.json").write_text(json.dumps(state))


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
    assert 10 < len(mine) < 39  # short and equal ones are dropped
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
    filled = mine.attention_mask[:, -1] == 1
    assert 0 < int(filled.sum()) < len(mine) == len(rows("prompts"))
    assert_equal(mine, theirs)
    assert_equal(mine.mask_label(5), theirs.mask_label(5))


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


def test_values_without_datasets(saved: Path, tmp_path: Path) -> None:
    """The same, computed with the tokenizer row by row."""
    tokenizer = Auto.from_pretrained()

    def padded(text: str) -> tuple[list[int], list[int]]:
        ids = tokenizer(text)["input_ids"][:LENGTH]
        missing = LENGTH - len(ids)
        return ids + [0] * missing, [1] * len(ids) + [0] * missing

    def both(data: Any) -> list[tuple[list[int], list[int]]]:
        parts = data.input_ids.tolist(), data.attention_mask.tolist()
        return list(zip(*parts, strict=True))

    pairs = from_dataset(ours.PairwiseDataset, saved / "pairs", tmp_path)
    kept = [
        row
        for row in rows("pairs")
        if row["chosen"] != row["rejected"]
        and min(len(row[name].split()) for name in ("chosen", "rejected")) >= 5
    ]
    for role in ("chosen", "rejected"):
        expected = [padded(f"{row['prompt']}\n{row[role]}") for row in kept]
        assert both(getattr(pairs, f"{role}_data")) == expected
    prompts = from_dataset(ours.PromptData, saved / "prompts", tmp_path)
    assert both(prompts) == [padded(row["prompt"] + row["label"]) for row in rows("prompts")]
    alone = [len(tokenizer(row["prompt"])["input_ids"]) for row in rows("prompts")]
    assert prompts.prompt_rindex.tolist() == [min(n, LENGTH) - 1 for n in alone]
    assert torch.equal(prompts.labels, prompts.input_ids)


LOADER = "TokenizedDatasetLoader"
NAMES = [
    *("RewardData", "PromptData", "PairwiseDataset", "TensorDictTokenizer", LOADER),
    *("PromptTensorDictTokenizer", "create_infinite_iterator", "get_dataloader"),
    *("PromptData.from_dataset", "PromptData.mask_label", "PairwiseDataset.from_dataset"),
    *(f"{LOADER}.{name}" for name in ("load", "make_tokenizer", "dataset_to_tensordict")),
]


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_torchrls(name: str) -> None:
    """The first are TorchRL's, with its names and defaults; what is added is optional."""
    llm = pytest.importorskip("torchrl.data.llm")
    theirs, mine = (
        list(inspect.signature(operator.attrgetter(name)(where)).parameters.values())
        for where in (llm, offline_data)
    )
    for one, other in zip(mine, theirs, strict=False):
        assert (one.name, one.kind, one.default) == (other.name, other.kind, other.default)
    for added in mine[len(theirs) :]:
        assert added.kind in {added.KEYWORD_ONLY, added.VAR_KEYWORD}
    assert len(mine) >= len(theirs)


@pytest.mark.parametrize("name", ["RewardData", "PromptData", "PairwiseDataset"])
def test_fields_and_methods_are_torchrls(name: str) -> None:
    theirs = getattr(pytest.importorskip("torchrl.data.llm"), name)
    mine = getattr(offline_data, name)
    assert [one.name for one in mine.fields()] == [one.name for one in theirs.fields()]
    assert {one for one in dir(theirs) if one[0] != "_"} <= set(dir(mine))


def test_writing_columns_beside_torchrl(torchrl: Any, tmp_path: Path) -> None:
    class Columns(dict[str, Any]):
        features = ("tokens", "labels")

    columns = Columns(tokens=torch.arange(12).view(4, 3), labels=torch.ones(4, 3), text=["a"] * 4)
    valid = torch.tensor([True, False, True, True])
    for data, options in (
        (columns, {"prefix": ("some", "place")}),
        (columns, {"prefix": "here", "features": ["labels"]}),
        (
            TensorDict(tokens=columns["tokens"], ok=valid, batch_size=[4]),
            {"prefix": "there", "valid_mask_key": "ok"},
        ),
    ):
        written = [
            where.TokenizedDatasetLoader.dataset_to_tensordict(data, tmp_path / name, **options)
            for name, where in (("ours", offline_data), ("theirs", torchrl))
        ]
        assert_equal(*written)
        assert_equal(*(TensorDict.load_memmap(tmp_path / name) for name in ("ours", "theirs")))


@pytest.mark.filterwarnings("error")
def test_all_prompts_that_fill_the_length_are_kept(saved: Path, tmp_path: Path) -> None:
    kind: Any = ours.PromptData
    data = kind.from_dataset("train", saved / "prompts", 3, tmp_path, True, tokenizer_class=Auto)
    assert data.attention_mask.all()
    assert len(data) == len(rows("prompts"))


def test_pairs_that_are_dropped_are_counted(saved: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="pairs of 40 are dropped: .* fewer than 5") as caught:
        pairs = from_dataset(ours.PairwiseDataset, saved / "pairs", tmp_path)
    assert str(caught[0].message).startswith(f"{40 - len(pairs)} pairs of 40")
    assert len(caught) == 1
    alike = {"prompt": "p", "chosen": "a", "rejected": "a"}
    with pytest.warns(UserWarning, match="^1 pair of 1 is dropped"):
        assert not list(tokenize.pre_tokenization_hook([alike]))


def test_the_cache_is_a_dataset(saved: Path, tmp_path: Path) -> None:
    """A second call reads no row; a loader that was used finds the same; writing changes no file."""
    raw = tmp_path / "raw"
    shutil.copytree(saved / "prompts", raw)
    first = from_dataset(ours.PromptData, raw, tmp_path)
    size = (raw / "train" / ARROW).stat().st_size
    (raw / "train" / ARROW).write_bytes(bytes(size))  # not an Arrow file now
    again = from_dataset(ours.PromptData, raw, tmp_path)
    expected = first.clone()
    first.input_ids.zero_()
    assert_equal(again, expected)
    assert_equal(from_dataset(ours.PromptData, raw, tmp_path), expected)
    (manifest,) = tmp_path.rglob("manifest.json")
    assert offline_data.verify(manifest.parent).ok
    loader = offline_data.TokenizedDatasetLoader(
        "train", LENGTH, saved / "pairs", offline_data.TensorDictTokenizer,
        tokenize.pre_tokenization_hook, tmp_path, True, tokenizer_class=Auto,
    )  # fmt: skip
    assert torch.equal(loader.load()["input_ids"], loader.load()["input_ids"])
    assert len(list(tmp_path.rglob("manifest.json"))) == 2


def test_other_arguments_have_other_tokens(saved: Path, tmp_path: Path) -> None:
    kind: Any = ours.PromptData
    for length in (LENGTH, LENGTH + 1, LENGTH):
        data = kind.from_dataset(
            "train", saved / "prompts", length, tmp_path, True, tokenizer_class=Auto
        )
        assert data.input_ids.shape[1] == length
    assert len(list(tmp_path.rglob("manifest.json"))) == 2


def in_process(target: Any, *arguments: Any) -> Any:
    process = FORK.Process(target=target, args=arguments)
    process.start()
    return process


def stops_in_the_middle(folder: Path, root: Path, reached: Any) -> None:
    loader: Any = tokenize.TokenizedDatasetLoader
    whole = loader._batches

    def stops(self: Any, some: Any) -> Any:
        yield next(whole(self, some))
        reached.set()
        threading.Event().wait()

    tokenize._ROWS = 7
    loader._batches = stops
    from_dataset(ours.PromptData, folder, root)


def test_an_interrupted_cache_does_not_count(saved: Path, tmp_path: Path) -> None:
    expected = from_dataset(ours.PromptData, saved / "prompts", tmp_path / "other")
    root, reached = tmp_path / "root", FORK.Event()
    killed = in_process(stops_in_the_middle, saved / "prompts", root, reached)
    assert reached.wait(60)
    killed.kill()
    killed.join()
    assert any(root.rglob("*"))
    assert not list(root.rglob("manifest.json"))
    assert_equal(from_dataset(ours.PromptData, saved / "prompts", root), expected)


def tokenizes(folder: Path, root: Path, together: Any, found: Any) -> None:
    loader: Any = tokenize.TokenizedDatasetLoader
    place: Any = tokens
    whole, find, calls = loader._batches, place.find, []

    def counted(self: Any, some: Any) -> Any:
        calls.append(1)
        yield from whole(self, some)

    def found_nothing(*arguments: Any) -> Any:
        place.find = find
        try:
            return find(*arguments)
        finally:
            together.wait()

    loader._batches, place.find = counted, found_nothing
    data = from_dataset(ours.PairwiseDataset, folder, root)
    found.put((len(calls), data.chosen_data.input_ids.tolist()))


def test_two_processes_at_once(saved: Path, tmp_path: Path) -> None:
    together, found = FORK.Barrier(2), FORK.Queue()
    both = [
        in_process(tokenizes, saved / "pairs", tmp_path / "root", together, found) for _ in range(2)
    ]
    (calls, ids), (more, same) = (found.get(timeout=60) for _ in both)
    for one in both:
        one.join()
    assert calls + more == 1
    alone = from_dataset(ours.PairwiseDataset, saved / "pairs", tmp_path / "other")
    assert ids == same == alone.chosen_data.input_ids.tolist()


def full(kind: Any, saved: Path, root: Path) -> Any:
    """Return data of each kind, the optional fields of some set."""
    if kind is ours.PromptData:
        data = from_dataset(kind, saved / "prompts", root)
        data.loss = torch.arange(float(len(data)))
        return data
    pairs = from_dataset(ours.PairwiseDataset, saved / "pairs", root)
    if kind is ours.PairwiseDataset:
        return pairs
    data = pairs.rejected_data
    data.rewards = torch.rand(data.input_ids.shape, generator=torch.Generator().manual_seed(0))
    return data


@pytest.mark.parametrize("kind", [ours.PairwiseDataset, ours.PromptData, ours.RewardData])
def test_round_trips(saved: Path, tmp_path: Path, kind: Any) -> None:
    data = full(kind, saved, tmp_path / "root")
    data.memmap(tmp_path / "copy", copy_existing=True)
    loaded = kind.load_memmap(tmp_path / "copy")
    assert type(loaded) is kind
    assert_equal(loaded, data)
    other = data.clone().zero_()
    other.load_state_dict(data.state_dict())
    assert_equal(other, data)
    pickled = pickle.dumps(data)
    assert len(pickled) < 20_000  # names of files and fields
    unpickled = pickle.loads(pickled)  # noqa: S301 -- made here
    assert type(unpickled) is kind
    assert_equal(unpickled, data)


class Select:
    """A hook with a state."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, rows: Any) -> Any:
        return rows.select(range(self.count))


def test_hooks_are_known_by_what_they_do(saved: Path, tmp_path: Path) -> None:
    pytest.importorskip("datasets")

    def made(count: int) -> Any:
        return lambda rows: rows.select(range(count))

    def rows_of(hook: Any) -> int:
        loader = offline_data.TokenizedDatasetLoader(
            "train", 12, saved / "prompts", offline_data.PromptTensorDictTokenizer, hook,
            tmp_path, True, tokenizer_class=Auto,
        )  # fmt: skip
        loader.load()
        return len(list(tmp_path.rglob("manifest.json")))

    hooks = [made(9), made(8), Select(9), Select(8), Select(7).__call__]
    assert [rows_of(hook) for hook in hooks] == [1, 2, 3, 4, 5]
    assert [rows_of(hook) for hook in (made(9), Select(8))] == [5, 5]


def test_settings_of_a_tokenizer_are_part_of_the_name(saved: Path, tmp_path: Path) -> None:
    class Split(Auto):
        @staticmethod
        def from_pretrained(name: str) -> Any:
            found = Auto.from_pretrained(name)
            found.split_special_tokens = True
            return found

    names = {
        tokenize.TokenizedDatasetLoader(
            "train", 12, saved / "prompts", offline_data.PromptTensorDictTokenizer,
            tokenizer_class=kind,
        )._key("x")
        for kind in (Auto, Split)
    }  # fmt: skip
    assert len(names) == 2


def test_rows_of_validation_are_part_of_the_name_where_they_count(saved: Path) -> None:
    for split, count in (("train", 1), ("valid", 2), ("validation", 2)):
        names = {
            tokenize.TokenizedDatasetLoader(
                split, 12, saved / "prompts", offline_data.PromptTensorDictTokenizer,
                valid_size=size, tokenizer_class=Auto,
            )._key("x")
            for size in (5, 6)
        }  # fmt: skip
        assert len(names) == count


@pytest.mark.parametrize("rows", [slice(3, 9), slice(5, None), slice(1, 9, 3), [4, 2]])
def test_parts_are_pickled_as_they_are(saved: Path, tmp_path: Path, rows: Any) -> None:
    whole = from_dataset(ours.PairwiseDataset, saved / "pairs", tmp_path)
    part = whole[rows]
    pickled = pickle.dumps(part)
    assert_equal(pickle.loads(pickled), part)  # noqa: S301 -- made here
    again = part[1:]
    assert_equal(pickle.loads(pickle.dumps(again)), again)  # noqa: S301
    assert not torch.equal(part.chosen_data.input_ids, part.rejected_data.input_ids)


def test_what_is_written_stays_in_the_objects(saved: Path, tmp_path: Path) -> None:
    def stored() -> Any:
        return from_dataset(ours.PairwiseDataset, saved / "pairs", tmp_path)

    before, data = stored().clone(), stored()
    copy = pickle.loads(pickle.dumps(data))  # noqa: S301 -- made here
    copy.chosen_data.input_ids[0] = 7
    copy[2:4].rejected_data.input_ids.zero_()
    assert_equal(stored(), before)
    data.chosen_data.input_ids[1] = 5
    data[3:].rejected_data.attention_mask.zero_()
    unpickled = pickle.loads(pickle.dumps(data))  # noqa: S301
    assert_equal(unpickled, data)
    assert (unpickled.chosen_data.input_ids[1] == 5).all()
    assert not unpickled.rejected_data.attention_mask[3:].any()
    assert_equal(stored(), before)


def loader_of(saved: Path, root: Path, batch_size: int = 5, **options: Any) -> Any:
    return ours.get_dataloader(
        batch_size, LENGTH, options.pop("kind", ours.PromptData), options.pop("device", "cpu"),
        str(saved / "prompts"), options.pop("infinite", False), root_dir=root, from_disk=True,
        tokenizer_class=Auto, **options,
    )  # fmt: skip


def texts(batches: Any) -> list[tuple[int, ...]]:
    return [tuple(row) for batch in batches for row in batch.input_ids.tolist()]


def test_batches(saved: Path, tmp_path: Path) -> None:
    data = from_dataset(ours.PromptData, saved / "prompts", tmp_path)
    rows_of_data = texts([data])
    assert len(set(rows_of_data)) == len(data) > 20
    loader = loader_of(saved, tmp_path, seed=3)
    first, second = list(loader), list(loader)
    assert {(type(one), len(one)) for one in first} == {(ours.PromptData, 5)}
    for one in (first, second):
        assert len(set(texts(one))) == len(texts(one)) == len(data) // 5 * 5
        assert set(texts(one)) <= set(rows_of_data)
    assert texts(first) != texts(second)
    assert texts(loader_of(saved, tmp_path, seed=3)) == texts(first)
    assert texts(loader_of(saved, tmp_path, seed=4)) != texts(first)
    endless = loader_of(saved, tmp_path, seed=3, infinite=True)
    assert texts(islice(endless, 2 * len(first))) == texts(first) + texts(second)
    ranks = [texts(loader_of(saved, tmp_path, seed=3, rank=r, world=2)) for r in range(2)]
    assert len(ranks[0]) == len(ranks[1]) == len(data) // 10 * 5
    assert len({*ranks[0], *ranks[1]}) == 2 * len(ranks[0])


def test_batches_on_a_device(saved: Path, tmp_path: Path) -> None:
    (batch,) = islice(loader_of(saved, tmp_path, device="meta"), 1)
    assert batch.input_ids.device.type == batch.prompt_rindex.device.type == "meta"


@pytest.mark.slow
def test_a_spawned_worker(saved: Path, tmp_path: Path) -> None:
    """Its batches are copied to the device by this process."""
    plain = texts(loader_of(saved, tmp_path, seed=1))
    again = loader_of(saved, tmp_path, seed=1, prefetch=2)
    again.multiprocessing_context = "spawn"
    assert texts(again) == plain
    again.device = "meta"
    assert {batch.input_ids.device.type for batch in again} == {"meta"}


def test_an_infinite_iterator() -> None:
    assert list(islice(offline_data.create_infinite_iterator([1, 2]), 5)) == [1, 2, 1, 2, 1]
    assert list(offline_data.create_infinite_iterator(iter("ab"))) == ["a", "b"]


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
    monkeypatch.setenv("OFFLINE_DATA_OFFLINE", "1")
    again = ours.PromptData.from_dataset(  # neither lists nor fetches anything
        "train", "someone/prompts", LENGTH, root_dir=tmp_path / "root", tokenizer_class=Auto
    )
    assert_equal(again, found)
    assert_equal(found, from_dataset(ours.PromptData, saved / "prompts", tmp_path))


def test_a_hook_that_cannot_be_pickled(saved: Path, tmp_path: Path) -> None:
    file: Any = (tmp_path / "notes").open("w")
    loader = offline_data.TokenizedDatasetLoader(
        "train", 5, saved / "prompts", offline_data.TensorDictTokenizer,
        lambda some: file and some, tmp_path, True, tokenizer_class=Auto,
    )  # fmt: skip
    with file, pytest.raises(UsageError, match=r"cannot be cached: .*TextIOWrapper"):
        loader.load()
