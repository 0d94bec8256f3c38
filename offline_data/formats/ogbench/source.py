"""OGBench: goal-conditioned benchmark of mazes, manipulation and drawing, as npz files.

Names are those of the `ogbench` package, and select a file and what is added to its rows:

```
antmaze-large-navigate-v0                     the training file
antmaze-large-navigate-v0-val                 the validation file
antmaze-large-navigate-singletask-task2-v0    rewards and masks of task 2; without -task2, of the default task
antmaze-large-navigate-oraclerep-v0           the goal representation `oracle_reps`
cube-double-play-100m-v0                      a folder of 100 files, read shard by shard
```

Source: `ogbench/utils.py` and `ogbench/relabel_utils.py` of https://github.com/seohongpark/ogbench.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NetworkError, NotFoundError
from offline_data.base.files import is_file, is_folder
from offline_data.base.ids import did_you_mean
from offline_data.fetch.client import get_document
from offline_data.fetch.hub import list_hub
from offline_data.formats.base import (
    UNVERSIONED,
    CatalogEntry,
    CatalogSource,
    Release,
    RemoteFile,
)
from offline_data.formats.catalogues.control import OGBenchCatalog, count_episodes
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.folders import entries
from offline_data.formats.ogbench.files import REQUIRED, OGBenchFiles
from offline_data.formats.ogbench.names import Name
from offline_data.formats.recognition import ArrayNames, array_names

HOST = "https://rail.eecs.berkeley.edu/datasets/ogbench"
MIRROR = "zhouzypaul/ogbench_datasets"
"""Copy on the Hugging Face hub, for when the host is down."""
MAGIC = b"PK\x03\x04"

NAMES = ArrayNames(
    REQUIRED,
    never=frozenset({"rewards", "timeouts", "next_observations", "masks", "valids"}),
)
"""Files have a row for each state, and neither rewards nor a second copy of states: others have."""
_LISTED = re.compile(rb'href="([A-Za-z0-9][A-Za-z0-9_.-]{0,150}?-([0-9]{1,4})(-val)?\.npz)"')
_PART = re.compile(r"(-[0-9]{1,4})?(-val)?\.npz$")
"""The part of a file's name that differs between the files of one dataset."""
_SPLITS = ("train", "val")


class OGBench(OGBenchCatalog, CatalogSource):
    """The published datasets, and the user's npz files in their format."""

    arrays: ClassVar = {"npz": NAMES}

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """Return a published dataset; only those of many files ask the network for the list."""
        parsed = Name.parse(name)
        if parsed is None or parsed.base not in self.rows:
            near = did_you_mean(name, [entry.name for entry in self.catalog()], count=3)
            raise self.not_found(parsed.base if parsed else name, self.rows, near and None)
        self.check_unversioned(name, revision)
        parsed.check_task()
        if self.rows[parsed.base]["files"]:
            return self._in_shards(name, parsed, settings)
        file = f"{parsed.file}.npz"
        urls = (f"{HOST}/{file}", f"hf://datasets/{MIRROR}@main/{file}")
        return Release(name, UNVERSIONED, (RemoteFile(file, urls, magic=MAGIC),))

    def _in_shards(self, name: str, parsed: Name, settings: Settings) -> Release:
        """List the files of a set of many, on the host or else on the hub."""
        folder = f"{HOST}/{parsed.base}"
        try:
            found = get_document(f"{folder}/", settings, lambda body, _: _LISTED.findall(body))
            files = {file.decode(): f"{folder}/{file.decode()}" for file, _, _ in found}
        except (NetworkError, NotFoundError):
            listing = list_hub(MIRROR, "", None, settings)
            files = {
                file.path.rpartition("/")[2]: file.urls[0]
                for file in listing.files
                if f"/{parsed.base}/" in f"/{file.path}" and file.path.endswith(".npz")
            }
        chosen = {file: url for file, url in files.items() if _is_val(file) == parsed.is_val}
        if not chosen:
            raise NotFoundError(
                f"The host of ogbench:{name} lists no {'validation' if parsed.is_val else 'npz'} files"
            )
        release = Release(
            name,
            UNVERSIONED,
            tuple(RemoteFile(file, (url,), magic=MAGIC) for file, url in sorted(chosen.items())),
        )
        return replace(release, opening=(), shards=len(chosen))

    def has_format(self, path: Path) -> int:
        """Count OGBench's arrays in an npz file, or in the first one of a folder."""
        files = _files_at(path)
        return NAMES.count_in(array_names(files[0])) if files else 0

    def release_of(self, path: Path, name: str) -> Release:
        """Describe a file of the user, or the files of one dataset in a folder, `-val` as a split."""
        files = _files_at(path)
        if not files:
            raise FormatError(
                f"{path} is not an OGBench dataset: expected an npz file, or a folder with those of one "
                "dataset, as in x-v0.npz and x-v0-val.npz, or x-v0-000.npz and so on"
            )
        kinds = {_is_val(file.name) for file in files}
        splits = _SPLITS if len(kinds) > 1 else ()
        return Release(name, fingerprint(path, files), local=path, splits=splits)

    def open(self, release: Release, raw: Path) -> OGBenchFiles:
        """Open it: of one file reads where the trajectories end, of several nothing yet."""
        if release.local is None:
            folder = raw if is_folder(raw) else raw.parent
            paths = [file.path for file in release.files]
            parsed = Name.parse(release.name)
            row = self.rows[parsed.base] if parsed else {}
        else:
            files = _files_at(raw)
            folder, parsed, row = files[0].parent, None, {}
            paths = [
                file.name
                for file in files
                if release.options.split not in _SPLITS
                or _is_val(file.name) == (release.options.split == "val")
            ]
        facts = {}
        if parsed is not None:
            about = {"url": f"{HOST}/{parsed.base}", "split": _SPLITS[parsed.is_val]}
            facts = {"environment": {"id": parsed.environment}, "about": about}
        stated = count_episodes(row, "-val" * parsed.is_val) if row and parsed else None
        return OGBenchFiles(
            folder, tuple(paths), self.describe(release, **facts), parsed, stated
        ).with_counts()

    def published(self, release: Release) -> CatalogEntry | None:
        """Return the entry of the file of a release."""
        parsed = Name.parse(release.name)
        return super().published(replace(release, name=parsed.file) if parsed else release)


def _is_val(file: str) -> bool:
    return file.endswith("-val.npz")


def _files_at(path: Path) -> list[Path]:
    """Return the npz file at a path, or those of a folder if they are of one dataset, by name."""
    if is_file(path):
        return [path] if path.suffix == ".npz" else []
    found = entries(path) if is_folder(path) else ()
    names = sorted(entry.name for entry in found if entry.name.endswith(".npz"))
    datasets = {_PART.sub("", name) for name in names}
    return [path / name for name in names] if len(datasets) == 1 else []
