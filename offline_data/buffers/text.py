"""Text in batches: codes become strings, as tensordict holds what is not a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offline_data.episodes.fields import Key, join_key
from offline_data.errors import UsageError
from offline_data.store.reader import DatasetReader, decode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def vocabularies_of(reader: DatasetReader, keys: Sequence[Key]) -> dict[Key, list[str]]:
    """Return the vocabulary of each text leaf among `keys`, by TED key."""
    words = {key: reader.words(key) for key in keys}
    return {key: known for key, known in words.items() if known is not None}


def decode_codes(key: Key, words: Mapping[Key, list[str]], codes: Any) -> Any:
    """Turn codes of one leaf into `str`, None where the source has nothing.

    Args:
        key: A text leaf.
        words: Vocabularies by key.
        codes: An int, or a tensor, array or sequence of ints of any shape.

    Returns:
        One string (or None), or lists nested as `codes` is.

    Raises:
        UsageError: The leaf is not text, or a number is no code of it.
    """
    if key not in words:
        texts = ", ".join(map(join_key, words)) or "none"
        raise UsageError(f"{join_key(key)!r} is not a text leaf; text leaves: {texts}")
    values = codes.cpu().numpy() if isinstance(codes, torch.Tensor) else np.asarray(codes)
    count = len(words[key])
    if values.size and not -1 <= values.min() <= values.max() < count:
        raise UsageError(f"{join_key(key)!r} has codes from -1 to {count - 1}; found {values}")
    return decode(values, words[key]).tolist()


class TextDecoder:
    """Replaces the codes of every text leaf of a batch by strings (`NonTensorStack`).

    Args:
        words: Vocabularies by key.
    """

    def __init__(self, words: Mapping[Key, list[str]]) -> None:
        self._words = words

    def __call__(self, batch: Any) -> Any:
        """Decode a batch in place, and return it."""
        for key in self._words:
            texts = decode_codes(key, self._words, batch.get(key))
            batch.set(key, _stack(texts, batch))
        return batch


def _stack(texts: Any, batch: Any) -> Any:
    from tensordict import NonTensorData, NonTensorStack

    if isinstance(texts, list) and batch.batch_dims:
        return NonTensorStack.from_list(texts)
    return NonTensorData(texts, batch_size=batch.batch_size)
