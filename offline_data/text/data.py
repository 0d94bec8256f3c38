"""TorchRL's classes of preference and prompt data, and loaders of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import offline_data.rows  # noqa: F401 # isort: skip # an error of ours without torch
import torch
from tensordict import tensorclass

from offline_data.base.pickles import pickled_by_name
from offline_data.buffers.bridges.epochs import EpochBatches
from offline_data.buffers.bridges.loader import DatasetLoader
from offline_data.rows.samplers.base import ValidRows
from offline_data.text.tokenize import (
    PromptTensorDictTokenizer,
    TensorDictTokenizer,
    TokenizedDatasetLoader,
    pre_tokenization_hook,
)

T = TypeVar("T")

COMPARISONS = "CarperAI/openai_summarize_comparisons"
PROMPTS = "CarperAI/openai_summarize_tldr"


@pickled_by_name
@tensorclass
class RewardData:
    """Tokens for a reward model; int64 `[N, T]`, rewards `[N, T]`, scores `[N]`."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    rewards: torch.Tensor | None = None
    end_scores: torch.Tensor | None = None


@pickled_by_name
@tensorclass
class PairwiseDataset:
    """Pairs of chosen and rejected texts."""

    chosen_data: RewardData
    rejected_data: RewardData

    @classmethod
    def from_dataset(
        cls,
        split: str,
        dataset_name: str | None = None,
        max_length: int = 550,
        root_dir: str | os.PathLike[str] | None = None,
        from_disk: bool = False,
        num_workers: int | None = None,
        **options: Any,
    ) -> PairwiseDataset:
        """Tokenize a dataset of comparisons once, and return it memory-mapped.

        See `TokenizedDatasetLoader` for the arguments; `options` are others of it. The dataset is
        TL;DR's comparisons unless one is named; rows are filtered by `pre_tokenization_hook`.
        """
        loader = TokenizedDatasetLoader(
            split,
            max_length,
            dataset_name or COMPARISONS,
            TensorDictTokenizer,
            pre_tokenization_hook,
            root_dir=root_dir,
            from_disk=from_disk,
            num_workers=num_workers,
            **options,
        )
        data = loader.load()
        half = data.shape[0] // 2
        leaves = data.select("input_ids", "attention_mask")
        chosen, rejected = (
            _construct(RewardData, **part, batch_size=[half])
            for part in (leaves[:half], leaves[half:])
        )
        return _construct(cls, chosen_data=chosen, rejected_data=rejected, batch_size=[half])


@pickled_by_name
@tensorclass
class PromptData:
    """Prompts with their completions."""

    input_ids: torch.Tensor
    """int64 `[N, T]`."""
    attention_mask: torch.Tensor
    prompt_rindex: torch.Tensor
    """Place of the prompt's last token, int64 `[N]`."""
    labels: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    loss: torch.Tensor | None = None

    def mask_label(self, pad_token_id: int = 50256) -> PromptData:
        """Return the tokens before `prompt_rindex`, with padding in place of all others."""
        places = torch.arange(self.input_ids.shape[-1], device=self.prompt_rindex.device)
        mask = places < self.prompt_rindex[:, None]
        return _construct(
            type(self),
            input_ids=torch.where(mask, self.input_ids, pad_token_id),
            attention_mask=mask.to(torch.int64),
            prompt_rindex=self.prompt_rindex,
            loss=self.loss,
            batch_size=[],
        )

    @classmethod
    def from_dataset(
        cls,
        split: str,
        dataset_name: str | None = None,
        max_length: int = 550,
        root_dir: str | os.PathLike[str] | None = None,
        from_disk: bool = False,
        num_workers: int | None = None,
        **options: Any,
    ) -> PromptData:
        """Tokenize prompts with their labels once, and return them memory-mapped.

        See `TokenizedDatasetLoader` for the arguments; `options` are others of it. The dataset is
        TL;DR unless one is named. Rows that fill `max_length`, and so lack an end, are kept.
        """
        loader = TokenizedDatasetLoader(
            split,
            max_length,
            dataset_name or PROMPTS,
            PromptTensorDictTokenizer,
            root_dir=root_dir,
            from_disk=from_disk,
            num_workers=num_workers,
            **options,
        )
        data = loader.load()
        leaves = data.select("input_ids", "attention_mask", "prompt_rindex")
        return _construct(cls, **leaves, labels=data["input_ids"], batch_size=data.shape)


def _construct(kind: type[T], **fields: Any) -> T:
    """Call the constructor of a tensorclass, which type checkers do not know."""
    constructor: Any = kind
    made: T = constructor(**fields)
    return made


def create_infinite_iterator(iterator: Iterable[Any]) -> Iterator[Any]:
    """Iterate over an iterable again and again; ends when it is empty."""
    found = True
    while found:
        found = False
        for one in iterator:
            found = True
            yield one


def get_dataloader(
    batch_size: int,
    block_size: int,
    tensorclass_type: Any,
    device: torch.device | str | None,
    dataset_name: str | None = None,
    infinite: bool = True,
    prefetch: int = 0,
    split: str = "train",
    root_dir: str | os.PathLike[str] | None = None,
    from_disk: bool = False,
    num_workers: int | None = None,
    *,
    seed: int = 0,
    rank: int | None = None,
    world: int | None = None,
    **options: Any,
) -> DatasetLoader | Iterator[Any]:
    """Return batches of a tensorclass, without replacement, only full ones.

    TorchRL's function of that name, with `seed`, `rank` and `world` added; see `ds.dataloader`.

    Args:
        batch_size: Rows in a batch of each rank.
        block_size: Tokens of a row.
        tensorclass_type: `PairwiseDataset`, `PromptData`, or a class with such a `from_dataset`.
        device: Device of batches.
        dataset_name: Name of the dataset; None: that of the class.
        infinite: Whether epochs follow each other without end; else a loader of epochs is returned.
        prefetch: Batches prepared ahead by a worker process; 0: none.
        split: Split of the dataset.
        root_dir: Root of all datasets; None: the user's.
        from_disk: See `TokenizedDatasetLoader`.
        num_workers: See `TokenizedDatasetLoader`.
        seed: Seed of all orders.
        rank: Index of this rank; None: from `torch.distributed`, or 0.
        world: Number of ranks.
        **options: Others of `from_dataset`.
    """
    data = tensorclass_type.from_dataset(
        split=split,
        dataset_name=dataset_name,
        max_length=block_size,
        root_dir=root_dir,
        from_disk=from_disk,
        num_workers=num_workers,
        **options,
    )
    batches = EpochBatches(
        data, ValidRows(len(data)), batch_size, seed=seed, drop_last=True, rank=rank, world=world
    )
    ahead: dict[str, Any] = {"num_workers": 1, "prefetch_factor": prefetch} if prefetch else {}
    loader = DatasetLoader(batches, device=device, **ahead)
    return create_infinite_iterator(loader) if infinite else loader
