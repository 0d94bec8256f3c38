"""Options and arguments that several commands share."""

import re
from enum import Enum
from typing import Annotated

import typer

from offline_data.errors import UsageError

Dataset = Annotated[
    str, typer.Argument(metavar="ID", help="Dataset id or path of a dataset directory.")
]
Datasets = Annotated[
    list[str], typer.Argument(metavar="ID", help="Dataset ids or paths of dataset directories.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done without doing it.")
]


class LayoutName(str, Enum):
    """Layouts of a dataset directory."""

    compact = "compact"
    ted = "ted"


Layout = Annotated[
    LayoutName | None,
    typer.Option(
        help="compact (default): every observation stored once. ted: one file per leaf with "
        "`next` stored too; opens with TensorDict.load_memmap."
    ),
]
Episodes = Annotated[
    str | None,
    typer.Option(
        metavar="A:B",
        help="Only episodes A up to but excluding B, counted from 0 (0:10 = the first ten).",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Fail if any field of the source cannot be stored (default: drop it and say so).",
    ),
]
KeepEpisodes = Annotated[
    bool,
    typer.Option(
        "--keep-episodes",
        help="For D4RL files: keep an episode whole if the source's next observation differs "
        "from the next row, and store both (default: end the episode there as truncated).",
    ),
]
Audit = Annotated[
    str,
    typer.Option(
        metavar="all|FRACTION|none",
        help="Share of rows to read back and compare with the source: all, none or e.g. 0.01.",
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
