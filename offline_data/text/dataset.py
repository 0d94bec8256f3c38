"""A text dataset as episodes: of tokens, or of one padded row for each document.

```
packed    row        0    1    2  |  3    4         padded   row          0          1
          episode    0    0    0  |  1    1                  episode      0          1
          input_ids  t0   t1   t2 |  u0   u1                 input_ids    [t0 t1 t2]  [u0 u1 pad]
```

An episode ends `terminated` with its last token, or `truncated` if tokens were cut off, of which the
end-of-text token may be one. The reward is the document's score, given with the last token, and 0
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural, plural_of
from offline_data.episode import EpisodeBatch, Key, Skipped
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.formats.base import RawDataset, Shard, SourceInfo
from offline_data.formats.options import ROLES, Form, TextOptions
from offline_data.pipeline.jobs.processes.child import limit_resources
from offline_data.raw.rows import column_names, read_rows
from offline_data.text.forms import RowTexts, documents, resolve_form
from offline_data.text.tokenizer import CHAT_LIMITS, EncodedTexts, Tokenizer, load_tokenizer


class TextDataset(RawDataset):
    """Files of text, each a shard; tokenized while they are read.

    `files` are paths relative to `raw`, and sizes. The form and the columns in `options` may still
    be unknown; `name` is that of a dataset on the hub, for its preset, `licence` that of its card.
    With `skip_bad`, rows of another form are left out. Raises `FormatError` if no tokenizer is
    named, or the form of the first file is unknown.
    """

    def __init__(
        self,
        raw: Path,
        files: Sequence[tuple[str, int | None]],
        options: TextOptions,
        name: str,
        *,
        licence: str | None = None,
        skip_bad: bool = False,
    ) -> None:
        self._raw, self._files, self._name, self._skip_bad = raw, tuple(files), name, skip_bad
        self._options = options
        self.helper = f"tokenizer {options.tokenizer!r}"
        tokenizer = self._tokenizer()
        first = raw / self._files[0][0]
        names = column_names(first)
        self._options = options = self._resolve_form(first, names)
        self._scored = options.column("score") in names
        text = {
            "form": options.form,
            "columns": {role: options.column(role) for role in ROLES[options.form or "text"]},
            "separator": options.separator,
            "eos": tokenizer.choose_end(options.eos, special=options.form != "messages"),
        }
        self.info = SourceInfo(
            licence=licence,
            about={"tokenizer": tokenizer.about, "text": text},
            notes=(
                "A row is a document of tokens, padded at the end."
                if options.pad
                else "A row is a token; an episode is a document, truncated if it was cut off.",
            ),
        )

    def shards(self) -> Sequence[Shard]:
        return [Shard(name, (name,), bytes=size) for name, size in self._files]

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        path = self._raw / shard.files[0]
        tokenizer, row, empty, seen, other = self._tokenizer(), 0, 0, 0, 0
        options = self._resolve_form(path, column_names(path))
        needed = {options.column(role) for role in (*ROLES[options.form or "text"], "score")}
        for columns in read_rows(path, needed):
            with limit_resources(*CHAT_LIMITS):
                chat = tokenizer.chat_text
                found = documents(columns, row, options, chat, scored=self._scored)
            if found.bad and not self._skip_bad:
                part = row + found.count >= 2 * len(found.bad)
                raise FormatError(f"{path}, {found.bad[0][1]}", hint=_HINT if part else _WHOLE)
            skipped = [Skipped(shard.name, said) for _, said in found.bad]
            if skipped:
                yield EpisodeBatch.without_episodes(*skipped)
            batch, without = _episodes(found, tokenizer, options)
            empty += len(found.empty) + without
            row += found.count
            if batch is not None:
                seen += len(batch.lengths)
                begins = batch.episodes.get(("prompt_is_prefix",), np.ones(0, bool))
                other += len(begins) - np.count_nonzero(begins)
                yield batch
        if other:
            noun = "pair" if options.form == "pairs" and options.pad else "document"
            some = plural_of(other, seen, noun, "does", "do")
            said = (
                f"{shard.name}: {some} not begin with the tokens of the prompt, so that loss masks may be "
                "wrong where it ends; `offline-data check` (RL102) names the first"
            )
            yield EpisodeBatch.without_episodes(warnings=(said,))
        if empty:
            said = f"{plural(empty, 'row has', 'rows have')} no text, or text without tokens"
            yield EpisodeBatch.without_episodes(Skipped(shard.name, said))

    def _resolve_form(self, path: Path, names: Sequence[str]) -> TextOptions:
        """Return the options with the form of a file, by its columns, if that has rows."""
        return resolve_form(self._options, self._name, names, str(path)) if names else self._options

    def _tokenizer(self) -> Tokenizer:
        options = self._options
        found = load_tokenizer(options.tokenizer, options.tokenizer_revision)
        expected, sha256 = options.tokenizer_sha256, found.about["sha256"]
        if expected not in {None, sha256, found.file_sha256}:
            raise FormatError(
                f"Tokenizer {options.tokenizer!r} has sha256 {sha256[:12]}…, not {expected[:12]}…: it "
                "has changed since the conversion began, or since the dataset was locked",
                hint="put the former one in its place, or start (or lock) again with this one",
            )
        return found


_HINT = "--skip-bad-episodes leaves such rows out"
_WHOLE = "nearly all rows are so: --form and --column say what the rows are"


def _episodes(
    found: RowTexts, tokenizer: Tokenizer, options: TextOptions
) -> tuple[EpisodeBatch | None, int]:
    """Return the episodes of documents, and the number of rows that have no token."""
    whole = tokenizer.encode(found.texts, options.max_length, special=found.special)
    width = 2 if options.form == "pairs" else 1
    kept = np.repeat((whole.lengths.reshape(-1, width) > 0).all(1), width)
    without = int((~kept).sum()) // width
    if not kept.any():
        return None, without
    prompts = np.zeros(len(kept), np.int64)
    columns: dict[Key, NDArray[Any]] = {("row",): np.array(found.rows, np.int64)}
    if found.prompts is not None:
        given = tokenizer.encode(found.prompts, options.max_length, special=False)
        before, after = (
            len(added) if found.special else 0 for added in (tokenizer.before, tokenizer.after)
        )
        prompts, columns["prompt_is_prefix",] = _measure_prompts(whole, given, before, after)
    scores = np.array(found.scores if found.scores else np.zeros(len(kept)), np.float32)
    if options.keep_text:
        columns["text",] = np.array(found.texts, object)
    whole = _select(whole, kept)
    end = tokenizer.choose_end(options.eos, special=found.special)
    if end is not None:
        whole = _append_end(whole, end, options.max_length)
    parts = (whole, prompts[kept], scores[kept])
    episodes = {key: column[kept] for key, column in columns.items()}
    if options.max_length is not None and options.pad:
        size = (len(parts[1]), options.max_length)
        return _pad(*parts, episodes, options.form, np.full(size, tokenizer.pad, np.int32)), without
    return _pack(*parts, episodes, options.form), without


def _pack(
    whole: EncodedTexts,
    prompts: NDArray[np.int64],
    scores: NDArray[np.float32],
    episodes: dict[Key, NDArray[Any]],
    form: Form | None,
) -> EpisodeBatch:
    """Return an episode for each document."""
    lengths, last = whole.lengths, np.cumsum(whole.lengths) - 1
    steps: dict[Key, NDArray[Any]] = {("input_ids",): whole.ids}
    if form != "text":
        position = np.arange(len(whole.ids)) - np.repeat(last + 1 - lengths, lengths)
        steps["completion_mask",] = position >= np.repeat(prompts, lengths)
        episodes["prompt_length",] = prompts
    if form == "pairs":
        episodes["chosen",] = np.arange(len(lengths)) % 2 == 0
    rewards, cut = np.zeros(len(whole.ids), np.float32), np.zeros(len(whole.ids), bool)
    rewards[last], cut[last] = scores, whole.cut
    ended = np.zeros_like(cut)
    ended[last] = ~whole.cut
    return _batch(lengths, steps, rewards, ended, cut, episodes)


def _pad(
    whole: EncodedTexts,
    prompts: NDArray[np.int64],
    scores: NDArray[np.float32],
    episodes: dict[Key, NDArray[Any]],
    form: Form | None,
    ids: NDArray[np.int32],
) -> EpisodeBatch:
    """Return a one-step episode for each document, or for each pair; fills `ids`, all padding."""
    filled = np.arange(ids.shape[1]) < whole.lengths[:, None]
    ids[filled] = whole.ids
    cut = whole.cut
    if form != "pairs":
        steps: dict[Key, NDArray[Any]] = {("input_ids",): ids, ("attention_mask",): filled}
    else:
        steps = {
            (name, leaf): column[first::2]
            for first, name in enumerate(("chosen_data", "rejected_data"))
            for leaf, column in (("input_ids", ids), ("attention_mask", filled))
        }
        prompts, scores, cut = prompts[::2], scores[::2], np.asarray(cut.reshape(-1, 2).any(1))
        texts = episodes.pop(("text",), None)
        both = np.asarray(episodes["prompt_is_prefix",].reshape(-1, 2).all(1))
        episodes = {key: column[::2] for key, column in episodes.items()}
        episodes["prompt_is_prefix",] = both
        if texts is not None:
            episodes |= {("chosen",): texts[::2], ("rejected",): texts[1::2]}
    if form != "text":
        steps["prompt_rindex",] = prompts - 1
    return _batch(np.ones(len(cut), np.int64), steps, scores, ~cut, cut, episodes)


def _batch(
    lengths: NDArray[np.int64],
    steps: dict[Key, NDArray[Any]],
    rewards: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    episodes: dict[Key, NDArray[Any]],
) -> EpisodeBatch:
    results = {REWARD: rewards, TERMINATED: terminated, TRUNCATED: truncated}
    steps |= {key: column[:, None] for key, column in results.items()}
    return EpisodeBatch(lengths, steps, {}, np.ones(len(lengths), bool), episodes)


def _measure_prompts(
    whole: EncodedTexts, given: EncodedTexts, before: int, after: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the tokens of each document's prompt, and whether the document begins with these.

    ```
    whole    <s> p0 p1 c0 c1 </s>        before = 1, after = 1
    given        p0 p1                   the prompt alone, without special tokens
    prompt   <s> p0 p1                   all of a document that was cut off within its prompt
    ```
    """
    room = np.maximum(whole.lengths - before - after, 0)
    counts = np.minimum(given.lengths, room)
    places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    first, second = (
        part.ids[places + np.repeat(np.cumsum(part.lengths) - part.lengths + skip, counts)]
        for part, skip in ((whole, before), (given, 0))
    )
    wrong = np.repeat(np.arange(len(counts)), counts)[first != second]
    begins = np.asarray((given.lengths <= room) | whole.cut)
    begins[wrong] = False
    all_prompt = whole.cut & (counts == room)
    return np.where(all_prompt, whole.lengths, before + counts), begins


def _append_end(whole: EncodedTexts, end: int, max_length: int | None) -> EncodedTexts:
    """Append a token to the documents that do not end with it; where it does not fit, it is cut off."""
    stops = np.cumsum(whole.lengths)
    missing = ~whole.cut & (whole.ids[stops - 1] != end)
    fits = missing if max_length is None else missing & (whole.lengths < max_length)
    ids = np.insert(whole.ids, stops[fits], np.int32(end))
    return EncodedTexts(ids, whole.lengths + fits, whole.cut | (missing & ~fits))


def _select(whole: EncodedTexts, kept: NDArray[np.bool_]) -> EncodedTexts:
    ids = whole.ids if kept.all() else whole.ids[np.repeat(kept, whole.lengths)]
    return EncodedTexts(ids, whole.lengths[kept], whole.cut[kept])
