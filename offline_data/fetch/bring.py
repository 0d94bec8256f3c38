"""Brings one file: under its lock, from place after place, verified, then given its name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from offline_data.disk import disk_errors
from offline_data.errors import AccessError, AuthError, NotFoundError, OfflineDataError
from offline_data.fetch.cache import lock_path, partial_path, read_record
from offline_data.fetch.digest import Hashes, check_whole, hash_file
from offline_data.fetch.errand import Errand, locked
from offline_data.fetch.failures import Failures
from offline_data.fetch.http import offline_error
from offline_data.fetch.hub import cached_by_user, hub_headers, url_on_hub, with_facts
from offline_data.fetch.local import path_of_url
from offline_data.fetch.mirrors import host_of, scheme_of
from offline_data.fetch.partial import Partial
from offline_data.fetch.plan import here
from offline_data.fetch.publish import Arrival, kept, publish
from offline_data.fetch.retry import persist
from offline_data.fetch.transfer import Transfer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offline_data.fetch.files import FetchedFile, RemoteFile
    from offline_data.fetch.plan import FileStep


def bring_file(step: FileStep, index: int, errand: Errand) -> FetchedFile:
    """Fetch, verify and name one file; waits while another process does so.

    Args:
        step: What the plan says; not `keep`.
        index: The file's place in the count of bytes.
        errand: What the run shares.

    Raises:
        OfflineDataError: What `run_fetch` says.
    """
    url = step.file.urls[0]
    with locked(lock_path(errand.settings, url), step, errand):
        record = read_record(errand.settings, url)
        path = here(step.file, errand.settings, record)
        if path is not None and not (step.force and record == step.record):
            file = kept(step.file, path, record)
            errand.meter.sized(index, file.size)
            errand.meter.at(index, file.size)
            return file
        with errand.meter.following(index, step.file.path, errand.progress):
            return _from_places(step, index, errand)


def _from_places(step: FileStep, index: int, errand: Errand) -> FetchedFile:
    failures = Failures(step.file)
    for url in errand.hosts.order(step.places):
        try:
            arrival = _from(url, step, index, errand)
            errand.meter.sized(index, arrival.hashes.size)
            return publish(arrival, step, errand.settings, failures.reasons)
        except OfflineDataError as error:
            errand.check()
            if not failures.add(url, error):
                raise
            if failures.host_is_down and errand.hosts.failed(url) and len(step.places) > 1:
                host = host_of(url)
                errand.progress.note(f"{host} failed: {error.message}; trying other hosts first")
    raise failures.summary()


def _from(url: str, step: FileStep, index: int, errand: Errand) -> Arrival:
    scheme = scheme_of(url)
    if scheme == "file":
        return _users_own(path_of_url(url), url, step, index, errand)
    if scheme == "hf":
        return _from_hub(url, step, index, errand)
    with errand.hosts.slot(url, errand.check):
        return _from_http(url, step, index, errand)


def _from_http(
    url: str,
    step: FileStep,
    index: int,
    errand: Errand,
    headers: dict[str, str] | None = None,
) -> Arrival:
    if errand.client is None:
        raise offline_error(step.file.path, url)
    path = partial_path(errand.settings, step.file.urls[0])
    with Partial(path, step.file, _seen(index, errand)) as partial:
        transfer = Transfer(
            errand.client,
            step.file,
            partial,
            errand.limits,
            sleep=errand.sleep,
            check=errand.check,
            sized=lambda size: errand.meter.sized(index, size),
            headers=headers,
        )
        transfer.bring(url)
    return Arrival(url, path, partial.hashes, etag=transfer.validator)


def _from_hub(url: str, step: FileStep, index: int, errand: Errand) -> Arrival:
    cached = cached_by_user(url)
    if cached is not None and not (step.force and not errand.settings.offline):
        try:
            return _users_own(cached, url, step, index, errand)
        except OfflineDataError as error:
            if errand.settings.offline:
                raise
            errand.progress.note(f"{cached} in the Hugging Face cache is passed over: {error}")
    if errand.settings.offline:
        raise offline_error(step.file.path, url)
    with errand.hosts.slot(url, errand.check):
        return _from_hub_itself(url, step, index, errand)


def _from_hub_itself(url: str, step: FileStep, index: int, errand: Errand) -> Arrival:
    if step.file.digest is None:
        step = replace(step, file=_asked(url, step, errand))
    place, headers = url_on_hub(url, errand.settings), hub_headers(errand.settings)
    try:
        return replace(_from_http(place, step, index, errand, headers), url=url)
    except (AuthError, NotFoundError):
        _asked(url, step, errand)  # which knows whether it is gated, private or not there
        raise


def _asked(url: str, step: FileStep, errand: Errand) -> RemoteFile:
    return persist(lambda: with_facts(step.file, url, errand.settings), errand.limits, errand.sleep)


def _users_own(path: Path, url: str, step: FileStep, index: int, errand: Errand) -> Arrival:
    try:
        hashes = _verified(path, url, step, _seen(index, errand))
    except AccessError as error:
        raise NotFoundError(f"There is no {step.file.path} at {path}: {error.message}") from error
    return Arrival(url, path, hashes, outside=True)


def _verified(path: Path, url: str, step: FileStep, seen: Callable[[int], None]) -> Hashes:
    with disk_errors(path):
        hashes = hash_file(path, step.file, seen)
    check_whole(step.file, hashes, url)
    return hashes


def _seen(index: int, errand: Errand) -> Callable[[int], None]:
    def seen(count: int) -> None:
        errand.check()
        errand.meter.at(index, count)

    return seen
