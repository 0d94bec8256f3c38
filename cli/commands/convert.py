"""`convert`: a file or folder that is here already becomes a dataset."""

from pathlib import Path
from typing import Annotated

import typer

from offline_data.config import user_path
from offline_data_cli.call import Call
from offline_data_cli.commands.download import stored_result
from offline_data_cli.options import (
    DEFAULT_AUDIT,
    Audit,
    Episodes,
    KeepEpisodes,
    Layout,
    Strict,
    parse_episodes,
)
from offline_data_cli.result import Result


def convert(
    call: Call,
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A Minari folder, an HDF5 file, a dataset, …")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The id becomes local:NAME.")],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="SOURCE", help="Its format; else found by looking."),
    ] = None,
    layout: Layout = None,
    episodes: Episodes = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a dataset of that name.")] = False,
    keep_episodes: KeepEpisodes = False,
    strict: Strict = False,
    audit: Audit = DEFAULT_AUDIT,
) -> Result:
    """Convert a file or folder that is here already; it is only read."""
    from offline_data import ingest
    from offline_data.store.audit import parse_audit

    options = ingest.Options(
        layout=layout.value if layout else None,
        episodes=parse_episodes(episodes),
        strict=strict,
        audit=parse_audit(audit),
        force=force,
        keep_episodes=keep_episodes,
    )
    stored = ingest.convert(
        user_path(path, "PATH"), name, call.settings, options, call.progress, source=source
    )
    return stored_result(stored)
