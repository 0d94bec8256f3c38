"""The verbs of the program, as one typer application."""

from typing import Any

import typer

from offline_data_cli.call import Command, group, verb
from offline_data_cli.commands import (
    cache,
    convert,
    demo,
    download,
    env,
    head,
    info,
    listing,
    preprocess,
    rm,
    sample,
    search,
    sources,
    stats,
    verify,
    worker,
)

_VERBS: dict[str, dict[str, Command]] = {
    "Find": {"list": listing.list_, "search": search.search, "info": info.info},
    "Get": {"download": download.download, "convert": convert.convert, "demo": demo.demo},
    "Make": {"preprocess": preprocess.preprocess, "worker": worker.worker},
    "Look": {"head": head.head, "sample": sample.sample, "stats": stats.stats},
    "Keep house": {"verify": verify.verify, "rm": rm.rm},
    "Set-up": {"sources": sources.sources, "env": env.env},
}
"""Verbs by the panel of `--help` that shows them."""

_ALIASES: dict[str, Command] = {"ls": listing.list_, "show": info.info}

_CACHE: dict[str, Command] = {
    "dir": cache.dir_,
    "ls": cache.ls,
    "prune": cache.prune,
    "rm": cache.rm,
}


def build_app() -> typer.Typer:
    """Build the typer application out of the tables above."""
    app = _group("Public offline-RL datasets: once on this disk, true to their source.")
    for panel, verbs in _VERBS.items():
        for name, command in verbs.items():
            app.command(name, rich_help_panel=panel)(verb(command))
    for name, command in _ALIASES.items():
        app.command(name, hidden=True)(verb(command))
    house = _group("Files under the root: where, how big, and what can go.", add_completion=False)
    for name, command in _CACHE.items():
        house.command(name)(verb(command))
    app.add_typer(house, name="cache", rich_help_panel="Keep house")
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
