"""From a command to a typer verb: global options on every level, a `Call` in, an `Outcome` out."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import typer

from offline_data.config import Settings, resolve_settings
from offline_data.progress import Progress
from offline_data_cli.options import Globals
from offline_data_cli.output import Mode
from offline_data_cli.progress import progress_for
from offline_data_cli.result import Result

Command: TypeAlias = Callable[..., Result]
"""A function of a `Call` and its own options."""


@dataclass(frozen=True)
class Call:
    """What a command gets beside its own arguments."""

    settings: Settings
    """Root, offline mode, mirrors, workers."""
    mode: Mode
    """What stdout is for."""
    yes: bool
    """Whether questions are answered already."""
    progress: Progress
    """Where to tell of long work."""


@dataclass(frozen=True)
class Outcome:
    """A result on its way to the one place that prints."""

    result: Result
    mode: Mode


def verb(command: Command) -> Callable[..., Outcome | BaseException]:
    """Make a function that typer can read out of a command.

    Its signature has the command's own parameters and those of `Globals`. An error comes
    back as a value, for typer swallows some: Ctrl-C, and any broken pipe.
    """

    @functools.wraps(command)
    def run(ctx: typer.Context, **values: Any) -> Outcome | BaseException:
        given = Globals(**{field.name: values.pop(field.name) for field in fields(Globals)})
        try:
            call = _call(_remember(ctx, given))
            return Outcome(command(call, **values), call.mode)
        except BaseException as error:  # noqa: BLE001 - raised again outside typer
            return error

    _, *own = inspect.signature(command).parameters.values()
    return _with_options(run, own)


def group(text: str) -> Callable[..., None]:
    """Make a callback for a group of verbs, described by `text`, that takes global options."""

    def run(ctx: typer.Context, **values: Any) -> None:
        _remember(ctx, Globals(**values))

    run.__doc__ = text
    return _with_options(run, [])


def _with_options(run: Callable[..., Any], own: list[inspect.Parameter]) -> Callable[..., Any]:
    """Give `run` the signature that typer builds options from."""
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    given = (*own, *inspect.signature(Globals).parameters.values())
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in given]
    signature = inspect.Signature([context, *keyword])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    return run


def _remember(ctx: typer.Context, given: Globals) -> Globals:
    """Merge with the options of the groups above, which share `ctx.meta`."""
    merged: Globals = ctx.meta.get(__name__, Globals()).then(given)
    ctx.meta[__name__] = merged
    return merged


def _call(given: Globals) -> Call:
    settings = resolve_settings(root=given.root, offline=True if given.offline else None)
    mode = Mode.JSON if given.json else Mode.QUIET if given.quiet else Mode.HUMAN
    return Call(settings, mode, given.yes, progress_for(mode, bars=not given.no_progress))
