"""Batches of whole documents of a tokenized dataset: padded, or laid end to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import offline_data.rows  # noqa: F401 # isort: skip # an error of ours without torch
import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.buffers.bridges.epochs import EpochBatches
from offline_data.buffers.bridges.loader import DatasetLoader
from offline_data.rows.indexing import positive
from offline_data.rows.samplers.base import ValidRows
from offline_data.rows.selection import SubsetStorage
from offline_data.store.reader import DatasetReader

if TYPE_CHECKING:
    from offline_data.buffers.dataset import Dataset

IGNORED = -100  # label of padding and prompts, which torch's cross entropy ignores

_TOKENS, _MASK = ("input_ids",), ("completion_mask",)


@pickled_by_name
class Documents:
    """The documents of a tokenized dataset (`hf:…`, `convert --from text`), by number.

    `documents[i]` is one, `documents[[3, 0]]` a batch. Only the tokens of these are read. Labels are
    the tokens, and -100 in prompts and padding; models shift them by themselves.

    - Padded: `input_ids`, `attention_mask` and `labels`, int64 `[B, T]`, `T` the longest.
    - Packed: `input_ids`, `labels` and `position_ids`, int64 `[total]`, for attention that takes
      `cu_seqlens`, int32 `[B + 1]`, and `max_seqlen`, an int; no padding is computed. The first label
      of each document is -100, too: after the shift it would be predicted from another document.

    Args:
        dataset: A dataset whose rows are tokens, or a view of whole documents (`ds.split(…)`).
        packed: Whether documents are laid end to end.
        max_length: Tokens of a document, the first ones; None: all.
        pad_to: `T` of all padded batches; None: the longest document of each batch.
        pad_token: Token id of padding; None: that of the dataset's tokenizer.
        numbers: Documents to use, int64 `[D]`, numbered as in `dataset`, or a mask of all; None: all.

    Raises:
        UsageError: The rows of the dataset are not tokens, or an argument is invalid.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import offline_data
        >>> from offline_data.testing.toy import write_tokens
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_tokens(Path(folder) / "toy", [[5, 6, 7], [8]], prompts=[1, 0])
        ...     documents = Documents(offline_data.open_dataset(path))
        ...     print(documents[[0, 1]]["labels"].tolist(), len(documents))
        [[-100, 6, 7], [8, -100, -100]] 2
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        packed: bool = False,
        max_length: int | None = None,
        pad_to: int | None = None,
        pad_token: int | None = None,
        numbers: NDArray[np.int64] | Sequence[int] | None = None,
    ) -> None:
        self._reader = DatasetReader(dataset.data_path)
        reader = self._reader
        leaf = reader.step_leaves.get(_TOKENS)
        if leaf is None or leaf.shape:
            raise UsageError(
                f"The rows of {reader.manifest.id} are not tokens",
                hint="its rows are whole documents: use ds.dataloader"
                if leaf is not None or ("chosen_data", "input_ids") in reader.step_leaves
                else "`offline-data convert PATH NAME --from text --tokenizer gpt2` writes tokens",
            )
        self.packed, self.max_length, self.pad_to = packed, max_length, pad_to
        if max_length is not None:
            positive(max_length, "max_length")
        if pad_to is not None and (packed or max_length is None or pad_to < max_length):
            raise UsageError(
                f"pad_to is {pad_to}; expected at least max_length ({max_length}), and not packed"
            )
        known = reader.manifest.about.get("tokenizer")
        stored = known.get("pad") if isinstance(known, dict) else None
        self.pad_token = int(next(one for one in (pad_token, stored, 0) if one is not None))
        there = self._documents_of(dataset)
        self.numbers = there if numbers is None else there[_numbers(numbers, len(there))]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document, `[D]`."""
        found = self._reader.lengths[self.numbers]
        return found if self.max_length is None else np.minimum(found, self.max_length)

    def __getitem__(self, index: Any) -> TensorDict:
        """Return one document, `[T]`, or a batch of some: a slice, or ints `[B]`."""
        if not isinstance(index, slice):
            index = np.asarray(index, None if np.size(index) else np.int64)
        numbers = np.atleast_1d(self.numbers[index])
        found = self._pack(numbers) if self.packed else self._pad(numbers)
        single = not isinstance(index, slice) and np.ndim(index) == 0
        return found[0] if single and not self.packed else found

    def dataloader(
        self,
        batch_size: int,
        *,
        num_workers: int = 0,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
        **options: Any,
    ) -> DatasetLoader:
        """Return a loader of batches of documents, each once per epoch; see `ds.dataloader`."""
        batches = EpochBatches(
            self,
            ValidRows(len(self)),
            batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            rank=rank,
            world=world,
        )
        return DatasetLoader(batches, num_workers=num_workers, **options)

    def _documents_of(self, dataset: Dataset) -> NDArray[np.int64]:
        """Return the numbers of all documents, or of those of a view, which must be whole."""
        if not isinstance(dataset.storage, SubsetStorage):
            return np.arange(self._reader.episode_count)
        found = dataset.storage.episodes.numpy()
        if self._reader.lengths[found].sum() != len(dataset):
            raise UsageError(
                "The view has parts of documents",
                hint="choose whole ones, with ds.filter or ds.split",
            )
        return found

    def _tokens(self, numbers: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
        """Return tokens, labels and positions, `[total]`, and lengths, `[B]`, of documents."""
        reader = self._reader
        lengths = reader.lengths[numbers]
        if self.max_length is not None:
            lengths = np.minimum(lengths, self.max_length)
        ends = np.cumsum(lengths)
        positions = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
        rows = positions + np.repeat(reader.starts[numbers], lengths)
        tokens = np.asarray(reader.step(_TOKENS)[rows]).astype(np.int64)
        labels = tokens
        if _MASK in reader.step_leaves:
            labels = np.where(reader.step(_MASK)[rows], tokens, IGNORED)
        return tokens, labels, positions, lengths

    def _pad(self, numbers: NDArray[np.int64]) -> TensorDict:
        tokens, labels, _, lengths = self._tokens(numbers)
        width = self.pad_to or int(lengths.max(initial=0))
        mask = np.arange(width) < lengths[:, None]
        leaves = {"input_ids": (tokens, self.pad_token), "labels": (labels, IGNORED)}
        batch = {}
        for name, (values, pad) in leaves.items():
            batch[name] = np.full(mask.shape, pad, np.int64)
            batch[name][mask] = values
        batch["attention_mask"] = mask.astype(np.int64)
        return TensorDict(
            {name: torch.from_numpy(values) for name, values in batch.items()}, [len(numbers)]
        )

    def _pack(self, numbers: NDArray[np.int64]) -> TensorDict:
        tokens, labels, positions, lengths = self._tokens(numbers)
        labels = np.where(positions > 0, labels, IGNORED)
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        leaves = {
            "input_ids": tokens,
            "labels": labels,
            "position_ids": positions,
            "cu_seqlens": ends,
        }
        batch = TensorDict({name: torch.from_numpy(values) for name, values in leaves.items()}, [])
        return batch.set_non_tensor("max_seqlen", int(lengths.max(initial=0)))


def _numbers(numbers: NDArray[Any] | Sequence[int], count: int) -> NDArray[np.int64]:
    """Return numbers of documents, also from a mask of all `count`; raises `UsageError`."""
    given = np.asarray(numbers)
    if given.dtype == bool and given.shape == (count,):
        return np.flatnonzero(given)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise UsageError(
            f"numbers is {given.dtype}{list(given.shape)}; expected whole numbers, or a mask of {count}"
        )
    if given.size and not 0 <= given.min() <= given.max() < count:
        raise UsageError(f"It has {plural(count, 'document')}; found a number beyond")
    return given.astype(np.int64)
