"""Minari datasets of a Hugging Face account: the first part of an id is the repository."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from offline_data.errors import FormatError, NotFoundError
from offline_data.fetch.http import get_json
from offline_data.fetch.hub_api import ask_hub, hub_api
from offline_data.fetch.hub_list import list_hub
from offline_data.readers.hdf5 import MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offline_data.config import Settings
    from offline_data.sources.base import RemoteFile

_HUB = "https://huggingface.co"
_NAMESPACE = "namespace_metadata.json"


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
    """List the ids of all datasets of an account.

    A repository names its datasets in `namespace_metadata.json`; one without that file is a
    dataset itself if it has data, else it is passed over.

    Raises:
        AuthError: The hub refuses.
        NetworkError: It does not answer as it should.
    """
    api = hub_api(settings)
    repos = ask_hub(
        f"datasets of {account}",
        lambda: [str(info.id) for info in api.list_datasets(author=account)],
    )
    return [name for repo in repos for name in _datasets_of(repo, api, settings)]


def _datasets_of(repo: str, api: Any, settings: Settings) -> Iterator[str]:
    endpoint = (settings.hub_endpoint or _HUB).rstrip("/")
    url = f"{endpoint}/datasets/{quote(repo)}/resolve/main/{_NAMESPACE}"
    try:
        namespace = get_json(url, settings)
    except NotFoundError:
        if ask_hub(
            f"dataset repository {repo}",
            lambda: api.file_exists(repo, "data/metadata.json", repo_type="dataset"),
        ):
            yield repo.partition("/")[2]
        return
    names = namespace.get("datasets", []) if isinstance(namespace, dict) else None
    if not isinstance(names, list):
        raise FormatError(f"{url} has no list of datasets: {type(namespace).__name__}")
    yield from (str(name) for name in names)
