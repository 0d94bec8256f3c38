"""Lists of published datasets as data: one tab-separated table per source, with a header line."""

from __future__ import annotations

import csv
from importlib.resources import files

from offline_data.errors import NotFoundError


def read_catalog(name: str) -> list[dict[str, str]]:
    """Read the table of one source, a dictionary per line in the order of the file.

    Lines that begin with `#` are comments. Cells are text; an empty cell is "".

    Args:
        name: Name of the table without its ending, `minari` for `minari.tsv`.

    Raises:
        NotFoundError: No table is called `name`.

    Example:
        >>> read_catalog("minari")[0]["id"]
        'D4RL/antmaze/large-diverse-v1'
    """
    table = files(__package__).joinpath(f"{name}.tsv")
    if not table.is_file():
        raise NotFoundError(f"There is no catalogue {name!r} in this package")
    lines = (line for line in table.read_text("utf-8").splitlines() if not line.startswith("#"))
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, restval=""))
