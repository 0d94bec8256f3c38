"""Documents of tokens in a block, packed or padded, for rules on text.

```
packed    row        0   1   2 | 3   4       a document is an episode
padded    row        [0  1  2 pad]           a document is a row; of pairs, two documents are
```
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.checks.block import RowBlock, RowPlace, mix_bits
from offline_data.episode.fields import Key, join_key
from offline_data.store.reader import DatasetReader

TOKEN_ROOTS = frozenset(  # first parts of keys of tokens, and of what says where they begin and end
    {"input_ids", "attention_mask", "prompt_rindex", "chosen_data", "rejected_data"}
)

# Rows of `TokenBlock.sums`: the number of tokens of a document, that of its prompt, and sums of
# hashes of token and place over both, which differ between documents.
TOKENS, GIVEN, CONTENT, PROMPT = range(4)

_IDS: tuple[Key, ...] = (
    ("input_ids",),
    ("chosen_data", "input_ids"),
    ("rejected_data", "input_ids"),
)


def token_leaves(reader: DatasetReader) -> tuple[Key, ...]:
    """Return the leaves of token ids: one; two of padded pairs; none if a dataset has no tokens."""
    known = reader.step_leaves
    found = tuple(
        key
        for key in _IDS
        if key in known and known[key].dtype in {"int32", "int64"} and len(known[key].shape) < 2
    )
    return found[:1] if found[:1] == _IDS[:1] else found * (len(found) == 2)


def is_packed(reader: DatasetReader) -> bool:
    """Return True if a row is a token."""
    return not reader.step_leaves[token_leaves(reader)[0]].shape


def has_prompts(reader: DatasetReader) -> bool:
    """Return True if the dataset says which tokens are those of a prompt."""
    known = ("completion_mask",) if is_packed(reader) else ("prompt_rindex",)
    return known in reader.step_leaves


def document_place(reader: DatasetReader, key: Key, document: int) -> RowPlace:
    """Return the place of a document's first row."""
    if is_packed(reader):
        return RowPlace(join_key(key), document, int(reader.starts[document]))
    episode = int(np.searchsorted(reader.starts, document, side="right")) - 1
    return RowPlace(join_key(key), episode, document)


class TokenBlock:
    """The tokens of a leaf in a block, whose ends need not be ends of documents."""

    def __init__(self, block: RowBlock, key: Key) -> None:
        reader = block.reader
        self.ids = np.asarray(reader.step(key)[block.first : block.stop])  # `[n]`; padded `[n, L]`
        if self.ids.ndim == 1:
            self.first = block.first_episode  # number of the first document
            given = _column(block, ("completion_mask",), True).reshape(-1) == 0
            self.inside = np.broadcast_to(True, self.ids.shape)  # not padding; shaped as `ids`
            rows = np.arange(block.first, block.stop)
            self.places = rows - reader.starts[block.episodes]  # place of each in its document
            self.lengths = np.asarray(reader.lengths[block.episodes])  # of the document of each
            starts = reader.starts[self.first : block.last_episode + 1]
            self._begins = np.maximum(starts - block.first, 0)
        else:
            self.first = block.first
            mask = _column(block, (*key[:-1], "attention_mask"), True) != 0
            self.inside = np.broadcast_to(mask, self.ids.shape)
            self.places = np.cumsum(self.inside, axis=1) - 1
            self.lengths = np.broadcast_to(self.places[:, -1:] + 1, self.ids.shape)
            given = self.inside & (self.places <= _column(block, ("prompt_rindex",), -1))
        self.sums = self._sums(given)  # `[4, d]` over tokens of each document here; see `TOKENS`

    @classmethod
    def of(cls, block: RowBlock, key: Key) -> TokenBlock:
        """Return the tokens of a block, made once for all rules."""
        if key not in block.shared:
            block.shared[key] = cls(block, key)
        found: TokenBlock = block.shared[key]
        return found

    def _sums(self, given: NDArray[np.bool_]) -> NDArray[np.uint64]:
        words = self.places.astype(np.uint64) << np.uint64(32)
        words |= self.ids.astype(np.uint32)
        terms = mix_bits(words)
        terms[~self.inside] = 0
        parts = (self.inside, given, terms, terms * given)
        if self.ids.ndim == 2:
            return np.stack([part.sum(1, dtype=np.uint64) for part in parts])
        begins = self._begins
        return np.stack([np.add.reduceat(part, begins, dtype=np.uint64) for part in parts])


def _column(block: RowBlock, key: Key, fill: Any) -> NDArray[Any]:
    """Return a leaf of the rows, `[n, 1 or L]`; filled if there is none."""
    if key not in block.reader.step_leaves:
        return np.full((len(block), 1), fill)
    column = np.asarray(block.reader.step(key)[block.first : block.stop])
    return column.reshape(len(block), -1)
