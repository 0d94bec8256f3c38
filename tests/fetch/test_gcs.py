"""Pages of Google's listing: what is read out of them, and that damage is always named."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_data.config import Settings
from offline_data.errors import FormatError, IntegrityError
from offline_data.fetch.gcs import GcsListing, list_bucket
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.retry import FetchLimits
from offline_data.fetch.run import run_fetch
from offline_data.testing.gcs_server import GcsServer

URL = "https://storage.googleapis.com/storage/v1/b/open-x/o?prefix=door"
LISTING = GcsListing("open-x", "door")
ITEM = {
    "kind": "storage#object",
    "name": "door/a b.bin",
    "size": "9",
    "generation": "1700000000000001",
    "md5Hash": "JfnnlDI7RTiF9RgfGzoi+A==",
    "crc32c": "4waSgw==",
}


def page(*items: object, **more: object) -> bytes:
    value = {"kind": "storage#objects", "nextPageToken": "t/1==", "items": list(items), **more}
    return json.dumps(value).encode()


def test_a_page() -> None:
    """The digests are those of `123456789`, as RFC 1321 and RFC 3720 have them."""
    read = LISTING.read_page(page(ITEM), URL)
    (item,) = read.objects
    assert (item.name, item.size) == ("door/a b.bin", 9)
    assert [read.token] == ["t/1=="]
    assert item.digest == "md5:25f9e794323b453885f5181f1b3a22f8"
    assert item.version == "1700000000000001"
    assert item.url == "https://storage.googleapis.com/open-x/door/a%20b.bin"
    composed = {key: value for key, value in ITEM.items() if key != "md5Hash"}
    (item,) = LISTING.read_page(page(composed), URL).objects
    assert item.digest == "crc32c:e3069283"
    (item,) = LISTING.read_page(page({**composed, "crc32c": "AAAAAA=="}), URL).objects
    assert item.digest == "crc32c:00000000"
    neither = {key: value for key, value in composed.items() if key != "crc32c"}
    assert LISTING.read_page(page(neither), URL).objects[0].digest is None


def test_the_last_page_and_an_empty_one() -> None:
    assert LISTING.read_page(b'{"kind": "storage#objects"}', URL).objects == ()
    assert LISTING.read_page(b'{"kind": "storage#objects"}', URL).token is None


def test_urls_of_pages() -> None:
    asked = urlsplit(GcsListing("open-x", "a+b/&", "/x.json").page_url("t+/=="))
    assert (asked.netloc, asked.path) == ("storage.googleapis.com", "/storage/v1/b/open-x/o")
    query = parse_qs(asked.query)
    assert (query["prefix"], query["pageToken"]) == (["a+b/&"], ["t+/=="])
    assert query["matchGlob"] == ["**/x.json"]
    assert {"kind", "nextPageToken"} < set(query["fields"][0].split(","))
    plain = parse_qs(urlsplit(GcsListing("open-x", "", "[1].json").page_url(None)).query)
    assert set(plain) == {"fields", "maxResults"}


DAMAGE: dict[str, bytes] = {
    "empty": b"",
    "a web page": b"<!DOCTYPE html><title>Log in</title>",
    "cut off": page(ITEM)[:-9],
    "not UTF-8": b"\xff\xfe\x00",
    "very deep": b"[" * 200_000,
    "a list": b"[]",
    "null": b"null",
    "another kind": b'{"kind": "storage#buckets"}',
    "an error": b'{"error": {"code": 404, "message": "no"}}',
    "items are none": page(items={"name": "a"}),
    "an item is none": page(ITEM, None),
    "an item is text": page("door/a"),
    "a token that is a number": page(ITEM, nextPageToken=7),
    "an empty token": page(ITEM, nextPageToken=""),
    "a token that is no Unicode": page(ITEM, nextPageToken="\ud800"),
    **{
        f"no {key}": page({k: v for k, v in ITEM.items() if k != key})
        for key in ("name", "size", "generation")
    },
    **{
        f"{key} is {value!r}": page({**ITEM, key: value})
        for key, value in [
            ("name", ""),
            ("name", 7),
            ("name", "door/\udcff"),
            ("size", "nine"),
            ("size", "-9"),
            ("size", "9.0"),
            ("size", "٩"),
            ("size", "9" * 5000),
            ("size", None),
            ("generation", ["1"]),
            ("md5Hash", "JfnnlDI7RTiF9RgfGzoi"),
            ("md5Hash", "not base64!"),
            ("md5Hash", "ü"),
            ("md5Hash", None),
            ("md5Hash", 7),
        ]
    },
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(case: str) -> None:
    with pytest.raises(
        IntegrityError, match=r"/v1/b/open-x/o\?prefix=door (is not|cannot be)"
    ) as caught:
        LISTING.read_page(DAMAGE[case], URL)
    assert caught.value.hint


def test_a_malformed_crc32c_is_named() -> None:
    item = {key: value for key, value in ITEM.items() if key != "md5Hash"}
    with pytest.raises(FormatError, match=r"'crc32c' of 'door/a b\.bin' is 'AAAA'"):
        LISTING.read_page(page({**item, "crc32c": "AAAA"}), URL)


def _read(body: bytes) -> None:
    try:
        read = LISTING.read_page(body, URL)
    except IntegrityError as error:
        said = error.message
    else:
        said = URL
        assert all(item.name and item.version and item.url for item in read.objects)
    assert URL in said


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted([*ITEM, "contentEncoding"])), json_values)
def test_any_value_is_read_or_named(key: str, value: Any) -> None:
    _read(page({**ITEM, key: value}))
    _read(page(ITEM, **{key: value, "items": value, "nextPageToken": value}))


@given(st.data())
def test_any_change_of_bytes_is_read_or_named(data: st.DataObject) -> None:
    whole = page(ITEM, ITEM)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    _read(whole[:start] + data.draw(st.binary(max_size=4)) + whole[stop:])


def test_composed_and_packed_objects_arrive(online: Settings, quick: FetchLimits) -> None:
    objects = {f"door/{kind}.bin": f"{kind} ".encode() * 30_000 for kind in ("composed", "packed")}
    with GcsServer(
        {"open-x": objects}, composed={"door/composed.bin"}, packed={"door/packed.bin"}
    ) as server:
        settings = replace(online, mirrors=(server.mirror,))
        composed, packed = list_bucket("gs://open-x/door/", settings, limits=quick)
        assert str(composed.digest).startswith("crc32c:")
        assert (packed.size, packed.digest) == (None, None)
        plan = plan_fetch([composed.file("door/"), packed.file("door/")], settings)
        found = run_fetch(plan, settings, limits=quick)
        assert {f"door/{f.name}": f.path.read_bytes() for f in found} == objects


def test_another_content_than_listed_is_named(
    online: Settings, quick: FetchLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {"door/x": bytes(range(250)) * 800}
    with GcsServer({"open-x": content}, composed={"door/x"}) as server:
        monkeypatch.setattr("offline_data.fetch.gcs.HOST", server.url)
        (item,) = list_bucket("gs://open-x/door/", online, limits=quick)
        server.buckets = {"open-x": {"door/x": content["door/x"][::-1]}}
        plan = plan_fetch([item.file()], online)
        with pytest.raises(IntegrityError, match=f"{item.url} has crc32c"):
            run_fetch(plan, online, limits=quick)
