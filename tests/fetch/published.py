"""One file as sources of every kind publish it, on servers of this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import google_crc32c

from offline_data.base.config import Settings
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.gcs import list_bucket
from offline_data.fetch.hub import list_hub
from tests.fetch.conftest import MAGIC
from tests.toys.servers import FileServer, GcsServer, HubServer, LocalServer

PATH = "/set/door.hdf5"


@dataclass(frozen=True)
class Published:
    """A file as its source publishes it, and the server whose answers for it go wrong."""

    file: RemoteFile
    server: LocalServer
    path: str
    settings: Settings


@contextmanager
def plainly(told: str, content: bytes, settings: Settings, folder: Path) -> Iterator[Published]:
    with FileServer({PATH: content}) as server:
        size, digest, magic = published(content, told)
        file = RemoteFile("door.hdf5", (server.at(PATH),), size, digest, magic)
        yield Published(file, server, PATH, settings)


@contextmanager
def on_hub(size: str, content: bytes, settings: Settings, folder: Path) -> Iterator[Published]:
    (folder / "data").mkdir()
    (folder / "data" / "door.hdf5").write_bytes(content)
    limit = 1000 if size == "large" else 10**9
    with HubServer({"u/n": folder}, lfs_size=limit) as server:
        at_hub = replace(settings, hub_endpoint=server.url)
        listing = list_hub("u/n", "data", None, at_hub)
        (file,) = listing.files
        at_cdn = f"/cdn/{hashlib.sha256(content).hexdigest()}"
        at_hand = f"/datasets/u/n/resolve/{listing.commit}/data/door.hdf5"
        yield Published(file, server, at_cdn if size == "large" else at_hand, at_hub)


@contextmanager
def in_bucket(content: bytes, settings: Settings, folder: Path) -> Iterator[Published]:
    with GcsServer({"bucket": {"set/door.hdf5": content}}) as server:
        (listed,) = list_bucket("gs://bucket/set/", replace(settings, mirrors=(server.mirror,)))
        path = "/bucket/set/door.hdf5"
        # the published place is not of this machine
        file = replace(listed.file("set/", MAGIC), urls=(server.url + path,))
        yield Published(file, server, path, settings)


KINDS: dict[str, Callable[[bytes, Settings, Path], AbstractContextManager[Published]]] = {
    **{told: partial(plainly, told) for told in ("all", "sha256", "nothing")},
    **{f"hub, {size}": partial(on_hub, size) for size in ("large", "small")},
    "bucket": in_bucket,
}


def published(content: bytes, told: str) -> tuple[int | None, str | None, bytes]:
    digests = {
        "sha256": f"sha256:{hashlib.sha256(content).hexdigest()}",
        "md5": f"md5:{hashlib.md5(content, usedforsecurity=False).hexdigest()}",
        "crc32c": f"crc32c:{google_crc32c.Checksum(content).digest().hex()}",
        "all": f"sha256:{hashlib.sha256(content).hexdigest()}",
    }
    size = len(content) if told in {"all", "size"} else None
    return size, digests.get(told), MAGIC if told in {"all", "size"} else b""
