"""The Hugging Face hub: files of a dataset repository, what it publishes about them, its errors.

The bytes come as those of every other host do, so that they are resumed and verified alike.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from offline_data.errors import (
    AuthError,
    FormatError,
    NetworkError,
    NotFoundError,
    OfflineDataError,
    OfflineError,
    UsageError,
)
from offline_data.fetch.client import FROM_A_COPY
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.retry import (
    PASSING,
    FetchLimits,
    TransientError,
    parse_retry_after,
    with_retries,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from offline_data.config import Settings

T = TypeVar("T")
_URL = re.compile(r"hf://datasets/(?P<repo>[^@]+)@(?P<revision>[^/]+)/(?P<path>.+)")
_HEX = re.compile(r"[0-9a-f]+")
_ALGORITHMS = {64: "sha256", 40: "git"}
_MOST_ENTRIES = 1_000_000
_LOG_IN = (
    "log in with `hf auth login` or set HF_TOKEN; a gated dataset also needs its terms accepted"
)


def parse_hub_url(url: str) -> tuple[str, str, str]:
    """Read repository, revision and path of a hub URL; raises `UsageError` for other forms.

    Example:
        >>> parse_hub_url("hf://datasets/u/n@3f2a/data/x.hdf5")
        ('u/n', '3f2a', 'data/x.hdf5')
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise UsageError(f"{url!r} is not of the form hf://datasets/USER/NAME@COMMIT/PATH")
    return match["repo"], match["revision"], match["path"]


def cached_by_user(url: str) -> Path | None:
    """Return the file of a hub URL in the user's own Hugging Face cache, or None. No network."""
    from huggingface_hub import try_to_load_from_cache

    repo, revision, path = parse_hub_url(url)
    with hub_errors(url):
        found = try_to_load_from_cache(repo, path, revision=revision, repo_type="dataset")
    return Path(found).resolve() if isinstance(found, str) else None


def url_on_hub(url: str, settings: Settings) -> str:
    """Return the `https://` URL of `hf://datasets/<repo>@<commit>/<path>`. No network."""
    from huggingface_hub import hf_hub_url

    repo, revision, path = parse_hub_url(url)
    end = settings.hub_endpoint
    with hub_errors(url):
        return str(hf_hub_url(repo, path, repo_type="dataset", revision=revision, endpoint=end))


def hub_headers(settings: Settings) -> dict[str, str]:
    """Return the headers that tell the hub who asks; they hold the token. No network."""
    from huggingface_hub.utils import build_hf_headers

    return dict(build_hf_headers(token=settings.hub_token, library_name="offline-data"))


def with_facts(file: RemoteFile, url: str, settings: Settings) -> RemoteFile:
    """Add the size and the digest that the hub publishes to what is known about a file.

    The hub names large files by their sha256, others by git's id of the blob.
    """
    from huggingface_hub import get_hf_file_metadata

    place, token, end = url_on_hub(url, settings), settings.hub_token, settings.hub_endpoint
    with hub_errors(url):
        found = get_hf_file_metadata(place, token=token, endpoint=end)
    size = found.size if file.size is None else file.size
    algorithm = _ALGORITHMS.get(len(found.etag or "")) if _HEX.fullmatch(found.etag or "") else None
    if algorithm is None or (algorithm == "git" and size is None):
        return replace(file, size=size)
    return replace(file, size=size, digest=f"{algorithm}:{found.etag}")


@dataclass(frozen=True)
class HubListing:
    """The files of a folder of a repository at one commit."""

    commit: str
    """Sha, 40 hex digits: the same files for ever."""
    files: tuple[RemoteFile, ...]
    """Sorted by path; `path` is the one in the repository. Each has its size, and a digest: sha256
    of what is kept in LFS or Xet, git's blob id of what is not."""
    card: Mapping[str, Any]
    """Metadata of the repository's card: the YAML block of its README.md."""


