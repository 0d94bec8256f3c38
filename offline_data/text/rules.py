"""Rules on documents of tokens, packed or padded; silent for datasets without tokens."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.checks.block import RowBlock, mix_bits
from offline_data.analysis.checks.finding import Finding
from offline_data.analysis.checks.names import (
    are_related,
    is_derived,
    options,
    split,
    without_revision,
)
from offline_data.analysis.checks.rule import Measured, Rule, Tally
from offline_data.analysis.checks.rules.duplicates import A_COPY, listed_copies
from offline_data.analysis.checks.tokens import (
    CONTENT,
    GIVEN,
    PROMPT,
    TOKENS,
    TokenBlock,
    document_place,
    has_prompts,
    is_packed,
    token_leaves,
)
from offline_data.base.errors import FormatError, UsageError
from offline_data.base.plurals import plural, plural_of
from offline_data.episode.fields import Key, join_key
from offline_data.formats.options import TextOptions, to_arguments
from offline_data.store.manifest import Manifest
from offline_data.store.reader import DatasetReader

if TYPE_CHECKING:
    Sums = NDArray[np.uint64]


class _DocumentRule(Rule):
    """A rule on sums over the tokens of each document, which blocks add to."""

    sums: ClassVar[list[int]]  # rows of `TokenBlock.sums`; each is 8 bytes a document

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        return token_leaves(reader)

    def measure(self, block: RowBlock, key: Key) -> list[tuple[int, Sums]]:
        tokens = TokenBlock.of(block, key)
        return [(tokens.first, tokens.sums[self.sums])]

    def totals(self, measured: Measured) -> dict[Key, Sums]:
        """Return the sums of all documents, `[len(sums), D]`, by leaf."""
        found = {}
        for key, parts in measured.leaves.items():
            last, sums = parts[-1]
            total = np.zeros((len(self.sums), last + sums.shape[1]), np.uint64)
            for first, sums in parts:
                total[:, first : first + sums.shape[1]] += sums
            found[key] = total
        return found

    def of_documents(
        self,
        reader: DatasetReader,
        key: Key,
        found: NDArray[np.int64],
        message: str,
        about: str | None = None,
    ) -> Iterator[Finding]:
        """Yield one finding of some documents, ascending, if there are any."""
        if len(found):
            place = document_place(reader, key, int(found[0]))
            yield self.finding(reader, message, place, count=len(found), about=about)


def _pairs(totals: dict[Key, Sums], reader: DatasetReader) -> tuple[NDArray[np.int64], Sums, Sums]:
    """Return the chosen documents of pairs, `[p]`, and the sums of chosen and rejected ones."""
    every = list(totals.values())
    if len(every) == 2:
        return np.arange(every[0].shape[1]), every[0], every[1]
    chosen, row = (reader.episodes.get((name,)) for name in ("chosen", "row"))
    first = np.zeros(0, np.int64)
    if chosen is not None and chosen.dtype == bool:
        flags = np.asarray(chosen, bool)
        adjacent = flags[:-1] & ~flags[1:]
        first = np.flatnonzero(adjacent if row is None else adjacent & (row[:-1] == row[1:]))
    return first, every[0][:, first], every[0][:, first + 1]


def _noun(reader: DatasetReader) -> str:
    """Return "pair" or "document"."""
    return "pair" if len(token_leaves(reader)) == 2 else "document"


class ChosenEqualsRejected(_DocumentRule):
    """The chosen and the rejected text of a pair have the same tokens.

    Such a pair expresses no preference: its loss is log 2 for any model, and accuracy counts it as
    wrong. Either the texts are equal, or they differ only after the tokens that were kept
    (`max_length`), often because the prompt alone fills them.
    """

    code = "RL100"
    name = "chosen-equals-rejected"
    severity = "warning"
    hint = "convert with a larger --max-length, or drop these pairs from the source"
    sums: ClassVar = [CONTENT]

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader, totals = measured.reader, self.totals(measured)
        for key in list(totals)[:1]:
            documents, chosen, rejected = _pairs(totals, reader)
            same = documents[(chosen == rejected).all(0)]
            cut, both = np.asarray(reader.episodes[("truncated",)]), is_packed(reader)
            first = same if both else reader.episode_of(same)
            number = int((cut[first] | cut[first + both]).sum())
            message = (
                plural_of(len(same), len(documents), "pair", "has", "have")
                + f" the same tokens as chosen and rejected; {plural(number, 'is', 'are')} cut off"
            )
            yield from self.of_documents(reader, key, same, message)


class _Units(NamedTuple):
    """Units compared for duplicates: pairs, or documents that are in none."""

    hashes: Sums
    documents: NDArray[np.int64]  # the document, or the chosen one of each pair
    noun: str


class DuplicateDocuments(_DocumentRule):
    """Documents, or pairs of documents, have the same tokens.

    A copy counts twice in every epoch; a model memorises repeated text, and after a random split
    copies are in training and validation. Short documents (headings, `yes`) are not compared.
    Documents are compared by a 64-bit hash of their tokens alone: the probability that any two
    different ones of D are taken for copies is about `D² / 2^65`.
    """

    code = "RL101"
    name = "duplicate-documents"
    severity = "warning"
    hint = "drop copies from the source, and convert it again"
    thresholds: ClassVar = {"tokens": 16}
    explained: ClassVar = {"tokens": "Tokens of the shortest document, or pair, that is compared."}
    sums: ClassVar = [CONTENT, TOKENS]

    def units(self, measured: Measured) -> _Units:
        """Return the pairs, or documents, that are long enough."""
        totals = self.totals(measured)
        content, tokens = next(iter(totals.values()))
        kept = np.ones(len(content), bool)
        documents, chosen, rejected = _pairs(totals, measured.reader)
        content, tokens = content.copy(), tokens.copy()
        content[documents] = mix_bits(chosen[0]) ^ rejected[0]
        tokens[documents] += rejected[1]
        if len(totals) == 1:
            kept[documents + 1] = False
        found = np.flatnonzero(kept & (tokens >= self.limits["tokens"]))
        return _Units(content[found], found, "pair" if len(documents) else "document")

    def findings(self, measured: Measured) -> Iterator[Finding]:
        for key in list(measured.leaves)[:1]:
            units = self.units(measured)
            _, first, group = np.unique(units.hashes, return_index=True, return_inverse=True)
            copies = np.flatnonzero(first[group] != np.arange(len(group)))
            originals = units.documents[first[group[copies[:6]]]].tolist()
            found = units.documents[copies]
            named = listed_copies(list(zip(found[:6].tolist(), originals, strict=True)))
            message = plural_of(len(found), len(group), units.noun, *A_COPY) + f": {named}"
            yield from self.of_documents(measured.reader, key, found, message)


class TextLeakage(DuplicateDocuments):
    """A document, or a pair, of one dataset is also in another one.

    If one is for training and the other for evaluation, scores measure memory. It is an error where
    the datasets are splits of one (`--split`, the step `split`, or by name), else a warning.
    Documents are compared as in RL101, hence only those of one tokenizer; packed and padded ones
    agree. A dataset is not compared with its own parent, nor with the same split in another form.
    """

    code = "RL105"
    name = "text-leakage"
    severity = "warning"
    hint = "drop these documents from one of the two in the source, and convert it again"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        return iter(())

    def across(self, measured: Sequence[Measured]) -> Iterator[Finding]:
        known = [(data, self.units(data)) for data in measured if data.leaves]
        for (one, of_first), (other, of_second) in combinations(known, 2):
            first, second = one.reader, other.reader
            if not _are_comparable(first, second):
                continue
            shared = np.flatnonzero(np.isin(of_second.hashes, of_first.hashes))
            if len(shared):
                same = np.flatnonzero(of_first.hashes == of_second.hashes[shared[0]])
                here, there = of_second.documents[shared[0]], of_first.documents[same[0]]
                name, key = without_revision(first.manifest.id), next(iter(other.leaves))
                apart = split(first.manifest) != split(second.manifest)
                related = are_related(first.manifest, second.manifest)
                yield self.finding(
                    second,
                    plural_of(len(shared), len(of_second.hashes), of_second.noun, "is", "are")
                    + f" also in {name}: {here} here is {there} there",
                    document_place(second, key, int(here)),
                    count=len(shared),
                    about=name,
                    severity="error" if apart and related else None,
                )


def _are_comparable(first: DatasetReader, second: DatasetReader) -> bool:
    one, other = first.manifest, second.manifest
    recorded = (_tokenizer(manifest).get("sha256") for manifest in (one, other))
    digests = {digest for digest in recorded if isinstance(digest, str)}
    again = without_revision(one.id) == without_revision(other.id) and split(one) == split(other)
    return not (first.path == second.path or again or is_derived(one, other) or len(digests) > 1)


class PromptNotPrefix(_DocumentRule):
    """The tokens of a prompt are not the first ones of its document.

    Merges over the border between prompt and completion (BPE: ` 12` + `3` may be one token ` 123`)
    cause this, and chat templates that render a turn differently when others follow it: some tokens
    are masked that should be learnt, or the other way round, and at inference the model sees tokens
    at the border that it did not see in training. Pairs are compared with each other, too: chosen
    and rejected must begin alike. In datasets that earlier versions tokenized, prompts have the
    tokens that the tokenizer adds after a text (`</s>`, BERT's `[SEP]`), so that masks are wrong in
    all documents; the finding names the command that makes the dataset again.
    """

    code = "RL102"
    name = "prompt-not-prefix"
    severity = "warning"
    hint = "end prompts where words end: add --separator, or move a space to the completion"
    sums: ClassVar = [PROMPT]

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        found = token_leaves(reader)
        return found if found and has_prompts(reader) else ()

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader, totals = measured.reader, self.totals(measured)
        for key in list(totals)[:1]:
            known = reader.episodes.get(("prompt_is_prefix",))
            if known is not None and known.dtype == bool:
                wrong = np.flatnonzero(~np.asarray(known))
                noun = _noun(reader)
                message = plural(len(wrong), f"{noun} does", f"{noun}s do")
                message += " not begin with the tokens of the prompt"
                message += _describe_repair(reader.manifest)
                yield from self.of_documents(reader, key, wrong, message, "border")
            documents, chosen, rejected = _pairs(totals, reader)
            differ = documents[(chosen != rejected).any(0)]
            message = plural_of(len(differ), len(documents), "pair", "has", "have")
            message += " different tokens in the prompts"
            yield from self.of_documents(reader, key, differ, message, "pairs")


class EmptyCompletion(_DocumentRule):
    """A document has no token after its prompt.

    Nothing is learnt from it, and the mean loss of a batch of such documents is NaN (0 / 0). The
    completion is empty, or it was cut off because the prompt fills `max_length`.
    """

    code = "RL103"
    name = "empty-completion"
    severity = "warning"
    hint = "convert with a larger --max-length, or drop these rows from the source"
    sums: ClassVar = [TOKENS, GIVEN]
    leaves = PromptNotPrefix.leaves

    def findings(self, measured: Measured) -> Iterator[Finding]:
        for key, (tokens, given) in self.totals(measured).items():
            empty = np.flatnonzero((given == tokens) & (tokens > 0))
            message = plural_of(len(empty), len(tokens), "document", "has", "have")
            message += " no token after the prompt"
            yield from self.of_documents(measured.reader, key, empty, message)


class MostTruncated(Rule):
    """Most documents are cut off.

    Models then rarely see how a document ends, and never emit its end. `max_length` is too small for
    these texts or, where all are cut, they are rows of a corpus that has no documents.
    """

    code = "RL104"
    name = "most-truncated"
    severity = "warning"
    hint = "convert with a larger --max-length, or without one (packed)"
    thresholds: ClassVar = {"share": 0.5}
    explained: ClassVar = {"share": "Minimum share of documents that is reported."}

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader = measured.reader
        cut = np.flatnonzero(reader.episodes[("truncated",)])
        share = len(cut) / reader.episode_count
        if token_leaves(reader) and share and share >= self.limits["share"]:
            first = int(cut[0])
            yield self.finding(
                reader,
                plural_of(len(cut), reader.episode_count, _noun(reader), "is", "are") + " cut off",
                episode=first,
                row=int(reader.starts[first] + reader.lengths[first] - 1),
                count=len(cut),
            )


class SpecialTokensInside(Rule):
    """A token that marks the beginning, the end or padding is inside a document.

    Causes are texts that contain it literally (`</s>`, `<|endoftext|>`), and a tokenizer that adds
    `<s>` to texts that begin with it: the model learns to stop there, or sees two documents as one.
    Allowed are the first and the last token of a document. Chat templates write marks between
    turns: in conversations, and in pairs whose tokenizer has a template, only a mark that is there
    twice at the beginning and tokens that do nothing but pad are reported. Texts to which a
    template was applied by hand are reported as well, and are harmless. Tokenizers are known by
    what they name as `bos`, `eos`, `pad`, `cls` and `sep`; datasets that do not state them are not
    checked.
    """

    code = "RL106"
    name = "special-tokens-inside"
    severity = "warning"
    hint = "remove these from the texts, or choose another tokenizer, and convert again"

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        return token_leaves(reader) if _marks(reader.manifest) else ()

    def measure(self, block: RowBlock, key: Key) -> Tally | None:
        marks, tokens = _marks(block.reader.manifest), TokenBlock.of(block, key)
        at = np.isin(tokens.ids, list(marks)) & tokens.inside
        at &= (tokens.places > 0) & (tokens.places < tokens.lengths - 1)
        if _has_turns(block.reader):
            padding = [token for token, role in marks.items() if role == "pad"]
            allowed = at & ~np.isin(tokens.ids, padding)
            twice = np.zeros_like(at)
            for where in np.argwhere(allowed & (tokens.places == 1)):
                twice[tuple(where)] = _before(block, key, where) == tokens.ids[tuple(where)]
            at &= ~allowed | twice
        if not at.any():
            return None
        roles = Counter(marks[int(token)] for token in np.unique(tokens.ids[at]))
        place = block.row_place(key, int(np.argwhere(at)[0][0]))
        return Tally(number=int(at.sum()), place=place, roles=roles)

    def message(self, reader: DatasetReader, key: Key, found: Tally) -> str:
        marked, roles = plural(found.number, "token"), ", ".join(sorted(found.roles))
        return f"{marked} of beginning, end or padding inside documents: {roles}"


def _before(block: RowBlock, key: Key, where: NDArray[np.int64]) -> int:
    """Return the token before a place in a block, which may be of the block before."""
    column = block.reader.step(key)
    row = block.first + int(where[0])
    return int(column[row - 1] if len(where) == 1 else column[row, where[1] - 1])


def _tokenizer(manifest: Manifest) -> dict[str, Any]:
    found = manifest.about.get("tokenizer")
    return found if isinstance(found, dict) else {}


def _marks(manifest: Manifest) -> dict[int, str]:
    """Return the role of each token id that marks something; `pad` only if it does nothing else."""
    special = _tokenizer(manifest).get("special")
    roles = special.items() if isinstance(special, dict) else ()
    ordered = sorted(roles, key=lambda one: one[0] != "pad")
    return {one: str(role) for role, one in ordered if type(one) is int and 0 <= one < 1 << 31}


def _end_token(manifest: Manifest) -> int | None:
    special = _tokenizer(manifest).get("special")
    token = special.get("eos") if isinstance(special, dict) else None
    return token if type(token) is int else None


def _has_turns(reader: DatasetReader) -> bool:
    """Return True if a chat template may have written the documents."""
    text = reader.manifest.about.get("text")
    form = text.get("form") if isinstance(text, dict) else None
    template = _tokenizer(reader.manifest).get("chat") is not False
    plain = form in {"text", "prompt"} or not has_prompts(reader)
    return form == "messages" or (template and not plain)


class NoEndOfText(Rule):
    """Documents do not end with the tokenizer's end-of-text token.

    A model that never sees it does not learn to stop. Documents that are cut off have no end, and
    conversations are ended by their chat template, so neither is checked; nor are datasets that
    were made with `--eos no`, or whose tokenizer names no such token. Earlier versions appended
    none: the finding then names the command that makes the dataset again.
    """

    code = "RL108"
    name = "no-end-of-text"
    severity = "warning"
    hint = "convert with --eos yes"

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        text = options(reader.manifest).get("text")
        refused = isinstance(text, dict) and text.get("eos") == "no"
        found, known = token_leaves(reader), _end_token(reader.manifest) is not None
        return found if found and known and not refused and not _has_turns(reader) else ()

    def measure(self, block: RowBlock, key: Key) -> Tally | None:
        reader, tokens = block.reader, TokenBlock.of(block, key)
        cut = np.asarray(reader.episodes[("truncated",)])[block.episodes]
        last = tokens.inside & (tokens.places == tokens.lengths - 1)
        missing = last & (tokens.ids != _end_token(reader.manifest))
        missing &= ~cut.reshape(-1, *[1] * (missing.ndim - 1))
        if not missing.any():
            return None
        place = block.row_place(key, int(np.argwhere(missing)[0][0]))
        return Tally(number=int(missing.sum()), place=place)

    def message(self, reader: DatasetReader, key: Key, found: Tally) -> str:
        ended = plural(found.number, "document does", "documents do")
        repair = _describe_repair(reader.manifest)
        return f"{ended} not end with the end-of-text token{repair}"


def _describe_repair(manifest: Manifest) -> str:
    """Return how to make a dataset again whose converter knew neither end tokens nor their masks."""
    text, recorded = manifest.about.get("text"), options(manifest).get("text")
    right = isinstance(text, dict) and ("eos" in text or text.get("form") == "messages")
    if right or not isinstance(recorded, dict):
        return ""
    try:
        arguments = to_arguments(TextOptions.from_record(recorded))
    except (FormatError, UsageError):
        return ""
    words = ["convert", "PATH", manifest.name, "--from", "text", *arguments, "--force"]
    if manifest.source == "hf":
        words = ["download", without_revision(manifest.id), *arguments]
    return (
        "; an earlier version made it, which got masks and ends of texts wrong: make it again with "
        f"`{shlex.join(['offline-data', *words])}`"
    )


class DocumentLengths(_DocumentRule):
    """Lengths of documents in tokens.

    For the choice of `max_length`, of batch sizes, and between packed and padded rows: computation
    on padding is wasted.
    """

    code = "RL107"
    name = "document-lengths"
    severity = "info"
    hint = "convert without --pad, or with a smaller --max-length, if most is padding"
    sums: ClassVar = [TOKENS]

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        found = token_leaves(reader)
        return found if found and not is_packed(reader) else ()

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader = measured.reader
        totals = {key: total[0].astype(np.int64) for key, total in self.totals(measured).items()}
        for key in token_leaves(reader):
            lengths = totals.get(key, reader.lengths)
            few, half, most = np.quantile(lengths, [0.05, 0.5, 0.95], method="nearest").tolist()
            size = sum(reader.step_leaves[key].shape)
            padding = (
                f"; {100 - 100 * lengths.mean() / size:.0f} % of the tokens are padding"
                if size
                else ""
            )
            yield self.finding(
                reader,
                f"Of {plural(len(lengths), 'document')}, 5 % have at most {plural(few, 'token')}, half at most "
                f"{half:,}, 95 % at most {most:,}, and the longest has {lengths.max():,}{padding}",
                leaf=join_key(key),
                count=len(lengths),
            )
