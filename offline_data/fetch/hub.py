"""The Hugging Face hub: files of a dataset repository, what it publishes about them, its errors.

The bytes come as those of every other host do, so that they are resumed and verified alike.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from offline_data.base.config import Settings
from offline_data.base.errors import (
    AuthError,
    FormatError,
    NetworkError,
    NoNetworkError,
    NotFoundError,
    OfflineDataError,
    OfflineError,
    UsageError,
)
from offline_data.base.files import is_unicode
from offline_data.base.json import count_of, parse_json, shown
from offline_data.base.urls import redact
from offline_data.fetch.client import FROM_A_COPY
from offline_data.fetch.files import RemoteFile, split_digest
from offline_data.fetch.hub_session import LIBRARY, guard_session
from offline_data.fetch.retry import (
    PASSING,
    FetchLimits,
    TransientError,
    no_network,
    parse_retry_after,
    with_retries,
)

T = TypeVar("T")
_URL = re.compile(r"hf://datasets/(?P<repo>[^@]+)@(?P<revision>[^/]+)/(?P<path>.+)")
_HEX = re.compile(r"[0-9a-f]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ALGORITHMS = {64: "sha256", 40: "git"}
_ADVERT = re.compile(r"(?:For|for) more information check:? \S+ ?")
"""Text that HTTP libraries add to each status."""
_MOST_PAGES = 1_000  # of a listing, up to a thousand entries each: more than any dataset has
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

    guard_session(settings)
    return dict(build_hf_headers(token=settings.hub_token, library_name=LIBRARY))


def with_facts(file: RemoteFile, url: str, settings: Settings) -> RemoteFile:
    """Add size and digest on the hub: sha256 of large files, git's blob id of others."""
    from huggingface_hub import get_hf_file_metadata

    place = url_on_hub(url, settings)
    with hub_errors(url):
        found = get_hf_file_metadata(place, headers=hub_headers(settings), token=False)
    size = found.size if file.size is None else file.size
    algorithm = _ALGORITHMS.get(len(found.etag or "")) if _HEX.fullmatch(found.etag or "") else None
    if algorithm is None or (algorithm == "git" and size is None):
        return replace(file, size=size)
    return replace(file, size=size, digest=f"{algorithm}:{found.etag}")


@dataclass(frozen=True)
class HubListing:
    """The files of a folder of a repository at one commit."""

    commit: str  # sha, 40 hex digits: the same files for ever
    files: tuple[RemoteFile, ...]
    """Sorted by path; `path` is the one in the repository. Each has its size, and a digest: sha256
    of what is kept in LFS or Xet, git's blob id of what is not."""
    card: Mapping[str, Any]  # metadata of the repository's card: the YAML block of its README.md
    private: bool = False  # whether it is known that only its owner can read it

    @property
    def licence(self) -> str | None:
        """The licence that the card states."""
        stated = self.card.get("license")
        return stated if isinstance(stated, str) else None


def list_hub(
    repo: str,
    folder: str,
    revision: str | None,
    settings: Settings,
    *,
    may_be_empty: bool = False,
) -> HubListing:
    """List all files below a folder of a dataset repository on the hub.

    Raises `NotFoundError`, also if there are none unless it `may_be_empty`, `AuthError`, `NetworkError`,
    `OfflineError`.

    Args:
        repo: `user/name` of a dataset repository.
        folder: Posix path in it; empty for all of it.
        revision: Commit, branch or tag; None for the main branch.
        may_be_empty: Whether a repository without files is an answer.

    Returns:
        `commit`, the revision as its sha, and `files`, sorted by path; `licence` and `card` are what the
        repository's README.md states.
    """
    from huggingface_hub.utils import validate_repo_id

    what = f"dataset repository {repo}"
    about = f"{hub_api(settings).endpoint}/api/datasets/{repo}"
    with hub_errors(what):
        validate_repo_id(repo)
    at = f"/revision/{quote(revision, safe='')}" if revision else ""
    answer, _ = _get(f"{about}{at}", what, settings)
    info = answer if isinstance(answer, dict) else {}
    commit, card = info.get("sha"), info.get("cardData") or {}
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise _answer_error(what, f"its commit is {shown(commit)}")
    if not isinstance(card, dict):
        raise _answer_error(what, f"its card is {shown(card)}")
    below = quote(folder.rstrip("/"))
    place: str | None = f"{about}/tree/{commit}{'/' * bool(below)}{below}?recursive=true"
    files: dict[str, RemoteFile] = {}
    pages: set[str] = set()
    while place:
        pages.add(place)
        try:
            page, place = _get(place, what, settings)
        except NoNetworkError as error:  # the first page came
            raise _answer_error(what, f"of its next page, {error.reason}") from None
        if not isinstance(page, list) or not all(isinstance(entry, dict) for entry in page):
            raise _answer_error(what, f"its listing contains {shown(page)}")
        for entry in page:
            if entry.get("type") == "file":
                file = _read_entry(entry, f"hf://datasets/{repo}@{commit}", what)
                files[file.path] = file
        if place and (place in pages or not page or len(pages) == _MOST_PAGES):
            raise _answer_error(what, f"its listing does not end after {len(pages):,} pages")
    if not files and not may_be_empty:
        raise NotFoundError(f"{repo} has no files in {folder or 'it'}")
    listed = tuple(files[path] for path in sorted(files))
    return HubListing(commit, listed, card, private=info.get("private") is True)


