"""The program: from arguments to an exit code, for every way it can end.

Imports at the top are the few that handling signals and errors needs, so that Ctrl-C works from
the start.
"""

import math
import re
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

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
from offline_data.urls import redact

if TYPE_CHECKING:
    from offline_data_cli.context import Outcome

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
"""Exit code of each class of error; the first match counts."""

USAGE = 2

_REPEATED = 1.0
"""Seconds within which a signal is a repetition: a terminal that closes sends it twice."""

_last_signal = -math.inf


def run() -> NoReturn:
    """Run the command line of this process; the entry point of the installed program.

    SIGINT, SIGTERM and SIGHUP are handled alike: everything is cleaned up, and the exit code is
    130.
    """
    ends = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    try:
        for number in ends:
            signal.signal(number, _interrupt)
        import logging

        from offline_data_cli.streams import guard_streams

        guard_streams()
        warnings.showwarning = _show_warning  # type: ignore[assignment] # takes all it is given
        # Its retries are reported by our own errors, once; a line for each would hide them.
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        code = main(sys.argv[1:])
    except KeyboardInterrupt as error:
        code = exit_code(error)
        with suppress(Exception):  # streams may not be in hand yet
            _fail(error, sys.argv[1:])
    for number in ends:  # nothing is left to interrupt
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


_ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


def _interrupt(_signal: int, _frame: object) -> None:
    global _last_signal
    now = time.monotonic()
    if now - _last_signal > _REPEATED:
        _last_signal = now
        raise KeyboardInterrupt


def _show_warning(message: Warning | str, *_place: object) -> None:
    """Print what a library warns of as a sentence, without a line of its code."""
    from offline_data_cli.render import say

    say(f"warning: {' '.join(str(message).split())}")


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; prints, never raises or exits.

    Example:
        >>> main(["cache", "dir", "--root", "/data"])
        /data
        0
    """
    from offline_data_cli.streams import ReaderGone

    try:
        try:
            return _finish(_invoke(list(arguments) or ["--help"]))
        except ReaderGone:
            raise
        except BaseException as error:  # noqa: BLE001 - the one place where every error ends
            try:
                return _fail(error, arguments)
            except OfflineDataError as lost:  # the error itself could not be written
                return _fail(lost, arguments)
    except ReaderGone:
        return 0


def _invoke(arguments: list[str]) -> "Outcome | int":
    """Let typer parse and call; an exit code where there is no command to finish (`--help`)."""
    import typer

    from offline_data_cli.app import app
    from offline_data_cli.context import Outcome
    from offline_data_cli.streams import flush_stdout

    command = typer.main.get_command(app)
    try:
        outcome = command.main(arguments, prog_name=PROGRAM, standalone_mode=False)
        flush_stdout()
    except SystemExit as end:
        outcome = end.code
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome if isinstance(outcome, (Outcome, int)) else 0


def _finish(outcome: "Outcome | int") -> int:
    from offline_data_cli.render import show, show_error

    if isinstance(outcome, int):
        return outcome
    result = outcome.result
    show(result, outcome.mode)
    for error in result.failures:
        show_error(error.code, error.message, error.hint, as_json=False)
    return result.code or next(map(exit_code, result.failures), 0)


def _fail(error: BaseException, arguments: Sequence[str]) -> int:
    import typer

    from offline_data_cli.render import show_error, show_traceback
    from offline_data_cli.streams import stdout_is_lost

    interrupted = isinstance(error, typer.Abort) or math.isfinite(_last_signal)
    if interrupted and not isinstance(error, KeyboardInterrupt):
        error = KeyboardInterrupt()  # some libraries turn a signal into an error of their own
    code, message, hint = _describe(error)
    show_error(code, message, hint, as_json="--json" in arguments and not stdout_is_lost())
    if any(re.fullmatch(r"-[qy]*v[qyv]*", argument) for argument in arguments):
        show_traceback(error)
    return exit_code(error)


def _is_of_click(error: BaseException) -> bool:
    """Return True for a `ClickException`, wherever it lives: newer typer carries its own click."""
    import typer

    return isinstance(error, typer.BadParameter.__mro__[2])


def exit_code(error: BaseException) -> int:
    """Look an error up in `EXIT_CODES`.

    Example:
        >>> exit_code(NotFoundError("no such dataset"))
        3
    """
    if _is_of_click(error):
        return USAGE
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def _describe(error: BaseException) -> tuple[str, str, str | None]:
    """Return code, message and hint of any error."""
    if isinstance(error, OfflineDataError):
        return error.code, error.message, error.hint
    if isinstance(error, KeyboardInterrupt):
        return (
            "interrupted",
            str(error) or "interrupted; run the same command again to continue",
            None,
        )
    if _is_of_click(error):
        context = getattr(error, "ctx", None)
        path = context.command_path if context else PROGRAM
        return "usage", error.format_message(), f"{path} --help"  # type: ignore[attr-defined]
    return (
        "internal",
        redact(f"unexpected {type(error).__name__}: {error}"),
        f"please report this with the output of `{PROGRAM} env`; -v shows the traceback",
    )
