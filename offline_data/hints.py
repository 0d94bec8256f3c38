"""Hints in Python: written as commands and options of the command line, read as calls and arguments."""

from __future__ import annotations

import re
import shlex

FUNCTIONS = {
    "check": "check",
    "card": "card",
    "convert": "convert",
    "diff": "diff",
    "download": "download",
    "info": "info",
    "list": "list_datasets",
    "lock": "lock",
    "plot": "plot",
    "rm": "remove",
    "search": "search",
    "stats": "stats",
    "sync": "sync",
    "verify": "verify",
}
"""Public function of each command that has one; other commands stay commands."""

_FLAGS = frozenset({
    "force", "keep-episodes", "keep-raw", "offline", "remote", "resume", "skip-bad-episodes", "strict",
})  # fmt: skip
_VALUES = {
    **{name: name for name in ("checkpoints", "episodes", "images", "layout", "root")},
    "from": "source",
}
"""Options with a value, and the argument that each is."""

_COMMAND = re.compile(rf"`offline-data ({'|'.join(FUNCTIONS)})\b([^`]*)`")
_OPTION = re.compile(
    rf"`[^`]*`|(?<!\S)--(?:({'|'.join(_FLAGS)})|({'|'.join(_VALUES)})(?: ([A-Z\d:]+(?![a-z])))?"
    r"|(?:step|fn) ('[^']*'|\S*[^\s;,?.]))(?![\w-])"
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
    """
    return _OPTION.sub(_argument, _COMMAND.sub(_call, hint))


def _call(command: re.Match[str]) -> str:
    try:
        words = iter(shlex.split(command[2]))
    except ValueError:  # a path with a quotation mark
        return command[0]
    arguments = []
    for word in words:
        name = word.removeprefix("--")
        if name == word:
            arguments.append(_value(word))
        elif name in _VALUES:
            arguments.append(f"{_VALUES[name]}={_value(next(words, '…'))}")
        else:
            arguments.append(f"{name.replace('-', '_')}=True")
    return f"`offline_data.{FUNCTIONS[command[1]]}({', '.join(arguments)})`"


def _argument(option: re.Match[str]) -> str:
    flag, name, value, step = option.groups()
    if not any((flag, name, step)):  # a command
        return option[0]
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
