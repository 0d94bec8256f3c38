"""Minari datasets of a Hugging Face account: the first part of an id is the repository."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from offline_data.errors import FormatError, NotFoundError
from offline_data.fetch.client import get_document, get_json
from offline_data.fetch.hub import list_hub
from offline_data.fetch.retry import FetchLimits
from offline_data.readers.hdf5 import MAGIC
from offline_data.strict_json import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offline_data.config import Settings
    from offline_data.sources.base import RemoteFile

_HUB = "https://huggingface.co"
_NAMESPACE = "namespace_metadata.json"
_MOST_REPOS = 1000  # of an account; the hub sends no more at once
_LIMITS = FetchLimits(connect=4.0, read=10.0, tries=2)  # somebody waits for a listing


def list_files(
    account: str, dataset: str, revision: str | None, settings: Settings
) -> tuple[str, tuple[RemoteFile, ...]]:
    """List the files of a dataset.

    Args:
        account: User or organisation.
        dataset: Id, `<repository>[/<path in it>]`.
        revision: Commit, branch or tag; None for the main branch.
        settings: Endpoint and token.

    Returns:
        The sha of the commit, and its files by their paths below the dataset's folder.

    Raises:
        NotFoundError: No such repository, revision or folder.
        AuthError: The hub refuses.
        NetworkError: It does not answer as it should.
    """
    repo, folder = _place(account, dataset)
    listing = list_hub(repo, f"{folder}data", revision, settings)
    return listing.commit, tuple(_raw_file(file, folder) for file in listing.files)


def _place(account: str, dataset: str) -> tuple[str, str]:
    """Return the repository of an id, and its folder there with a slash after it.

    Example:
        >>> _place("farama-minari", "D4RL/door/human-v2")
        ('farama-minari/D4RL', 'door/human-v2/')
    """
    name, _, rest = dataset.partition("/")
    return f"{account}/{name}", f"{rest}/" if rest else ""


def _raw_file(file: RemoteFile, folder: str) -> RemoteFile:
    magic = MAGIC if file.path.endswith(".hdf5") else b""
    return replace(file, path=file.path.removeprefix(folder), magic=magic)


def list_datasets(account: str, settings: Settings) -> list[str]:
    """List the ids of all datasets of an account that anybody may see.

    A repository names its datasets in `namespace_metadata.json`; one without that file is a
    dataset itself if it has data, else it is passed over. Where the hub does not answer, this
    ends within seconds: huggingface_hub would try for minutes, and log every try.

    Raises:
        AuthError: The hub refuses.
        NetworkError: It does not answer as it should.
        FormatError: What it answers is not a list of datasets.
    """
    query = urlencode({"author": account, "limit": _MOST_REPOS})
    url = f"{_endpoint(settings)}/api/datasets?{query}"
    repos = _names(get_json(url, settings, limits=_LIMITS), "id", url)
    return [name for repo in repos for name in _datasets_of(repo, settings)]


def _datasets_of(repo: str, settings: Settings) -> Iterator[str]:
    files = f"{_endpoint(settings)}/datasets/{quote(repo)}/resolve/main"
    url = f"{files}/{_NAMESPACE}"
    try:
        namespace = get_json(url, settings, limits=_LIMITS)
    except NotFoundError:
        with suppress(NotFoundError):
            get_document(f"{files}/data/metadata.json", settings, _as_it_is, limits=_LIMITS)
            yield repo.partition("/")[2]
        return
    if not isinstance(namespace, dict):
        raise FormatError(f"{url} has no list of datasets: {shown(namespace)}")
    yield from _names(namespace.get("datasets", []), None, url)


def _as_it_is(body: bytes, _: str) -> bytes:
    return body


def _names(answer: object, field: str | None, url: str) -> list[str]:
    """Return the names in a list that the hub sent, each in a field of an object if so named."""
    items = answer if isinstance(answer, list) else [None]
    found = [item.get(field) if field and isinstance(item, dict) else item for item in items]
    names = [name for name in found if isinstance(name, str) and name.isprintable()]
    if len(names) < len(items):
        raise FormatError(f"{url} is not a list of names: {shown(answer)}")
    return names


def _endpoint(settings: Settings) -> str:
    return (settings.hub_endpoint or _HUB).rstrip("/")
