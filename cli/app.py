"""The verbs of the program, as one typer application."""

from typing import Any

import typer

from offline_data_cli.commands import (
    demo,
    download,
    environment,
    info,
    inspection,
    listing,
    manage,
    preprocess,
)
from offline_data_cli.context import Command, group, verb

_VERBS: dict[str, dict[str, Command]] = {
    "Inspect": {
        "list": listing.list_,
        "search": listing.search,
        "info": info.info,
        "head": inspection.head,
        "sample": inspection.sample,
        "stats": inspection.stats,
    },
    "Get": {"download": download.download, "convert": download.convert, "demo": demo.demo},
    "Transform": {"preprocess": preprocess.preprocess, "worker": preprocess.worker},
    "Manage": {"verify": manage.verify, "rm": manage.rm},
    "Environment": {"sources": environment.sources, "env": environment.env},
}
"""Verbs by the panel of `--help` that shows them."""

_ALIASES: dict[str, Command] = {"ls": listing.list_, "show": info.info}

_CACHE: dict[str, Command] = {
    "dir": manage.dir_,
    "ls": manage.ls,
    "prune": manage.prune,
    "rm": manage.cache_rm,
}


def build_app() -> typer.Typer:
    """Build the typer application out of the tables above."""
    app = _group("Download, verify, convert and sample public offline-RL datasets.")
    for panel, verbs in _VERBS.items():
        for name, command in verbs.items():
            app.command(name, rich_help_panel=panel)(verb(command))
    for name, command in _ALIASES.items():
        app.command(name, hidden=True)(verb(command))
    cache = _group("Show and delete the files under the root.", add_completion=False)
    for name, command in _CACHE.items():
        cache.command(name)(verb(command))
    app.add_typer(cache, name="cache", rich_help_panel="Manage")
    return app


def _group(text: str, **more: Any) -> typer.Typer:
    app = typer.Typer(
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **more,
    )
    app.callback()(group(text))
    return app


app = build_app()
