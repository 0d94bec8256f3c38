"""The local servers keep to the rules that the tests with them rely on."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.toys.servers import FileServer, GcsServer, HubServer


@pytest.mark.parametrize(
    ("headers", "status", "body", "span"),
    [
        ({}, 200, b"0123456789", None),
        ({"Range": "bytes=4-"}, 206, b"456789", "bytes 4-9/10"),
        ({"Range": "bytes=4-5"}, 206, b"45", "bytes 4-5/10"),
        ({"Range": "bytes=4-99"}, 206, b"456789", "bytes 4-9/10"),
        ({"Range": "bytes=10-"}, 416, b"", "bytes */10"),
        ({"Range": "bytes=4-", "If-Range": '"other"'}, 200, b"0123456789", None),
    ],
)
def test_ranges(headers: dict[str, str], status: int, body: bytes, span: str | None) -> None:
    with FileServer({"/x": b"0123456789"}) as server, httpx.Client() as client:
        answer = client.get(server.at("/x"), headers=headers)
        assert (answer.status_code, answer.content) == (status, body)
        assert answer.headers.get("Content-Range") == span
        tag = client.head(server.at("/x")).headers["ETag"]
        same = client.get(server.at("/x"), headers={"Range": "bytes=4-", "If-Range": tag})
        assert (same.status_code, same.content) == (206, b"456789")
    assert [request.method for request in server.requests] == ["GET", "HEAD", "GET"]


def test_a_commit_is_a_function_of_the_content_and_stays(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"first")
    with HubServer() as hub:
        first = hub.commit("u/n", tmp_path)
        assert hub.commit("u/n", tmp_path) == first
        (tmp_path / "x").write_bytes(b"second")
        second = hub.commit("u/n", tmp_path)
        assert second != first
        files = f"{hub.url}/datasets/u/n/resolve"
        assert httpx.get(f"{files}/{first}/x").content == b"first"
        assert httpx.get(f"{files}/main/x").content == b"second"
        assert httpx.get(f"{hub.url}/api/datasets/u/n").json()["sha"] == second


OBJECTS = {"a/1.json": b"one", "a/b/2": b"two", "c": b"three", "d e": b"four"}


def _listed(server: GcsServer, **query: str) -> dict[str, Any]:
    answer = httpx.get(f"{server.url}/storage/v1/b/open-x/o", params=query)
    value: dict[str, Any] = answer.json()
    return value


def _names(page: dict[str, Any]) -> list[str]:
    return [item["name"] for item in page["items"]]


def test_pages_folders_globs_and_objects() -> None:
    with GcsServer({"open-x": OBJECTS}, page_size=10) as server:
        page = _listed(server, maxResults="3")
        token = page["nextPageToken"]
        assert set("+/=") <= set(token), "a token that must be quoted"
        last = _listed(server, maxResults="3", pageToken=token)
        assert (_names(page), _names(last)) == (["a/1.json", "a/b/2", "c"], ["d e"])
        assert "nextPageToken" not in last
        assert _listed(server, prefix="x") == {"kind": "storage#objects"}
        page = _listed(server, delimiter="/")
        assert (_names(page), page["prefixes"]) == (["c", "d e"], ["a/"])
        page = _listed(server, prefix="a/", delimiter="/")
        assert (_names(page), page["prefixes"]) == (["a/1.json"], ["a/b/"])
        page = _listed(server, matchGlob="**.json")
        assert _names(page) == ["a/1.json"]
        assert httpx.get(page["items"][0]["mediaLink"]).content == b"one"
        assert httpx.get(f"{server.url}/open-x/d%20e").content == b"four"
        assert httpx.get(f"{server.url}/open-x/nothing").status_code == 404
        assert httpx.get(f"{server.url}/storage/v1/b/none/o").status_code == 404


def test_items_say_what_is_stored() -> None:
    with GcsServer(
        {"open-x": {"check": b"123456789", "z": b"9" * 99}}, composed={"check"}, packed={"z"}
    ) as server:
        check, packed = _listed(server)["items"]
        assert "md5Hash" not in check
        assert base64.b64decode(check["crc32c"]).hex() == "e3069283"
        assert int(packed["size"]) == len(gzip.compress(b"9" * 99, mtime=0))
        assert packed["contentEncoding"] == "gzip"
        assert httpx.get(packed["mediaLink"]).content == b"9" * 99
        before = packed["generation"]
        server.buckets = {"open-x": {"z": b"8" * 99}}
        assert _listed(server)["items"][0]["generation"] != before
