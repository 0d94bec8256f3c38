"""Limits of what `huggingface_hub` does with the token, and of how long it waits, for this package.

Answers of a hub may name any address: for the next page of a listing, or to verify an upload.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from offline_data.base.config import Settings
from offline_data.fetch.retry import FetchLimits

LIBRARY = "offline-data"  # in the user agent of this package; other requests are sent as they are
_WAITS = {"retry-after": r"^\s*([0-9]+)\s*$", "ratelimit": r"\bt\s*=\s*([0-9]+)"}
"""Headers that ask to wait, and where they have the seconds."""

_hubs: set[tuple[str, str]] = set()
_pushes = 0  # number of pushes that are running


def guard_session(settings: Settings) -> None:
    """Make `huggingface_hub` send the token of this package's requests to the hub only."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    _hubs.add(_origin(settings.hub_endpoint or constants.ENDPOINT))
    if hasattr(_http, "set_client_factory"):
        make, replace_factory = _http._GLOBAL_CLIENT_FACTORY, _http.set_client_factory
    else:  # before 1.0
        make, replace_factory = _http._GLOBAL_BACKEND_FACTORY, _http.configure_http_backend
    if not isinstance(make, _GuardedFactory):
        replace_factory(_GuardedFactory(make))


@contextmanager
def quiet_push() -> Iterator[None]:
    """Hide bars, log lines and warnings of `huggingface_hub`, and honour no wait of hours."""
    # The lines would show signed addresses; `progress` shows a bar.
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    global _pushes
    hidden, logger = are_progress_bars_disabled(), logging.getLogger("huggingface_hub")
    level = logger.level
    disable_progress_bars()
    logger.setLevel(logging.CRITICAL)
    _pushes += 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        _pushes -= 1
        logger.setLevel(level)
        if not hidden:
            enable_progress_bars()


@dataclass(frozen=True)
class _GuardedFactory:
    """Makes the sessions that another factory makes, with `_send` in place of their `send`."""

    make: Callable[[], Any]

    def __call__(self) -> Any:
        session = self.make()
        session.send = partial(_send, session.send)
        return session


def _send(send: Callable[..., Any], request: Any, **options: Any) -> Any:
    """Send a request without a token that is not for its host."""
    ours = LIBRARY in str(request.headers.get("user-agent", ""))
    if ours and _origin(str(request.url)) not in _hubs:
        request.headers.pop("authorization", None)
    response = send(request, **options)
    for name, pattern in _WAITS.items() if _pushes else ():
        wait = re.search(pattern, response.headers.get(name, ""))
        if wait and int(wait[1]) > FetchLimits.longest_retry_after:
            del response.headers[name]
    return response


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2].lower()
