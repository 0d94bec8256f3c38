"""Text datasets: decoded documents with prompt and completion apart, their lengths, and cuts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.checks.tokens import is_packed, token_leaves
from offline_data.base.errors import NotFoundError
from offline_data.base.plurals import plural
from offline_data.document.html import Html, as_html, element
from offline_data.episode.fields import Key
from offline_data.reports.pages.distributions import chart_of
from offline_data.reports.pictures import histogram_of
from offline_data.store.layout import EPISODES
from offline_data.store.reader import DatasetReader

Decode: TypeAlias = Callable[[Sequence[int]], str]  # returns the text of tokens

_MOST_TOKENS, _MOST_IDS = 4000, 60  # of a document, decoded; listed where nothing decodes them
_CHUNK_ITEMS = 1 << 22
_BEGINNINGS = 2000  # documents whose first words are in the list


@dataclass(frozen=True, eq=False)
class TokenLengths:
    """Lengths of the documents of a leaf of tokens, in order."""

    tokens: NDArray[np.int64]  # `[documents]`
    prompts: NDArray[np.int64] | None  # `[documents]` tokens of the prompt; None if it is unknown


def is_text(reader: DatasetReader) -> bool:
    """Return True for a dataset of tokens."""
    return bool(token_leaves(reader))


@dataclass(frozen=True, eq=False)
class ShownDocuments:
    """The documents of a text dataset, or its pairs of a chosen and a rejected one."""

    reader: DatasetReader
    leaves: tuple[Key, ...]
    found: list[TokenLengths]  # of each leaf
    pairs: bool

    @classmethod
    def of(cls, reader: DatasetReader) -> ShownDocuments:
        """Measure the documents; reads the masks of a padded dataset once."""
        leaves = token_leaves(reader)
        pairs = len(leaves) == 2 or ("chosen",) in reader.episodes
        return cls(reader, leaves, [_measure(reader, key) for key in leaves], pairs)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document, of a pair those of both."""
        if len(self.found) == 2:
            return self.found[0].tokens + self.found[1].tokens
        (tokens,) = (one.tokens for one in self.found)
        return tokens[::2] + tokens[1::2] if self.pairs else tokens

    @property
    def are_episodes(self) -> bool:
        """Whether each document is an episode, so that it can be marked and filtered."""
        return len(self.lengths) == self.reader.episode_count

    def summary(self, *, decoded: bool) -> Html:
        """Return a sentence on cuts, and histograms of lengths and scores."""
        reader, count = self.reader, len(self.lengths)
        cut = int(np.asarray(reader.episodes[("truncated",)]).sum())
        every = reader.episode_count if is_packed(reader) else reader.transitions
        noun = "pair" if len(self.leaves) == 2 else "document"
        said = f"{plural(count, 'pair' if self.pairs else 'document')}; "
        said += f"{cut:,} of {plural(every, noun)} cut off ({100 * cut / max(1, every):.3g} %)."
        lengths = {"tokens of a document": np.concatenate([one.tokens for one in self.found])}
        prompts = [one.prompts for one in self.found if one.prompts is not None]
        if prompts:
            lengths["tokens of a prompt"] = np.concatenate(prompts)
        scores = np.asarray(reader.episodes[("return",)], np.float64)
        if np.isfinite(scores).any() and scores.min() < scores.max():
            lengths["score"] = scores
        drawn = (
            chart_of(replace(histogram_of(name, values), unit="documents"))
            for name, values in lengths.items()
        )
        unknown = "The tokenizer is not on this disk: `report --tokenizer NAME` decodes with one."
        kept = any((name,) in reader.episodes for name in ("text", "rejected"))
        return as_html(
            (
                element("p", said),
                element("div", drawn, class_="grid wide"),
                None if decoded or kept else element("p", unknown, class_="soft"),
            )
        )

    def beginnings(self, decode: Decode | None, count: int) -> list[str] | None:
        """Return the first words of the first documents, or None where nothing decodes them."""
        reader, key = self.reader, self.leaves[0]
        each = 2 if self.pairs and len(self.leaves) == 1 else 1
        found = []
        for place in range(0, each * min(count, _BEGINNINGS), each):
            kept = None if decode else _kept_text(reader, key, place)
            if decode is None and kept is None:
                return None
            words = (
                kept if decode is None else decode(_first_tokens(reader, key, place, 60).tolist())
            )
            found.append(" ".join(str(words)[:400].split()))
        return found + [""] * (count - len(found))

    def show(self, number: int, decode: Decode | None = None) -> Html:
        """Return one document, or the two of a pair side by side; raises `NotFoundError`."""
        if not 0 <= number < len(self.lengths):
            raise NotFoundError(f"{self.reader.manifest.id} has no document {number}")
        leaves, found = self.leaves, self.found
        if not self.pairs:
            columns = [("", leaves[0], found[0], number)]
        elif len(leaves) == 2:
            columns = [
                ("chosen", leaves[0], found[0], number),
                ("rejected", leaves[1], found[1], number),
            ]
        else:
            both = np.asarray(self.reader.episodes[("chosen",)])[2 * number : 2 * number + 2]
            columns = [
                ("chosen" if so else "rejected", leaves[0], found[0], 2 * number + place)
                for place, so in enumerate(both.tolist())
            ]
        parts = (
            _document(self.reader, key, documents, place, name, decode)
            for name, key, documents, place in columns
        )
        return element("div", parts, class_="grid pair")


