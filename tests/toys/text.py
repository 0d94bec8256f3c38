"""A tiny byte-level tokenizer, trained here, and texts to go with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
