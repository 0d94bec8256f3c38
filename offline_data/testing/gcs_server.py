"""Google Cloud Storage on this machine: the listing and object endpoints of public buckets."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from offline_data.testing.servers import Answer, LocalServer, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

_LISTING = "/storage/v1/b/"


class GcsServer(LocalServer):
    """Serves buckets as `https://storage.googleapis.com` does; a mirror setting points there.

    Args:
        buckets: Bucket name to objects, by name.
        page_size: Objects in one page of a listing.
    """

    def __init__(
        self, buckets: Mapping[str, Mapping[str, bytes]], *, page_size: int = 1000
    ) -> None:
        super().__init__()
        self.buckets = buckets
        self._page_size = page_size

    @property
    def mirror(self) -> tuple[str, str]:
        """The `(prefix, replacement)` of `Settings.mirrors` that leads here."""
        return "https://storage.googleapis.com", self.url

    def answer(self, request: Request) -> Answer:
        """List a bucket, or give an object."""
        if request.path.startswith(_LISTING):
            bucket, _, rest = request.path.removeprefix(_LISTING).partition("/")
            if rest == "o":
                return self._list(bucket, request)
            return self._object(bucket, rest.removeprefix("o/"))
        bucket, _, name = request.path.removeprefix("/").partition("/")
        return self._object(bucket, name)

    def _object(self, bucket: str, name: str) -> Answer:
        content = self.buckets.get(bucket, {}).get(name)
        if content is None:
            return Answer(b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>", 404)
        tag = f'"{_md5(content).hex()}"'
        kind = {"Content-Type": "application/octet-stream"}
        return Answer(content, headers={"ETag": tag, **kind})

    def _list(self, bucket: str, request: Request) -> Answer:
        if bucket not in self.buckets:
            return Answer(b'{"error": {"code": 404, "message": "no such bucket"}}', 404)
        prefix = request.query.get("prefix", [""])[0]
        delimiter = request.query.get("delimiter", [""])[0]
        names = sorted(name for name in self.buckets[bucket] if name.startswith(prefix))
        cut = [_until(name, prefix, delimiter) for name in names]
        rows = list(dict.fromkeys(cut))
        start = int(request.query.get("pageToken", ["0"])[0])
        stop = start + self._page_size
        page = rows[start:stop]
        value: dict[str, Any] = {
            "kind": "storage#objects",
            "items": [self._item(bucket, name) for name in page if name in self.buckets[bucket]],
            "prefixes": [name for name in page if name not in self.buckets[bucket]],
        }
        if stop < len(rows):
            value["nextPageToken"] = str(stop)
        filled = {key: part for key, part in value.items() if part}
        return Answer(json.dumps(filled).encode(), headers={"Content-Type": "application/json"})

    def _item(self, bucket: str, name: str) -> dict[str, str]:
        content = self.buckets[bucket][name]
        return {
            "kind": "storage#object",
            "name": name,
            "bucket": bucket,
            "size": str(len(content)),
            "md5Hash": base64.b64encode(_md5(content)).decode(),
            "mediaLink": f"{self.url}{_LISTING}{bucket}/o/{quote(name, safe='')}?alt=media",
        }


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


def _until(name: str, prefix: str, delimiter: str) -> str:
    """Cut a name after the first delimiter behind the prefix, as listings of folders do."""
    head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
    return prefix + head + found if found else name
