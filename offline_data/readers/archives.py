"""Archives of any supported kind, told apart by first bytes: their members, and their extraction."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from offline_data.disk import disk_errors, require_bytes, sync_folder
from offline_data.errors import FormatError, UsageError
from offline_data.heads import describe_head, read_head
from offline_data.paths import check_relative
from offline_data.readers import gz, zips
from offline_data.readers.members import BLOCK, Member, Source, bad_member
from offline_data.readers.tar import is_tar, tar_members
from offline_data.readers.tar_headers import RECORD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_UNSUPPORTED = (
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
    (b"(\xb5/\xfd", "zstd"),
)
"""First bytes of archives that this package does not read, and what they are called."""


def open_members(path: Path, *, most: int) -> Iterator[Member]:
    """Yield the files in an archive: zip, tar, gzip-compressed tar, or one gzip-compressed file.

    The name of the archive says nothing of its kind. The one member of a lone gzip file is named
    after it, without `.gz`, and announces no size.

    Args:
        path: The archive.
        most: Bytes that its members together may have, also those that are not asked for.

    Raises:
        NotFoundError: No such file.
        AccessError: It may not be read by this user.
        IntegrityError: A member whose name would leave the folder it is extracted to; when it is
            met.
        FormatError: It is none of these; or, when that is met, what `zip_members`, `tar_members`
            and `open_gz` refuse.
    """
    head = read_head(path)
    if head.startswith(zips.MAGIC):
        return zips.zip_members(path, most=most)
    if head.startswith(gz.MAGIC):
        return _gzip_members(path, most)
    if is_tar(head):
        return tar_members(path, most=most)
    kind = next((name for magic, name in _UNSUPPORTED if head.startswith(magic)), None)
    found = f"it is compressed by {kind}, which is not supported" if kind else describe_head(head)
    raise FormatError(f"{path} is not a zip, tar or gzip file: {found}", hint="fetch it again")


def _gzip_members(path: Path, most: int) -> Iterator[Member]:
    with Source(path) as file, gz.inflated(file) as stream:
        holds_tar = is_tar(stream.read(RECORD))
    return tar_members(path, most=most) if holds_tar else _lone_member(path, most)


def _lone_member(path: Path, most: int) -> Iterator[Member]:
    name = check_relative(path.name.removesuffix(".gz"), f"The content of {path}")
    with gz.open_gz(path, most=most) as stream:
        yield Member(name, -1, stream)


def extract(
    path: Path, folder: Path, *, most: int, wanted: Callable[[str], bool] | None = None
) -> tuple[Path, ...]:
    """Write the files of an archive into a new folder, all of them or nothing.

    They are written into a hidden folder beside, synced to the disk, and get their place by one
    rename. Modes, owners and times in the archive are ignored: files are `rw-r--r--`. A process
    that is killed leaves the hidden folder, `.<name>.<random>`.

    Args:
        path: The archive.
        folder: Where to; must not exist. Folders above it are made, and stay.
        most: Bytes that its members together may have, also those that are not wanted.
        wanted: Tells by a member's name whether to write it; None writes all.

    Returns:
        The files, in the order of the archive.

    Raises:
        UsageError: `folder` exists.
        NoSpaceError: The disk is too small for the next member, as far as that announces a size, or
            became full.
        AccessError: A folder may not be written by this user.
        OfflineDataError: What `open_members` raises.

    Example:
        >>> import pathlib, tempfile, zipfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     path = pathlib.Path(root, "episodes.zip")
        ...     with zipfile.ZipFile(path, "w") as new:
        ...         new.writestr("0/reward", b"1001")
        ...     files = extract(path, pathlib.Path(root, "raw"), most=1 << 20)
        ...     [file.relative_to(root).as_posix() for file in files]
        ['raw/0/reward']
    """
    if os.path.lexists(folder):
        raise UsageError(f"{folder} exists; expected a new folder for the files of {path}")
    members = open_members(path, most=most)
    with disk_errors(folder), _beside(folder) as staging:
        names = [
            _write(path, member, staging)
            for member in members
            if wanted is None or wanted(member.name)
        ]
        for made, _, _ in os.walk(staging):
            sync_folder(Path(made))
        staging.rename(folder)
        sync_folder(folder.parent)
    return tuple(folder / name for name in names)


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    staging = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    staging.mkdir(parents=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write(path: Path, member: Member, staging: Path) -> str:
    require_bytes(staging, max(member.size, 0), f"{member.name!r} of {path}")
    target = staging / member.name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("xb")
    except (FileExistsError, NotADirectoryError) as error:
        found = "has the name of another on this file system"
        raise bad_member(path, member.name, found) from error
    with file:
        shutil.copyfileobj(member.stream, file, BLOCK)
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())
    return member.name
