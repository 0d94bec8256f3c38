"""The program as one typer application, built from tables of verbs."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, get_args

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]

from offline_data.config import resolve_settings
from offline_data_cli.commands import (
    check,
    copies,
    demo,
    download,
    environment,
    inspection,
    listing,
    lock,
    manage,
    pages,
    pictures,
    preprocess,
)
from offline_data_cli.help import Verb, Verbs, epilog
from offline_data_cli.options import Context, Globals
from offline_data_cli.progress import progress_for
from offline_data_cli.render import Mode, draw_as
from offline_data_cli.result import Result

Command: TypeAlias = Callable[..., Result]
"""A function of a `Context` and its own options."""

_VERBS: dict[str, dict[str, Command]] = {
    "Inspect": {
        "list": listing.list_,
        "search": listing.search,
        "info": inspection.info,
        "head": inspection.head,
        "tail": inspection.tail,
        "sample": inspection.sample,
        "stats": inspection.stats,
        "plot": pictures.plot,
        "view": pictures.view,
        "card": pictures.card,
        "path": inspection.path,
        "open": inspection.open_,
        "diff": lock.diff,
        "check": check.check,
        "rule": check.rule,
        "report": pages.report,
        "compare": pages.compare,
        "browse": pages.browse,
    },
    "Get": {"download": download.download, "convert": download.convert, "demo": demo.demo},
    "Project": {"lock": lock.lock, "sync": lock.sync},
    "Transform": {
        "preprocess": preprocess.preprocess,
        "step": preprocess.step,
        "filter": copies.filter_,
        "split": copies.split,
        "worker": preprocess.worker,
    },
    "Manage": {
        "rename": copies.rename,
        "cp": copies.cp,
        "verify": manage.verify,
        "rm": manage.rm,
    },
    "Environment": {
        "sources": listing.sources,
        "env": listing.env,
        "completion": environment.completion,
        "version": environment.version,
    },
}
"""Verbs by panel of `--help`."""

_GROUPS: dict[str, tuple[str, str, dict[str, Command]]] = {
    "cache": (
        "Manage",
        "Show and delete the files under the root.",
        {"dir": manage.dir_, "ls": manage.ls, "prune": manage.prune, "rm": manage.cache_rm},
    ),
    "config": (
        "Environment",
        "Show and change the settings of the config file.",
        {
            "get": environment.get,
            "set": environment.set_,
            "edit": environment.edit,
            "path": environment.path,
        },
    ),
}
"""Groups of verbs: panel, help text and verbs."""


@dataclass(frozen=True)
class Outcome:
    """A result that is passed to `render`."""

    result: Result
    mode: Mode


def build_app() -> typer.Typer:
    """Build the typer application from the tables above."""
    completion_init()  # typer's own options are unused: its bash script splits ids at the colon
    app = _group("", "Download, verify, convert and sample public offline-RL datasets.")
    for panel, verbs in _VERBS.items():
        for name, command in verbs.items():
            _add(app, name, command, name, panel)
    for group, (panel, text, verbs) in _GROUPS.items():
        inner = _group(group, text)
        for name, command in verbs.items():
            _add(inner, name, command, f"{group} {name}")
        app.add_typer(inner, name=group, rich_help_panel=panel)
    return app


def _add(
    app: typer.Typer, name: str, command: Command, verb: str, panel: str | None = None
) -> None:
    added = app.command(name, cls=_FoldedVerb, epilog=epilog(verb), rich_help_panel=panel)
    added(_verb(command))


class _FoldedVerb(Verb):
    folded = frozenset(field.name for field in fields(Globals))


class _FoldedVerbs(Verbs):
    folded = _FoldedVerb.folded


def _group(verb: str, text: str) -> typer.Typer:
    """Return a group of verbs with the global options."""

    def run(ctx: typer.Context, **values: Any) -> None:
        _merge(ctx, Globals(**values))

    run.__doc__ = text
    app = typer.Typer(
        cls=_FoldedVerbs,
        epilog=epilog(verb),
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        add_completion=False,
    )
    app.callback()(_with_options(run, []))
    return app


def _verb(command: Command) -> Callable[..., Outcome | BaseException]:
    """Return a function with the command's own parameters and those of `Globals`, for typer.

    Errors are returned, not raised, because typer swallows some: Ctrl-C, and any broken pipe.
    """

    @functools.wraps(command)
    def run(ctx: typer.Context, **values: Any) -> Outcome | BaseException:
        given = Globals(**{field.name: values.pop(field.name) for field in fields(Globals)})
        try:
            merged = _merge(ctx, given)
            draw_as(merged.display)
            settings = resolve_settings(root=merged.root, offline=True if merged.offline else None)
            mode = merged.mode
            progress = progress_for(mode, bars=not merged.no_progress)
            return Outcome(command(Context(settings, mode, merged.yes, progress), **values), mode)
        except BaseException as error:  # noqa: BLE001 - raised again outside typer
            return error

    _, *own = inspect.signature(command).parameters.values()
    return _with_options(run, own)


def _with_options(run: Callable[..., Any], own: list[inspect.Parameter]) -> Callable[..., Any]:
    """Give `run` the signature that typer builds options from; flags get no `--no-` variant."""
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    given = (*own, *inspect.signature(Globals).parameters.values())
    for parameter in given:
        kind, info = get_args(parameter.annotation)
        if kind is bool and info.default is ...:  # it has no explicit name
            info.param_decls = (f"--{parameter.name.replace('_', '-')}",)
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in given]
    signature = inspect.Signature([context, *keyword])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    return run


def _merge(ctx: typer.Context, given: Globals) -> Globals:
    """Merge with the options of parent groups, which are in `ctx.meta`."""
    merged: Globals = ctx.meta.get(__name__, Globals()).then(given)
    ctx.meta[__name__] = merged
    return merged


app = build_app()
