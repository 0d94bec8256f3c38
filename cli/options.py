"""Options and arguments that several commands share."""

import re
from enum import Enum
from typing import Annotated, Any

import typer

from offline_data.errors import UsageError


def option(text: str, *names: str, **more: Any) -> Any:
    """Return an option with a help text; `names` only if they do not follow from the parameter."""
    return typer.Option(*names, help=text, **more)


def argument(metavar: str, text: str) -> Any:
    """Return an argument with its name and a help text."""
    return typer.Argument(metavar=metavar, help=text)


Dataset = Annotated[str, argument("ID", "Dataset id or path of a dataset directory.")]
Datasets = Annotated[list[str], argument("ID", "Dataset ids or paths of dataset directories.")]
DryRun = Annotated[bool, option("Show what would be done without doing it.", "--dry-run")]


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
    bool,
    option(
        "Fail if any field of the source cannot be stored (default: drop it and say so).",
        "--strict",
    ),
]
KeepEpisodes = Annotated[
    bool,
    option(
        "For D4RL files: keep an episode whole if the source's next observation differs "
        "from the next row, and store both (default: end the episode there as truncated).",
        "--keep-episodes",
    ),
]
Audit = Annotated[
    str,
    option(
        "Share of rows to read back and compare with the source: all, none or e.g. 0.01.",
        metavar="all|FRACTION|none",
    ),
]
DEFAULT_AUDIT = "0.01"
"""The default of `offline_data.store.audit`; importing it here would bring numpy into `--help`."""


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
