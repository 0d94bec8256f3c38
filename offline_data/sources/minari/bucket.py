"""Minari datasets of a public Google Cloud Storage bucket: the beginning of a name is the id."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from offline_data.errors import NotFoundError
from offline_data.fetch.gcs import list_bucket
from offline_data.readers.hdf5 import MAGIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offline_data.config import Settings
    from offline_data.fetch.gcs import BucketObject
    from offline_data.sources.base import RemoteFile

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
        AuthError: The bucket may not be listed without an account.
        NetworkError: The host does not answer as it should.
        IntegrityError: What came is no listing, or an object has a name that is no path.
    """
    objects = list_bucket(f"gs://{account}/{dataset}/data/", settings)
    if not objects:
        raise NotFoundError(f"bucket {account} has no objects below {dataset}/data/")
    files = tuple(
        item.file(f"{dataset}/", MAGIC if item.name.endswith(".hdf5") else b"") for item in objects
    )
    present = _revision(objects)
    if revision not in {None, present}:
        raise NotFoundError(
            f"{dataset} is at revision {present} now, not {revision}",
            hint=f"a bucket keeps only the newest: leave out @{revision}",
        )
    return present, files


def _revision(objects: Sequence[BucketObject]) -> str:
    state = "".join(f"{item.name}\0{_content(item)}\n" for item in objects)
    return f"gcs-{hashlib.sha256(state.encode()).hexdigest()[:12]}"


def _content(item: BucketObject) -> str:
    """Return the md5 as the bucket writes it, in base64: it is the same after an upload anew."""
    algorithm, _, value = (item.digest or "").partition(":")
    return base64.b64encode(bytes.fromhex(value)).decode() if algorithm == "md5" else item.version


def list_datasets(account: str, settings: Settings) -> list[str]:
    """List the ids of all datasets of a bucket.

    Raises:
        AuthError: The bucket may not be listed without an account.
        NetworkError: The host does not answer as it should.
        IntegrityError: What came is no listing.
    """
    found = list_bucket(f"gs://{account}", settings, ending=_METADATA)
    return [item.name.removesuffix(_METADATA) for item in found]
