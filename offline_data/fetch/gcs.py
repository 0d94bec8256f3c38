"""Lists public buckets of Google Cloud Storage over plain HTTPS, without an account.

`GET /storage/v1/b/BUCKET/o` as the JSON API's `objects.list` describes it:
https://cloud.google.com/storage/docs/json_api/v1/objects/list
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from offline_data.base.config import Settings
from offline_data.base.errors import (
    AuthError,
    FormatError,
    NetworkError,
    NoNetworkError,
    NotFoundError,
    OfflineError,
    UsageError,
)
from offline_data.base.files import check_relative, is_unicode
from offline_data.fetch.client import get_document, parse_json
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.retry import FetchLimits

HOST = "https://storage.googleapis.com"
_FORM = "gs://BUCKET/PREFIX"
_MAX_PAGES = 1_000  # of a listing, a thousand objects each: more than any dataset has
_MAX_MESSAGE = 300  # characters of a message that a host can make as long as it likes
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}[A-Za-z0-9]")
_SIZE = re.compile(r"[0-9]{1,18}")
_FIELDS = "kind,nextPageToken,items(kind,name,size,md5Hash,crc32c,generation,contentEncoding)"
_DIGESTS = (("md5Hash", "md5", 16), ("crc32c", "crc32c", 4))
_HINTS: dict[type[Exception], str] = {
    NotFoundError: "is the bucket's name right? OFFLINE_DATA_MIRRORS names other hosts",
    AuthError: "listing is not allowed; the objects themselves may still be public",
}


@dataclass(frozen=True)
class BucketObject:
    """One object as its bucket lists it."""

    name: str  # the whole name, parts between `/`; any text, so not yet a path
    size: int | None  # bytes that are sent; None where the listing counts other bytes
    digest: str | None  # `md5:…`, else `crc32c:…`, of these; None: the listing has neither
    version: str  # generation: another one where the content is another
    url: str  # of its bytes, quoted

    def file(self, below: str = "", magic: bytes = b"") -> RemoteFile:
        """Return the file to fetch, which must begin with `magic`.

        Raises `UsageError`, `IntegrityError`. `below` is the beginning of the name that is not part
        of the file's path, `pen/human-v0/`.
        """
        if not self.name.startswith(below):
            raise UsageError(f"Object {self.name!r} is not below {below!r}")
        path = check_relative(self.name.removeprefix(below), f"An object at {self.url}")
        return RemoteFile(path, (self.url,), self.size, self.digest, magic)


class ListingPage(NamedTuple):
    """One page of a listing: objects in the host's order, and what asks for the next page."""

    objects: tuple[BucketObject, ...]
    token: str | None


@dataclass(frozen=True)
class GcsListing:
    """The objects of a bucket below a prefix: how they are requested, how answers are read."""

    bucket: str
    prefix: str = ""
    ending: str = ""  # the host may list names that end otherwise, too

    def page_url(self, token: str | None) -> str:
        """Return the URL of the first page, or of the one that `token` stands for."""
        plain = self.ending and not set("*?[]{}\\") & set(self.ending)
        query = {
            "prefix": self.prefix,
            "matchGlob": f"**{self.ending}" if plain else "",
            "pageToken": token or "",
            "fields": _FIELDS,
            "maxResults": "1000",
        }
        filled = urlencode({key: value for key, value in query.items() if value})
        return f"{HOST}/storage/v1/b/{self.bucket}/o?{filled}"

    def read_page(self, body: bytes, url: str) -> ListingPage:
        """Read what came from `url`; raises `IntegrityError` if it is not a page of this listing."""
        answer = parse_json(body, url)
        if not isinstance(answer, dict) or answer.get("kind") != "storage#objects":
            raise _listing_error(url, f"it begins with {body[:80]!r}")
        items = answer.get("items", [])
        if not isinstance(items, list):
            raise _listing_error(url, f"'items' is {type(items).__name__}")
        token = _text(answer, "nextPageToken", url) if "nextPageToken" in answer else None
        return ListingPage(tuple(self._object(item, url) for item in items), token)

    def _object(self, item: Any, page: str) -> BucketObject:
        if not isinstance(item, dict):
            raise _listing_error(page, f"an object is {type(item).__name__}")
        name, size, version = (_text(item, key, page) for key in ("name", "size", "generation"))
        if not name.startswith(self.prefix):
            raise _listing_error(
                page, f"{name!r} is in it, which does not begin with {self.prefix!r}"
            )
        if not _SIZE.fullmatch(size):
            raise _listing_error(page, f"object {name!r} has size {size!r}")
        url, digest = f"{HOST}/{self.bucket}/{quote(name)}", _digest(item, page)
        if item.get("contentEncoding") == "gzip":
            # sent unpacked to whom does not accept gzip, but size and digests are of what is stored
            return BucketObject(name, None, None, version, url)
        return BucketObject(name, int(size), digest, version, url)


