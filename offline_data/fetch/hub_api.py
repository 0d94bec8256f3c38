"""Questions to the Hugging Face hub through huggingface_hub, whose errors become this package's."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from offline_data.errors import (
    AuthError,
    NetworkError,
    NotFoundError,
    OfflineDataError,
    OfflineError,
    UsageError,
)
from offline_data.fetch.limits import FetchLimits
from offline_data.fetch.retry import PASSING, TransientError, parse_retry_after, persist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from offline_data.config import Settings

T = TypeVar("T")
_LOG_IN = (
    "log in with `hf auth login` or set HF_TOKEN; a gated dataset also needs its terms accepted"
)


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


def ask_hub(
    what: str,
    call: Callable[[], T],
    *,
    limits: FetchLimits | None = None,
    sleep: Callable[[float], None] | None = None,
) -> T:
    """Call the hub's API, again where that may help, and turn its errors into this package's.

    Args:
        what: Repository or account that messages name.
        call: Asks the hub, for example a method of `hub_api`; must have used up what it returns.
        limits: Waits and tries; None for the defaults.
        sleep: Waits so many seconds between tries; None for `time.sleep`.

    Raises:
        AuthError, NotFoundError, UsageError: What the hub said.
        NetworkError: It does not answer as it should.
    """
    import time

    def attempt() -> T:
        with hub_errors(what):
            return call()

    return persist(attempt, limits or FetchLimits(), sleep or time.sleep)


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Turn every expected error of huggingface_hub into one of this package.

    Args:
        what: URL or repository that messages name.
    """
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
    if isinstance(error, missing) and not isinstance(error, hub.GatedRepoError):
        return NotFoundError(f"The hub has no {what}: {said}", hint=f"if it is private, {_LOG_IN}")
    if status in {401, 403}:
        return AuthError(f"The hub refused {what} with status {status}: {said}", hint=_LOG_IN)
    answer = f"status {status}" if status else type(error).__name__
    message = f"The hub did not answer about {what}: {answer}: {said}"
    if status in PASSING or (passing and status is None):
        wait = getattr(response, "headers", {}).get("Retry-After")
        now = datetime.now(timezone.utc)
        return TransientError(message, retry_after=parse_retry_after(wait, now))
    return NetworkError(message, hint="try again later, or name another hub in HF_ENDPOINT")
