"""`explain`: rules of `check` and steps of `preprocess`."""

import json
import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from offline_data.errors import NotFoundError, UsageError
from offline_data.ids import did_you_mean
from offline_data_cli import complete
from offline_data_cli.options import Context, argument, option
from offline_data_cli.result import (
    Block,
    Field,
    Fields,
    Lines,
    Result,
    Table,
    TableColumn,
    columns,
)

if TYPE_CHECKING:
    from offline_data.checks.reference import RuleText

_RULES = (*columns("CODE", "RULE", "SEVERITY"), TableColumn("LOOKS FOR", clip=True))
_THRESHOLDS = columns("THRESHOLD", "DEFAULT:number", "MEANING")
_ARGUMENTS = columns("ARGUMENT", "TYPE", "DEFAULT", "MEANING")
_STEPS = (*columns("STEP"), TableColumn("DOES", clip=True))


def explain(
    context: Context,
    names: Annotated[
        list[str] | None,
        argument(
            "NAME...",
            "Code or name of a rule, or name of a step.",
            autocompletion=complete.explained,
        ),
    ] = None,
) -> Result:
    """Explain a rule of `check` or a step of `preprocess`; without a name, list all."""
    from offline_data.preprocess.steps.registry import describe_step, step_names

    steps = step_names()
    if not names:
        rules = rule(context)
        described = [describe_step(name) for name in steps]
        table = Table(_STEPS, [(about["name"], about["does"]) for about in described])
        everything = {"rules": rules.data, "steps": described}
        return Result(everything, (*rules.blocks, table), [*rules.ids, *steps])
    results = [
        step(context, name) if name in steps else _explain_rule(context, name) for name in names
    ]
    data = []
    for result in results:
        data += result.data if isinstance(result.data, list) else [result.data]
    blocks = [block for result in results for block in result.blocks]
    return Result(data, blocks, [name for result in results for name in result.ids])


def _explain_rule(context: Context, name: str) -> Result:
    from offline_data.checks.reference import rule_texts
    from offline_data.preprocess.steps.registry import step_names

    try:
        return rule(context, [name])
    except (NotFoundError, UsageError):
        known = [
            *step_names(),
            *(word for text in rule_texts().values() for word in (text.code, text.name)),
        ]
        hint = did_you_mean(name, known, count=3) or "offline-data explain"
        raise NotFoundError(f"No rule or step is called {name!r}", hint=hint) from None


def rule(
    _context: Context,
    rules: Annotated[
        list[str] | None,
        argument("RULE...", "Code, beginning of a code, or name.", autocompletion=complete.rules),
    ] = None,
    all_: Annotated[bool, option("Print the reference page of all, in Markdown.", "--all")] = False,
) -> Result:
    """Explain the rules of `check`; without an argument, list them."""
    from offline_data.checks.reference import reference_page, rule_texts, rule_texts_of

    if all_ and rules:
        raise UsageError("Give rules or --all, not both")
    texts = rule_texts_of(rules) if rules else list(rule_texts().values())
    ids = [one.code for one in texts]
    if all_:
        page = reference_page().splitlines()
        return Result(texts, (Lines([[(line, "")] for line in page], wrap=False),), ids)
    if not rules:
        rows = [(one.code, one.name, one.severity, one.summary) for one in texts]
        return Result(texts, (Table(_RULES, rows),), ids)
    return Result(texts, [block for one in texts for block in _explained(one)], ids)


def _explained(text: "RuleText") -> list[Block]:
    heading = [(f"{text.code} {text.name}", "id"), (", ", ""), (text.severity, text.severity)]
    paragraphs = [text.summary, *text.details]
    lines: list[list[tuple[str, str]]] = [heading]
    for paragraph in paragraphs:
        lines += [[], *([(line, "")] for line in paragraph.splitlines())]
    blocks: list[Block] = [Lines(lines)]
    if text.thresholds:
        rows = [(one.name, one.default, one.means) for one in text.thresholds]
        blocks.append(Table(_THRESHOLDS, rows))
    if text.hint:
        blocks.append(Lines([[("hint:", "hint"), (f" {text.hint}", "")]]))
    return blocks


def step(
    context: Context,  # noqa: ARG001 - every command takes a context
    name: Annotated[
        str | None, argument("NAME", "Only this step, in full.", autocompletion=complete.steps)
    ] = None,
) -> Result:
    """Show what steps do and take: arguments, types, defaults, and an example."""
    from offline_data.preprocess.steps.registry import describe_step, step_names

    described = [describe_step(one) for one in ([name] if name else step_names())]
    if name is not None:
        (one,) = described
        about = Fields(
            Field("step", one["name"]),
            Field("does", one["does"]),
            Field("example", f"--step {shlex.quote(one['example'])}"),
        )
        blocks: list[Block] = [about]
        if one["arguments"]:
            rows = [(a["name"], a["type"], _default(a), a["text"]) for a in one["arguments"]]
            blocks.append(Table(_ARGUMENTS, rows))
        if one["details"]:
            # paragraphs are wrapped for the terminal; lists and indented lines stay
            blocks.append(re.sub(r"(?<!\n)\n(?![\n\s-])", " ", one["details"]))
        return Result(one, blocks, (one["name"],))
    fields = []
    for one in described:
        arguments = [
            f"{a['name']}: {a['type']}, {_default(a)}" + f". {a['text']}" * bool(a["text"])
            for a in one["arguments"]
        ]
        example = f"--step {shlex.quote(one['example'])}"
        fields.append(Field(one["name"], (one["does"], *arguments, example)))
    note = "one step in full: offline-data step NAME; functions are steps too: --step fn:FILE.py:FN"
    return Result(described, (Fields(*fields),), [one["name"] for one in described], (note,))


def _default(argument: Mapping[str, Any]) -> str:
    if argument["required"]:
        return "required"
    value = argument["default"]
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else json.dumps(value)
    return f"default {'none' if value in (None, ()) else shown}"
