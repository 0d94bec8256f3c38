"""The Hugging Face hub, through huggingface_hub: the user's own cache first, then a download.

This is the only file that imports huggingface_hub; its errors leave here as this package's.
"""

from __future__ import annotations

import inspect
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data.disk import disk_error
from offline_data.errors import (
    AuthError,
    NetworkError,
    NotFoundError,
    OfflineDataError,
    OfflineError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from offline_data.config import Settings

_URL = re.compile(r"hf://datasets/(?P<repo>[^@]+)@(?P<revision>[^/]+)/(?P<path>.+)")
_LOG_IN = (
    "log in with `hf auth login` or set HF_TOKEN; a gated dataset also needs its terms accepted"
)


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


def hub_api(settings: Settings) -> Any:
    """Return a `huggingface_hub.HfApi` with the endpoint and token of the settings.

    Call its methods inside `hub_errors`, and never in offline mode.

    Raises:
        OfflineError: `settings.offline` is set.
    """
    if settings.offline:
        raise OfflineError(
            "The Hugging Face hub cannot be asked in offline mode",
            hint="run this once without --offline (and without HF_HUB_OFFLINE)",
        )
    from huggingface_hub import HfApi

    return HfApi(endpoint=settings.hub_endpoint, token=settings.hub_token)


def cached_by_user(url: str) -> Path | None:
    """Return the file of a hub URL in the user's own Hugging Face cache, or None. No network."""
    from huggingface_hub import try_to_load_from_cache

    file = parse_hub_url(url)
    with hub_errors(url):
        found = try_to_load_from_cache(
            file.repo, file.path, revision=file.revision, repo_type="dataset"
        )
    return Path(found).resolve() if isinstance(found, str) else None


def download_from_hub(
    url: str, settings: Settings, folder: Path, seen: Callable[[int], None]
) -> Path:
    """Download one file of the hub under `folder` and return where it is.

    Args:
        url: `hf://datasets/<repo>@<commit>/<path>`.
        settings: Endpoint and token.
        folder: A folder of its own, so that no second copy stays in a cache.
        seen: Told the bytes so far; may raise to stop the download.

    Raises:
        AuthError: Refused, or gated.
        NotFoundError: No such repository, commit or file.
        NetworkError: No answer, or something else than the file; huggingface_hub has retried.
        NoSpaceError: The disk became full.
    """
    from huggingface_hub import hf_hub_download

    file = parse_hub_url(url)
    with hub_errors(url, folder):
        found = hf_hub_download(
            file.repo,
            file.path,
            repo_type="dataset",
            revision=file.revision,
            endpoint=settings.hub_endpoint,
            token=settings.hub_token,
            local_dir=folder,
            cache_dir=folder,  # else it would copy from the user's cache, which was passed over
            **_bars(hf_hub_download, seen),
        )
    return Path(found)


def _bars(download: Callable[..., Any], seen: Callable[[int], None]) -> dict[str, Any]:
    """Put our progress in the place of huggingface_hub's bar, or switch its bar off."""
    if "tqdm_class" in inspect.signature(download).parameters:
        return {"tqdm_class": _bar_class(seen)}
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    return {}


def _bar_class(seen: Callable[[int], None]) -> type[Any]:
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        """Counts and draws nothing. Bytes of the network and of the file are one count."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            known = {name: kwargs[name] for name in ("total", "initial", "unit") if name in kwargs}
            super().__init__(*args, **known, disable=True)
            self.bytes = int(kwargs.get("initial") or 0)

        def update(self, n: float | None = 1) -> None:
            """Count bytes of the file."""
            self.bytes += int(n or 0)
            seen(self.bytes)

        def update_transfer(self, n: float) -> None:
            """Ignore bytes of the network; having this method makes it the only bar."""

    return Bar


@contextmanager
def hub_errors(what: str, folder: Path | None = None) -> Iterator[None]:
    """Turn every expected error of huggingface_hub into one of this package.

    Args:
        what: URL or repository that messages name.
        folder: Where files are written, if any.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # the base class of the HTTP library that this version of huggingface_hub uses
    http_error = HfHubHTTPError.__bases__[0]
    try:
        yield
    except OfflineDataError:
        raise
    except HFValidationError as error:
        raise UsageError(f"{what} cannot be a file of the hub: {error}") from error
    except (http_error, OSError, RuntimeError, ValueError) as error:
        raise _translate(error, what, folder) from error


def _translate(error: BaseException, what: str, folder: Path | None) -> OfflineDataError:
    from huggingface_hub import errors as hub

    if isinstance(error, hub.LocalEntryNotFoundError) and error.__cause__ is not None:
        return _translate(error.__cause__, what, folder)
    status = getattr(getattr(error, "response", None), "status_code", None)
    said = " ".join(str(error).split()[:40])
    if isinstance(error, hub.OfflineModeIsEnabled):
        return OfflineError(f"{what} is not on this disk and the hub is offline: {said}")
    missing = (hub.RepositoryNotFoundError, hub.RevisionNotFoundError, hub.EntryNotFoundError)
    if isinstance(error, missing) and not isinstance(error, hub.GatedRepoError):
        return NotFoundError(f"The hub has no {what}: {said}", hint=f"if it is private, {_LOG_IN}")
    if status in {401, 403}:
        return AuthError(f"The hub refused {what} with status {status}: {said}", hint=_LOG_IN)
    if isinstance(error, OSError) and error.errno is not None and status is None and folder:
        return disk_error(error, folder)
    answer = f"status {status}" if status else type(error).__name__
    return NetworkError(
        f"{what} could not be fetched from the hub: {answer}: {said}",
        hint="try again later, or name a mirror in OFFLINE_DATA_MIRRORS",
    )
