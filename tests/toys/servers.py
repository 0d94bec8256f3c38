"""Local HTTP servers for tests: files, a Hugging Face hub and buckets, with faults."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import google_crc32c

if TYPE_CHECKING:
    from typing_extensions import Self

_BLOCK = 1 << 16


@dataclass(frozen=True)
class Request:
    """One request as received: path and query decoded, header names in lower case."""

    method: str
    path: str
    target: str
    """Path and query as received, still quoted."""
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    """A status, headers (without lengths and ranges) and the complete body."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """A fault in one answer; several can be combined."""

    answer: Answer | None = None
    """Status to send instead of the correct answer."""
    cut_after: int | None = None
    """Number of body bytes after which to close the connection."""
    stall_after: int | None = None
    """Number of body bytes after which to stop sending, with the connection kept open."""
    claimed_length: int | None = None
    """`Content-Length` to send, whatever the body."""
    ignore_range: bool = False
    """Send the complete body with status 200 even if a range was requested."""
    pause: float = 0.0
    """Seconds to wait before each 64 KiB of the body."""
    wire: Callable[[Request, Answer], Iterable[bytes]] | None = None
    """Send exactly these bytes, including the status line, and close the connection. Called with the
    request and the complete correct answer; may be infinite."""


class LocalServer:
    """Listens on 127.0.0.1 at a free port within a `with` block; subclasses implement `answer`.

    Attributes:
        requests: Every request so far, in order of arrival.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self.scripted: dict[str, deque[Fault]] = defaultdict(deque)
        self.permanent: dict[str, Fault] = {}
        self._http = _Http(self)
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.005}, daemon=True
        )

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`, without a trailing slash."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def script(self, path: str, *faults: Fault) -> None:
        """Apply the faults to the next requests for `path`, including `HEAD`, one each."""
        self.scripted[path].extend(faults)

    def always(self, path: str, fault: Fault) -> None:
        """Apply a fault to every request for `path` without one from `script`."""
        self.permanent[path] = fault

    def clear_script(self) -> None:
        """Remove all faults."""
        self.scripted.clear()
        self.permanent.clear()

    def answer(self, request: Request) -> Answer:
        """Return the correct answer."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class FileServer(LocalServer):
    """Serves `files`, content by path starting with `/`, with ranges and optionally an `ETag`.

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
        """Return the URL of `path`."""
        return self.url + quote(path)

    def answer(self, request: Request) -> Answer:
        """Return the content of the path, or 404."""
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
        """Ignore errors: tests make clients hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms until its headers are acknowledged
    server: _Http

    def do_GET(self) -> None:
        """Answer one request."""
        owner = self.server.owner
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join(iter(self._read_chunk, b""))
        else:
            body = self.rfile.read(int(headers.get("content-length", 0)))
        query = parse_qs(parts.query, keep_blank_values=True)
        path = unquote(parts.path)
        request = Request(self.command, path, self.path, query, headers, body)
        owner.requests.append(request)
        queue = owner.scripted[path]
        fault = queue.popleft() if queue else owner.permanent.get(path, Fault())
        if fault.wire is not None:
            self.close_connection = True
            for block in fault.wire(request, owner.answer(request)):
                if owner.closing.is_set():
                    return
                self.wfile.write(block)
            return
        answer = fault.answer or _in_range(owner.answer(request), request, fault)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        length = len(answer.body) if fault.claimed_length is None else fault.claimed_length
        self.send_header("Content-Length", str(length))
        self.close_connection = length != len(answer.body)
        self.end_headers()
        if request.method == "HEAD":
            return
        ends = [end for end in (fault.cut_after, fault.stall_after) if end is not None]
        body = answer.body[: min(ends)] if ends else answer.body
        for start in range(0, len(body), _BLOCK):
            owner.closing.wait(fault.pause)
            self.wfile.write(body[start : start + _BLOCK])
        if fault.stall_after is not None:
            owner.closing.wait(60)
        self.close_connection = self.close_connection or bool(ends)

    def _read_chunk(self) -> bytes:
        chunk = self.rfile.read(int(self.rfile.readline(), 16))
        self.rfile.readline()
        return chunk

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def _in_range(answer: Answer, request: Request, fault: Fault) -> Answer:
    """Return the requested range of a correct answer, according to RFC 9110."""
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


# ---- a Hugging Face hub ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Commit:
    repo: str
    sha: str
    files: Mapping[str, bytes]
    lfs_size: int

    def facts(self, path: str) -> dict[str, Any]:
        """Return git's object id of a file's content and its size, and for an LFS file its sha256."""
        content, size = self.files[path], len(self.files[path])
        found: dict[str, Any] = {"oid": _sha1(f"blob {size}\0".encode() + content), "size": size}
        if size >= self.lfs_size:
            found["lfs"] = {"oid": _sha256(content), "size": size, "pointerSize": 134}
        return found

    def info(self) -> dict[str, Any]:
        """Return the answer of `/api/datasets/REPO`."""
        from huggingface_hub import DatasetCard

        text = self.files.get("README.md", b"").decode()
        has_metadata = text.startswith("---")  # hub warns about a card without
        card = DatasetCard(text, ignore_metadata_errors=True) if has_metadata else None
        return {
            "cardData": card.data.to_dict() if card else {},
            "id": self.repo,
            "author": self.repo.split("/")[0],
            "sha": self.sha,
            "createdAt": "2024-01-01T00:00:00.000Z",
            "lastModified": "2024-01-01T00:00:00.000Z",
            **dict.fromkeys(("private", "gated", "disabled"), False),
            **dict.fromkeys(("downloads", "likes"), 0),
            "tags": [],
            "siblings": [{"rfilename": path} for path in self.files],
        }

    def tree(self, under: str, *, deep: bool) -> list[dict[str, Any]] | None:
        """Return folders and files under `under`, or None if there is no such folder."""
        parents = {str(one) for path in self.files for one in PurePosixPath(path).parents}
        folders = sorted(parents - {"."})
        if under and under not in folders:
            return None
        found: list[dict[str, Any]] = [
            {"type": "directory", "oid": _sha1(path.encode()), "size": 0, "path": path}
            for path in folders
        ]
        found += [{"type": "file", "path": path, **self.facts(path)} for path in self.files]
        prefix = f"{under}/" if under else ""
        inside = [row for row in found if row["path"].startswith(prefix)]
        return [row for row in inside if deep or "/" not in row["path"].removeprefix(prefix)]


class HubServer(LocalServer):
    """A Hugging Face hub: serves folders as dataset repositories; its `url` is the endpoint.

    Args:
        repos: Folder of files by repository id (`user/name`).
        token: Requests without this token get 401.
        lfs_size: Minimum size of an LFS file, with a sha256 and a redirect.
        page_size: Number of entries per page of a listing.
    """

    def __init__(
        self,
        repos: Mapping[str, Path] | None = None,
        *,
        token: str | None = None,
        lfs_size: int = 1024,
        page_size: int = 1000,
    ) -> None:
        super().__init__()
        self._token = token
        self._lfs_size = lfs_size
        self._page_size = page_size
        self._commits: dict[tuple[str, str], _Commit] = {}
        for repo, folder in (repos or {}).items():
            self.commit(repo, folder)

    def commit(self, repo: str, folder: Path, revision: str = "main") -> str:
        """Set a revision to the current files of `folder`; returns the sha of the commit.

        The sha depends on paths and contents. Earlier commits stay available by their sha.
        """
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
        return self.keep(repo, contents, revision)

    def keep(self, repo: str, contents: Mapping[str, bytes], revision: str = "main") -> str:
        """Set a revision to files by path; see `commit`."""
        names = "".join(f"{path}\0{_sha256(content)}\n" for path, content in contents.items())
        sha = _sha1(f"{repo}\n{names}".encode())
        commit = _Commit(repo, sha, contents, self._lfs_size)
        self._commits[repo, sha] = self._commits[repo, revision] = commit
        return sha

    def answer(self, request: Request) -> Answer:
        """Answer like the hub; 404 with its error codes for unknown paths."""
        if request.path.startswith("/cdn/"):
            return self._blob(request.path.removeprefix("/cdn/"))
        if self._token and request.headers.get("authorization") != f"Bearer {self._token}":
            if "authorization" in request.headers:
                return _refuse(401, "", "Invalid credentials in Authorization header")
            # As the hub does: without a token, a private repository seems not to exist.
            return _refuse(401, "RepoNotFound", "Invalid username or password.")
        parts = request.path.strip("/").split("/")
        if request.path == "/api/datasets":
            author = request.query.get("author", [""])[0]
            mains = [commit for (_, name), commit in self._commits.items() if name == "main"]
            wanted = [c for c in mains if not author or c.repo.split("/")[0] == author]
            return self._page(request, [commit.info() for commit in wanted])
        if parts[:2] == ["api", "datasets"] and len(parts) >= 4:
            return self._about(request, "/".join(parts[2:4]), parts[4:])
        if parts[0] == "datasets" and len(parts) >= 6 and parts[3] == "resolve":
            return self._file("/".join(parts[1:3]), parts[4], "/".join(parts[5:]))
        return _refuse(404, "RepoNotFound", "Repository not found")

    def _about(self, request: Request, repo: str, rest: list[str]) -> Answer:
        verb, revision = (rest[0], rest[1]) if len(rest) > 1 else ("revision", "main")
        commit = self._commits.get((repo, revision))
        if commit is None:
            return self._no_commit(repo)
        if verb == "tree":
            deep = request.query.get("recursive", ["false"])[0].lower() == "true"
            return self._page(request, commit.tree("/".join(rest[2:]), deep=deep))
        return _json(commit.info())

    def _file(self, repo: str, revision: str, path: str) -> Answer:
        commit = self._commits.get((repo, revision))
        if commit is None:
            return self._no_commit(repo)
        if path not in commit.files:
            return _refuse(404, "EntryNotFound", "Entry not found", commit.sha)
        facts = commit.facts(path)
        headers = {"X-Repo-Commit": commit.sha, "ETag": f'"{facts["oid"]}"'}
        if "lfs" not in facts:
            return Answer(commit.files[path], headers=headers)
        sha256 = facts["lfs"]["oid"]
        linked = {"X-Linked-Size": str(facts["size"]), "X-Linked-ETag": f'"{sha256}"'}
        # another host, as on the real hub: it gets no token
        cdn = self.url.replace("127.0.0.1", "localhost")
        return Answer(b"", 302, {**headers, **linked, "Location": f"{cdn}/cdn/{sha256}"})

    def _blob(self, sha256: str) -> Answer:
        for commit in self._commits.values():
            for content in commit.files.values():
                if _sha256(content) == sha256:
                    headers = {"ETag": f'"{sha256}"', "X-Repo-Commit": commit.sha}
                    return Answer(content, headers=headers)
        return Answer(b"", 404)

    def _no_commit(self, repo: str) -> Answer:
        if any(known == repo for known, _ in self._commits):
            return _refuse(404, "RevisionNotFound", "Invalid rev id")
        return _refuse(401, "RepoNotFound", "Repository not found")

    def _page(self, request: Request, items: list[dict[str, Any]] | None) -> Answer:
        if items is None:
            return _refuse(404, "EntryNotFound", "Entry not found")
        start = int(request.query.get("cursor", ["0"])[0])
        limit = int(request.query.get("limit", [str(self._page_size)])[0])
        stop = start + min(limit, self._page_size)
        base = request.target.partition("&cursor=")[0]
        joined = base + ("" if "?" in base else "?")
        link = {"Link": f'<{self.url}{joined}&cursor={stop}>; rel="next"'}
        return _json(items[start:stop], link if stop < len(items) else {})


def _json(value: Any, headers: Mapping[str, str] | None = None) -> Answer:
    head = {"Content-Type": "application/json", **(headers or {})}
    return Answer(json.dumps(value).encode(), headers=head)


def _sha1(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _refuse(status: int, code: str, message: str, commit: str | None = None) -> Answer:
    headers = {"X-Error-Code": code, "X-Error-Message": message}
    if commit:
        headers["X-Repo-Commit"] = commit
    return Answer(json.dumps({"error": message}).encode(), status, headers)


# ---- Google Cloud Storage --------------------------------------------------------------------

_LISTING = "/storage/v1/b/"


class GcsServer(LocalServer):
    """Serves buckets like `https://storage.googleapis.com`; `mirror` redirects to it.

    Listings support `prefix`, `delimiter`, `maxResults`, `pageToken` and a `matchGlob` of the form
    `**ENDING`.

    Args:
        buckets: Bucket name to objects, by name.
        page_size: Maximum number of objects per page of a listing.
        composed: Names of objects without an md5, like composed ones.
        packed: Names of objects stored as gzip and sent unpacked.
    """

    def __init__(
        self,
        buckets: Mapping[str, Mapping[str, bytes]],
        *,
        page_size: int = 1000,
        composed: Collection[str] = (),
        packed: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.buckets = buckets
        self._page_size = page_size
        self._composed = frozenset(composed)
        self._packed = frozenset(packed)

    @property
    def mirror(self) -> tuple[str, str]:
        """The `(prefix, replacement)` for `Settings.mirrors` that redirects here."""
        return "https://storage.googleapis.com", self.url

    def answer(self, request: Request) -> Answer:
        """List a bucket, or return an object."""
        if request.path.startswith(_LISTING):
            bucket, _, rest = request.path.removeprefix(_LISTING).partition("/")
            if rest == "o":
                return self._list(bucket, request)
            return self._object(bucket, rest.removeprefix("o/"))
        bucket, _, name = request.path.removeprefix("/").partition("/")
        return self._object(bucket, name)

    def _object(self, bucket: str, name: str) -> Answer:
        content = self.buckets.get(bucket, {}).get(name)
        if content is None:
            return Answer(b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>", 404)
        kind = {"Content-Type": "application/octet-stream"}
        return Answer(content, headers={"ETag": f'"{_md5(content).hex()}"', **kind})

    def _list(self, bucket: str, request: Request) -> Answer:
        """Return one page of names and folders; the token has characters that need quoting."""
        if bucket not in self.buckets:
            return Answer(b'{"error": {"code": 404, "message": "no such bucket"}}', 404)
        asked = {key: values[0] for key, values in request.query.items()}
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        ending, token = asked.get("matchGlob", "**").removeprefix("**"), asked.get("pageToken")
        names = sorted(
            name
            for name in self.buckets[bucket]
            if name.startswith(prefix) and name.endswith(ending)
        )
        rows = list(dict.fromkeys(_until(name, prefix, delimiter) for name in names))
        start = int(base64.b64decode(token).rpartition(b"?")[2]) if token else 0
        stop = start + min(self._page_size, int(asked.get("maxResults", self._page_size)))
        page, more = rows[start:stop], base64.b64encode(f">>>???{stop}".encode()).decode()
        value = {
            "kind": "storage#objects",
            "nextPageToken": more if stop < len(rows) else None,
            "prefixes": [name for name in page if name not in self.buckets[bucket]],
            "items": [self._item(bucket, name) for name in page if name in self.buckets[bucket]],
        }
        return _json({key: part for key, part in value.items() if part})

    def _item(self, bucket: str, name: str) -> dict[str, Any]:
        content = self.buckets[bucket][name]
        stored = gzip.compress(content, mtime=0) if name in self._packed else content
        digests = {
            "md5Hash": base64.b64encode(_md5(stored)).decode(),
            "crc32c": base64.b64encode(google_crc32c.Checksum(stored).digest()).decode(),
        }
        return {
            "kind": "storage#object",
            "name": name,
            "bucket": bucket,
            "generation": str(int.from_bytes(_md5(content)[:6], "big")),
            "size": str(len(stored)),
            **{key: digests[key] for key in ("md5Hash", "crc32c")[name in self._composed :]},
            **({"contentEncoding": "gzip"} if name in self._packed else {}),
            "mediaLink": f"{self.url}{_LISTING}{bucket}/o/{quote(name, safe='')}?alt=media",
        }


def _until(name: str, prefix: str, delimiter: str) -> str:
    """Return a name up to the first delimiter after the prefix, as in listings of folders."""
    head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
    return prefix + head + found if found else name


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()
