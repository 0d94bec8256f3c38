"""The reference of the command, made of the command itself: every verb with its options and examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from inspect import cleandoc
from typing import Any

from docs.generate.text import code, page, plain, table
from offline_data_cli import help as texts
from offline_data_cli.app import command_tree
from offline_data_cli.options import Globals
from offline_data_cli.verbs import GROUPS, VERBS

PROGRAM = "offline-data"
GLOBALS = {field.name for field in fields(Globals)}


def panels() -> dict[str, dict[str, str]]:
    """Return the verbs by panel of `--help`, with a line about each; hidden ones have no page."""
    found = {
        panel: {name: text for name, (_, text) in verbs.items()} for panel, verbs in VERBS.items()
    }
    for name, (panel, text, _) in GROUPS.items():
        found[panel][name] = text
    return found


def pages() -> dict[str, str]:
    """Return the pages by their path in docs/."""
    verbs = [name for panel in panels().values() for name in panel]
    return {"commands/index.md": _index(), **{f"commands/{name}.md": _verb(name) for name in verbs}}


def _index() -> str:
    tree = command_tree()
    shared = [param for param in _context(tree, PROGRAM).command.params if param.name in GLOBALS]
    parts = []
    for panel, verbs in panels().items():
        rows = [[f"[`{name}`]({name}.md)", plain(text)] for name, text in verbs.items()]
        parts += [f"## {panel}", table(["command", "what it does"], rows)]
    return page(
        "# Commands",
        "These pages are made of the command itself. `offline-data VERB --help` prints the same, `-h` in short.",
        *parts,
        "## Global options",
        "They are taken before or after the command.",
        table(["option", "meaning"], (_describe(p, _context(tree, PROGRAM)) for p in shared)),
        "## Exit codes",
        table(["code", "meaning"], texts.CODES.items()),
        "Data go to standard output, and everything else (progress, warnings, hints) to standard error. "
        'With `--json`, an error is `{"error": {"code", "message", "hint"}}`.',
    )


def _verb(name: str) -> str:
    tree = command_tree()
    return page(
        f"# offline-data {name}", *_about(tree.commands[name], _context(tree, PROGRAM), name, "##")
    )


def _about(command: Any, parent: Any, name: str, level: str) -> Iterator[str]:
    context = _context(command, name.rpartition(" ")[2], parent)
    text = cleandoc(command.help or command.callback.__doc__ or "").split("\f")[0].strip()
    for paragraph in text.split("\n\n"):  # click keeps the lines of those that begin with \b
        kept = paragraph.removeprefix("\b\n")
        yield plain(paragraph) if kept == paragraph else f"```text\n{kept}\n```"
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"```console\n$ {usage}\n```"
    for panel, params in command.panels(context).items():
        rows = [_describe(p, context) for p in params if p.name not in {*GLOBALS, "help"}]
        if rows:
            yield f"{level} {panel}"
            yield table(["argument" if panel == "Arguments" else "option", "meaning"], rows)
    if hasattr(command, "commands"):
        for inner in command.commands:
            yield f"{level} {name} {inner}"
            yield from _about(command.commands[inner], context, f"{name} {inner}", f"{level}#")
    else:
        yield "[Global options](index.md#global-options) are taken, too."
    if examples := texts.EXAMPLES.get(name):
        lines = [one if one.startswith("eval") else f"{PROGRAM} {one}" for one in examples]
        yield f"{level} Examples"
        yield "```console\n" + "\n".join(f"$ {line}" for line in lines) + "\n```"


def _context(command: Any, name: str, parent: Any = None) -> Any:
    settings = command.context_settings
    return command.context_class(command, info_name=name, parent=parent, **settings)


def _describe(param: Any, context: Any) -> list[str]:
    """Return an argument or the names of an option, and its text with the default."""
    names, text = texts.describe(param, context)
    return [code(names), plain(text)]
