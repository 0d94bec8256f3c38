"""A tiny byte-level tokenizer, trained here, and texts to go with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes import EpisodeBatch
from offline_data.episodes.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.testing.toy import write_toy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.episodes import Key

SENTENCES = (
    "the cat sat on the mat",
    "a dog barked at the moon",
    "why did the chicken cross the road?",
)
"""Training texts of the tokenizer: words of these take a token or two, others several."""

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer() -> Any:
    """Return a `tokenizers.Tokenizer` of about 300 tokens, of which `<|end|>` (0) is special."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 20, trainer)
    return tokenizer


def write_tokenizer(folder: Path) -> Path:
    """Write `tokenizer.json` to a folder that exists; returns its path."""
    path = folder / "tokenizer.json"
    train_tokenizer().save(str(path))
    return path


def write_chat_tokenizer(folder: Path) -> Path:
    """Write a folder as `save_pretrained` does, with a chat template; returns it."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(),
        **dict.fromkeys(("eos_token", "pad_token"), "<|end|>"),
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def write_tokens(
    folder: Path, documents: Sequence[Sequence[int]], prompts: Sequence[int] | None = None
) -> Path:
    """Write a dataset of documents of tokens, without a tokenizer; returns its directory.

    Args:
        folder: The directory.
        documents: Tokens of each document.
        prompts: Tokens of each document's prompt; None: there are no prompts.
    """
    lengths = np.array([len(one) for one in documents], np.int64)
    ids = np.concatenate([np.array(one, np.int32) for one in documents])
    ended = np.zeros((len(ids), 1), bool)
    ended[np.cumsum(lengths) - 1] = True
    steps: dict[Key, NDArray[Any]] = {
        ("input_ids",): ids,
        REWARD: np.zeros((len(ids), 1), np.float32),
        TERMINATED: ended,
        TRUNCATED: np.zeros_like(ended),
    }
    if prompts is not None:
        position = np.concatenate([np.arange(length) for length in lengths])
        steps["completion_mask",] = position >= np.repeat(prompts, lengths)
    write_toy(folder, [EpisodeBatch(lengths, steps, {}, np.ones(len(lengths), bool))])
    return folder
