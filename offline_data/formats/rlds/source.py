"""Open X-Embodiment, and any other RLDS dataset in TFRecord files; needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
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
)
from offline_data.base.files import is_file, is_folder
from offline_data.base.json import read_json
from offline_data.base.plurals import plural
from offline_data.fetch import gcs
from offline_data.fetch.client import get_json
from offline_data.fetch.gcs import BucketObject
from offline_data.fetch.mirrors import path_of_url, scheme_of, with_mirrors
from offline_data.fetch.retry import FetchLimits
from offline_data.formats.base import CatalogSource, Release, RemoteFile
from offline_data.formats.catalogues.openx import OpenXCatalog, read_table
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.folders import entries
from offline_data.formats.rlds.dataset import FEATURES, INFO, LABELS, RldsDataset
from offline_data.formats.rlds.leaves import LEAVES
from offline_data.formats.rlds.splits import read_splits, select
from offline_data.formats.rlds.webdataset import (
    WebDataset,
    is_hub,
    is_webdataset,
    open_webdataset,
    release_of_webdataset,
    tars_of,
    webdataset_release,
)

BUCKETS = ("gresearch/robotics", "gdm-robotics-open-x-embodiment")  # public copies, same files

BRIDGE_HOST = "https://rail.eecs.berkeley.edu/datasets/bridge_release/data/tfds"
"""The authors' host of `bridge_dataset`, which cannot be listed."""

ALIASES = {  # names in other loaders of datasets that are listed under another name
    "aloha_mobile_dataset": "aloha_mobile",
    "bridge_orig": "bridge_dataset",
    "bridge_oxe": "bridge",
    "fmb_dataset": "fmb",
    "roboset": "robo_set",
}

_COPY = "`offline-data convert DIR NAME --from openx` reads a copy that is on this machine"
_LIMITS = FetchLimits(connect=5.0, read=20.0, tries=2)  # interactive listings


class OpenX(OpenXCatalog, CatalogSource):
    """RLDS datasets: those of the public bucket by name, and any other from a folder of the user.

    The revision `hub` is the copy in tar files on huggingface.co: `openx:viola@hub`.

    A name may end with a split or a slice of one, in TFDS notation: `viola/train`,
    `viola/train[:100]`, `viola/train[10%:20%]+test`. Without one it is all splits, `train` first.

    Example:
        >>> [entry.episodes for entry in OpenX().catalog() if entry.name == "viola"]
        [150]
    """

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        if is_hub(revision):
            return webdataset_release(name, str(revision), settings)
        dataset, _, split = name.partition("/")
        known = read_table().get(dataset)
        if known is None or not known.version:
            raise self._missing_error(dataset)
        version = revision or known.version
        places = _places_of(dataset, version)
        try:
            about, place = _read_info(dataset, version, places, settings)
        except OfflineError:
            raise OfflineError(
                f"openx:{name} is not on this disk, and its files cannot be listed in offline mode",
                hint=f"online: `offline-data download 'openx:{name}'`",
            ) from None
        pieces = select(read_splits(about, f"{place}/{INFO}"), split or None)
        objects = _list_objects(place, settings)
        labels = sorted(path for path in objects if path.endswith(LABELS))
        opening = (INFO, FEATURES, *labels)
        files = dict.fromkeys([*opening, *(piece.file for piece in pieces)])
        ordered = (place, *(other for other in places if other != place))
        remote = []
        for path in files:
            urls = tuple(f"{url}/{quote(path)}" for url in ordered)
            listed_as = objects.get(path)
            facts = (listed_as.size, listed_as.digest) if listed_as else ()
            remote.append(RemoteFile(path, urls, *facts))
        return Release(name, version, tuple(remote), opening=opening, shards=len(pieces))

    def has_format(self, path: Path) -> bool:
        """Return True if `path` is a folder with `dataset_info.json` and `features.json`.

        They may also be in a subfolder named like the version, if there is only one. Or the folder
        has tar files of the hub's copy, or is one.
        """
        return _find_folder(path) is not None or is_webdataset(path)

    def release_of(self, path: Path, name: str) -> Release:
        if _find_folder(path) is None and tars_of(path):
            return release_of_webdataset(path, name)
        folder = _need_folder(path)
        splits = read_splits(read_json(folder / INFO), str(folder / INFO))
        pieces = select(splits, None)
        needed = [piece.file for piece in pieces]
        missing = [file for file in needed if not is_file(folder / file)]
        if missing:
            raise FormatError(
                f"{folder} lacks {len(missing)} of the {plural(len(needed), 'file')} that {INFO} "
                "names: "
                f"{missing[0]}{' …' if len(missing) > 1 else ''}",
                hint="copy the whole dataset",
            )
        labels = [entry.name for entry in entries(folder) if entry.name.endswith(LABELS)]
        described = [LEAVES] if is_file(folder / LEAVES) else []
        files = [folder / file for file in (INFO, FEATURES, *described, *labels, *needed)]
        names = tuple(dict.fromkeys(piece.split for piece in pieces))
        revision = fingerprint(folder, files)
        return Release(name, revision, local=folder, shards=len(needed), splits=names)

    def open(self, release: Release, raw: Path) -> RldsDataset | WebDataset:
        tars = is_hub(release.revision) if release.local is None else tars_of(raw)
        if tars and _find_folder(raw) is None:
            return open_webdataset(release, raw)
        split = release.name.partition("/")[2] if release.local is None else release.options.split
        return RldsDataset(_need_folder(raw), split or None, release)

    def _missing_error(self, name: str) -> NotFoundError:
        if name in ALIASES:
            return NotFoundError(
                f"There is no openx:{name} in a public place", hint=f"openx:{ALIASES[name]} is it"
            )
        if name in read_table():
            return NotFoundError(
                f"openx:{name} is in no bucket: its authors publish it", hint=_COPY
            )
        return self.not_found(name, (entry.name for entry in self.catalog()))


