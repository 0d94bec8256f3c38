"""Brings one file: under its lock, from place after place, verified, then given its name."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from offline_data.disk import disk_errors
from offline_data.errors import AccessError, NotFoundError, OfflineDataError
from offline_data.fetch.cache import hub_folder, lock_path, partial_path, read_record
from offline_data.fetch.digest import Hashes, check_whole, hash_file
from offline_data.fetch.errand import Errand, locked
from offline_data.fetch.failures import Failures
from offline_data.fetch.http import offline_error
from offline_data.fetch.hub import cached_by_user, download_from_hub
from offline_data.fetch.local import path_of_url
from offline_data.fetch.mirrors import scheme_of
from offline_data.fetch.partial import Partial
from offline_data.fetch.plan import here
from offline_data.fetch.publish import Arrival, kept, publish
from offline_data.fetch.transfer import Transfer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

    from offline_data.fetch.files import FetchedFile
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
            if failures.host_is_down:
                errand.hosts.failed(url)
    raise failures.summary()


def _from(url: str, step: FileStep, index: int, errand: Errand) -> Arrival:
    scheme = scheme_of(url)
    if scheme == "file":
        return _users_own(path_of_url(url), url, step, index, errand)
    if scheme == "hf":
        return _from_hub(url, step, index, errand)
    if errand.client is None:
        raise offline_error(step.file.path, url)
    with errand.hosts.slot(url, errand.check):
        return _from_http(errand.client, url, step, index, errand)


def _from_http(
    client: httpx.Client, url: str, step: FileStep, index: int, errand: Errand
) -> Arrival:
    path = partial_path(errand.settings, step.file.urls[0])
    seen = _seen(index, errand)
    with Partial(path, step.file, seen) as partial:
        transfer = Transfer(
            client,
            step.file,
            partial,
            errand.limits,
            sleep=errand.sleep,
            check=errand.check,
            sized=lambda size: errand.meter.sized(index, size),
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
    return _from_hub_itself(url, step, index, errand)


def _from_hub_itself(url: str, step: FileStep, index: int, errand: Errand) -> Arrival:
    folder = hub_folder(errand.settings, step.file.urls[0])
    shutil.rmtree(folder, ignore_errors=True)  # huggingface_hub does not resume
    try:
        with errand.hosts.slot(url, errand.check):
            path = download_from_hub(url, errand.settings, folder, _seen(index, errand))
        hashes = _verified(path, url, step, lambda _: errand.check())
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Arrival(url, path, hashes, folder=folder)


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
