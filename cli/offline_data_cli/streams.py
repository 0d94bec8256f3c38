"""Standard streams with defined behaviour when writing fails.

stdout is the command's output: if it cannot be written, the command fails. stderr is secondary: the
command continues without it. A closed stream (`>&-`) is treated like `/dev/null`.
"""

import codecs
import errno
import io
import os
import sys
from typing import Any, TextIO

from offline_data.base.errors import AccessError, NoSpaceError

_ERRORS = "offline_data_cli.plain"
# ASCII for this program's characters, in streams that cannot encode them
_PLAIN = {"\u2192": "->", "\u2013": "-", "\u2026": "...", "\u00d7": "x", "\ufffd": "?"}

_lost: set[int] = set()


class ReaderGone(Exception):  # noqa: N818 - not an error
    """The reader of stdout has closed the pipe (`| head`)."""


def guard_streams() -> None:
    """Wrap the standard streams of this process; call once, before anything is printed."""
    codecs.register_error(_ERRORS, _encode_replacement)
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            _discard(number)
    streams: dict[str, TextIO] = {
        "stdin": sys.stdin or open(0, encoding="utf-8", closefd=False),  # noqa: SIM115
        "stdout": _wrap_stream(_Stdout, sys.stdout, 1),
        "stderr": _wrap_stream(_Stderr, sys.stderr, 2),
    }
    for name, stream in streams.items():
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def flush_stdout() -> None:
    """Flush stdout, so that an error is raised within the command."""
    sys.stdout.flush()


def stdout_is_lost() -> bool:
    """Return True if writing to stdout has failed; later output is discarded."""
    return 1 in _lost


class _Stderr(io.TextIOWrapper):
    """Discards output after the first failure."""

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
        """Discard buffered and later output."""
        _lost.add(self.fileno())
        _discard(self.fileno())


class _Stdout(_Stderr):
    """Raises `ReaderGone`, which no library handles, or one of this package's errors."""

    def fail(self, error: OSError) -> None:
        super().fail(error)
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from error
        message = f"The output could not be written: {error.strerror or error}"
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        raise (NoSpaceError(message) if full else AccessError(message)) from error


def _wrap_stream(kind: type[_Stderr], stream: TextIO | None, number: int) -> _Stderr:
    """Wrap a stream; None if it was closed when the interpreter started."""
    if not isinstance(stream, io.TextIOWrapper):
        raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        return kind(raw, "utf-8", _ERRORS, write_through=number == 2)
    encoding, by_line = stream.encoding, stream.line_buffering
    return kind(stream.detach(), encoding, _ERRORS, line_buffering=by_line)


def _discard(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)


def _encode_replacement(error: UnicodeError) -> tuple[Any, int]:
    """Encode a character that the stream lacks; bytes of file names are unchanged."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letter = error.object[error.start]
    if "\udc80" <= letter <= "\udcff":
        return bytes([ord(letter) - 0xDC00]), error.start + 1
    escaped = letter.encode("ascii", "backslashreplace").decode()
    return _PLAIN.get(letter, escaped), error.start + 1
