"""S3 on this machine: `ListObjectsV2` and `GetObject` of public buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote_plus
from xml.sax.saxutils import escape

from offline_data.testing.bucket_pages import md5, page_of
from offline_data.testing.servers import Answer, LocalServer, Request

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class S3Server(LocalServer):
    """Serves buckets by path, `/BUCKET/NAME`, as S3 does.

    Listings know `prefix`, `delimiter`, `max-keys`, `continuation-token` and `encoding-type`.

    Args:
        buckets: Bucket name to objects, by name.
        page_size: Objects in one page of a listing, at most.
        multipart: Names of objects that were uploaded in parts: their ETag is not an md5.
    """

    def __init__(
        self,
        buckets: Mapping[str, Mapping[str, bytes]],
        *,
        page_size: int = 1000,
        multipart: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.buckets = buckets
        self._page_size = page_size
        self._multipart = frozenset(multipart)

    @property
    def endpoint(self) -> str:
        """`s3+http://127.0.0.1:PORT`, to which `/BUCKET/PREFIX` is added."""
        return f"s3+{self.url}"

    def mirror(self, bucket: str) -> tuple[str, str]:
        """The `(prefix, replacement)` of `Settings.mirrors` that leads from Amazon to here."""
        return f"https://{bucket}.s3.amazonaws.com", f"{self.url}/{bucket}"

    def answer(self, request: Request) -> Answer:
        """List a bucket, or give an object."""
        bucket, _, name = request.path.removeprefix("/").partition("/")
        if bucket not in self.buckets:
            return error_answer("NoSuchBucket", 404)
        if not name:
            return self._list(bucket, request)
        if name not in self.buckets[bucket]:
            return error_answer("NoSuchKey", 404)
        headers = {"ETag": self._tag(bucket, name), "Content-Type": "binary/octet-stream"}
        return Answer(self.buckets[bucket][name], headers=headers)

    def _tag(self, bucket: str, name: str) -> str:
        digest = md5(self.buckets[bucket][name])
        return f'"{md5(digest).hex()}-1"' if name in self._multipart else f'"{digest.hex()}"'

    def _list(self, bucket: str, request: Request) -> Answer:
        asked = {key: values[0] for key, values in request.query.items()}
        if asked.get("list-type") != "2":
            return error_answer("NotImplemented", 501)
        size = min(self._page_size, int(asked.get("max-keys", self._page_size)))
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        names = self.buckets[bucket]
        rows, token = page_of(names, prefix, delimiter, asked.get("continuation-token"), size)
        quoted = asked.get("encoding-type") == "url"
        parts = [
            _element("Name", bucket),
            _element("Prefix", _named(prefix, quoted=quoted)),
            _element("KeyCount", str(len(rows))),
            _element("MaxKeys", str(size)),
            _element("IsTruncated", "false" if token is None else "true"),
            _element("EncodingType", "url") if quoted else "",
            _element("NextContinuationToken", token) if token else "",
            *(self._row(bucket, name, quoted=quoted) for name in rows),
        ]
        return _xml(f'<ListBucketResult xmlns="{_NAMESPACE}">{"".join(parts)}</ListBucketResult>')

    def _row(self, bucket: str, name: str, *, quoted: bool) -> str:
        written = _named(name, quoted=quoted)
        if name not in self.buckets[bucket]:
            return f"<CommonPrefixes>{_element('Prefix', written)}</CommonPrefixes>"
        parts = [
            _element("Key", written),
            _element("LastModified", "2024-01-01T00:00:00.000Z"),
            _element("ETag", self._tag(bucket, name)),
            _element("Size", str(len(self.buckets[bucket][name]))),
            _element("StorageClass", "STANDARD"),
        ]
        return f"<Contents>{''.join(parts)}</Contents>"


def error_answer(code: str, status: int, **more: str) -> Answer:
    """Refuse in S3's words; `more` are further elements of the document."""
    parts = {"Code": code, "Message": f"the server of this test says {code}", **more}
    inside = "".join(_element(tag, text) for tag, text in parts.items())
    return _xml(f"<Error>{inside}</Error>", status)


def _named(name: str, *, quoted: bool) -> str:
    return quote_plus(name, safe="/") if quoted else name


def _element(tag: str, text: str) -> str:
    return f"<{tag}>{escape(text, {chr(34): '&quot;'})}</{tag}>"


def _xml(document: str, status: int = 200) -> Answer:
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{document}'.encode()
    return Answer(body, status, {"Content-Type": "application/xml"})
