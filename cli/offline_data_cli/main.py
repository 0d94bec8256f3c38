"""Entry point: from arguments to an exit code, for every way to end.

Only what handling of signals and errors needs is imported at the top, so that Ctrl-C works from the
start.
"""

import math
import re
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NoReturn

from offline_data.base import errors
from offline_data.base.config import completes_command_lines
from offline_data.base.errors import OfflineDataError
from offline_data.base.urls import redact

PROGRAM = "offline-data"

# The first match applies. What does not exist under its name is 3: a dataset, source, revision,
# split, episode, leaf, rule, step, setting, function or file. What is not written as it must be is
# 2: options, verbs, values, malformed ids.
EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.NotFoundError, 3),
    (errors.UsageError, 2),
    (errors.AccessError, 2),
    (errors.AuthError, 4),
    (errors.IntegrityError, 5),
    (errors.NetworkError, 6),
    (errors.NoSpaceError, 7),
    (KeyboardInterrupt, 130),
    (BaseException, 1),
)

USAGE = 2

_REPEATED = 1.0  # seconds in which a second signal is ignored: a closing terminal sends it twice

_ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)

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

        from offline_data_cli import watched
        from offline_data_cli.streams import guard_streams

        guard_streams()
        watched.may_fork = True
        warnings.showwarning = _show_warning  # type: ignore[assignment] # accepts any arguments
        # Its retries are reported by our own errors, once; a line for each would hide them.
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        code = main(sys.argv[1:])
    except KeyboardInterrupt as error:
        code = exit_code(error)
        with suppress(Exception):  # streams may not be guarded yet
            _fail(error, sys.argv[1:])
    for number in ends:  # nothing left to interrupt
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _interrupt(_signal: int, _frame: object) -> None:
    global _last_signal
    now = time.monotonic()
    if now - _last_signal > _REPEATED:
        _last_signal = now
        raise KeyboardInterrupt


def _show_warning(message: Warning | str, *_place: object) -> None:
    """Print a library's warning as one sentence, without its line of code."""
    from offline_data_cli.render import show_warning

    show_warning(str(message))


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; prints, never raises or exits."""
    from offline_data_cli.streams import ReaderGone

    try:
        try:
            if arguments or completes_command_lines():
                return _run(list(arguments))
            return _show_first_steps()
        except ReaderGone:
            raise
        except BaseException as error:  # noqa: BLE001 - the only place that handles every error
            try:
                return _fail(error, arguments)
            except OfflineDataError as lost:  # the error itself could not be written
                return _fail(lost, arguments)
    except ReaderGone:
        return 0


def _show_first_steps() -> int:
    from offline_data.document.blocks import Lines
    from offline_data_cli.render import Mode, show
    from offline_data_cli.result import Result
    from offline_data_cli.verbs import FIRST_STEPS

    lines = [[(line, "id" * line.startswith(" "))] for line in FIRST_STEPS.splitlines()]
    show(Result(None, (Lines(lines, wrap=False),)), Mode.HUMAN)
    return 0


def _run(arguments: list[str]) -> int:
    from offline_data_cli.app import Outcome, command_tree
    from offline_data_cli.options import VersionAsked
    from offline_data_cli.render import Mode, show, show_error
    from offline_data_cli.streams import flush_stdout

    try:
        outcome = command_tree().main(arguments, PROGRAM, standalone_mode=False)
        flush_stdout()
    except SystemExit as end:
        outcome = end.code
    except VersionAsked:
        from offline_data_cli.commands.environment import version_result

        outcome = Outcome(version_result(), Mode.JSON if _wants_json(arguments) else Mode.HUMAN)
    if isinstance(outcome, BaseException):
        raise outcome
    if not isinstance(outcome, Outcome):  # `--help`
        if math.isfinite(_last_signal):  # typer returns a code instead of raising
            raise KeyboardInterrupt
        return outcome if isinstance(outcome, int) else 0
    result = outcome.result
    show(result, outcome.mode)
    for error in result.failures:
        show_error(error.code, error.message, error.shell_hint, as_json=False)
    return result.code or next(map(exit_code, result.failures), 0)


def _fail(error: BaseException, arguments: Sequence[str]) -> int:
    import typer

    from offline_data_cli.render import show_error, show_traceback
    from offline_data_cli.streams import stdout_is_lost

    interrupted = isinstance(error, typer.Abort) or math.isfinite(_last_signal)
    if interrupted and not isinstance(error, KeyboardInterrupt):
        error = KeyboardInterrupt()  # some libraries convert a signal to their own error
    code, message, hint = _describe_error(error)
    show_error(code, message, hint, as_json=_wants_json(arguments) and not stdout_is_lost())
    if any(re.fullmatch(r"-[qy]*v[qyv]*|--verbose", argument) for argument in arguments):
        show_traceback(error)
    return exit_code(error)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return True if JSON is requested, even in an invalid command line."""
    pairs = {f"{name} {value}" for name, value in pairwise(arguments)}
    return "--json" in arguments or "--format=json" in arguments or "--format json" in pairs


def exit_code(error: BaseException) -> int:
    """Return the exit code of an error; see `EXIT_CODES`."""
    if _is_of_click(error):
        return USAGE
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def _is_of_click(error: BaseException) -> bool:
    """Return True for a `ClickException`; newer typer bundles its own click."""
    return hasattr(error, "format_message")


def _describe_error(error: BaseException) -> tuple[str, str, str | None]:
    """Return code, message and hint."""
    if isinstance(error, OfflineDataError):
        return error.code, error.message, error.shell_hint
    if isinstance(error, KeyboardInterrupt):
        text = str(error) or "interrupted; run the same command again to continue"
        return "interrupted", text, None
    if _is_of_click(error):
        context = getattr(error, "ctx", None)
        path = context.command_path if context else PROGRAM
        text = error.format_message()  # type: ignore[attr-defined]
        if extra := re.match(r"Got unexpected extra argument\S* \((.*)\)", text, re.DOTALL):
            text = f"Unexpected argument{'s' if ' ' in extra[1] else ''} {extra[1]!r}"
        return "usage", text, f"{path} --help"
    return (
        "internal",
        redact(f"unexpected {type(error).__name__}: {error}"),
        f"please report this with the output of `{PROGRAM} env`; -v shows the traceback",
    )
