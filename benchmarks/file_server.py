"""Serves the files of a folder over HTTP from a separate process, faster than its clients.

Names are looked up by their last part, so that `/datasets/u/n/resolve/COMMIT/x` is also `x` and
huggingface_hub works with it. Supports `GET`, `HEAD`, `Range: bytes=N-`, `If-Range` and persistent
connections; the kernel copies the bytes (`sendfile`).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

COMMIT = "5" * 40
"""The only revision of everything."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve `folder` while the block runs; yields the server's URL without a trailing slash."""
    command = [sys.executable, "-m", "benchmarks.file_server", str(folder)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


class _Server(ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that hang up."""


class _Handler(StreamRequestHandler):
    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        while line := self.rfile.readline():
            method, target, _ = line.decode("ascii").split()
            self._answer(method, target.rpartition("/")[2], dict(self._headers()))

    def _headers(self) -> Iterator[tuple[str, str]]:
        while (line := self.rfile.readline().decode("latin-1").strip()) != "":
            name, _, value = line.partition(":")
            yield name.lower(), value.strip()

    def _answer(self, method: str, name: str, headers: dict[str, str]) -> None:
        path = self.server.folder / name
        if not path.is_file():
            self._send_head(HTTPStatus.NOT_FOUND, {"Content-Length": "0"})
            return
        size, tag = path.stat().st_size, f'"{path.stat().st_mtime_ns:x}"'
        start = int(headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        start = start if headers.get("if-range", tag) == tag else 0
        span = {"Content-Range": f"bytes {start}-{size - 1}/{size}"} if start else {}
        fields = {"Content-Length": str(size - start), "ETag": tag, "X-Repo-Commit": COMMIT, **span}
        self._send_head(HTTPStatus.PARTIAL_CONTENT if start else HTTPStatus.OK, fields)
        if method == "GET":
            with path.open("rb") as file:
                self.connection.sendfile(file, start)

    def _send_head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.connection.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))


if __name__ == "__main__":
    with _Server(Path(sys.argv[1])) as running:
        print(running.server_address[1], flush=True)
        running.serve_forever()