def _get(url: str, what: str, settings: Settings) -> tuple[Any, str | None]:
    """Fetch a document of the hub's API; return it and the URL of the page after it."""
    from huggingface_hub.utils import get_session, hf_raise_for_status

    limits = FetchLimits().within(settings.transfer)

    def ask() -> tuple[Any, str | None]:
        response = get_session().get(url, headers=hub_headers(settings), timeout=limits.read)
        hf_raise_for_status(response)
        try:
            value = parse_json(response.content, url)
        except FormatError as error:
            raise _answer_error(what, error.message) from error
        return value, response.links.get("next", {}).get("url")

    return ask_hub(what, ask, settings)


def _read_entry(entry: Mapping[str, Any], home: str, what: str) -> RemoteFile:
    """Return a file of a listing; raises `NetworkError` unless the entry has the hub's form."""
    path, lfs = entry.get("path"), entry.get("lfs")
    if not isinstance(path, str) or not path or not is_unicode(path):
        raise _answer_error(what, f"it lists a file named {shown(path)}")
    digest = entry.get("oid")
    try:
        size = count_of(entry.get("size"), "its size")
        if lfs is not None:
            digest = lfs["oid"]
        digest = f"{'git' if lfs is None else 'sha256'}:{digest}"
        split_digest(digest)
    except (FormatError, UsageError, TypeError, KeyError) as error:
        raise _answer_error(what, f"{shown(path)}: {error}") from error
    return RemoteFile(path, (f"{home}/{path}",), size, digest)


def _answer_error(what: str, found: str) -> NetworkError:
    return NetworkError(
        f"The hub's answer about {what} cannot be used: {found}",
        hint="try again later, or name another hub in HF_ENDPOINT",
    )


def hub_api(settings: Settings) -> Any:
    """Return a `huggingface_hub.HfApi`, to be called inside `hub_errors`; raises `OfflineError`."""
    if settings.offline:
        raise OfflineError(
            "The Hugging Face hub cannot be asked in offline mode",
            hint="run this once without --offline (and without HF_HUB_OFFLINE)",
        )
    from huggingface_hub import HfApi

    guard_session(settings)
    return HfApi(endpoint=settings.hub_endpoint, token=settings.hub_token, library_name=LIBRARY)


def ask_hub(what: str, call: Callable[[], T], settings: Settings, *, once: bool = False) -> T:
    """Call the hub's API, again where that may help, and turn its errors into this package's.

    `call` is for example a method of `hub_api`; an iterator must be used up inside. `what` is the
    repository or account that messages name; `once`: it is not called again.
    """
    limits = FetchLimits().within(settings.transfer)

    def attempt() -> T:
        with hub_errors(what):
            return call()

    return with_retries(attempt, replace(limits, tries=1) if once else limits, time.sleep)


def require_network() -> None:
    """Raise `NoNetworkError` if the hub's host is not found, within seconds."""
    # Called before a library that retries for a minute. Other failures are left to that library.
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    limits = FetchLimits(tries=2)

    def ask() -> None:
        with hub_errors("the hub"):
            get_session().head(constants.ENDPOINT, timeout=limits.connect)

    try:
        with_retries(ask, limits, time.sleep)
    except NoNetworkError:
        raise
    except OfflineDataError:
        pass


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Turn every expected error of huggingface_hub about `what` into one of this package."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # the base class of the HTTP library that this version of huggingface_hub uses
    http_error = HfHubHTTPError.__bases__[0]
    library = sys.modules[http_error.__module__.partition(".")[0]]
    bad_url = getattr(library, "InvalidURL", http_error)  # of a next page, or of a redirect
    try:
        yield
    except OfflineDataError:
        raise
    except HFValidationError as error:
        raise UsageError(f"{what} cannot be on the hub: {error}") from error
    # AttributeError, LookupError, TypeError: of an answer that has another form than the library reads
    except (
        *(http_error, bad_url, OSError, RuntimeError, ValueError),
        *(AttributeError, LookupError, TypeError),
    ) as error:
        cause = error
        if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
            cause = error.__cause__  # an upload in a thread: what failed is the cause
        if absent := no_network(cause, "hf://"):
            raise absent from None
        raise _translate(cause, what, passing=isinstance(cause, http_error)) from error


def _translate(error: BaseException, what: str, *, passing: bool) -> OfflineDataError:
    from huggingface_hub import errors as hub

    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    said = redact(_ADVERT.sub("", " ".join(str(error).split()[:40])))
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
    if status in {409, 412}:
        return NetworkError(
            f"{what} was changed by someone else in the meantime: {said}",
            hint="run the command again",
        )
    answer = f"status {status}" if status else type(error).__name__
    message = f"The hub did not answer about {what}: {answer}: {said}"
    if status in PASSING or (passing and status is None):
        wait = getattr(response, "headers", {}).get("Retry-After")
        now = datetime.now(timezone.utc)
        return TransientError(message, retry_after=parse_retry_after(wait, now))
    return NetworkError(message, hint="try again later, or name another hub in HF_ENDPOINT")