def list_bucket(
    url: str,
    settings: Settings,
    *,
    ending: str = "",
    limits: FetchLimits | None = None,
    sleep: Callable[[float], None] | None = None,
) -> tuple[BucketObject, ...]:
    """List the objects of a public bucket whose names begin with a prefix.

    Nothing in the URL is unquoted. `a/b` is also the beginning of `a/bc`: a folder ends with `/`.
    A mirror of the settings replaces the beginning of the `https://` URLs of pages and objects.

    Args:
        url: `gs://BUCKET/PREFIX`.
        ending: Leave out objects whose names end otherwise; the request says so, so that the host
            need not send them.
        limits, sleep: Waits and tries, and what waits, for tests; None for the defaults.

    Returns:
        By name, in the order of code points; without placeholders of folders (names that end
        with `/`). Empty if nothing has the prefix. Objects that change while pages are being
        fetched may be in it or not. `file` of each returns it as a `RemoteFile`.

    Raises:
        UsageError: The URL has another form, or a name that no bucket has.
        OfflineError: `settings.offline` is set; no socket was opened.
        NotFoundError: No such bucket.
        AuthError: It may not be listed without an account.
        NetworkError: The host does not answer as it should.
        IntegrityError: The answer is not a listing, lists an object twice, or never ends.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "gs":
        raise UsageError(f"{url!r} is not the URL of a bucket; expected {_FORM}")
    if not _BUCKET.fullmatch(bucket) or not is_unicode(prefix):
        raise UsageError(f"{url!r} names no bucket and prefix; expected {_FORM}")
    listing = GcsListing(bucket, prefix, ending)
    found: dict[str, BucketObject] = {}
    seen: set[str | None] = set()
    token: str | None = None
    while True:
        page_url = listing.page_url(token)
        try:
            page = get_document(page_url, settings, listing.read_page, limits=limits, sleep=sleep)
        except (OfflineError, NoNetworkError):
            raise
        except (NotFoundError, AuthError, NetworkError) as error:
            message = f"gs://{bucket} cannot be listed: {error.message}"
            raise type(error)(message, hint=_HINTS.get(type(error), error.shell_hint)) from error
        for listed in page.objects:
            if listed.name in found:
                raise _listing_error(page_url, f"{listed.name!r} is listed twice")
            found[listed.name] = listed
        if page.token is None:
            break
        seen.add(token)
        token = page.token
        if token in seen:
            raise _listing_error(
                page_url, f"the token {token!r} of a next page came before: no end"
            )
        if len(seen) == _MAX_PAGES:
            raise _listing_error(page_url, f"it has more than {_MAX_PAGES:,} pages")
    return tuple(
        found[name] for name in sorted(found) if name.endswith(ending) and not name.endswith("/")
    )


def _digest(item: Mapping[str, Any], page: str) -> str | None:
    """Return the best digest of an object; one that was composed of others has no md5."""
    for key, algorithm, length in _DIGESTS:
        if key in item:
            try:
                value = base64.b64decode(item[key], validate=True)
            except (ValueError, TypeError):
                value = b""
            if len(value) != length:
                raise _listing_error(page, f"{key!r} of {item.get('name')!r} is {item[key]!r}")
            return f"{algorithm}:{value.hex()}"
    return None


def _text(item: Mapping[str, object], key: str, page: str) -> str:
    """Return a text of a page; raises `FormatError` if it is missing, empty or not Unicode."""
    value = item.get(key)
    if not isinstance(value, str) or not value or not is_unicode(value):
        raise _listing_error(page, f"{key!r} is {value!r} in {dict(item)}")
    return value


def _listing_error(page: str, found: str) -> FormatError:
    return FormatError(
        f"{page} is not a listing of a bucket: {found[:_MAX_MESSAGE]}",
        hint="a proxy or a mirror may stand between; OFFLINE_DATA_MIRRORS names other hosts",
    )
