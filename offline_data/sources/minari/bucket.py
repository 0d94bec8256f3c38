"""Minari datasets of a public Google Cloud Storage bucket, through its JSON listing."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from offline_data.errors import FormatError, NotFoundError
from offline_data.fetch.http import get_json
from offline_data.readers.hdf5 import MAGIC
from offline_data.sources.base import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offline_data.config import Settings

_HOST = "https://storage.googleapis.com"
_METADATA = "/data/metadata.json"


def list_files(
    account: str, dataset: str, revision: str | None, settings: Settings
) -> tuple[str, tuple[RemoteFile, ...]]:
    """List the files of a dataset.

    Args:
        account: The bucket.
        dataset: Id, the beginning of the names of its objects.
        revision: None, or what an earlier call returned: a bucket keeps one version.
        settings: Mirrors.

    Returns:
        `gcs-<12 hex>`, which changes with the objects' names and contents, and the files by
        their paths below the dataset's folder.

    Raises:
        NotFoundError: No such dataset, or it is not at `revision` any more.
        NetworkError: The host does not answer as it should.
    """
    objects = sorted(_objects(account, {"prefix": f"{dataset}/data/"}, settings), key=_name)
    if not objects:
        raise NotFoundError(f"bucket {account} has no objects below {dataset}/data/")
    files = tuple(_remote_file(account, dataset, item) for item in objects)
    present = _revision(objects)
    if revision not in {None, present}:
        raise NotFoundError(
            f"{dataset} is at revision {present} now, not {revision}",
            hint=f"a bucket keeps only the newest: leave out @{revision}",
        )
    return present, files


def _objects(account: str, query: dict[str, str], settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the objects of a listing, page after page; folders' placeholders are left out."""
    fields = "items(name,size,md5Hash,generation),nextPageToken"
    page = {**query, "fields": fields, "maxResults": "1000"}
    while True:
        url = f"{_HOST}/storage/v1/b/{quote(account, safe='')}/o?{urlencode(page)}"
        answer = get_json(url, settings)
        items = answer.get("items", []) if isinstance(answer, dict) else None
        if not isinstance(items, list) or not all(isinstance(i.get("name"), str) for i in items):
            raise FormatError(f"{url} is not a listing of objects")
        yield from (item for item in items if not item["name"].endswith("/"))
        if "nextPageToken" not in answer:
            return
        page["pageToken"] = str(answer["nextPageToken"])


def _name(item: dict[str, Any]) -> str:
    return str(item["name"])


def _remote_file(account: str, dataset: str, item: dict[str, Any]) -> RemoteFile:
    name = _name(item)
    return RemoteFile(
        path=name.removeprefix(f"{dataset}/"),
        urls=(f"{_HOST}/{quote(account, safe='')}/{quote(name)}",),
        size=int(item["size"]) if "size" in item else None,
        digest=_md5(item),
        magic=MAGIC if name.endswith(".hdf5") else b"",
    )


def _md5(item: dict[str, Any]) -> str | None:
    try:
        return f"md5:{base64.b64decode(item['md5Hash'], validate=True).hex()}"
    except KeyError:  # objects composed of several have none
        return None
    except (binascii.Error, TypeError) as error:
        raise FormatError(f"Object {item['name']!r} has a malformed md5Hash") from error


def _revision(objects: list[dict[str, Any]]) -> str:
    state = (f"{_name(i)}\0{i.get('md5Hash') or i.get('generation')}\n" for i in objects)
    return f"gcs-{hashlib.sha256(''.join(state).encode()).hexdigest()[:12]}"


def list_datasets(account: str, settings: Settings) -> list[str]:
    """List the ids of all datasets of a bucket.

    Raises:
        NetworkError: The host does not answer as it should.
    """
    found = _objects(account, {"matchGlob": f"**{_METADATA}"}, settings)
    names = (_name(item) for item in found)
    return [name.removesuffix(_METADATA) for name in names if name.endswith(_METADATA)]
