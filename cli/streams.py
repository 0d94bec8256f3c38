"""Standard streams that end a command in a documented way, or not at all, when they fail.

stdout is what was asked for: where it cannot be written, the command fails. stderr is beside it: a
command goes on without. A stream that was closed (`>&-`) is as good as one to nowhere.
"""

import codecs
import errno
import io
import os
import sys
from typing import Any, TextIO

from offline_data.errors import AccessError, NoSpaceError

_ERRORS = "offline_data_cli.plain"
_PLAIN = {"\u2192": "->", "\u2013": "-", "\u2026": "...", "\u00d7": "x", "\ufffd": "?"}
"""What stands for letters of our own where a stream has no such letters."""

_lost: set[int] = set()


class ReaderGone(Exception):  # noqa: N818 - nothing is wrong
    """Whoever reads what is printed has read enough (`| head`)."""


def guard_streams() -> None:
    """Take the standard streams of this process in hand; once, before anything is printed."""
    codecs.register_error(_ERRORS, _encode_plainly)
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            _lead_nowhere(number)
    streams: dict[str, TextIO] = {
        "stdin": sys.stdin or open(0, encoding="utf-8", closefd=False),  # noqa: SIM115
        "stdout": _guarded(_Stdout, sys.stdout, 1),
        "stderr": _guarded(_Stderr, sys.stderr, 2),
    }
    for name, stream in streams.items():
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def flush_stdout() -> None:
    """Write what is buffered, so that a failure is one of the command and not of its end."""
    sys.stdout.flush()


def stdout_is_lost() -> bool:
    """Return True if writing to stdout has failed: what is written since goes nowhere."""
    return 1 in _lost


class _Stderr(io.TextIOWrapper):
    """Goes nowhere from the first failure on."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self.fail(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self.fail(error)

    def fail(self, _error: OSError) -> None:
        """Lead what is buffered, and all that follows, nowhere."""
        _lost.add(self.fileno())
        _lead_nowhere(self.fileno())


class _Stdout(_Stderr):
    """Raises `ReaderGone`, which no library takes for an error of its own, or one of ours."""

    def fail(self, error: OSError) -> None:
        super().fail(error)
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from error
        message = f"The output could not be written: {error.strerror or error}"
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        raise (NoSpaceError(message) if full else AccessError(message)) from error


def _guarded(kind: type[_Stderr], stream: TextIO | None, number: int) -> _Stderr:
    """Wrap a stream, None where it was closed when the interpreter started."""
    if not isinstance(stream, io.TextIOWrapper):
        raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        return kind(raw, "utf-8", _ERRORS, write_through=number == 2)
    encoding, by_line = stream.encoding, stream.line_buffering
    return kind(stream.detach(), encoding, _ERRORS, line_buffering=by_line)


def _lead_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)


def _encode_plainly(error: UnicodeError) -> tuple[Any, int]:
    """Encode one letter that a stream cannot have; bytes of a file's name stay what they were."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letter = error.object[error.start]
    if "\udc80" <= letter <= "\udcff":
        return bytes([ord(letter) - 0xDC00]), error.start + 1
    escaped = letter.encode("ascii", "backslashreplace").decode()
    return _PLAIN.get(letter, escaped), error.start + 1
