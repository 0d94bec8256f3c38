"""Pages of S3's listing: what is read out of them, and that damage and bombs are always named."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_data.config import Settings
from offline_data.errors import (
    AuthError,
    FormatError,
    IntegrityError,
    NetworkError,
    NotFoundError,
    OfflineDataError,
)
from offline_data.fetch.buckets import list_bucket
from offline_data.fetch.limits import FetchLimits
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.run import run_fetch
from offline_data.fetch.s3 import S3Listing, aws_bucket_url
from offline_data.testing.s3_server import S3Server, error_answer
from offline_data.testing.servers import Answer, Fault

BASE = "https://open-x.s3.amazonaws.com"
URL = f"{BASE}/?list-type=2&prefix=door"
LISTING = S3Listing("s3://open-x", BASE, "door")
NAMESPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
MD5 = "25f9e794323b453885f5181f1b3a22f8"
PARTS = {"Key": "door/a+b.bin", "ETag": f'"{MD5}"', "Size": "9", "StorageClass": "STANDARD"}
TOP = {"Name": "open-x", "IsTruncated": "true", "NextContinuationToken": "1/t+=="}
QUOTED = {"EncodingType": "url"}


def xml(parts: dict[str, str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for tag, text in parts.items())


def page(
    *objects: dict[str, str], top: dict[str, str] = TOP, namespace: str = NAMESPACE, head: str = ""
) -> bytes:
    rows = "".join(f"<Contents>{xml(parts)}</Contents>" for parts in objects)
    inside = f"{xml(top)}{rows}"
    return f"{head}<ListBucketResult{namespace}>{inside}</ListBucketResult>".encode()


@pytest.mark.parametrize("namespace", [NAMESPACE, ""])
@pytest.mark.parametrize("head", ["", '<?xml version="1.0" encoding="UTF-8"?>\n', "\ufeff"])
def test_a_page(namespace: str, head: str) -> None:
    read = LISTING.read_page(page(PARTS, namespace=namespace, head=head), URL)
    (item,) = read.objects
    assert (item.name, item.size, item.version) == ("door/a+b.bin", 9, MD5)
    assert [read.token] == ["1/t+=="]
    assert item.digest == f"md5:{MD5}"
    assert item.url == f"{BASE}/door/a%2Bb.bin"
    (item,) = LISTING.read_page(page(PARTS, top={**TOP, **QUOTED}), URL).objects
    assert (item.name, item.url) == ("door/a b.bin", f"{BASE}/door/a%20b.bin")


@pytest.mark.parametrize("tag", [f"{MD5[:-2]}-1", f"{MD5}-12", "opaque", MD5.upper(), MD5[1:]])
def test_an_etag_that_is_no_md5_is_only_a_version(tag: str) -> None:
    (item,) = LISTING.read_page(page({**PARTS, "ETag": f'"{tag}"'}), URL).objects
    assert (item.digest, item.version) == (None, tag)


def test_the_last_page_and_an_empty_one() -> None:
    read = LISTING.read_page(page(top={"IsTruncated": "false", "NextContinuationToken": "t"}), URL)
    assert (read.objects, read.token) == ((), None)


def test_urls_of_pages_and_buckets() -> None:
    asked = urlsplit(S3Listing("s3://open-x", BASE, "a+b/&").page_url("1/t+=="))
    assert (asked.netloc, asked.path) == ("open-x.s3.amazonaws.com", "/")
    assert parse_qs(asked.query) == {
        "list-type": ["2"],
        "encoding-type": ["url"],
        "prefix": ["a+b/&"],
        "continuation-token": ["1/t+=="],
    }
    assert "continuation-token" not in LISTING.page_url(None)
    assert aws_bucket_url("Upper_case") == "https://s3.amazonaws.com/Upper_case"


BOMB = """<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>
<ListBucketResult><IsTruncated>false</IsTruncated><Name>&b;</Name></ListBucketResult>"""
OUTSIDE = '<!DOCTYPE x SYSTEM "file:///etc/hostname"><ListBucketResult/>'
IN_EBCDIC = b"<?xml version='1.0' encoding='cp037'?>" + BOMB[21:].encode("cp037")

DAMAGE: dict[str, bytes] = {
    "empty": b"",
    "a web page": b"\n<!DOCTYPE html><title>Log in</title>",
    "a web page without a type": b"<html><body>Log in</body></html>",
    "JSON": b'{"kind": "storage#objects"}',
    "cut off": page(PARTS)[:-30],
    "two documents": page(PARTS) * 2,
    "an entity bomb": BOMB.encode(),
    "an entity bomb in UTF-16": BOMB.encode("utf-16"),
    "an entity bomb in EBCDIC": IN_EBCDIC,
    "an entity bomb in UTF-7": b"<?xml version='1.0' encoding='utf-7'?>"
    + BOMB[21:].encode("utf-7"),
    "a file of this machine": OUTSIDE.encode(),
    "an unknown entity": page(PARTS).replace(b"a+b", b"&lol;"),
    "not UTF-8": page(PARTS).replace(b"a+b", b"\xff"),
    "a control character": page(PARTS).replace(b"a+b", b"\x01"),
    "very deep": b"<a>" * 200_000,
    "another document": b"<ListAllMyBucketsResult/>",
    "nothing in it": b"<ListBucketResult/>",
    "neither last nor not": page(PARTS, top={**TOP, "IsTruncated": "maybe"}),
    "more without a token": page(PARTS, top={"IsTruncated": "true"}),
    "more with an empty token": page(PARTS, top={**TOP, "NextContinuationToken": ""}),
    "quoted, not UTF-8": page({**PARTS, "Key": "door/%ff"}, top={**TOP, **QUOTED}),
    **{f"no {key}": page({k: v for k, v in PARTS.items() if k != key}) for key in list(PARTS)[:3]},
    **{
        f"{key} is {value!r}": page({**PARTS, key: value})
        for key, value in [
            ("Key", ""),
            ("ETag", '""'),
            ("Size", ""),
            ("Size", "nine"),
            ("Size", "-9"),
            ("Size", "9.0"),
            ("Size", " 9"),
            ("Size", "٩"),
            ("Size", "9" * 5000),
        ]
    },
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(case: str) -> None:
    with pytest.raises(IntegrityError, match=re.escape(f"{URL} is not ")) as caught:
        LISTING.read_page(DAMAGE[case], URL)
    assert caught.value.hint
    assert len(caught.value.message) < 700


def test_what_is_searched_is_what_is_parsed() -> None:
    """S3 answers in UTF-8; another encoding that a document declares is not followed."""
    head = '<?xml version="1.0" encoding="ISO-8859-1"?>'
    (item,) = LISTING.read_page(page({**PARTS, "Key": "door/ü"}, head=head), URL).objects
    assert item.name == "door/ü"


@pytest.mark.parametrize("case", [case for case in DAMAGE if "bomb" in case])
def test_no_parser_sees_a_bomb(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def expand(text: str) -> None:
        assert "ENTITY" not in text
        raise ValueError(text[:60])

    monkeypatch.setattr("xml.etree.ElementTree.fromstring", expand)
    with pytest.raises(FormatError):
        LISTING.read_page(DAMAGE[case], URL)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("NoSuchBucket", NotFoundError),
        ("AccessDenied", AuthError),
        ("AllAccessDisabled", AuthError),
        ("PermanentRedirect", NetworkError),
        ("", NetworkError),
    ],
)
def test_an_error_in_its_own_words(code: str, error: type[OfflineDataError]) -> None:
    body = error_answer(code, 200, Endpoint="s3-eu-west-1.amazonaws.com").body
    with pytest.raises(error, match=f"answered '{code}': .*'s3-eu-west-1") as caught:
        LISTING.read_page(body, URL)
    assert type(caught.value) is error
    assert caught.value.message.startswith(URL)
    with pytest.raises(error) as caught:
        LISTING.read_page(error_answer(code, 200, Endpoint="host." * 5000).body, URL)
    assert len(caught.value.message) < 700


def test_an_error_with_status_200_names_the_bucket(online: Settings, quick: FetchLimits) -> None:
    with S3Server({}) as server:
        server.always("/open-x/", Fault(error_answer("PermanentRedirect", 200)))
        url = f"{server.endpoint}/open-x"
        with pytest.raises(NetworkError, match="PermanentRedirect") as caught:
            list_bucket(url, online, limits=quick)
    assert caught.value.message.startswith(f"{url} cannot be listed: ")
    hint = str(caught.value.hint)
    assert "OFFLINE_DATA_MIRRORS" in hint
    assert "s3+https://s3.REGION.amazonaws.com/BUCKET" in hint


def _read(body: bytes) -> None:
    try:
        read = LISTING.read_page(body, URL)
    except (IntegrityError, NotFoundError, AuthError, NetworkError) as error:
        said = error.message
    else:
        said = URL
        assert all(item.name and item.version and item.url for item in read.objects)
    assert URL in said


@given(st.sampled_from([*TOP, *PARTS, *QUOTED]), st.text())
def test_any_value_is_read_or_named(key: str, value: str) -> None:
    for top in (TOP, {**TOP, **QUOTED}):
        _read(page({**PARTS, key: value}, top=top))
        _read(page(PARTS, top={**top, key: value}))


WHOLE = page(PARTS, PARTS, top={**TOP, **QUOTED}, head='<?xml version="1.0" encoding="UTF-8"?>')


@given(st.data())
def test_any_change_of_bytes_is_read_or_named(data: st.DataObject) -> None:
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(WHOLE))] * 2)))
    _read(WHOLE[:start] + data.draw(st.binary(max_size=4)) + WHOLE[stop:])


def test_uploads_in_parts_arrive(online: Settings, quick: FetchLimits) -> None:
    objects = {f"door/{kind}.bin": f"{kind} ".encode() * 30_000 for kind in ("parts", "whole")}
    with S3Server({"open-x": objects}, multipart={"door/parts.bin"}) as server:
        server.script("/open-x/door/parts.bin", Fault(cut_after=70_000))
        server.script("/open-x/door/whole.bin", Fault(Answer(b"", 503)))
        parts, whole = list_bucket(f"{server.endpoint}/open-x/door/", online, limits=quick)
        assert (parts.digest, parts.version[-2:]) == (None, "-1")
        assert whole.digest == f"md5:{whole.version}"
        plan = plan_fetch([parts.file("door/"), whole.file("door/")], online)
        found = run_fetch(plan, online, limits=quick)
    assert {f"door/{file.name}": file.path.read_bytes() for file in found} == objects
    ranges = [r.headers["range"] for r in server.requests if "range" in r.headers]
    assert ranges == ["bytes=70000-"], "the rest only"
