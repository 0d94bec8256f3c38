"""Rows of text datasets as documents: which columns, in which form, by name or preset."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from offline_data.base.errors import FormatError
from offline_data.base.files import is_unicode
from offline_data.base.json import shown
from offline_data.formats.catalogues import Catalog, CatalogEntry
from offline_data.formats.options import ROLES, Form, TextOptions

if TYPE_CHECKING:
    from offline_data.raw.rows import Columns

    Chat = Callable[..., str]  # `Tokenizer.chat_text`


_MAX_SCORE = 3.4028234663852886e38  # of float32


@dataclass(frozen=True)
class RowTexts:
    """Documents of some rows: one of each, or two of each pair, the chosen one first."""

    texts: list[str]  # whole documents
    prompts: list[str] | None  # their beginnings, given, not learnt; None: the form has none
    rows: list[int]  # row of the file that each comes from
    scores: list[float] | None  # score of each; None: there is no such column
    empty: list[int]  # rows without text, which have no document
    bad: list[tuple[int, str]]  # rows that are not of the form, and what is wrong with each
    count: int  # number of rows
    special: bool  # whether the tokenizer adds special tokens; a chat template writes them itself


@dataclass(frozen=True)
class Preset:
    """The form of a dataset of the hub."""

    form: Form
    columns: Mapping[str, str]  # column of each role whose name differs
    separator: str = ""
    summary: str = ""
    config: str = ""  # configuration that is read if an id names none
    splits: Mapping[str, str] = field(default_factory=dict)  # by usual name: `train` is `train_sft`


PRESETS: dict[str, Preset] = {  # datasets whose form is known; any other can be named, too
    "CarperAI/openai_summarize_tldr": Preset(
        "prompt", {"completion": "label"}, summary="TL;DR posts and summaries"
    ),
    "CarperAI/openai_summarize_comparisons": Preset(
        "pairs", {}, separator="\n", summary="pairs of TL;DR summaries"
    ),
    "Anthropic/hh-rlhf": Preset("pairs", {}, summary="pairs of dialogues, helpful and harmless"),
    "HuggingFaceH4/ultrachat_200k": Preset(
        "messages",
        {},
        summary="dialogues of ChatGPT",
        splits={"train": "train_sft", "test": "test_sft"},
    ),
    "HuggingFaceH4/ultrafeedback_binarized": Preset(
        "pairs",
        {},
        summary="pairs of conversations, scored by GPT-4",
        splits={"train": "train_prefs", "test": "test_prefs"},
    ),
    "HuggingFaceH4/no_robots": Preset("messages", {}, summary="instructions written by people"),
    "openai/gsm8k": Preset(
        "prompt",
        {"prompt": "question", "completion": "answer"},
        separator="\n",
        summary="word problems with solutions",
        config="main",
    ),
    "tatsu-lab/alpaca": Preset("text", {}, summary="instructions and answers of GPT-3"),
    "allenai/tulu-3-sft-mixture": Preset("messages", {}, summary="conversations of 18 datasets"),
    "roneneldan/TinyStories": Preset("text", {}, summary="short stories in simple words"),
    "Salesforce/wikitext": Preset(
        "text", {}, summary="lines of Wikipedia articles", config="wikitext-103-raw-v1"
    ),
    "stanfordnlp/imdb": Preset("text", {}, summary="film reviews"),
}


class HubTextCatalog(Catalog):
    """The datasets with presets; any other text dataset of the hub can be named, too."""

    name = "hf"
    title = "Hugging Face hub: text for language models, tokenized"
    needs = ("pyarrow", "tokenizers")
    extra = "rlhf"
    action = "discrete"

    def catalog(self) -> Sequence[CatalogEntry]:
        """List the datasets by name."""
        return [
            CatalogEntry(name, summary=f"{one.form}: {one.summary}")
            for name, one in sorted(PRESETS.items())
        ]


def resolve_form(
    options: TextOptions, name: str, columns: Sequence[str], where: str
) -> TextOptions:
    """Return options with a form, columns and separator: the user's, the preset's, or by names.

    `name` is that of the dataset on the hub, `where` the file with `columns`, for messages. Raises
    `FormatError` if a column of the form is missing, or the form cannot be determined.
    """
    _check_columns(options, options.columns or (), columns, where, "which was named")
    preset = PRESETS.get(name)
    if preset is not None and options.form in {None, preset.form}:
        given = {**preset.columns, **(options.columns or {})}
        separator = preset.separator if options.separator is None else options.separator
        options = replace(options, form=preset.form, columns=given, separator=separator)
    form = options.form or _form_of(options, columns, where)
    # of pairs, both texts may begin with the prompt
    needed = [role for role in ROLES[form] if form != "pairs" or role != "prompt"]
    _check_columns(options, needed, columns, where, f"which form {form} needs")
    return replace(options, form=form, separator=options.separator or "")


def _check_columns(
    options: TextOptions, roles: Iterable[str], columns: Sequence[str], where: str, why: str
) -> None:
    """Raise `FormatError` for the first role whose column there is not."""
    for role in roles:
        name = options.column(role)
        if name not in columns:
            raise FormatError(
                f"{where} has no column {name!r}, {why}; it has {', '.join(map(repr, columns))}",
                hint=f"name the column: --column {role}=NAME",
            )


def _form_of(options: TextOptions, columns: Sequence[str], where: str) -> Form:
    """Return the form whose columns there are; pairs may lack the prompt."""
    needed: dict[Form, set[str]] = {
        "pairs": {"chosen", "rejected"},
        "prompt": {"prompt", "completion"},
        "messages": {"messages"},
        "text": {"text"},
    }
    for form, roles in needed.items():
        if all(options.column(role) in columns for role in roles):
            return form
    raise FormatError(
        f"{where} has no columns of a known form; it has {', '.join(map(repr, columns))}",
        hint="name them: --column text=NAME, or --column prompt=NAME --column completion=NAME, or "
        "--column messages=NAME",
    )


def documents(
    columns: Columns, first: int, options: TextOptions, chat: Chat, *, scored: bool
) -> RowTexts:
    """Return the documents of some rows, of which `first` is the number of the first in the file.

    `columns` are those of the form, and that of scores; if `scored`, rows without a score have NaN.
    `chat` writes a conversation with the chat template of the tokenizer. `options` are resolved.
    """
    form = options.form or "text"
    count = len(next(iter(columns.values()), []))
    cells = {role: columns[options.column(role)] for role in (*ROLES[form], "score")}
    found = RowTexts([], [] if form != "text" else None, [], None, [], [], count, special=True)
    scores: list[float] = []
    for i in range(count):
        row = {role: column[i] for role, column in cells.items()}
        try:
            parts = _PARTS[form](row, options.separator or "", chat)
            score = _score(row["score"], scored=scored)
        except FormatError as error:
            found.bad.append((first + i, f"row {first + i}: {error.message}"))
            continue
        if not any(text for text, _ in parts):
            found.empty.append(first + i)
            continue
        for text, prompt in parts:
            found.texts.append(text)
            found.rows.append(first + i)
            scores.append(score)
            if found.prompts is not None:
                found.prompts.append(prompt)
    in_pairs = form == "pairs" and any(isinstance(one, (list, tuple)) for one in cells["chosen"])
    chats = form == "messages" or in_pairs
    return replace(found, scores=scores if scored else None, special=not chats)


def _of_text(row: dict[str, Any], separator: str, chat: Chat) -> list[tuple[str, str]]:
    del separator, chat
    return [(_text(row["text"], "text"), "")]


def _of_prompt(row: dict[str, Any], separator: str, chat: Chat) -> list[tuple[str, str]]:
    del chat
    prompt, completion = _text(row["prompt"], "prompt"), _text(row["completion"], "completion")
    if not prompt and not completion:
        return [("", "")]
    return [(prompt + separator + completion, prompt + separator)]


def _of_pair(row: dict[str, Any], separator: str, chat: Chat) -> list[tuple[str, str]]:
    if isinstance(row["chosen"], (list, tuple)):
        return [_conversation(row[role], role, chat) for role in ("chosen", "rejected")]
    prompt = _text(row["prompt"], "prompt")
    prompt += separator if prompt else ""
    texts = [_text(row[role], role) for role in ("chosen", "rejected")]
    return [(prompt + text if text or prompt else "", prompt) for text in texts]


def _of_messages(row: dict[str, Any], separator: str, chat: Chat) -> list[tuple[str, str]]:
    del separator
    return [_conversation(row["messages"], "messages", chat)]


# Documents of a row, each with the prompt that it begins with.
_PARTS: dict[Form, Callable[[dict[str, Any], str, Chat], list[tuple[str, str]]]] = {
    "text": _of_text,
    "prompt": _of_prompt,
    "pairs": _of_pair,
    "messages": _of_messages,
}


def _conversation(messages: Any, role: str, chat: Chat) -> tuple[str, str]:
    """Return a conversation as text, and all but the last turn if that is the assistant's."""
    if messages is None or messages == []:
        return "", ""
    if not isinstance(messages, list):
        raise FormatError(f"{role} is {shown(messages)}; expected a list of turns")
    for turn in messages:
        if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
            raise FormatError(f"{role} has {shown(turn)}; expected turns with role and content")
    last = messages[-1]["role"] == "assistant" and len(messages) > 1
    return _text(chat(messages), role), chat(messages[:-1], prompt=True) if last else ""


def _text(value: Any, role: str) -> str:
    """Return a text, empty for None; raises `FormatError` for other values."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise FormatError(f"{role} is {shown(value)}; expected text")
    if not is_unicode(value):
        raise FormatError(f"{role} has half of a surrogate pair: no Unicode text")
    return value


def _score(value: Any, *, scored: bool) -> float:
    if value is None:
        return float("nan")
    if not scored:
        raise FormatError(f"score is {shown(value)}, but the first rows have none")
    try:
        score = float(value)
        fits = not _MAX_SCORE < abs(score) < math.inf
    except (OverflowError, TypeError, ValueError):
        fits = False
    if not fits:
        raise FormatError(f"score is {shown(value)}; expected a number within float32")
    return score
