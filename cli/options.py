"""Options: the global ones that every verb takes, and those that several verbs share."""

import re
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from offline_data.errors import UsageError
from offline_data_cli.output import show_version

_PANEL = "Global options, before or after the verb"


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
        _global("--root", metavar="DIR", text="Where datasets live (OFFLINE_DATA_HOME)."),
    ] = None
    offline: Annotated[bool, _global("--offline", text="No network: use what is here.")] = False
    json: Annotated[bool, _global("--json", text="One JSON value on stdout.")] = False
    quiet: Annotated[bool, _global("--quiet", "-q", text="Ids only.")] = False
    yes: Annotated[bool, _global("--yes", "-y", text="Answer questions with yes.")] = False
    no_progress: Annotated[bool, _global("--no-progress", text="No progress bars.")] = False
    verbose: Annotated[bool, _global("-v", text="Show the traceback of an error.")] = False
    version: Annotated[
        bool,
        _global("--version", text="Show the version and end.", callback=_version, is_eager=True),
    ] = False

    def then(self, later: "Globals") -> "Globals":
        """Merge with those given further right: a flag stays set, the last root counts."""
        names = (field.name for field in fields(self))
        return Globals(**{name: getattr(later, name) or getattr(self, name) for name in names})


Dataset = Annotated[
    str, typer.Argument(metavar="ID", help="Dataset id, or path of a dataset directory.")
]
Datasets = Annotated[
    list[str], typer.Argument(metavar="ID", help="Dataset ids, or paths of directories.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, do nothing.")]


class LayoutName(str, Enum):
    """Layouts of a dataset directory."""

    compact = "compact"
    ted = "ted"


Layout = Annotated[
    LayoutName | None,
    typer.Option(help="compact: one copy, packed; ted: plain memmaps, `next` stored."),
]
Episodes = Annotated[
    str | None, typer.Option(metavar="A:B", help="Only episodes A to B - 1, from 0.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Fail where a leaf of the source cannot be kept.")
]
KeepEpisodes = Annotated[
    bool,
    typer.Option(
        "--keep-episodes",
        help="Keep an episode whole where the source's next observation is not that of the next "
        "row, and store both (default: end the episode there, as truncated). For D4RL files.",
    ),
]
Audit = Annotated[
    str,
    typer.Option(metavar="all|FRACTION|none", help="Rows read back and compared with the source."),
]
DEFAULT_AUDIT = "0.01"
"""What `offline_data.store.audit` has; importing it here would bring numpy into every `--help`."""


def parse_episodes(text: str | None) -> tuple[int | None, int | None] | None:
    """Read `A:B`; either side may be left out.

    Raises:
        UsageError: It is not two whole numbers.

    Example:
        >>> parse_episodes("10:"), parse_episodes(None)
        ((10, None), None)
    """
    if text is None:
        return None
    first, colon, stop = text.partition(":")
    sides = [side.strip() for side in (first, stop)]
    if not colon or not all(re.fullmatch("[0-9]{1,18}", side) for side in sides if side):
        raise UsageError(
            f"--episodes is {text[:40]!r}; expected A:B", hint="--episodes 0:10 takes the first ten"
        )
    begin, end = (int(side) if side else None for side in sides)
    return begin, end
