"""Google Cloud Storage: pages of the JSON listing of a public bucket, without an account.

`GET /storage/v1/b/BUCKET/o` as the JSON API's `objects.list` describes it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from offline_data.fetch.http import parse_json
from offline_data.fetch.objects import BucketObject, Page, damaged, read_object, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST = "https://storage.googleapis.com"
_FIELDS = "kind,nextPageToken,items(kind,name,size,md5Hash,crc32c,generation,contentEncoding)"
_GLOB = frozenset("*?[]{}\\")
_DIGESTS = (("md5Hash", "md5", 16), ("crc32c", "crc32c", 4))


@dataclass(frozen=True)
class GcsListing:
    """The objects of a bucket below a prefix."""

    bucket: str
    """Its name."""
    prefix: str = ""
    """What all names begin with."""
    ending: str = ""
    """What all names that are wanted end with; the host may list others too."""

    @property
    def place(self) -> str:
        """`gs://BUCKET`."""
        return f"gs://{self.bucket}"

    @property
    def advice(self) -> str:
        """Nothing: one host has all buckets."""
        return ""

    def page_url(self, token: str | None) -> str:
        """URL of the first page, or of the one that `token` stands for."""
        plain = self.ending and not _GLOB & set(self.ending)
        query = {
            "prefix": self.prefix,
            "matchGlob": f"**{self.ending}" if plain else "",
            "pageToken": token or "",
            "fields": _FIELDS,
            "maxResults": "1000",
        }
        filled = urlencode({key: value for key, value in query.items() if value})
        return f"{HOST}/storage/v1/b/{self.bucket}/o?{filled}"

    def read_page(self, body: bytes, url: str) -> Page:
        """Read one page; raises `IntegrityError` where it is none."""
        answer = parse_json(body, url)
        if not isinstance(answer, dict) or answer.get("kind") != "storage#objects":
            raise damaged(url, f"it begins with {body[:80]!r}")
        items = answer.get("items", [])
        if not isinstance(items, list):
            raise damaged(url, f"'items' is {type(items).__name__}")
        token = text_of(answer, "nextPageToken", url) if "nextPageToken" in answer else None
        return Page(tuple(self._object(item, url) for item in items), token)

    def _object(self, item: Any, page: str) -> BucketObject:
        if not isinstance(item, dict):
            raise damaged(page, f"an object is {type(item).__name__}")
        base = f"{HOST}/{self.bucket}"
        named = {**item, "version": item.get("generation")}
        found = read_object(named, base, _digest(item, page), page)
        if item.get("contentEncoding") == "gzip":
            # sent unpacked to whom does not accept gzip, but size and digests are of what is stored
            return replace(found, size=None, digest=None)
        return found


def _digest(item: Mapping[str, Any], page: str) -> str | None:
    """Return the best digest of an object; one that was composed of others has no md5."""
    for key, algorithm, length in _DIGESTS:
        if key in item:
            value = _from_base64(item[key])
            if len(value) != length:
                raise damaged(page, f"{key!r} of {item.get('name')!r} is {item[key]!r}")
            return f"{algorithm}:{value.hex()}"
    return None


def _from_base64(value: Any) -> bytes:
    """Decode a digest; empty where it is none."""
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        return b""
