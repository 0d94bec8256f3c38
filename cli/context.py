"""From a command to a typer verb: global options at every level, a `Context` in, an `Outcome` out."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from offline_data.config import Settings, resolve_settings
from offline_data.progress import Progress
from offline_data_cli.progress import progress_for
from offline_data_cli.render import Mode, show_version
from offline_data_cli.result import Result

Command: TypeAlias = Callable[..., Result]
"""A function of a `Context` and its own options."""

_PANEL = "Global options, before or after the command"


def _global(*names: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=_PANEL, show_default=False, **more)


def _version(asked: bool) -> None:
    if asked:
        show_version()
        raise typer.Exit


@dataclass(frozen=True)
class Globals:
    """The global options as given at one place of a command line."""

    root: Annotated[
        Path | None,
        _global(
            "--root",
            metavar="DIR",
            text="Folder for datasets and downloads. (env: OFFLINE_DATA_HOME)",
        ),
    ] = None
    offline: Annotated[
        bool, _global("--offline", text="Never use the network; use only datasets on this disk.")
    ] = False
    json: Annotated[bool, _global("--json", text="Print one JSON value.")] = False
    quiet: Annotated[
        bool, _global("--quiet", "-q", text="Print only ids or paths, one per line.")
    ] = False
    yes: Annotated[bool, _global("--yes", "-y", text="Do not ask for confirmation.")] = False
    no_progress: Annotated[bool, _global("--no-progress", text="Do not show progress bars.")] = (
        False
    )
    verbose: Annotated[bool, _global("-v", text="Show the traceback of an error.")] = False
    version: Annotated[
        bool,
        _global("--version", text="Show the version and exit.", callback=_version, is_eager=True),
    ] = False

    def then(self, later: "Globals") -> "Globals":
        """Merge with those given further right: a flag stays set, the last root counts."""
        names = (field.name for field in fields(self))
        return Globals(**{name: getattr(later, name) or getattr(self, name) for name in names})


@dataclass(frozen=True)
class Context:
    """The global options of a run, resolved for a command."""

    settings: Settings
    """Root, offline mode, mirrors, workers."""
    mode: Mode
    """Format of stdout."""
    yes: bool
    """Whether questions are answered already."""
    progress: Progress
    """Receives progress and notes of long work."""


@dataclass(frozen=True)
class Outcome:
    """A result on its way to the one place that prints."""

    result: Result
    mode: Mode


def verb(command: Command) -> Callable[..., Outcome | BaseException]:
    """Return a function that typer can turn into a verb.

    Its signature has the command's own parameters and those of `Globals`. An error is returned,
    not raised, because typer swallows some: Ctrl-C, and any broken pipe.
    """

    @functools.wraps(command)
    def run(ctx: typer.Context, **values: Any) -> Outcome | BaseException:
        given = Globals(**{field.name: values.pop(field.name) for field in fields(Globals)})
        try:
            merged = _merge(ctx, given)
            settings = resolve_settings(root=merged.root, offline=True if merged.offline else None)
            mode = Mode.JSON if merged.json else Mode.QUIET if merged.quiet else Mode.HUMAN
            progress = progress_for(mode, bars=not merged.no_progress)
            return Outcome(command(Context(settings, mode, merged.yes, progress), **values), mode)
        except BaseException as error:  # noqa: BLE001 - raised again outside typer
            return error

    _, *own = inspect.signature(command).parameters.values()
    return _with_options(run, own)


def group(text: str) -> Callable[..., None]:
    """Return a callback for a group of verbs, described by `text`, that takes global options."""

    def run(ctx: typer.Context, **values: Any) -> None:
        _merge(ctx, Globals(**values))

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


def _merge(ctx: typer.Context, given: Globals) -> Globals:
    """Merge with the options of the groups above, which share `ctx.meta`."""
    merged: Globals = ctx.meta.get(__name__, Globals()).then(given)
    ctx.meta[__name__] = merged
    return merged
