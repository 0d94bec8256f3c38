"""`search`: words in the catalogues of all sources."""

from typing import Annotated

import typer

from offline_data_cli.call import Call
from offline_data_cli.commands.listing import catalog_result
from offline_data_cli.result import Result


def search(
    call: Call,
    query: Annotated[list[str], typer.Argument(metavar="QUERY", help="Words that must all occur.")],
) -> Result:
    """Search the catalogues of all sources, without a network."""
    from offline_data.reports import catalog

    words = " ".join(query)
    matches = catalog.search(words, call.settings)
    near = f"; nearest: {', '.join(matches.near)}" if matches.near else ""
    note = f"nothing matches {words!r}{near}"
    return catalog_result(matches.datasets, () if matches.datasets else (note,))
