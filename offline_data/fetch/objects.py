"""The values of a bucket's listing, an object and a page of them, checked as they are made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from offline_data.errors import FormatError, UsageError
from offline_data.fetch.files import RemoteFile
from offline_data.paths import check_relative, is_unicode

if TYPE_CHECKING:
    from collections.abc import Mapping

_SIZE = re.compile(r"[0-9]{1,18}")
_LONGEST = 300
"""Characters of a message that a host can make as long as it likes."""


@dataclass(frozen=True)
class BucketObject:
    """One object as its bucket lists it."""

    name: str
    """The whole name, parts between `/`; any text, so not yet a path."""
    size: int | None
    """Bytes that are sent; None where the listing counts other bytes than those."""
    digest: str | None
    """`md5:…`, else `crc32c:…`, of the bytes that are sent; None where the listing has neither."""
    version: str
    """Generation or ETag: another one where the content is another."""
    url: str
    """Where its bytes are, quoted."""

    def file(self, below: str = "", magic: bytes = b"") -> RemoteFile:
        """Make it a file to fetch.

        Args:
            below: Beginning of the name that is not part of the file's path, `pen/human-v0/`.
            magic: What the file must begin with.

        Raises:
            UsageError: The name does not begin with `below`.
            IntegrityError: What is left of it is no path inside a folder.

        Example:
            >>> listed = BucketObject(
            ...     "pen/a.json", 2, None, "7", "https://host.example/b/pen/a.json"
            ... )
            >>> listed.file("pen/").path
            'a.json'
        """
        if not self.name.startswith(below):
            raise UsageError(f"Object {self.name!r} is not below {below!r}")
        path = check_relative(self.name.removeprefix(below), f"An object at {self.url}")
        return RemoteFile(path, (self.url,), self.size, self.digest, magic)


@dataclass(frozen=True)
class Page:
    """One answer of a host that lists a bucket."""

    objects: tuple[BucketObject, ...]
    """In the host's order, with placeholders of folders."""
    token: str | None
    """What asks for the next page; None on the last."""


class Listing(Protocol):
    """How one kind of host is asked for the names below a prefix, and how its answers are read."""

    @property
    def place(self) -> str:
        """The bucket, for messages."""

    @property
    def prefix(self) -> str:
        """What all names begin with."""

    @property
    def advice(self) -> str:
        """What else to try where the host gives no listing; may be empty."""

    def page_url(self, token: str | None) -> str:
        """URL of the first page, or of the one that `token` stands for."""

    def read_page(self, body: bytes, url: str) -> Page:
        """Read what came from `url`.

        Raises:
            IntegrityError: It is no such page.
            NotFoundError, AuthError, NetworkError: It says why there is none.
        """


def object_url(base: str, name: str) -> str:
    """Return where an object is, below the URL of its bucket.

    Example:
        >>> object_url("https://host.example/b", "a b/100% +$#?.bin")
        'https://host.example/b/a%20b/100%25%20%2B%24%23%3F.bin'
    """
    return f"{base}/{quote(name)}"


def read_object(
    item: Mapping[str, object], base: str, digest: str | None, page: str
) -> BucketObject:
    """Check what a page says of one object.

    Args:
        item: Its `name`, `size` and `version`; what is missing or no text is damage.
        base: URL of the bucket.
        digest: Already checked.
        page: URL of the page, for messages.

    Raises:
        FormatError: A part that is missing or of another kind.
    """
    name, size, version = (text_of(item, key, page) for key in ("name", "size", "version"))
    if not _SIZE.fullmatch(size):
        raise damaged(page, f"object {name!r} has size {size!r}")
    return BucketObject(name, int(size), digest, version, object_url(base, name))


def text_of(item: Mapping[str, object], key: str, page: str) -> str:
    """Return a text of a page; raises `FormatError` where it is missing, empty or no Unicode."""
    value = item.get(key)
    if not isinstance(value, str) or not value or not is_unicode(value):
        raise damaged(page, f"{key!r} is {value!r} in {dict(item)}")
    return value


def damaged(page: str, found: str) -> FormatError:
    """Say that a page is not what a bucket's listing looks like."""
    return FormatError(
        f"{page} is not a listing of a bucket: {found[:_LONGEST]}",
        hint="a proxy or a mirror may stand between; OFFLINE_DATA_MIRRORS names other hosts",
    )