def _read_info(
    dataset: str, version: str, places: Sequence[str], settings: Settings
) -> tuple[Any, str]:
    """Return `dataset_info.json` and its location; raises the error of the first location."""
    failed: list[OfflineDataError] = []
    for place in places:
        try:
            return get_json(f"{place}/{INFO}", settings, limits=_LIMITS), place
        except NoNetworkError:
            raise
        except (NotFoundError, AuthError, NetworkError) as error:
            failed.append(error)
    for failure in failed:
        if not isinstance(failure, NotFoundError):
            raise type(failure)(failure.message, hint=_COPY) from failure
    above = places[0].rpartition("/")[0]
    infos = _list_objects(above, settings, ending=f"/{INFO}")
    versions = sorted(path.partition("/")[0] for path in infos)
    if version in versions:  # listed, but not there
        raise failed[0]
    there = f"there are {', '.join(versions)}" if versions else "its bucket has none"
    raise NotFoundError(
        f"There is no openx:{dataset}@{version}: {there}",
        hint=f"ask for openx:{dataset}@{versions[-1]}" if versions else _COPY,
    ) from failed[0]


def _list_objects(place: str, settings: Settings, ending: str = "") -> dict[str, BucketObject]:
    """Return the objects below a location by path; empty if it cannot be listed."""
    for url in with_mirrors([place], settings.mirrors):
        if scheme_of(url) == "file" and (folder := path_of_url(url)).is_dir():
            paths = sorted(path for path in folder.rglob(f"*{ending}") if path.is_file())
            names = [path.relative_to(folder).as_posix() for path in paths]
            return {name: BucketObject(name, None, None, "", f"{url}/{name}") for name in names}
    if not place.startswith(f"{gcs.HOST}/"):
        return {}
    below = place.removeprefix(f"{gcs.HOST}/") + "/"
    try:
        found = gcs.list_bucket(f"gs://{below}", settings, ending=ending, limits=_LIMITS)
    except (AuthError, NotFoundError):
        return {}
    prefix = below.partition("/")[2]
    return {file.name.removeprefix(prefix): file for file in found}


def _places_of(name: str, version: str) -> tuple[str, ...]:
    """Return the folders that may have a version of a dataset, best first, as URLs without `/`."""
    if name == "bridge_dataset":
        return (f"{BRIDGE_HOST}/{name}/{version}",)
    return tuple(f"{gcs.HOST}/{bucket}/{name}/{version}" for bucket in BUCKETS)


def _find_folder(path: Path) -> Path | None:
    def is_one(folder: Path) -> bool:
        return is_file(folder / INFO) and is_file(folder / FEATURES)

    if not is_folder(path):
        return None
    if is_one(path):
        return path
    below = [entry.name for entry in entries(path) if not entry.is_file(follow_symlinks=False)]
    versions = [path / name for name in below if is_one(path / name)]
    return versions[0] if len(versions) == 1 else None


def _need_folder(path: Path) -> Path:
    found = _find_folder(path)
    if found is None:
        raise FormatError(
            f"{path} is not an RLDS dataset: expected a folder with {INFO} and {FEATURES}",
            hint="name the folder of the version, which tfds.builder(…).data_dir is",
        )
    return found
