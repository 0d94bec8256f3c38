"""Whatever parsing a raw file does to the process that parses it, the caller gets one error."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from offline_data.errors import AccessError, FormatError, NoSpaceError, OfflineDataError
from offline_data.ingest.parsing import ParserProcess

RAISED: dict[str, tuple[Exception, type[OfflineDataError], str]] = {
    "key": (KeyError("x"), FormatError, "KeyError: 'x'"),
    "unicode": (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), FormatError, "UnicodeDecode"),
    "overflow": (OverflowError("too\nlarge"), FormatError, "OverflowError: too large"),
    "recursion": (RecursionError("deep"), FormatError, "RecursionError: deep"),
    "memory": (MemoryError(), FormatError, "memory"),
    "disk": (OSError(errno.EIO, "I/O error"), FormatError, "I/O error"),
    "permission": (PermissionError(errno.EACCES, "denied"), AccessError, "denied"),
    "files": (OSError(errno.EMFILE, "Too many open files"), AccessError, "Too many open"),
    "ours": (NoSpaceError("the disk is full"), NoSpaceError, "the disk is full"),
}


@dataclass(frozen=True)
class Failing:
    """A source whose datasets do something when they are opened."""

    error: Exception | None = None
    kill: int | None = None

    def open(self, release: object, path: Path) -> Any:  # noqa: ARG002
        if self.error is not None:
            raise self.error
        os.kill(os.getpid(), self.kill or 0)


def open_in_process(source: Any) -> None:
    with ParserProcess(Path("some/raw.hdf5")) as process:
        process.open(source, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", RAISED)
def test_an_exception_becomes_an_error_that_names_the_file(what: str) -> None:
    error, kind, said = RAISED[what]
    with pytest.raises(OfflineDataError, match=said) as caught:
        open_in_process(Failing(error))
    assert type(caught.value) is kind
    assert "\n" not in caught.value.message
    if what != "ours":
        assert "some/raw.hdf5" in caught.value.message
    assert "in open" in str(caught.value.__cause__)  # where it was raised, for -v


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT])
def test_a_crash_is_the_files_fault(number: signal.Signals) -> None:
    with pytest.raises(FormatError, match=f"some/raw.hdf5 is damaged: .* {number.name}"):
        open_in_process(Failing(kill=number))


def test_being_killed_is_not() -> None:
    with pytest.raises(OfflineDataError, match="SIGKILL") as caught:
        open_in_process(Failing(kill=signal.SIGKILL))
    assert type(caught.value) is OfflineDataError