def _measure(reader: DatasetReader, key: Key) -> TokenLengths:
    if is_packed(reader):
        known = ("prompt_length",) in reader.episodes
        prompts = np.asarray(reader.episodes[("prompt_length",)], np.int64) if known else None
        return TokenLengths(np.asarray(reader.lengths), prompts)
    mask = reader.step((*key[:-1], "attention_mask"))
    step = max(1, _CHUNK_ITEMS // mask.shape[1])
    parts = [np.count_nonzero(mask[i : i + step], axis=1) for i in range(0, len(mask), step)]
    given = ("prompt_rindex",) in reader.step_leaves
    prompts = np.asarray(reader.step(("prompt_rindex",)), np.int64).ravel() + 1 if given else None
    return TokenLengths(np.concatenate(parts).astype(np.int64), prompts)


def _document(
    reader: DatasetReader,
    key: Key,
    documents: TokenLengths,
    place: int,
    name: str,
    decode: Decode | None,
) -> Html:
    length = int(documents.tokens[place])
    prompt = 0 if documents.prompts is None else min(int(documents.prompts[place]), length)
    ids = _first_tokens(reader, key, place, min(length, _MOST_TOKENS))
    cut = bool(np.asarray(reader.step(("next", "truncated"))[_last_row(reader, place)]).any())
    facts = (
        f"{plural(length, 'token')}, {prompt:,} of the prompt"
        if prompt
        else plural(length, "token")
    )
    caption = element("figcaption", element("b", name), element("small", facts, ", cut off" * cut))
    text = _kept_text(reader, key, place) if decode is None else None
    if text is not None:
        blocks = [("text", text)]
    else:
        show = decode or _list_ids
        split = (
            [("prompt", ids[:prompt]), ("completion", ids[prompt:])] if prompt else [("text", ids)]
        )
        blocks = [(label, show(part.tolist())) for label, part in split]
    shown = (
        (element("p", label, class_="soft"), element("pre", said, class_=label, tabindex=0))
        for label, said in blocks
    )
    return element("figure", caption, shown)


def _first_tokens(reader: DatasetReader, key: Key, place: int, most: int) -> NDArray[Any]:
    if is_packed(reader):
        begin = int(reader.starts[place])
        return np.asarray(reader.step(key)[begin : begin + min(most, int(reader.lengths[place]))])
    mask = np.asarray(reader.step((*key[:-1], "attention_mask"))[place]) != 0
    return np.asarray(reader.step(key)[place][mask][:most])


def _last_row(reader: DatasetReader, place: int) -> int:
    if not is_packed(reader):
        return place
    return int(reader.starts[place] + reader.lengths[place]) - 1


def _kept_text(reader: DatasetReader, key: Key, place: int) -> str | None:
    """Return the text of a document where the dataset keeps it."""
    name = (key[0].removesuffix("_data") if len(key) > 1 else "text",)
    column: Any = reader.episodes.get(name)
    if column is None or reader.words(name, EPISODES) is None:
        return None
    return str(reader.as_text(name, np.asarray(column[place : place + 1]), EPISODES)[0])


def _list_ids(ids: Sequence[int]) -> str:
    more = f" … {len(ids) - _MOST_IDS:,} more" if len(ids) > _MOST_IDS else ""
    return " ".join(map(str, ids[:_MOST_IDS])) + more
