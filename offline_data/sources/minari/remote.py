"""Remotes of Minari datasets by name: `hf://account` and `gcp://bucket`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.episodes.fields import check_key
from offline_data.errors import NotFoundError, OfflineError, UsageError
from offline_data.ids import nearest
from offline_data.sources.base import Release
from offline_data.sources.minari import bucket, hub

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offline_data.config import Settings
    from offline_data.sources.base import RemoteFile

_SCHEMES = {"hf": hub, "gcp": bucket}


@dataclass(frozen=True)
class Remote:
    """One place with Minari datasets."""

    scheme: str
    """`hf` or `gcp`."""
    account: str
    """User or organisation of the hub, or a bucket."""

    def __str__(self) -> str:
        """Give back the text that parses to this remote."""
        return f"{self.scheme}://{self.account}"


def parse_remote(text: str) -> Remote:
    """Parse `scheme://account`.

    Raises:
        UsageError: Another form, or a scheme Minari does not have.

    Example:
        >>> parse_remote("hf://farama-minari")
        Remote(scheme='hf', account='farama-minari')
    """
    scheme, separator, account = text.partition("://")
    account = account.strip("/")
    if scheme not in _SCHEMES or not separator or not account or "/" in account:
        forms = " or ".join(f"{known}://NAME" for known in _SCHEMES)
        raise UsageError(
            f"{text!r} is not a remote of Minari; expected {forms}", hint="see MINARI_REMOTE"
        )
    return Remote(scheme, account)


def split_name(name: str, default: str) -> tuple[Remote, str]:
    """Split a dataset's name into its remote, `default` where it names none, and its own id.

    Example:
        >>> split_name("hf://user/pen/human-v2", "hf://farama-minari")
        (Remote(scheme='hf', account='user'), 'pen/human-v2')
    """
    if "://" not in name:
        return parse_remote(default), name
    scheme, _, rest = name.partition("://")
    account, _, dataset = rest.partition("/")
    if not dataset:
        raise UsageError(f"{name!r} names a remote but no dataset; expected {name}/DATASET")
    return parse_remote(f"{scheme}://{account}"), dataset


def list_remote(remote: Remote, settings: Settings) -> list[str]:
    """List the ids of all datasets of a remote, sorted, in the form `resolve` takes them.

    Raises:
        OfflineError: `settings.offline` is set; no socket is opened.
        NetworkError: The host does not answer as it should.
    """
    _check_online(f"The list of {remote}", "offline-data list minari --remote", settings)
    names = _SCHEMES[remote.scheme].list_datasets(remote.account, settings)
    is_default = str(remote) == str(parse_remote(settings.minari_remote))
    return sorted(name if is_default else f"{remote}/{name}" for name in names)


def find_release(
    name: str, revision: str | None, settings: Settings, known: Iterable[str]
) -> Release:
    """Find a dataset at its remote and list its files.

    Args:
        name: The dataset, with or without a remote.
        revision: Commit, branch or tag of the hub; None for the newest.
        settings: Default remote, endpoint, token.
        known: Names to offer where there is none of that name.

    Raises:
        OfflineError: `settings.offline` is set; no socket is opened.
        NotFoundError: No such dataset or revision.
        AuthError: The host refuses.
        NetworkError: The host does not answer as it should.
    """
    remote, dataset = split_name(name, settings.minari_remote)
    names = set(known)
    near = [] if name in names else nearest(name, names)
    advice = f"did you mean {', '.join(near)}?" if near else ""
    at = f"@{revision}" if revision else ""
    command = f"offline-data download minari:{name}{at}"
    _check_online(f"Minari dataset {name!r}", advice or command, settings)
    try:
        found, files = _SCHEMES[remote.scheme].list_files(
            remote.account, dataset, revision, settings
        )
    except NotFoundError as error:
        raise NotFoundError(
            f"There is no {dataset!r} at {remote}: {error}", hint=advice or error.hint
        ) from error
    return _release(name, found, files)


def _release(name: str, revision: str, files: tuple[RemoteFile, ...]) -> Release:
    for file in files:
        check_key(tuple(file.path.split("/")))
    return Release(name, revision, files)


def _check_online(what: str, advice: str, settings: Settings) -> None:
    if settings.offline:
        raise OfflineError(
            f"{what} is not on this disk, and the remote cannot be reached in offline mode",
            hint=f"online: {advice}",
        )
