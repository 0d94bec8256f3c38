"""Hostile answers of a host, byte by byte as they go over the wire, for `Fault(wire=…)`.

Each of `VARIANTS` gets the request and the right answer (its body is the whole file) and yields
what is sent in its place. `ENDLESS` names those that go on until the client hangs up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.toys.servers import Answer, Request

    Variant = Callable[[Request, Answer], Iterable[bytes]]

_ZEROS = bytes(1 << 16)


def _head(status: str, answer: Answer, **headers: object) -> bytes:
    """Return a head with the right answer's headers; those given replace them, None leaves one out."""
    told = {**answer.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"{name}: {value}" for name, value in told.items() if value is not None]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "Connection: close", "", ""]).encode()


def _chunk(block: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(block), block)


def _start(request: Request) -> int:
    """Return the first byte that is asked for; 0 without a range."""
    first = request.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")[0]
    return int(first)


def _partial(
    span: Callable[[int, int], str | None],
    body: Callable[[bytes, int], bytes] = lambda whole, start: whole[start:],
    length: Callable[[bytes], object] = len,
) -> Variant:
    """Answer 206, with a `Content-Range` of the asked-for start and the total, and some bytes."""

    def send(request: Request, answer: Answer) -> Iterator[bytes]:
        start, total = _start(request), len(answer.body)
        sent = body(answer.body, start)
        yield _head(
            "206 Partial", answer, Content_Range=span(start, total), Content_Length=length(sent)
        )
        yield sent

    return send


def _right(start: int, total: int) -> str:
    return f"bytes {start}-{total - 1}/{total}"


def _whole(status: str = "200 OK", **headers: object) -> Variant:
    """Answer with the whole file under odd headers."""

    def send(_request: Request, answer: Answer) -> Iterator[bytes]:
        yield _head(status, answer, **{"Content_Length": len(answer.body), **headers})
        yield answer.body

    return send


def _raw(*blocks: bytes) -> Variant:
    return lambda _request, _answer: iter(blocks)


