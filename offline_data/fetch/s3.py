"""S3 and hosts that speak its protocol: pages of the XML listing of a public bucket, unsigned.

`GET /?list-type=2` as `ListObjectsV2` describes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus, urlencode

from offline_data.errors import AuthError, NetworkError, NotFoundError
from offline_data.fetch.http import not_a_document
from offline_data.fetch.objects import BucketObject, Page, damaged, read_object, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from xml.etree.ElementTree import Element

    from offline_data.errors import OfflineDataError

_ONE_LABEL = re.compile(r"[a-z0-9-]+")
_MD5 = re.compile(r"[0-9a-f]{32}")
_REFUSED = {
    "NoSuchBucket": NotFoundError,
    "AccessDenied": AuthError,
    "AllAccessDisabled": AuthError,
}


def aws_bucket_url(bucket: str) -> str:
    """Return where Amazon has a bucket, whatever its region.

    A name that is not one label of a host name goes into the path: no certificate covers more.

    Example:
        >>> aws_bucket_url("plain-name"), aws_bucket_url("with.dots")
        ('https://plain-name.s3.amazonaws.com', 'https://s3.amazonaws.com/with.dots')
    """
    if _ONE_LABEL.fullmatch(bucket):
        return f"https://{bucket}.s3.amazonaws.com"
    return f"https://s3.amazonaws.com/{bucket}"


@dataclass(frozen=True)
class S3Listing:
    """The objects of a bucket below a prefix."""

    place: str
    """The bucket, for messages."""
    base: str
    """URL of the bucket; objects are below it."""
    prefix: str = ""
    """What all names begin with."""

    @property
    def advice(self) -> str:
        """Said where the host gives no listing: it answers 301 for a bucket of another region."""
        return "another region or host is named s3+https://s3.REGION.amazonaws.com/BUCKET"

    def page_url(self, token: str | None) -> str:
        """URL of the first page, or of the one that `token` stands for."""
        query = {"list-type": "2", "encoding-type": "url", "prefix": self.prefix}
        if token is not None:
            query["continuation-token"] = token
        return f"{self.base}/?{urlencode(query)}"

    def read_page(self, body: bytes, url: str) -> Page:
        """Read one page.

        Raises:
            IntegrityError: It is no page of a listing.
            NotFoundError, AuthError, NetworkError: It is an error in S3's own words.
        """
        root = _parse(body, url)
        kind, parts = _tag(root), _texts(root)
        if kind == "Error":
            raise _refusal(parts, url)
        if kind != "ListBucketResult" or parts.get("IsTruncated") not in {"true", "false"}:
            raise damaged(url, f"it is <{kind}> with IsTruncated {parts.get('IsTruncated')!r}")
        quoted = parts.get("EncodingType") == "url"
        more = parts["IsTruncated"] == "true"
        token = text_of(parts, "NextContinuationToken", url) if more else None
        return Page(tuple(self._objects(root, url, quoted=quoted)), token)

    def _objects(self, root: Element, page: str, *, quoted: bool) -> Iterator[BucketObject]:
        for element in root:
            if _tag(element) == "Contents":
                parts = _texts(element)
                name = text_of(parts, "Key", page)
                tag = text_of(parts, "ETag", page).strip('"')
                item = {
                    "name": _unquoted(name, page) if quoted else name,
                    "size": parts.get("Size"),
                    "version": tag,
                }
                # of an upload in parts it is not the content's md5, and says so by a `-`
                digest = f"md5:{tag}" if _MD5.fullmatch(tag) else None
                yield read_object(item, self.base, digest, page)


def _parse(body: bytes, url: str) -> Element:
    from xml.etree import ElementTree

    if body.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html")):
        raise not_a_document("an XML listing", body, url)
    try:
        # as text, so that no declared encoding can hide a declaration from this search
        text = body.decode()
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise damaged(url, "it declares a document type or entities")
        return ElementTree.fromstring(text)  # noqa: S314 - without a DTD there is no entity to expand
    except (ElementTree.ParseError, ValueError) as error:
        raise damaged(url, f"it is no whole XML document ({error})") from error


def _tag(element: Element) -> str:
    """Name of an element without its namespace, which not every host gives."""
    return element.tag.rpartition("}")[2]


def _texts(element: Element) -> dict[str, str]:
    """Texts of the parts of an element, by their names."""
    return {_tag(part): part.text or "" for part in element}


def _unquoted(name: str, page: str) -> str:
    try:
        return unquote_plus(name, errors="strict")
    except UnicodeDecodeError as error:
        raise damaged(page, f"{name!r} is not UTF-8 where it is quoted") from error


def _refusal(parts: Mapping[str, str], url: str) -> OfflineDataError:
    code, *rest = (parts.get(tag, "")[:200] for tag in ("Code", "Message", "Endpoint"))
    kind = _REFUSED.get(code, NetworkError)
    said = "; ".join(repr(text) for text in rest if text)
    return kind(f"{url} answered {code!r}: {said}", hint="OFFLINE_DATA_MIRRORS names other hosts")
