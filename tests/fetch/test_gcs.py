"""Listings of Google's buckets: what is read out of them, damage that is named, what is fetched."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from offline_data.base.config import Settings
from offline_data.base.errors import (
    AuthError,
    FormatError,
    IntegrityError,
    NotFoundError,
    OfflineDataError,
    UsageError,
)
from offline_data.fetch.gcs import BucketObject, GcsListing, list_bucket
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.retry import FetchLimits
from offline_data.fetch.run import run_fetch
from tests.toys.servers import Answer, Fault, GcsServer, Request

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
    neither = {key: value for key, value in composed.items() if key != "crc32c"}
    assert LISTING.read_page(page(neither), URL).objects[0].digest is None


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


@hypothesis_settings(max_examples=40)
@given(st.sampled_from(sorted([*ITEM, "contentEncoding"])), json_values)
def test_any_value_is_read_or_named(key: str, value: Any) -> None:
    _read(page({**ITEM, key: value}))
    _read(page(ITEM, **{key: value, "items": value, "nextPageToken": value}))


@hypothesis_settings(max_examples=40)
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


BUCKET = "open-x"
NAMES = (
    "door/%24store%24_ckpt.0.gz",
    "door/$store$_ckpt.0.gz",
    "door/&a=b;c/<x>'\",~!*().bin",
    "door/+plus +and+ spaces  .bin",
    "door/100%/q?#fragment.bin",
    "door/metadata.json",
    "door/ü/日本語/\u2028/🚪.bin",
)
OBJECTS = {name: f"content of {name} ".encode() * 50 for name in NAMES}
OTHERS = {"door": b"1", "door/": b"", "door/ü/": b"", "door-2/metadata.json": b"2", "../up": b"3"}


@dataclass(frozen=True)
class Place:
    """A host with the bucket, and how to get there."""

    server: GcsServer
    url: str
    settings: Settings


@pytest.fixture
def place(online: Settings) -> Iterator[Place]:
    with GcsServer({BUCKET: {**OBJECTS, **OTHERS}}, page_size=3) as server:
        settings = replace(online, mirrors=(server.mirror,))
        yield Place(server, f"gs://{BUCKET}", settings)


@pytest.fixture
def listed(place: Place, quick: FetchLimits) -> Callable[[], tuple[BucketObject, ...]]:
    return lambda: list_bucket(f"{place.url}/door/", place.settings, limits=quick)


def test_what_was_listed_is_fetched(
    place: Place, listed: Callable[[], tuple[BucketObject, ...]], quick: FetchLimits
) -> None:
    objects = listed()
    assert [item.name for item in objects] == sorted(OBJECTS)
    assert len(place.server.requests) == 3, "three names a page, of nine"
    for item in objects:
        md5 = hashlib.md5(OBJECTS[item.name], usedforsecurity=False).hexdigest()
        assert (item.size, item.digest) == (len(OBJECTS[item.name]), f"md5:{md5}")
    files = [item.file("door/") for item in objects]
    plan = plan_fetch(files, place.settings)
    found = run_fetch(plan, place.settings, limits=quick)
    assert {f"door/{file.name}": file.path.read_bytes() for file in found} == OBJECTS
    assert [file.failed for file in found] == [()] * len(NAMES), "the first place had each of them"
    assert [step.action for step in plan_fetch(files, place.settings).steps] == ["keep"] * 7


def test_prefixes_and_endings(place: Place, quick: FetchLimits) -> None:
    def names(prefix: str, ending: str = "") -> list[str]:
        url = f"{place.url}{prefix}"
        found = list_bucket(url, place.settings, ending=ending, limits=quick)
        return [item.name for item in found]

    everything = sorted(name for name in [*OBJECTS, *OTHERS] if not name.endswith("/"))
    assert names("") == names("/") == everything
    assert names("/door") == everything[1:]
    assert names("/nothing/here/") == []
    both = ["door-2/metadata.json", "door/metadata.json"]
    assert names("/door", "/metadata.json") == both
    assert names("/door", "[a]*.json") == []
    assert names("/door/+plus +and+ ") == ["door/+plus +and+ spaces  .bin"]
    assert names("/door/%24") == ["door/%24store%24_ckpt.0.gz"], "nothing is unquoted"


def test_google_sends_only_the_ending(online: Settings, quick: FetchLimits) -> None:
    objects = {f"{number}/{part}": b"1" for number in range(9) for part in ("data", "x.json")}
    with GcsServer({BUCKET: objects}, page_size=9) as server:
        settings = replace(online, mirrors=(server.mirror,))
        found = list_bucket(f"gs://{BUCKET}", settings, ending="/x.json", limits=quick)
        assert (len(found), len(server.requests)) == (9, 1)


def test_a_version_is_another_where_the_content_is(
    place: Place, listed: Callable[[], tuple[BucketObject, ...]]
) -> None:
    before = {item.name: item.version for item in listed()}
    place.server.buckets = {BUCKET: {**OBJECTS, NAMES[0]: b"changed"}}
    after = {item.name: item.version for item in listed()}
    assert {name for name in before if before[name] != after[name]} == {NAMES[0]}


@pytest.mark.parametrize("name", ["../up", "/root", "a//b", "a/./b", "a/../../b", "a\\b", "a\nb"])
def test_names_that_are_no_paths_are_listed_and_not_fetched(
    name: str, place: Place, quick: FetchLimits
) -> None:
    place.server.buckets = {BUCKET: {name: b"hostile"}}
    (item,) = list_bucket(place.url, place.settings, limits=quick)
    assert item.name == name
    with pytest.raises(IntegrityError, match="An object at http"):
        item.file()
    with pytest.raises(UsageError, match="not below 'door/'"):
        item.file("door/")


@pytest.mark.parametrize(
    ("status", "error", "hint"),
    [(404, NotFoundError, "name right"), (401, AuthError, "listing is not allowed")],
)
def test_a_refusal_names_the_bucket(
    status: int,
    error: type[OfflineDataError],
    hint: str,
    online: Settings,
    quick: FetchLimits,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = GcsServer({})
    monkeypatch.setattr("offline_data.fetch.gcs.HOST", server.url)
    server.always(f"/storage/v1/b/{BUCKET}/o", Fault(Answer(b"", status)))
    with server, pytest.raises(error) as caught:
        list_bucket(f"gs://{BUCKET}/door/", online, limits=quick)
    assert caught.value.message.startswith(f"gs://{BUCKET} cannot be listed: {server.url}/")
    assert str(status) in caught.value.message
    assert hint in str(caught.value.hint)


def test_a_mirror_that_gives_no_listing_is_passed_over(
    online: Settings, quick: FetchLimits
) -> None:
    with GcsServer({BUCKET: OBJECTS}) as wrong, GcsServer({BUCKET: OBJECTS}) as right:
        wrong.always(f"/storage/v1/b/{BUCKET}/o", Fault(Answer(b'{"items": []}')))
        settings = replace(online, mirrors=(wrong.mirror, right.mirror))
        found = list_bucket(f"gs://{BUCKET}", settings, limits=quick)
        assert len(found) == len(OBJECTS)
        assert len(wrong.requests) == 1


def _gcs_page(names: list[str], token: str | None) -> Answer:
    items = [{"name": name, "size": "1", "generation": "1"} for name in names]
    more = {} if token is None else {"nextPageToken": token}
    return Answer(json.dumps({"kind": "storage#objects", "items": items, **more}).encode())


def test_a_host_with_an_order_of_its_own(online: Settings, quick: FetchLimits) -> None:
    pages = [_gcs_page(["b/c", "a", "ü"], "t"), _gcs_page([], "u"), _gcs_page(["b-c", "b/"], None)]
    with GcsServer({BUCKET: {}}) as server:
        server.script(f"/storage/v1/b/{BUCKET}/o", *(Fault(page) for page in pages))
        settings = replace(online, mirrors=(server.mirror,))
        found = list_bucket(f"gs://{BUCKET}", settings, limits=quick)
        assert [item.name for item in found] == ["a", "b-c", "b/c", "ü"]


@pytest.mark.parametrize(
    ("pages", "found"),
    [
        ([_gcs_page(["a"], "t"), _gcs_page(["b"], "t")], "token 't' of a next page came before"),
        ([_gcs_page(["a"], "t"), _gcs_page(["a"], "u")], "'a' is listed twice"),
    ],
)
def test_a_listing_that_never_ends(
    pages: list[Answer], found: str, online: Settings, quick: FetchLimits
) -> None:
    with GcsServer({BUCKET: {}}) as server:
        server.script(f"/storage/v1/b/{BUCKET}/o", *(Fault(page) for page in pages))
        with pytest.raises(FormatError, match=found):
            list_bucket(f"gs://{BUCKET}", replace(online, mirrors=(server.mirror,)), limits=quick)
        assert len(server.requests) == len(pages)


def test_a_listing_of_new_pages_for_ever(
    online: Settings, quick: FetchLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_data.fetch.gcs._MAX_PAGES", 20)
    with GcsServer({BUCKET: {}}) as server:
        pages = (Fault(_gcs_page([f"{n}"], f"{n}")) for n in range(40))
        server.script(f"/storage/v1/b/{BUCKET}/o", *pages)
        with pytest.raises(FormatError, match="more than 20 pages"):
            list_bucket(f"gs://{BUCKET}", replace(online, mirrors=(server.mirror,)), limits=quick)
        assert len(server.requests) == 20


def test_names_beside_the_prefix_are_damage(
    online: Settings, quick: FetchLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    with GcsServer({BUCKET: {**OBJECTS, **OTHERS}}) as server:
        monkeypatch.setattr("offline_data.fetch.gcs.HOST", server.url)
        listing = f"/storage/v1/b/{BUCKET}/o"
        everything = server.answer(Request("GET", listing, "", {}, {}))
        server.script(listing, Fault(everything))
        with pytest.raises(FormatError, match=r"'\.\./up' is in it, .* not begin with 'door'"):
            list_bucket(f"gs://{BUCKET}/door", online, limits=quick)
