"""`explain`: rules of `check` and steps of `preprocess`."""

import json
import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from offline_data.base.errors import NotFoundError, UsageError
from offline_data.base.ids import did_you_mean
from offline_data.document.blocks import Field, Fields, Lines, fields_of, non_empty, table
from offline_data_cli import complete
from offline_data_cli.options import Context, argument, option
from offline_data_cli.result import Block, Result

if TYPE_CHECKING:
    from offline_data.analysis.checks.reference import RuleText


def explain(
    context: Context,
    names: Annotated[
        list[str] | None,
        argument(
            "NAME...",
            "Codes or names of rules, or names of steps.",
            autocompletion=complete.explained,
        ),
    ] = None,
) -> Result:
    """Explain a rule of `check` or a step of `preprocess`, or list all."""
    from offline_data.pipeline.preprocess.steps.registry import describe_step, step_names

    steps = step_names()
    if not names:
        rules = rule(context)
        described = [describe_step(name) for name in steps]
        listed = table("step=name does:clip", described)
        everything = {"rules": rules.data, "steps": described}
        return Result(everything, (*rules.blocks, listed), [*rules.ids, *steps])
    results = [
        step(context, name) if name in steps else _explain_rule(context, name) for name in names
    ]
    data = []
    for result in results:
        data += result.data if isinstance(result.data, list) else [result.data]
    blocks = [block for result in results for block in result.blocks]
    return Result(data, blocks, [name for result in results for name in result.ids])


def _explain_rule(context: Context, name: str) -> Result:
    from offline_data.analysis.checks.reference import rule_texts
    from offline_data.pipeline.preprocess.steps.registry import step_names

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
    from offline_data.analysis.checks.reference import reference_page, rule_texts, rule_texts_of

    if all_ and rules:
        raise UsageError("Give rules or --all, not both")
    texts = rule_texts_of(rules) if rules else list(rule_texts().values())
    ids = [text.code for text in texts]
    if all_:
        page = reference_page().splitlines()
        return Result(texts, (Lines([[(line, "")] for line in page], wrap=False),), ids)
    if not rules:
        listed = table("code rule=name severity looks_for=summary:clip", texts)
        return Result(texts, (listed,), ids)
    return Result(texts, [block for text in texts for block in _explain_text(text)], ids)


def _explain_text(text: "RuleText") -> list[Block]:
    heading = [(f"{text.code} {text.name}", "id"), (", ", ""), (text.severity, text.severity)]
    paragraphs = [text.summary, *text.details]
    lines: list[list[tuple[str, str]]] = [heading]
    for paragraph in paragraphs:
        lines += [[], *([(line, "")] for line in paragraph.splitlines())]
    blocks: list[Block] = [Lines(lines)]
    blocks += non_empty(table("threshold=name default:number meaning=means", text.thresholds))
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
    from offline_data.pipeline.preprocess.steps.registry import describe_step, step_names

    if name is not None:
        about = describe_step(name)
        spec = "argument=name type default meaning=text"
        blocks: list[Block] = [
            fields_of(about, "step=name does example", example=_format_example(about)),
            *non_empty(table(spec, about["arguments"], default=_format_default)),
        ]
        if about["details"]:
            # paragraphs are wrapped for the terminal; lists and indented lines stay
            blocks.append(re.sub(r"(?<!\n)\n(?![\n\s-])", " ", about["details"]))
        return Result(about, blocks, (about["name"],))
    described = list(map(describe_step, step_names()))
    fields = []
    for about in described:
        arguments = [
            f"{a['name']}: {a['type']}, {_format_default(a)}" + f". {a['text']}" * bool(a["text"])
            for a in about["arguments"]
        ]
        fields.append(Field(about["name"], (about["does"], *arguments, _format_example(about))))
    return Result(described, (Fields(*fields),), [about["name"] for about in described])


def _format_example(about: Mapping[str, Any]) -> str:
    return f"--step {shlex.quote(about['example'])}"


def _format_default(argument: Mapping[str, Any]) -> str:
    if argument["required"]:
        return "required"
    value = argument["default"]
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else json.dumps(value)
    return f"default {'none' if value in (None, ()) else shown}"
