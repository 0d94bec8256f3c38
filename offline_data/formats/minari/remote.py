"""Remotes of Minari datasets: accounts of the Hugging Face hub and Google Cloud Storage buckets."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import quote, urlencode

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError, OfflineError, UsageError
from offline_data.base.ids import did_you_mean
from offline_data.base.json import shown
from offline_data.episode.fields import check_key
from offline_data.fetch.client import get_document, get_json
from offline_data.fetch.gcs import BucketObject, list_bucket
from offline_data.fetch.hub import list_hub
from offline_data.fetch.retry import FetchLimits
from offline_data.formats.base import Release, RemoteFile
from offline_data.raw.hdf5 import MAGIC

_HUB = "https://huggingface.co"
_METADATA = "/data/metadata.json"
_MOST_REPOS = 1000  # per account; the hub's page limit
_LIMITS = FetchLimits(
    connect=4.0, read=10.0, tries=2
)  # a user waits; huggingface_hub would retry for minutes


@dataclass(frozen=True)
class Remote:
    """A remote of Minari datasets: an account of the hub (`hf`), or a bucket (`gcp`)."""

    scheme: str
    account: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.account}"

    def files(
        self, dataset: str, revision: str | None, settings: Settings
    ) -> tuple[str, tuple[RemoteFile, ...]]:
        """List the files of a dataset at a revision, with paths relative to its folder.

        `dataset` is on the hub `<repository>[/<path in it>]`, in a bucket a prefix of objects.
        `revision` is a commit, branch or tag on the hub, for a bucket the result of an earlier
        call; None: the newest. Returns the commit's sha, or `gcs-<12 hex>`, which changes with the
        objects; and the files.

        Raises `NotFoundError`, also for the revision; `AuthError`; `NetworkError`.
        """
        if self.scheme == "hf":
            repository, _, path = dataset.partition("/")
            folder = f"{path}/" if path else ""
            listing = list_hub(f"{self.account}/{repository}", f"{folder}data", revision, settings)
            return listing.commit, tuple(
                replace(file, path=file.path.removeprefix(folder), magic=_magic(file.path))
                for file in listing.files
            )
        objects = list_bucket(f"gs://{self.account}/{dataset}/data/", settings)
        if not objects:
            raise NotFoundError(f"bucket {self.account} has no objects below {dataset}/data/")
        state = "".join(f"{item.name}\0{_content(item)}\n" for item in objects)
        present = f"gcs-{hashlib.sha256(state.encode()).hexdigest()[:12]}"
        if revision not in {None, present}:
            raise NotFoundError(
                f"{dataset} is at revision {present} now, not {revision}",
                hint=f"a bucket keeps only the newest: leave out @{revision}",
            )
        return present, tuple(item.file(f"{dataset}/", _magic(item.name)) for item in objects)

    def datasets(self, settings: Settings) -> list[str]:
        """List the ids of all public datasets, in the form that `files` accepts.

        A repository on the hub lists its datasets in `namespace_metadata.json`; one without that file
        is a dataset itself if it has data. Raises like `files`, and `FormatError`.
        """
        if self.scheme == "gcp":
            found = list_bucket(f"gs://{self.account}", settings, ending=_METADATA)
            return [item.name.removesuffix(_METADATA) for item in found]
        endpoint = (settings.hub_endpoint or _HUB).rstrip("/")
        query = urlencode({"author": self.account, "limit": _MOST_REPOS})
        url = f"{endpoint}/api/datasets?{query}"
        repos = _names(get_json(url, settings, limits=_LIMITS), "id", url)
        return [name for repo in repos for name in _datasets_of(repo, endpoint, settings)]


def _magic(path: str) -> bytes:
    return MAGIC if path.endswith(".hdf5") else b""


def _content(item: BucketObject) -> str:
    """Return the md5 as the bucket reports it, in base64: unchanged by a repeated upload."""
    algorithm, _, value = (item.digest or "").partition(":")
    return base64.b64encode(bytes.fromhex(value)).decode() if algorithm == "md5" else item.version


def _datasets_of(repo: str, endpoint: str, settings: Settings) -> Iterator[str]:
    files = f"{endpoint}/datasets/{quote(repo)}/resolve/main"
    url = f"{files}/namespace_metadata.json"
    try:
        namespace = get_json(url, settings, limits=_LIMITS)
    except NotFoundError:
        with suppress(NotFoundError):
            get_document(f"{files}{_METADATA}", settings, lambda body, _: body, limits=_LIMITS)
            yield repo.partition("/")[2]
        return
    if not isinstance(namespace, dict):
        raise FormatError(f"{url} has no list of datasets: {shown(namespace)}")
    yield from _names(namespace.get("datasets", []), None, url)


def _names(answer: object, field: str | None, url: str) -> list[str]:
    """Return the names in a list sent by the hub, each in `field` of an object if it is given."""
    items = answer if isinstance(answer, list) else [None]
    found = [item.get(field) if field and isinstance(item, dict) else item for item in items]
    names = [name for name in found if isinstance(name, str) and name.isprintable()]
    if len(names) < len(items):
        raise FormatError(f"{url} is not a list of names: {shown(answer)}")
    return names


def parse_remote(text: str) -> Remote:
    """Parse `scheme://account`; raises `UsageError` if it is not a remote of Minari.

    Example:
        >>> parse_remote("hf://farama-minari")
        Remote(scheme='hf', account='farama-minari')
    """
    scheme, separator, account = text.partition("://")
    account = account.strip("/")
    if scheme not in {"hf", "gcp"} or not separator or not account or "/" in account:
        raise UsageError(
            f"{text!r} is not a remote of Minari; expected hf://NAME or gcp://NAME",
            hint="see MINARI_REMOTE",
        )
    return Remote(scheme, account)


def list_remote(settings: Settings) -> list[str]:
    """List the ids of all datasets of the default remote, sorted; raises as `find_release` does."""
    remote = parse_remote(settings.minari_remote)
    _check_online(f"The list of {remote}", "`offline-data list minari --remote`", settings)
    return sorted(remote.datasets(settings))


def find_release(
    name: str, revision: str | None, settings: Settings, known: Iterable[str]
) -> Release:
    """Return a dataset at its remote (`hf://user/pen/human-v2`) or the default one, with its files.

    Near names among those `known` are suggested. Raises `OfflineError`, before a socket is opened, and
    as `Remote.files`.
    """
    remote, dataset = settings.minari_remote, name
    if "://" in name:
        dataset = name.partition("://")[2].partition("/")[2]
        if not dataset:
            raise UsageError(f"{name!r} names a remote but no dataset; expected {name}/DATASET")
        remote = name.removesuffix(f"/{dataset}")
    parsed = parse_remote(remote)
    names = list(known)
    advice = None if name in names else did_you_mean(name, names, count=3)
    at = f"@{revision}" if revision else ""
    command = f"`offline-data download {shlex.quote(f'minari:{name}{at}')}`"
    _check_online(f"Minari dataset {name!r}", advice or command, settings)
    try:
        found, files = parsed.files(dataset, revision, settings)
    except NotFoundError as error:
        raise NotFoundError(
            f"There is no {dataset!r} at {parsed}: {error}", hint=advice or error.shell_hint
        ) from error
    for file in files:
        check_key(tuple(file.path.split("/")))
    return Release(name, found, files)


def _check_online(what: str, advice: str, settings: Settings) -> None:
    if settings.offline:
        raise OfflineError(
            f"{what} is not on this disk, and the remote cannot be reached in offline mode",
            hint=f"online: {advice}",
        )
