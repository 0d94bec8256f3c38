"""Hints in Python: written as commands and options of the command line, read as calls and arguments."""

from __future__ import annotations

import re
import shlex

FUNCTIONS = {  # public functions of commands, longer commands first
    "check --files": "verify",
    "check": "check",
    "card": "card",
    "convert": "convert",
    "diff": "diff",
    "download": "download",
    "info": "info",
    "list": "list_datasets",
    "lock": "lock",
    "merge": "merge",
    "plot": "plot",
    "rm": "remove",
    "search": "search",
    "stats": "stats",
    "sync": "sync",
}

_TEXT_FLAGS = frozenset({"keep-text", "pad"})
_FLAGS = _TEXT_FLAGS | {
    "allow-changed", "cast", "common-leaves", "force", "keep-episodes", "keep-raw", "offline", "remote", "resume", "skip-bad-episodes", "skip-bad-features", "strict",
}  # fmt: skip
_TEXT = {  # options of text with a value, and the fields of `TextOptions`
    "column": "columns",
    "eos": "eos",
    "form": "form",
    "max-length": "max_length",
    "separator": "separator",
    "split": "split",
    "tokenizer": "tokenizer",
    "tokenizer-revision": "tokenizer_revision",
}
_CHOICES = frozenset({"alignment", "autoreset", "images", "layout", "video"})  # of a few words
_VALUES = {  # options with a value, and the arguments
    **{name: name for name in (*_CHOICES, "checkpoints", "episodes", "mapping", "only", "root")},
    **_TEXT,
    "from": "source",
}

_WORDS = r"(?!(?:out|to)\b)"  # words of a sentence after an option: `leave --split out`

_COMMAND = re.compile(rf"`offline-data ({'|'.join(FUNCTIONS)})\b([^`]*)`")
_OPTION = re.compile(
    rf"`[^`]*`|(?<!\S)--(?:({'|'.join(_FLAGS)})|({'|'.join(_CHOICES)}) {_WORDS}([a-z]\w*)|({'|'.join(_VALUES)})(?: ([A-Z\d:]+(?![a-z])))?"
    r"|(?:step|fn) ('[^']*'|\S*[^\s;,?.]))(?![\w-])"
)
_TEXT_OPTIONS = re.compile(
    rf"`[^`]*`|(?<!\S)(?:--(?:{'|'.join(_TEXT)}) {_WORDS}(?:'[^']*'|[^\s;,]+)(?: (?=--)|))+(?<! )"
)
_RANGE = re.compile(r"(\w*):(\w*)")


def in_python(hint: str) -> str:
    """Return a hint of the command line in the words of Python.

    Commands are between backticks; an upper-case word stands for a value. Commands that no public
    function has stay as they are.

    Example:
        >>> in_python("to get it: `offline-data download d4rl:pen-human-v1 --episodes 0:10`")
        "to get it: `offline_data.download('d4rl:pen-human-v1', episodes=(0, 10))`"
        >>> in_python("choose another name, or replace it with --force")
        'choose another name, or replace it with force=True'
        >>> in_python("name it: --column label=NAME --max-length 9")
        "name it: text=TextOptions(max_length=9, columns={'label': NAME})"
    """
    hint = _TEXT_OPTIONS.sub(_text_argument, _COMMAND.sub(_call, hint))
    return _OPTION.sub(_argument, hint)


def _call(command: re.Match[str]) -> str:
    try:
        words = iter(shlex.split(command[2].replace(" --inspect", "")))
    except ValueError:  # a path with a quotation mark
        return command[0]
    arguments, text = [], []
    for word in words:
        name = word.removeprefix("--")
        if name == word:
            arguments.append(_value(word))
        elif name in _TEXT_FLAGS:
            text.append(word)
        elif name in _TEXT:
            text += [word, next(words, "…")]
        elif name in _VALUES:
            arguments.append(f"{_VALUES[name]}={_value(next(words, '…'))}")
        else:
            arguments.append(f"{name.replace('-', '_')}=True")
    arguments += [_text_options(text)] if text else []
    function = "inspect_files" if " --inspect" in command[2] else FUNCTIONS[command[1]]
    return f"`offline_data.{function}({', '.join(arguments)})`"


def _text_argument(found: re.Match[str]) -> str:
    return found[0] if found[0][0] == "`" else _text_options(shlex.split(found[0]))


def _text_options(words: list[str]) -> str:
    fields: list[str] = []
    columns: list[str] = []
    rest = iter(words)
    for word in rest:
        name = word.removeprefix("--")
        if name not in _TEXT:
            fields.append(f"{name.replace('-', '_')}=True")
            continue
        value = next(rest)
        if name == "column":
            role, _, column = value.partition("=")
            columns.append(f"{role!r}: {column if column == 'NAME' else repr(column)}")
        else:
            plain = value in {"NAME", "N"} or name == "max-length"
            fields.append(f"{_TEXT[name]}={value if plain else repr(value)}")
    fields += [f"columns={{{', '.join(columns)}}}"] if columns else []
    return f"text=TextOptions({', '.join(fields)})"


def _argument(option: re.Match[str]) -> str:
    flag, choice, word, name, value, step = option.groups()
    if not any((flag, choice, name, step)):  # a command
        return option[0]
    if choice:
        return f"{choice}={word!r}"
    if flag:
        return f"{flag.replace('-', '_')}=True"
    if name:
        return _VALUES[name] + (f"={_value(value)}" if value else "")
    return repr(step.strip("'"))


def _value(word: str) -> str:
    """Return a word of a command as Python has it: a name, a range, or text."""
    if word.isupper() and word.isalpha():
        return word
    if found := _RANGE.fullmatch(word):
        ends = [end or "None" for end in found.groups()]
        if all(
            end == "None" or end.isdecimal() or (end.isupper() and end.isalpha()) for end in ends
        ):
            return f"({', '.join(ends)})"
    return repr(word)
