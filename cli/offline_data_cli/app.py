"""The program as one typer application, built from tables of verbs."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, TypeAlias, get_args

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]

from offline_data.base.config import resolve_settings
from offline_data_cli.help import Verb, Verbs, epilog
from offline_data_cli.options import Context, Globals, OptionTable
from offline_data_cli.progress import progress_for
from offline_data_cli.render import Mode, draw_as
from offline_data_cli.result import Result
from offline_data_cli.values import parse_values
from offline_data_cli.verbs import GROUPS, HIDDEN, VERBS

Command: TypeAlias = Callable[..., Result]  # a function of a `Context` and its own options


@dataclass(frozen=True)
class Outcome:
    """A result that is passed to `render`."""

    result: Result
    mode: Mode


class Commands(Mapping[str, Any]):
    """Verbs of a group by name; a verb's module is imported on use."""

    def __init__(self) -> None:
        self.panels: dict[str, dict[str, str]] = {}  # verbs by panel, with a line about each
        self._makers: dict[str, Callable[[], Any]] = {}
        self._made: dict[str, Any] = {}

    def add(self, panel: str | None, name: str, text: str, make: Callable[[], Any]) -> None:
        """Add a verb and the function that makes its command; without a panel it is not listed."""
        if panel is not None:
            self.panels.setdefault(panel, {})[name] = text
        self._makers[name] = make

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@functools.cache
def command_tree() -> Any:
    """Return typer's command of the whole program, with verbs that are imported when called."""
    completion_init()  # typer's own options are unused: its bash script splits ids at the colon
    commands = Commands()
    for panel, verbs in (*VERBS.items(), (None, HIDDEN)):
        for name, (place, text) in verbs.items():
            commands.add(panel, name, text, functools.partial(_command, name, place, name))
    for group, (panel, text, verbs) in GROUPS.items():
        inner = Commands()
        for name, (place, about) in verbs.items():
            make = functools.partial(_command, name, place, f"{group} {name}")
            inner.add("Commands", name, about, make)
        commands.add(panel, group, text, functools.partial(_group, group, text, inner))
    return _group("", "Download, check and sample offline-RL datasets.", commands)


def _command(name: str, place: str, verb: str) -> Any:
    module, _, function = place.partition(":")
    command = getattr(import_module(f"offline_data_cli.commands.{module}"), function)
    app, run = _typer(), _verb(command)
    app.command(name, cls=_FoldedVerb, epilog=epilog(verb), context_settings=_CONTEXT)(run)
    return parse_values(typer.main.get_command(app), run)


def _typer(**options: Any) -> typer.Typer:
    return typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=_CONTEXT,
        **options,
    )


_CONTEXT = {"help_option_names": ["-h", "--help"]}


class _FoldedVerb(Verb):
    folded = frozenset(field.name for field in fields(Globals))


class _FoldedVerbs(Verbs):
    folded = _FoldedVerb.folded


def _group(verb: str, text: str, commands: Commands) -> Any:
    def run(ctx: typer.Context, **values: Any) -> None:
        _merge(ctx, Globals(**values))

    run.__doc__ = text
    app = _typer(cls=_FoldedVerbs, epilog=epilog(verb))
    app.callback()(_with_options(run, []))
    group: Any = typer.main.get_group(app)
    group.name, group.commands = verb or None, commands
    return parse_values(group, run)


def _verb(command: Command) -> Callable[..., Outcome | BaseException]:
    """Return a function with the command's own parameters and those of `Globals`, for typer."""

    @functools.wraps(command)
    def run(ctx: typer.Context, **values: Any) -> Outcome | BaseException:
        given = Globals(**{field.name: values.pop(field.name) for field in fields(Globals)})
        for name, options in tables.items():
            values[name] = {option.name: values.pop(option.name) for option in options}
        try:
            merged = _merge(ctx, given)
            draw_as(merged.display)
            settings = resolve_settings(root=merged.root, offline=True if merged.offline else None)
            mode = merged.mode
            progress = progress_for(mode, bars=not merged.no_progress)
            return Outcome(command(Context(settings, mode, merged.yes, progress), **values), mode)
        except BaseException as error:  # noqa: BLE001 - raised again outside typer
            return error  # typer swallows some: Ctrl-C, and any broken pipe

    _, *own = inspect.signature(command).parameters.values()
    tables: dict[str, list[inspect.Parameter]] = {}
    for place, parameter in enumerate(own):
        kind = get_args(parameter.annotation)[1]
        if isinstance(kind, OptionTable):
            tables[parameter.name] = own[place : place + 1] = kind.parameters()
            break
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
