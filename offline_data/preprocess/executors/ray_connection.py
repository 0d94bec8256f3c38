"""The connection to a Ray cluster, or a Ray that is started here: quiet, and undone afterwards."""

from __future__ import annotations

import logging
import signal
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from offline_data.config import child_environ
from offline_data.errors import AuthError, NetworkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCAL = "local"
"""Ray's own word for: start one here."""

_OBJECT_STORE = 128 << 20
"""Bytes of shared memory of a Ray started here: only jobs and answers pass through it."""

_ANSWERS_WITHIN = 10.0
"""Seconds for a cluster to accept a connection; Ray itself would try for minutes."""


@contextmanager
def connected(
    ray: Any, address: str | None, *, cpus: int | None, namespace: str | None
) -> Iterator[bool]:
    """Be connected to Ray inside; tells whether to one that was started for it.

    The Ray that this process is connected to already is used, and left as it is.

    Args:
        ray: The package.
        address: Where it runs, `auto`, `local`, or None: where `RAY_ADDRESS` says, else `local`.
        cpus: Those of a Ray that is started here; None: all.
        namespace: Of a connection that is made here.

    Raises:
        UsageError: The address is none, or another one than this process is connected to.
        NetworkError: No cluster answers there.
        AuthError: It asks for a token that is not here.
    """
    if ray.is_initialized():
        _check_same(ray, address)
        yield False
        return
    place = address or child_environ().get("RAY_ADDRESS") or _LOCAL
    with _silence(ray):
        _connect(ray, place, cpus, namespace)
        try:
            yield place == _LOCAL
        finally:
            ray.shutdown()


def _check_same(ray: Any, address: str | None) -> None:
    """Refuse to run elsewhere than was asked for."""
    if address is None or address == "auto":
        return
    there = ray.get_runtime_context().gcs_address
    if address != there:
        raise UsageError(
            f"This process is connected to the Ray at {there}, and {address!r} is asked for",
            hint="leave the address out to use the first, or call ray.shutdown() before",
        )


def _connect(ray: Any, address: str, cpus: int | None, namespace: str | None) -> None:
    options: dict[str, object] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == _LOCAL:
        options["num_cpus"] = cpus
        options["object_store_memory"] = _OBJECT_STORE
        options["include_dashboard"] = False
    else:
        _check_answers(address)
    try:
        with _sigterm_kept():
            ray.init(address=address, namespace=namespace, **options)
    except ValueError as error:
        raise UsageError(f"Ray cannot use the address {address!r}: {error}") from error
    except getattr(ray.exceptions, "AuthenticationError", ()) as error:  # not in older Rays
        raise AuthError(f"The Ray cluster at {address!r} lets nobody in: {error}") from error
    except (OSError, RuntimeError) as error:
        raise NetworkError(
            f"Ray cannot be reached or started, address {address!r}: {error}",
            hint="is it the address that `ray start --head` printed? a cluster with tokens needs "
            "RAY_AUTH_MODE=token here, too",
        ) from error


def _check_answers(address: str) -> None:
    """Raise soon, and in a sentence, where nothing listens."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise NetworkError(
            f"No Ray cluster answers at {address}: {error}",
            hint="`ray start --head` prints the address to give; its port is 6379 unless told",
        ) from error


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Undo that `ray.init` replaces the program's own reaction to SIGTERM."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # Neither Ray nor this can set one in another thread, or one that is not Python's.
        with suppress(ValueError, TypeError):
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def _silence(ray: Any) -> Iterator[None]:
    """Keep Ray from printing to standard output that a worker died.

    It does so even with `log_to_driver=False`, and has no public switch for it.
    """
    module = ray._private.worker
    before = getattr(module, "_worker_logs_enabled", True)
    module._worker_logs_enabled = False
    try:
        yield
    finally:
        module._worker_logs_enabled = before
