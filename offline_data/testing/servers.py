"""A threaded HTTP server on this machine for tests, with faults that can be scripted."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from typing_extensions import Self

_PIECE = 1 << 16


@dataclass(frozen=True)
class Request:
    """One request as the server got it."""

    method: str
    """`GET`, `HEAD` or `POST`."""
    path: str
    """Decoded path without the query."""
    target: str
    """Path and query as they came, still quoted."""
    query: Mapping[str, list[str]]
    """Decoded query."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""
    """What came with a `POST`."""


@dataclass(frozen=True)
class Answer:
    """A status, headers and a body."""

    body: bytes = b""
    """All of it: a `Range` is cut out of it, a `HEAD` gets its length only."""
    status: int = 200
    """HTTP status."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """`Content-Length` and `Content-Range` are added."""


@dataclass(frozen=True)
class Fault:
    """How one answer goes wrong. Several parts may be combined."""

    answer: Answer | None = None
    """Say this instead of the right answer."""
    cut_after: int | None = None
    """Close the connection after so many bytes of the body."""
    stall_after: int | None = None
    """Send nothing more after so many bytes of the body, and keep the connection open."""
    claimed_length: int | None = None
    """Say this `Content-Length`, whatever the body has."""
    ignore_range: bool = False
    """Send the whole body with 200 though a range was asked for."""
    pause: float = 0.0
    """Seconds to wait before each 64 KiB of the body."""
    wire: Callable[[Request, Answer], Iterable[bytes]] | None = None
    """Send exactly these bytes, status line and all, and close the connection. Gets the request and
    the right answer, whole; may go on for ever: it ends when the client hangs up or the server does."""


class LocalServer:
    """Base of servers that listen on 127.0.0.1 at a free port while a `with` block runs.

    Subclasses say in `answer` what is right; scripted faults say how it goes wrong.

    Attributes:
        requests: Every request so far, in order of arrival.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self._script: dict[str, deque[Fault]] = defaultdict(deque)
        self._always: dict[str, Fault] = {}
        self._http = _Http(self)
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`, without a slash at the end."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def script(self, path: str, *faults: Fault) -> None:
        """Let the next requests for `path` go wrong, one fault each, then be right again.

        `HEAD` requests use up faults too.
        """
        self._script[path].extend(faults)

    def always(self, path: str, fault: Fault) -> None:
        """Let every request for `path` go wrong that `script` has no fault for."""
        self._always[path] = fault

    def clear_script(self) -> None:
        """Be right from now on."""
        self._script.clear()
        self._always.clear()

    def answer(self, request: Request) -> Answer:
        """Say what is right for `request`."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def fault_for(self, path: str) -> Fault:
        """Take the next fault for `path` off the script; a right answer is an empty fault."""
        queue = self._script[path]
        return queue.popleft() if queue else self._always.get(path, Fault())


class FileServer(LocalServer):
    """Serves bytes by path, with an `ETag` and ranges.

    Args:
        files: Path, beginning with `/`, to content; may be changed while the server runs.
        validators: Whether to send an `ETag`; without one a download cannot be resumed.

    Example:
        >>> import urllib.request
        >>> with FileServer({"/a.txt": b"hello"}) as server:
        ...     urllib.request.urlopen(server.at("/a.txt")).read()
        b'hello'
    """

    def __init__(self, files: Mapping[str, bytes], *, validators: bool = True) -> None:
        super().__init__()
        self.files = dict(files)
        self.validators = validators

    def at(self, path: str) -> str:
        """URL of `path`."""
        return self.url + quote(path)

    def answer(self, request: Request) -> Answer:
        """Give the content of the path, or 404."""
        if request.path not in self.files:
            return Answer(b"nothing here", 404)
        body = self.files[request.path]
        tag = {"ETag": f'"{hashlib.sha256(body).hexdigest()[:16]}"'} if self.validators else {}
        return Answer(body, headers={"Content-Type": "application/octet-stream", **tag})


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, owner: LocalServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that hang up are what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def do_GET(self) -> None:
        """Answer one request."""
        owner = self.server.owner
        request = self._read()
        owner.requests.append(request)
        fault = owner.fault_for(request.path)
        if fault.wire is not None:
            self._send_wire(fault.wire(request, owner.answer(request)))
            return
        answer = fault.answer or _in_range(owner.answer(request), request, fault)
        self._send_head(answer, fault)
        if request.method != "HEAD":
            self._send_body(answer.body, fault)

    do_HEAD = do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _read(self) -> Request:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        query = parse_qs(parts.query, keep_blank_values=True)
        return Request(self.command, unquote(parts.path), self.path, query, headers, body)

    def _send_wire(self, blocks: Iterable[bytes]) -> None:
        self.close_connection = True
        for block in blocks:
            if self.server.owner.closing.is_set():
                return
            self.wfile.write(block)

    def _send_head(self, answer: Answer, fault: Fault) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        length = len(answer.body) if fault.claimed_length is None else fault.claimed_length
        self.send_header("Content-Length", str(length))
        self.close_connection = length != len(answer.body)
        self.end_headers()

    def _send_body(self, body: bytes, fault: Fault) -> None:
        ends = [end for end in (fault.cut_after, fault.stall_after) if end is not None]
        body = body[: min(ends)] if ends else body
        for start in range(0, len(body), _PIECE):
            self.server.owner.closing.wait(fault.pause)
            self.wfile.write(body[start : start + _PIECE])
        if fault.stall_after is not None:
            self.server.owner.closing.wait(60)
        self.close_connection = self.close_connection or bool(ends)


def _in_range(answer: Answer, request: Request, fault: Fault) -> Answer:
    """Cut the asked-for range out of a right answer, by the rules of RFC 9110."""
    asked = request.headers.get("range", "")
    condition = request.headers.get("if-range")
    known = {answer.headers.get("ETag"), answer.headers.get("Last-Modified")}
    unmet = condition is not None and condition not in known
    if answer.status != 200 or not asked.startswith("bytes=") or unmet or fault.ignore_range:
        return answer
    first, _, last = asked.removeprefix("bytes=").partition("-")
    total, start = len(answer.body), int(first)
    stop = min(int(last) + 1, total) if last else total
    if start >= total:
        return Answer(b"", 416, {"Content-Range": f"bytes */{total}"})
    span = {"Content-Range": f"bytes {start}-{stop - 1}/{total}"}
    return Answer(answer.body[start:stop], 206, {**answer.headers, **span})
