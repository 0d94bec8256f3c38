"""Inputs of commands: a `Context`, the global options, and shared options."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from enum import Enum
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from offline_data.base.config import Settings
from offline_data.base.progress import Progress
from offline_data_cli import complete
from offline_data_cli.render import Display, Mode


class VersionAsked(Exception):  # noqa: N818 - not an error
    """Raised for `--version`: the rest of the command line is ignored."""


def option(text: str, *names: str, **more: Any) -> Any:
    """Return an option with a help text, and `names` if they differ from the parameter's."""
    return typer.Option(*names, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """Return an argument with a metavar and a help text."""
    return typer.Argument(metavar=metavar, help=text, **more)


count = partial(option, metavar="N", min=1)  # an option that takes an integer of at least 1

_global = partial(
    option, rich_help_panel="Global options, before or after the command", show_default=False
)


def _version(asked: bool) -> None:
    if asked:
        raise VersionAsked


class ColorWhen(str, Enum):
    """When to use colours."""

    auto = "auto"
    always = "always"
    never = "never"


class OutputFormat(str, Enum):
    """Formats of printed data."""

    table = "table"
    tsv = "tsv"
    json = "json"


class OptionTable(ABC):
    """Annotation of a parameter that receives several options, as given, by name."""

    @abstractmethod
    def parameters(self) -> list[Parameter]:
        """Return them as parameters of a function, for typer."""


@dataclass(frozen=True)
class Globals:
    """The global options as given at one place in a command line."""

    root: Annotated[
        Path | None,
        _global("Folder of all datasets and downloads. (env: OFFLINE_DATA_HOME)", metavar="DIR"),
    ] = None
    offline: Annotated[
        bool, _global("Use only datasets on this disk. (env: OFFLINE_DATA_OFFLINE)")
    ] = False
    json: Annotated[bool, _global("Print one JSON value.")] = False
    quiet: Annotated[bool, _global("Print only ids or paths, one per line.", "--quiet", "-q")] = (
        False
    )
    yes: Annotated[bool, _global("Do not ask for confirmation.", "--yes", "-y")] = False
    no_progress: Annotated[bool, _global("Do not show progress bars.")] = False
    verbose: Annotated[bool, _global("Show the traceback of an error.", "--verbose", "-v")] = False
    color: Annotated[
        ColorWhen | None, _global("Use colours. (default: in a terminal; env: NO_COLOR)")
    ] = None
    format: Annotated[
        OutputFormat | None,
        _global("Format of the output. (default: table in a terminal, tsv in a pipe)"),
    ] = None
    no_truncate: Annotated[
        bool, _global("Do not truncate tables to the width of the terminal.")
    ] = False
    version: Annotated[
        bool,
        _global("Show the version and exit.", "--version", "-V", callback=_version, is_eager=True),
    ] = False

    @property
    def mode(self) -> Mode:
        """Format of stdout."""
        if self.json or self.format is OutputFormat.json:
            return Mode.JSON
        return Mode.QUIET if self.quiet else Mode.HUMAN

    @property
    def display(self) -> Display:
        """Display settings."""
        layout = None if self.format in {None, OutputFormat.json} else self.format.value
        color = None if self.color in {None, ColorWhen.auto} else self.color.value
        return Display(layout, color, not self.no_truncate)

    def then(self, later: "Globals") -> "Globals":
        """Merge with options further right: a flag stays set, the last root applies."""
        names = (field.name for field in fields(self))
        return Globals(**{name: getattr(later, name) or getattr(self, name) for name in names})


@dataclass(frozen=True)
class Context:
    """The global options of a run, resolved for a command."""

    settings: Settings
    mode: Mode
    yes: bool  # whether to answer all questions with yes
    progress: Progress


WHICH = "Id, path or unique name of a dataset."
Dataset = Annotated[str, argument("ID", WHICH, autocompletion=complete.ids_here)]
AnyDataset = Annotated[str, argument("ID", WHICH, autocompletion=complete.all_ids)]
Datasets = Annotated[list[str], argument("ID...", WHICH, autocompletion=complete.ids_here)]
SomeDatasets = Annotated[
    list[str] | None,
    argument("ID...", "Ids, paths or unique names of datasets.", autocompletion=complete.ids_here),
]
AllDatasets = Annotated[bool, option("All datasets under the root.", "--all")]
NewName = Annotated[str, argument("NAME", "Name of the new dataset; its id is local:NAME.")]
Force = Annotated[bool, option("Replace an existing dataset of that name.")]
DryRun = Annotated[bool, option("Show what would be done without doing it.")]


class Engine(str, Enum):
    """Executors of tasks."""

    local = "local"
    ray = "ray"


RUNNING = {"rich_help_panel": "Execution (does not change the result)"}
running = partial(option, **RUNNING)
Workers = Annotated[
    int | None,
    count("Maximum number of processes. (default: cores; env: OFFLINE_DATA_WORKERS)", **RUNNING),
]
RunsOn = Annotated[Engine, running("Run tasks in local processes or on a Ray cluster.")]
Address = Annotated[str | None, running("Address of the Ray cluster.", metavar="HOST:PORT")]
PlanOnly = Annotated[bool, running("Write a plan for `worker` and run nothing.")]
Plan = Annotated[Path | None, running("File to write the plan to.", metavar="FILE")]
