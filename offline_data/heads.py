"""First bytes of files: what they must be, and in words what they are instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offline_data.errors import AccessError, FormatError, NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

_HTML = (b"<!doctype", b"<html", b"<?xml")


def describe_head(head: bytes) -> str:
    """Say in words what a file that begins like this probably is.

    Example:
        >>> describe_head(b"<!DOCTYPE html><title>Not found")
        'it is a web page, probably the error message of a server'
    """
    if not head:
        return "it is empty"
    if head.lstrip().lower().startswith(_HTML):
        return "it is a web page, probably the error message of a server"
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer: the data themselves were not fetched"
    return f"it begins with {head[:8]!r}"


def read_head(path: Path) -> bytes:
    """Return the first 512 bytes of a file, or all where it has fewer.

    Raises:
        NotFoundError: No such file.
        AccessError: It may not be read by this user.
    """
    try:
        with path.open("rb") as file:
            return file.read(512)
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {path}") from None
    except OSError as error:
        raise AccessError(f"{path} cannot be read: {error.strerror}") from error


def check_magic(path: Path, magic: bytes, what: str) -> None:
    """Raise unless `path` begins with `magic`; says so where it is a web page or an LFS pointer."""
    head = read_head(path)
    if not head.startswith(magic):
        raise FormatError(f"{path} is not {what}: {describe_head(head)}", hint="fetch it again")
