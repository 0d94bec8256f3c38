"""Catalogues of published datasets: one tab-separated table per source, with a header line."""

from __future__ import annotations

import csv
from importlib.resources import files


def read_catalog(name: str) -> list[dict[str, str]]:
    """Read the table of a source, a dict per line; `#` starts a comment, an empty cell is "".

    Example:
        >>> read_catalog("minari")[0]["id"]
        'D4RL/antmaze/large-diverse-v1'
    """
    text = files(__package__).joinpath(f"{name}.tsv").read_text("utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, restval=""))
