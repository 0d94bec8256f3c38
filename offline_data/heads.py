"""First bytes of files: what they must be, and in words what they are instead."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from offline_data.errors import AccessError, FormatError, NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

_HTML = (b"<!doctype", b"<html", b"<?xml")


def describe_head(head: bytes) -> str:
    """Say in words what a file that begins like this probably is.

    Example:
        >>> describe_head(b"<!DOCTYPE html><title>Not found")
        'it is a web page, probably an error message of a server'
    """
    if not head:
        return "it is empty"
    if head.lstrip().lower().startswith(_HTML):
        return "it is a web page, probably an error message of a server"
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer: the data themselves were not downloaded"
    return f"it begins with {head[:8]!r}"


def read_head(path: Path) -> bytes:
    """Return the first 512 bytes of a file, or all where it has fewer; see `read_plain`."""
    return read_plain(path, 512)


def read_plain(path: Path, count: int) -> bytes:
    """Return the first `count` bytes of a plain file; never waits for a FIFO, reads no device.

    Raises:
        NotFoundError: No such file.
        AccessError: It may not be read by this user.
        FormatError: It is no plain file.
    """
    try:
        # O_NONBLOCK: without it, opening a FIFO waits for somebody to write to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise FormatError(f"{path} is not a plain file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read(min(count, found.st_size))  # which takes so much memory at once
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"There is no file {path}") from None
    except OSError as error:
        if error.errno in {errno.ENXIO, errno.ELOOP}:  # a socket, a link to itself
            raise FormatError(f"{path} is not a plain file") from None
        if error.errno == errno.ENAMETOOLONG:
            raise NotFoundError(f"There is no file {path}: its name is too long") from None
        raise AccessError(f"{path} cannot be read: {error.strerror}") from error


def check_magic(path: Path, magic: bytes, what: str) -> None:
    """Raise unless `path` begins with `magic`; says so where it is a web page or an LFS pointer."""
    head = read_head(path)
    if not head.startswith(magic):
        raise FormatError(f"{path} is not {what}: {describe_head(head)}", hint="fetch it again")
