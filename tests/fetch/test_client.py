from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from offline_data.errors import (
    AuthError,
    FormatError,
    IntegrityError,
    NetworkError,
    NotFoundError,
    OfflineDataError,
)
from offline_data.fetch.client import get_json
from offline_data.testing.gcs_server import GcsServer
from offline_data.testing.servers import Answer, Fault, FileServer

if TYPE_CHECKING:
    from offline_data.config import Settings
    from offline_data.fetch.retry import FetchLimits

GCS = "https://storage.googleapis.com"


def test_a_listing_of_a_bucket_page_by_page(online: Settings, quick: FetchLimits) -> None:
    objects = {f"door/{number}/x y.json": bytes([number]) for number in range(5)}
    with GcsServer({"minari": objects}, page_size=2) as server:
        settings = replace(online, mirrors=(server.mirror,))
        url, names = f"{GCS}/storage/v1/b/minari/o?prefix=door/", []
        page = get_json(url, settings, limits=quick)
        names += page["items"]
        while "nextPageToken" in page:
            token = page["nextPageToken"]
            page = get_json(f"{url}&pageToken={quote(token)}", settings, limits=quick)
            names += page["items"]
    assert [item["name"] for item in names] == list(objects)
    assert {(item["size"], item["md5Hash"]) for item in names[:1]} == {
        ("1", "k7iFrf4NoInN9jSQT9WfcQ==")
    }


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ([Fault(Answer(b"", 503)), Fault(cut_after=2)], None),
        ([Fault(Answer(b"", 404))], NotFoundError),
        ([Fault(Answer(b"", 403))], AuthError),
        ([Fault(Answer(b"", 500))] * 9, NetworkError),
        ([Fault(Answer(b"<html>log in"))], FormatError),
        ([Fault(Answer(b" " * (17 << 20)))], IntegrityError),
    ],
)
def test_faults_are_survived_or_named(
    faults: list[Fault], error: type[OfflineDataError] | None, online: Settings, quick: FetchLimits
) -> None:
    with FileServer({"/list": b'{"a": [1, 2]}'}) as server:
        server.script("/list", *faults)
        if error is None:
            assert get_json(server.at("/list"), online, limits=quick) == {"a": [1, 2]}
            return
        with pytest.raises(error, match=r"127\.0\.0\.1") as caught:
            get_json(server.at("/list"), online, limits=quick)
        assert type(caught.value) is error


def test_a_mirror_that_fails_is_passed_over(online: Settings, quick: FetchLimits) -> None:
    with FileServer({"/list": b"[7]"}) as server:
        settings = replace(online, mirrors=((server.url, "http://127.0.0.1:9"),))
        assert get_json(server.at("/list"), settings, limits=quick) == [7]
