"""Inputs of commands: a `Context`, the global options, and shared options."""

from dataclasses import dataclass, fields
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from offline_data.config import Settings
from offline_data.progress import Progress
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


count = partial(option, metavar="N", min=1)
"""An option that takes an integer of at least 1."""

_PANEL = "Global options, before or after the command"
_global = partial(option, rich_help_panel=_PANEL, show_default=False)


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


@dataclass(frozen=True)
class Globals:
    """The global options as given at one place in a command line."""

    root: Annotated[
        Path | None,
        _global("Folder for datasets and downloads. (env: OFFLINE_DATA_HOME)", metavar="DIR"),
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
        _global("Lay out data as. (default: table in a terminal, tsv in a pipe)"),
    ] = None
    no_truncate: Annotated[bool, _global("Do not cut tables at the edge of the terminal.")] = False
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
    yes: bool
    """Whether to answer all questions with yes."""
    progress: Progress


_WHICH = "Dataset id, path of a dataset directory, or a name that only one dataset has."
Dataset = Annotated[str, argument("ID", _WHICH, autocompletion=complete.ids_here)]
AnyDataset = Annotated[str, argument("ID", _WHICH, autocompletion=complete.all_ids)]
Datasets = Annotated[list[str], argument("ID...", _WHICH, autocompletion=complete.ids_here)]
SomeDatasets = Annotated[
    list[str] | None,
    argument("ID...", "Dataset ids, paths or names.", autocompletion=complete.ids_here),
]
AllDatasets = Annotated[bool, option("All datasets under the root.", "--all")]
NewName = Annotated[str, argument("NAME", "Name of the new dataset; its id is local:NAME.")]
Force = Annotated[bool, option("Replace an existing dataset of that name.")]
DryRun = Annotated[bool, option("Show what would be done without doing it.")]


class LayoutName(str, Enum):
    """Layouts of a dataset directory."""

    compact = "compact"
    ted = "ted"


Layout = Annotated[
    LayoutName | None,
    option(
        "compact (default): every observation stored once. ted: one file per leaf with "
        "`next` stored too; opens with TensorDict.load_memmap."
    ),
]
Episodes = Annotated[
    str | None,
    option(
        "Only episodes A up to but excluding B, counted from 0 (0:10 = the first ten).",
        metavar="A:B",
    ),
]
Strict = Annotated[
    bool, option("Fail if any field of the source cannot be stored (default: drop it and say so).")
]
KeepEpisodes = Annotated[
    bool,
    option(
        "For D4RL files: keep an episode whole if the source's next observation differs "
        "from the next row, and store both (default: end the episode there as truncated)."
    ),
]
SkipBadEpisodes = Annotated[
    bool,
    option(
        "Leave out episodes that cannot be read, and list them in the manifest (default: fail)."
    ),
]
Checkpoints = Annotated[
    str | None,
    option(
        "For Atari DQN logs: only checkpoints A up to but excluding B, counted from 0.",
        metavar="A:B",
    ),
]


class StoredImages(str, Enum):
    """Storage formats of images in a dataset directory."""

    encoded = "encoded"
    raw = "raw"


ImageStorage = Annotated[
    StoredImages | None,
    option(
        "raw: decode JPEG and PNG images and store pixels. encoded: keep the source's files and "
        "decode them when sampled. (default: as the source has them)"
    ),
]
_text = partial(option, rich_help_panel="Text (hf, text)")
Tokenizer = Annotated[
    str | None,
    _text(
        "Tokenize with this: a name on the Hugging Face hub, a folder, or a tokenizer.json.",
        metavar="NAME|PATH",
    ),
]
TokenizerRevision = Annotated[
    str | None, _text("Commit, branch or tag of a tokenizer on the hub.", metavar="REV")
]


class TextForm(str, Enum):
    """Forms of rows of text."""

    text = "text"
    prompt = "prompt"
    pairs = "pairs"
    messages = "messages"


TextForms = Annotated[
    TextForm | None,
    _text(
        "text: one text. prompt: prompt and completion. pairs: prompt, chosen and rejected. "
        "messages: a conversation. (default: by the dataset and its columns)",
        "--form",
    ),
]
TextColumns = Annotated[
    list[str] | None,
    _text(
        "Column of a role (text, prompt, completion, chosen, rejected, messages, score).",
        "--column",
        metavar="ROLE=NAME",
    ),
]
Split = Annotated[str | None, _text("Split to read. (default: train)", metavar="NAME|all")]
SplitOfFolder = Annotated[
    str | None,
    option(
        "Split to read of a folder that has several, or all as one dataset. "
        "(default: ask; of text: train)",
        "--split",
        metavar="NAME|all",
    ),
]
MaxLength = Annotated[
    int | None, _text("Cut documents off after N tokens. (default: keep all)", metavar="N", min=1)
]
Pad = Annotated[
    bool, _text("Store documents as rows of --max-length tokens (default: a row is a token).")
]
Separator = Annotated[
    str | None, _text("Text between prompt and completion. (default: none)", metavar="TEXT")
]


class Eos(str, Enum):
    """Values of `--eos`."""

    auto = "auto"
    yes = "yes"
    no = "no"


EndOfText = Annotated[
    Eos | None,
    _text(
        "Append the tokenizer's end-of-text token to each document. auto (default): if it names one "
        "and does not append it by itself; not to conversations. Documents that are cut off get none.",
        "--eos",
    ),
]
KeepText = Annotated[bool, _text("Store the texts, too.")]
Audit = Annotated[
    str,
    option(
        "Rows to read back and compare with the source. auto: all of the first GiB, and 1 % of "
        "the rows above.",
        metavar="auto|all|FRACTION|none",
    ),
]


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

DEFAULT_AUDIT = "auto"
"""The default of `offline_data.store.layout`; importing that would make `--help` import numpy."""
