"""The local servers keep to the rules that the tests with them rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from offline_data.testing.hub_server import HubServer
from offline_data.testing.servers import FileServer

if TYPE_CHECKING:
    from pathlib import Path


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
    with FileServer({"/x": b"0123456789"}) as server:
        answer = httpx.get(server.at("/x"), headers=headers)
        assert (answer.status_code, answer.content) == (status, body)
        assert answer.headers.get("Content-Range") == span
        tag = httpx.head(server.at("/x")).headers["ETag"]
        same = httpx.get(server.at("/x"), headers={"Range": "bytes=4-", "If-Range": tag})
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