def list_hub(repo: str, folder: str, revision: str | None, settings: Settings) -> HubListing:
    """List all files below a folder.

    Raises `NotFoundError`, `AuthError`, `NetworkError`, `OfflineError`.

    Args:
        repo: `user/name` of a dataset repository.
        folder: Posix path in it; empty for all of it.
        revision: Commit, branch or tag; None for the main branch.
        settings: Endpoint and token.
    """
    api, what = hub_api(settings), f"dataset repository {repo}"
    info = ask_hub(what, lambda: api.dataset_info(repo, revision=revision), settings)
    commit = str(info.sha)

    def entries() -> list[Any]:
        listed = api.list_repo_tree(
            repo,
            path_in_repo=folder.rstrip("/") or None,
            recursive=True,
            revision=commit,
            repo_type="dataset",
        )
        return list(islice(listed, _MOST_ENTRIES + 1))

    found = sorted(ask_hub(what, entries, settings), key=lambda entry: str(entry.path))
    if len(found) > _MOST_ENTRIES:
        raise FormatError(f"The listing of {repo} has more than {_MOST_ENTRIES:,} entries")
    files = tuple(
        RemoteFile(
            entry.path,
            (f"hf://datasets/{repo}@{commit}/{entry.path}",),
            entry.size,
            f"sha256:{entry.lfs.sha256}" if entry.lfs else f"git:{entry.blob_id}",
        )
        for entry in found
        if hasattr(entry, "size")
    )
    if not files:
        raise NotFoundError(f"{repo} has no files in {folder or 'it'}")
    return HubListing(commit, files, info.card_data.to_dict() if info.card_data else {})


def hub_api(settings: Settings) -> Any:
    """Return a `huggingface_hub.HfApi`, to be called inside `hub_errors`; raises `OfflineError`."""
    if settings.offline:
        raise OfflineError(
            "The Hugging Face hub cannot be asked in offline mode",
            hint="run this once without --offline (and without HF_HUB_OFFLINE)",
        )
    from huggingface_hub import HfApi

    return HfApi(endpoint=settings.hub_endpoint, token=settings.hub_token)


def ask_hub(what: str, call: Callable[[], T], settings: Settings) -> T:
    """Call the hub's API, again where that may help, and turn its errors into this package's.

    Args:
        what: Repository or account that messages name.
        call: For example a method of `hub_api`; an iterator must be used up inside.
        settings: How often a user wants to try.
    """

    def attempt() -> T:
        with hub_errors(what):
            return call()

    return with_retries(attempt, FetchLimits().within(settings.transfer), time.sleep)


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Turn every expected error of huggingface_hub about `what` into one of this package."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # the base class of the HTTP library that this version of huggingface_hub uses
    http_error = HfHubHTTPError.__bases__[0]
    try:
        yield
    except OfflineDataError:
        raise
    except HFValidationError as error:
        raise UsageError(f"{what} cannot be on the hub: {error}") from error
    except (http_error, OSError, RuntimeError, ValueError) as error:
        raise _translate(error, what, passing=isinstance(error, http_error)) from error


def _translate(error: BaseException, what: str, *, passing: bool) -> OfflineDataError:
    from huggingface_hub import errors as hub

    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    said = " ".join(str(error).split()[:40])
    if isinstance(error, hub.OfflineModeIsEnabled):
        return OfflineError(f"{what} is not on this disk and the hub is offline: {said}")
    missing = (hub.RepositoryNotFoundError, hub.RevisionNotFoundError, hub.EntryNotFoundError)
    if status == 404 or (isinstance(error, missing) and not isinstance(error, hub.GatedRepoError)):
        return NotFoundError(f"The hub has no {what}: {said}", hint=f"if it is private, {_LOG_IN}")
    if status in {401, 403}:
        return AuthError(
            f"The hub refused {what} with status {status}: {said}",
            hint=f"{_LOG_IN}; {FROM_A_COPY}",
        )
    answer = f"status {status}" if status else type(error).__name__
    message = f"The hub did not answer about {what}: {answer}: {said}"
    if status in PASSING or (passing and status is None):
        wait = getattr(response, "headers", {}).get("Retry-After")
        now = datetime.now(timezone.utc)
        return TransientError(message, retry_after=parse_retry_after(wait, now))
    return NetworkError(message, hint="try again later, or name another hub in HF_ENDPOINT")
