"""Batches of documents against a plain loop over them."""

from __future__ import annotations

import pickle
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import torch

import offline_data
from offline_data.testing.toy import write_tokens
from offline_data.text.documents import IGNORED, Documents

RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(1, 1000, RNG.integers(1, 30)).tolist() for _ in range(23)]
PROMPTS = [int(RNG.integers(0, len(one) + 1)) for one in TEXTS]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = write_tokens(tmp_path_factory.mktemp("tokens") / "set", TEXTS, PROMPTS)
    return offline_data.open_dataset(path)


def labels(number: int, length: int | None = None) -> list[int]:
    tokens, prompt = TEXTS[number][:length], PROMPTS[number]
    found: list[int] = [IGNORED] * min(prompt, len(tokens)) + tokens[prompt:]
    return found


def test_padded(dataset: Any) -> None:
    batch = Documents(dataset, pad_token=7)[[4, 0, 22]]
    width = max(len(TEXTS[n]) for n in (4, 0, 22))
    for row, number in zip(batch, (4, 0, 22), strict=True):
        missing = width - len(TEXTS[number])
        assert row["input_ids"].tolist() == TEXTS[number] + [7] * missing
        assert row["labels"].tolist() == labels(number) + [IGNORED] * missing
        assert row["attention_mask"].tolist() == [1] * len(TEXTS[number]) + [0] * missing
    assert {leaf.dtype for leaf in batch.values()} == {torch.int64}


def test_packed(dataset: Any) -> None:
    batch = Documents(dataset, packed=True, max_length=9)[[3, 3, 11]]
    parts = [TEXTS[n][:9] for n in (3, 3, 11)]
    assert batch["input_ids"].tolist() == list(chain(*parts))
    shifted = ([IGNORED, *labels(n, 9)[1:]] for n in (3, 3, 11))
    assert batch["labels"].tolist() == list(chain(*shifted))
    assert batch["position_ids"].tolist() == [i for part in parts for i in range(len(part))]
    assert batch["cu_seqlens"].tolist() == [0, *np.cumsum([len(part) for part in parts])]
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["max_seqlen"] == max(map(len, parts))


def test_one_document_and_slices(dataset: Any) -> None:
    documents = Documents(dataset, max_length=5, pad_to=6)
    assert documents[2]["input_ids"].tolist() == TEXTS[2][:5] + [0] * (6 - len(TEXTS[2][:5]))
    assert documents[3:5]["input_ids"].shape == (2, 6)
    assert documents.lengths.tolist() == [min(5, len(one)) for one in TEXTS]
    some = Documents(dataset, numbers=[5, 1])
    assert (len(some), some[1]["input_ids"].tolist()) == (2, TEXTS[1])


def epoch(loader: Any) -> list[list[int]]:
    return [
        ids[mask.bool()].tolist()
        for batch in loader
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_an_epoch_has_each_document_once(dataset: Any) -> None:
    loader = Documents(dataset).dataloader(4, seed=3)
    first, second = epoch(loader), epoch(loader)
    assert sorted(first) == sorted(second) == sorted(TEXTS)
    assert first != second
    workers: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}
    for options in ({}, workers):
        assert epoch(Documents(dataset).dataloader(4, seed=3, **options)) == first
    assert epoch(Documents(dataset).dataloader(4, shuffle=False)) == TEXTS


def test_ranks_share_an_epoch(dataset: Any) -> None:
    shares = [epoch(Documents(dataset).dataloader(3, seed=1, rank=r, world=2)) for r in range(2)]
    assert [len(one) for one in shares] == [12, 12]
    assert {tuple(one) for share in shares for one in share} == {tuple(one) for one in TEXTS}


def test_a_loader_resumes(dataset: Any) -> None:
    loader = Documents(dataset).dataloader(5, seed=2)
    whole = epoch(loader)
    again = Documents(dataset).dataloader(5, seed=2)
    iterator = iter(again)
    next(iterator)
    state = again.state_dict()
    resumed = Documents(dataset).dataloader(5, seed=2)
    resumed.load_state_dict(state)
    assert epoch(resumed) == whole[5:]


def test_packed_loss_is_padded_loss(dataset: Any) -> None:
    """The shift by one, which models do over the whole batch, joins no two documents."""
    guesses = torch.randn(1000, 1000, generator=torch.Generator().manual_seed(0))
    losses: list[Any] = []
    for packed in (False, True):
        batch = Documents(dataset, packed=packed)[:]
        logits = guesses[batch["input_ids"]][..., :-1, :].reshape(-1, 1000)
        labels = batch["labels"][..., 1:].reshape(-1)
        losses.append(torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED))
    assert torch.allclose(losses[0], losses[1])


def packed_texts(loader: Any) -> list[list[int]]:
    return [
        batch["input_ids"][begin:end].tolist()
        for batch in loader
        for begin, end in pairwise(batch["cu_seqlens"].tolist())
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_packed_batches_of_a_rank_resume(dataset: Any, rank: int) -> None:
    """Packed batches have the documents of the padded ones; a document is cut at max_length."""

    def loader(packed: bool = True) -> Any:
        documents = Documents(dataset, packed=packed, max_length=9)
        return documents.dataloader(4, seed=5, rank=rank, world=2)

    whole = packed_texts(loader())
    assert whole == epoch(loader(packed=False))
    assert max(map(len, whole)) == 9
    assert {tuple(one) for one in whole} <= {tuple(one[:9]) for one in TEXTS}
    begun, resumed = loader(), loader()
    next(iter(begun))
    resumed.load_state_dict(begun.state_dict())
    assert packed_texts(resumed) == whole[4:]


def test_documents_of_a_view(dataset: Any) -> None:
    parts = dataset.split(train=0.7, test=0.3)
    found = [sorted(epoch(Documents(part).dataloader(4))) for part in parts.values()]
    assert sorted([*found[0], *found[1]]) == sorted(TEXTS)
    assert 0 < len(found[1]) < len(found[0])
    some = Documents(parts["test"], numbers=[1])
    assert some[0]["input_ids"].tolist() == parts["test"][:]["input_ids"][
        parts["test"][:]["episode"] == 1
    ].tolist()  # fmt: skip


def test_a_mask_of_documents(dataset: Any) -> None:
    mask = np.arange(len(offline_data.Documents(dataset))) % 3 == 1
    documents = offline_data.Documents(dataset, numbers=mask)
    assert documents.numbers.tolist() == np.flatnonzero(mask).tolist()
    assert len(documents[[]]["input_ids"]) == 0


def test_documents_are_pickled(dataset: Any) -> None:
    documents = Documents(dataset, packed=True)
    other = pickle.loads(pickle.dumps(documents))  # noqa: S301 -- made here
    assert other[[1]]["input_ids"].tolist() == TEXTS[1]
