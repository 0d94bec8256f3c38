"""The server of S3's buckets keeps to the documented listing, read here without this package."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import unquote_plus

import httpx

from offline_data.testing.s3_server import S3Server

OBJECTS = {"a/1&.json": b"one", "a/b/2": b"two", "c d+\x01": b"three", "e": b"four"}


def _texts(document: str, tag: str) -> list[str]:
    return [unescape(text) for text in re.findall(f"<{tag}>([^<]*)</{tag}>", document)]


def _listed(server: S3Server, **query: str) -> str:
    named = {key.replace("_", "-"): value for key, value in query.items()}
    return httpx.get(f"{server.url}/open-x", params={"list-type": "2", **named}).text


def test_pages_follow_each_other() -> None:
    with S3Server({"open-x": OBJECTS}, page_size=2) as server:
        first = _listed(server, encoding_type="url")
        (token,) = _texts(first, "NextContinuationToken")
        assert set("+/=") <= set(token), "a token that must be quoted"
        last = _listed(server, encoding_type="url", continuation_token=token)
        names = [unquote_plus(name) for name in _texts(first + last, "Key")]
        assert names == sorted(OBJECTS)
        assert _texts(first + last, "IsTruncated") == ["true", "false"]
        assert _texts(last, "Key")[0] == "c+d%2B%01"
        assert _texts(_listed(server, max_keys="1"), "Key") == ["a/1&.json"]


def test_folders() -> None:
    with S3Server({"open-x": OBJECTS}) as server:
        page = _listed(server, prefix="a/", delimiter="/")
        assert _texts(page, "Key") == ["a/1&.json"]
        assert re.findall(r"<CommonPrefixes><Prefix>(.*?)</Prefix>", page) == ["a/b/"]


def test_objects_and_their_tags() -> None:
    with S3Server({"open-x": OBJECTS}, multipart={"e"}) as server:
        answer = httpx.get(f"{server.url}/open-x/a/b/2", headers={"Range": "bytes=1-"})
        assert (answer.status_code, answer.content) == (206, b"wo")
        tags = _texts(_listed(server, encoding_type="url"), "ETag")
        assert answer.headers["ETag"] == tags[1] == '"b8a9f715dbb64fd5c56e7783c6820a61"'
        assert re.fullmatch(r'"[0-9a-f]{32}-1"', tags[3])


def test_refusals() -> None:
    with S3Server({"open-x": OBJECTS}) as server:
        for path, status, code in [
            ("/open-x/none", 404, "NoSuchKey"),
            ("/none/", 404, "NoSuchBucket"),
            ("/open-x/", 501, "NotImplemented"),
        ]:
            answer = httpx.get(server.url + path)
            assert (answer.status_code, _texts(answer.text, "Code")) == (status, [code])
