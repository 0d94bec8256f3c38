"""Files of the Hugging Face hub: their URLs, what it publishes about them, the user's own cache.

Their bytes come as those of every other host do, so that they are resumed and verified alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from offline_data.errors import UsageError
from offline_data.fetch.hub_api import hub_errors

if TYPE_CHECKING:
    from offline_data.config import Settings
    from offline_data.fetch.files import RemoteFile

_URL = re.compile(r"hf://datasets/(?P<repo>[^@]+)@(?P<revision>[^/]+)/(?P<path>.+)")
_HEX = re.compile(r"[0-9a-f]+")
_ALGORITHMS = {64: "sha256", 40: "git"}


@dataclass(frozen=True)
class HubFile:
    """One file of one commit of a dataset repository."""

    repo: str
    """`user/name`."""
    revision: str
    """Commit sha; a branch or tag works but pins nothing."""
    path: str
    """Posix path inside the repository."""


def parse_hub_url(url: str) -> HubFile:
    """Read `hf://datasets/<repo>@<commit>/<path>`; raises `UsageError` for other forms.

    Example:
        >>> parse_hub_url("hf://datasets/u/n@3f2a/data/x.hdf5")
        HubFile(repo='u/n', revision='3f2a', path='data/x.hdf5')
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise UsageError(f"{url!r} is not of the form hf://datasets/USER/NAME@COMMIT/PATH")
    return HubFile(**match.groupdict())


def cached_by_user(url: str) -> Path | None:
    """Return the file of a hub URL in the user's own Hugging Face cache, or None. No network."""
    from huggingface_hub import try_to_load_from_cache

    file = parse_hub_url(url)
    with hub_errors(url):
        found = try_to_load_from_cache(
            file.repo, file.path, revision=file.revision, repo_type="dataset"
        )
    return Path(found).resolve() if isinstance(found, str) else None


def url_on_hub(url: str, settings: Settings) -> str:
    """Return the `https://` URL of `hf://datasets/<repo>@<commit>/<path>`. No network."""
    from huggingface_hub import hf_hub_url

    file = parse_hub_url(url)
    with hub_errors(url):
        place = hf_hub_url(
            file.repo,
            file.path,
            repo_type="dataset",
            revision=file.revision,
            endpoint=settings.hub_endpoint,
        )
    return str(place)


def hub_headers(settings: Settings) -> dict[str, str]:
    """Return the headers that tell the hub who asks; they hold the token. No network."""
    from huggingface_hub.utils import build_hf_headers

    return dict(build_hf_headers(token=settings.hub_token, library_name="offline-data"))


def with_facts(file: RemoteFile, url: str, settings: Settings) -> RemoteFile:
    """Add the size and the digest that the hub publishes to what is known about a file.

    The hub names large files by their sha256, others by git's id of the blob.

    Raises:
        AuthError: Refused, or gated.
        NotFoundError: No such repository, commit or file.
        TransientError: An answer that may be another next time.
        NetworkError: No answer that makes sense.
    """
    from huggingface_hub import get_hf_file_metadata

    place = url_on_hub(url, settings)
    with hub_errors(url):
        found = get_hf_file_metadata(
            place, token=settings.hub_token, endpoint=settings.hub_endpoint
        )
    size = found.size if file.size is None else file.size
    algorithm = _ALGORITHMS.get(len(found.etag or "")) if _HEX.fullmatch(found.etag or "") else None
    if algorithm is None or (algorithm == "git" and size is None):
        return replace(file, size=size)
    return replace(file, size=size, digest=f"{algorithm}:{found.etag}")
