"""Google Cloud Storage on this machine: the listing and object endpoints of public buckets."""

from __future__ import annotations

import base64
import gzip
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from offline_data.fetch.crc32c import Crc32c
from offline_data.testing.bucket_pages import md5, page_of
from offline_data.testing.servers import Answer, LocalServer, Request

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_LISTING = "/storage/v1/b/"


class GcsServer(LocalServer):
    """Serves buckets as `https://storage.googleapis.com` does; a mirror setting points there.

    Listings know `prefix`, `delimiter`, `maxResults`, `pageToken` and a `matchGlob` of the form
    `**ENDING`; `fields` is taken and all are sent.

    Args:
        buckets: Bucket name to objects, by name.
        page_size: Objects in one page of a listing, at most.
        composed: Names of objects that have no md5, as those composed of others.
        packed: Names of objects that are stored as gzip and sent unpacked.
    """

    def __init__(
        self,
        buckets: Mapping[str, Mapping[str, bytes]],
        *,
        page_size: int = 1000,
        composed: Collection[str] = (),
        packed: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.buckets = buckets
        self._page_size = page_size
        self._composed = frozenset(composed)
        self._packed = frozenset(packed)

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
        kind = {"Content-Type": "application/octet-stream"}
        return Answer(content, headers={"ETag": f'"{md5(content).hex()}"', **kind})

    def _list(self, bucket: str, request: Request) -> Answer:
        if bucket not in self.buckets:
            return Answer(b'{"error": {"code": 404, "message": "no such bucket"}}', 404)
        asked = {key: values[0] for key, values in request.query.items()}
        ending = asked.get("matchGlob", "**").removeprefix("**")
        rows, token = page_of(
            [name for name in self.buckets[bucket] if name.endswith(ending)],
            asked.get("prefix", ""),
            asked.get("delimiter", ""),
            asked.get("pageToken"),
            min(self._page_size, int(asked.get("maxResults", self._page_size))),
        )
        value = {
            "kind": "storage#objects",
            "nextPageToken": token,
            "prefixes": [name for name in rows if name not in self.buckets[bucket]],
            "items": [self._item(bucket, name) for name in rows if name in self.buckets[bucket]],
        }
        filled = {key: part for key, part in value.items() if part}
        return Answer(json.dumps(filled).encode(), headers={"Content-Type": "application/json"})

    def _item(self, bucket: str, name: str) -> dict[str, Any]:
        content = self.buckets[bucket][name]
        stored = gzip.compress(content, mtime=0) if name in self._packed else content
        crc32c = Crc32c()
        crc32c.update(stored)
        digests = {
            "md5Hash": base64.b64encode(md5(stored)).decode(),
            "crc32c": base64.b64encode(bytes.fromhex(crc32c.hexdigest())).decode(),
        }
        return {
            "kind": "storage#object",
            "name": name,
            "bucket": bucket,
            "generation": str(int.from_bytes(md5(content)[:6], "big")),
            "size": str(len(stored)),
            **{key: digests[key] for key in ("md5Hash", "crc32c")[name in self._composed :]},
            **({"contentEncoding": "gzip"} if name in self._packed else {}),
            "mediaLink": f"{self.url}{_LISTING}{bucket}/o/{quote(name, safe='')}?alt=media",
        }