def _endless(
    status: str = "200 OK", *, body: bytes = _ZEROS, chunked: bool = True, of: str = ""
) -> Variant:
    """Send a right head without a length, the right bytes, and then `body` for ever."""

    def send(request: Request, answer: Answer) -> Iterator[bytes]:
        start, total = _start(request), len(answer.body)
        span = _right(start, total) if of == "range" else None
        coding = "chunked" if chunked else None
        yield _head(status, answer, Content_Range=span, Transfer_Encoding=coding)
        first = answer.body[start:] if of == "range" else answer.body
        wrap = _chunk if chunked else bytes
        yield wrap(first)
        yield from repeat(wrap(body) * max(1, 4096 // len(body)))

    return send


def _endless_head(line: bytes) -> Variant:
    def send(_request: Request, _answer: Answer) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n"
        yield from repeat(line)

    return send


VARIANTS: dict[str, Variant] = {
    # ranges that are not what was asked for
    "206 without Content-Range": _partial(lambda _start, _total: None),
    "206 from 0": _partial(lambda _start, total: _right(0, total)),
    "206 from 0, whole": _partial(lambda _start, total: _right(0, total), lambda whole, _: whole),
    "206 one byte early": _partial(
        lambda start, total: _right(max(start - 1, 0), total),
        lambda whole, start: whole[max(start - 1, 0) :],
    ),
    "206 one byte late": _partial(
        lambda start, total: _right(start + 1, total), lambda whole, start: whole[start + 1 :]
    ),
    "206 of a longer file": _partial(lambda start, total: f"bytes {start}-{total}/{total + 1}"),
    "206 of a shorter file": _partial(
        lambda start, total: f"bytes {start}-{total - 2}/{total - 1}"
    ),
    "206 that ends before it begins": _partial(lambda start, total: f"bytes {start}-0/{total}"),
    "206 that ends after the file": _partial(
        lambda start, total: f"bytes {start}-{total + 9}/{total}"
    ),
    "206 of an unknown total": _partial(lambda start, total: f"bytes {start}-{total - 1}/*"),
    "206 with a total of 5000 digits": _partial(lambda start, _: f"bytes {start}-9/{'9' * 5000}"),
    "206 with a start of 5000 digits": _partial(lambda _, total: f"bytes {'9' * 5000}-9/{total}"),
    "206 of other digits": _partial(lambda _start, _total: "bytes \u0660-\u0669/\u0661\u0660"),
    "206 in another unit": _partial(lambda start, total: f"rows {start}-{total - 1}/{total}"),
    "206 with negative numbers": _partial(lambda _start, _total: "bytes -5--1/-1"),
    "206 with the first byte only": _partial(
        lambda start, total: f"bytes {start}-{start}/{total}",
        lambda whole, start: whole[start : start + 1],
    ),
    "206 with other bytes": _partial(_right, lambda whole, start: whole[: len(whole) - start]),
    "206 with more than its range": _partial(_right, lambda whole, start: whole[start:] + b"more"),
    "206 with less than its range": _partial(_right, lambda whole, start: whole[start:-7]),
    "206 with no byte of its range": _partial(_right, lambda _whole, _start: b""),
    "206 with another Content-Length": _partial(_right, length=lambda sent: len(sent) // 2),
    "206 as multipart": _whole("206 Partial", Content_Type="multipart/byteranges; boundary=x"),
    "206 that never ends": _endless("206 Partial", of="range"),
    "206 that never ends, without chunks": _endless("206 Partial", of="range", chunked=False),
    "416 for everything": _whole("416 Range Not Satisfiable", Content_Range="bytes */0"),
    "416 without a size": _whole("416 Range Not Satisfiable"),
    # bodies without an end, or of another length
    "endless, chunked": _endless(),
    "endless, until the connection ends": _endless(chunked=False),
    "endless, in small chunks": _endless(body=b"x" * 16),
    "endless web page": _endless(body=b"<html>" * 9),
    "Content-Length of 10**18": _whole(Content_Length=10**18),
    "Content-Length of 5000 digits": _whole(Content_Length="9" * 5000),
    "negative Content-Length": _whole(Content_Length=-1),
    "Content-Length in words": _whole(Content_Length="many"),
    "Content-Length in other digits": _whole(Content_Length="\u0661\u0662"),
    "two Content-Lengths": _whole(Content_Length="10, 20"),
    "Content-Length of 0": _whole(Content_Length=0),
    "chunks of negative size": _raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n"
    ),
    "a chunk of 2**63 bytes": _raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8000000000000000\r\nhello"
    ),
    "chunks that are none": _raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n"
    ),
    # heads
    "nothing at all": _raw(),
    "no HTTP": _raw(b"\x00\xff\x00\xff" * 99),
    "HTTP/9.9": _raw(b"HTTP/9.9 200 OK\r\n\r\n"),
    "status 999": _whole("999 Whatever"),
    "status 20": _whole("20 OK"),
    "status of letters": _whole("abc OK"),
    "a reason that steers a terminal": _whole("404 \x1b[2J\x1b]0;x\x07"),
    "204": _raw(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "202": _whole("202 Accepted"),
    "205": _whole("205 Reset Content"),
    "300 without a place": _whole("300 Multiple Choices"),
    "302 without a place": _whole("302 Found"),
    "302 to a file": _whole("302 Found", Location="file:///etc/passwd"),
    "302 to another scheme": _whole("302 Found", Location="gopher://x/"),
    "302 to a broken URL": _whole("302 Found", Location="http://[::1"),
    "302 to a broken port": _whole("302 Found", Location="http://h:99999999/"),
    "302 to a name with NUL": _whole("302 Found", Location="http://h%00/"),
    "302 to no Unicode": _raw(b"HTTP/1.1 302 Found\r\nLocation: http://\xff\xfe/\r\n\r\n"),
    "302 to a label of 300 letters": _whole("302 Found", Location=f"http://{'a' * 300}/"),
    "a header of 1 MB": _whole(X=("x" * 1_000_000)),
    "100,000 headers": _raw(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 100_000, b"\r\n"),
    "headers without an end": _endless_head(b"X: y\r\n" * 1000),
    "a header line without an end": _endless_head(b"x" * 10_000),
    "headers that are not text": _raw(b"HTTP/1.1 200 OK\r\n\xff\xfe: \x80\r\n\r\nhello"),
    "a line break in a header": _whole(ETag='"a\r\nX: y"'),
    "an ETag of 1,000 letters": _whole(ETag='"' + "e" * 1000 + '"'),
    "an ETag that is no ASCII": _whole(ETag='"\u00ff\u2192"'),
    "a date that is none": _whole(Date="yesterday", Last_Modified="Mon, 99 Foo 99999 99:99:99 GMT"),
    "Retry-After of 5000 digits": _whole("503 Busy", Retry_After="9" * 5000),
    "Retry-After before time": _whole("503 Busy", Retry_After="Mon, 01 Jan 0001 00:00:00 +2359"),
    "Retry-After that is none": _whole("503 Busy", Retry_After="nan"),
    "gzip": _whole(Content_Encoding="gzip"),
    "encoded in an unknown way": _whole(Content_Encoding="x-unknown"),
    "a web page": _raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 14\r\n\r\n<html>log in</"
    ),
}

UNKNOWABLE = frozenset({"206 with other bytes"})
"""Right heads around wrong bytes: only a digest tells."""

ENDLESS = frozenset(
    name
    for name in VARIANTS
    if "endless" in name or "never ends" in name or "without an end" in name
)
