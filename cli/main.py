"""The program: its verbs, and the exit code of every way it can end."""

import logging
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer

from offline_data.errors import (
    AccessError,
    AuthError,
    IntegrityError,
    NetworkError,
    NoSpaceError,
    NotFoundError,
    OfflineDataError,
    UsageError,
)
from offline_data_cli.call import Command, Outcome, group, verb
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
from offline_data_cli.output import (
    ReaderGone,
    leave_pipes,
    show,
    show_error,
    show_traceback,
)

PROGRAM = "offline-data"

EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (UsageError, 2),
    (AccessError, 2),
    (NotFoundError, 3),
    (AuthError, 4),
    (IntegrityError, 5),
    (NetworkError, 6),
    (NoSpaceError, 7),
    (KeyboardInterrupt, 130),
    (BaseException, 1),
)
"""Exit code of each class of error; the first that fits counts."""

USAGE = 2

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

_CLICK_ERROR = typer.BadParameter.__mro__[2]
"""`ClickException`, wherever it lives: newer versions of typer carry a click of their own."""


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


def run() -> NoReturn:
    """Run the command line of this process; what the installed program calls."""
    signal.signal(signal.SIGTERM, _terminate)
    # Its retries are told by our own errors, once; a line for each would hide them.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; prints, never raises or exits.

    Example:
        >>> main(["cache", "dir", "--root", "/data"])
        /data
        0
    """
    try:
        try:
            return _finish(_invoke(list(arguments) or ["--help"]))
        except ReaderGone:
            raise
        except BaseException as error:  # noqa: BLE001 - the one place where every error ends
            return _fail(error, arguments)
    except ReaderGone:
        leave_pipes()
        return 0


def _invoke(arguments: list[str]) -> Outcome | int:
    """Let typer parse and call; an exit code where there is no command to finish (`--help`)."""
    command = typer.main.get_command(app)
    try:
        outcome = command.main(arguments, prog_name=PROGRAM, standalone_mode=False)
    except SystemExit as end:
        outcome = end.code
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome if isinstance(outcome, (Outcome, int)) else 0


def _finish(outcome: Outcome | int) -> int:
    if isinstance(outcome, int):
        return outcome
    result = outcome.result
    show(result, outcome.mode)
    for error in result.failures:
        show_error(error.code, error.message, error.hint, as_json=False)
    return result.code or next(map(exit_code, result.failures), 0)


def _fail(error: BaseException, arguments: Sequence[str]) -> int:
    if isinstance(error, typer.Abort):
        error = KeyboardInterrupt()
    code, message, hint = _describe(error)
    show_error(code, message, hint, as_json="--json" in arguments)
    if any(re.fullmatch(r"-[qy]*v[qyv]*", argument) for argument in arguments):
        show_traceback(error)
    return exit_code(error)


def exit_code(error: BaseException) -> int:
    """Look an error up in `EXIT_CODES`.

    Example:
        >>> exit_code(NotFoundError("no such dataset"))
        3
    """
    if isinstance(error, _CLICK_ERROR):
        return USAGE
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def _describe(error: BaseException) -> tuple[str, str, str | None]:
    """Return code, message and hint of any error."""
    if isinstance(error, OfflineDataError):
        return error.code, error.message, error.hint
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", str(error) or "interrupted; run the same command again to go on", None
    if isinstance(error, _CLICK_ERROR):
        context = getattr(error, "ctx", None)
        path = context.command_path if context else PROGRAM
        return "usage", error.format_message(), f"{path} --help"  # type: ignore[attr-defined]
    return (
        "internal",
        f"unexpected {type(error).__name__}: {error}",
        f"please report this with the output of `{PROGRAM} env`; -v shows the traceback",
    )


def _terminate(_signal: int, _frame: object) -> NoReturn:
    """End on SIGTERM as on Ctrl-C: with everything closed and put away."""
    raise KeyboardInterrupt
