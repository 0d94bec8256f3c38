"""Functions that hold the datasets of a project to what is expected: `check`, `lock`, `sync`, `diff`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from offline_data.api.arguments import DatasetLike, OnDisk, entry_of, name_of, settings_of
from offline_data.base.config import user_path
from offline_data.base.errors import UsageError
from offline_data.base.ids import DatasetId
from offline_data.base.progress import progress_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from offline_data.analysis.checks.formats import Findings
    from offline_data.analysis.checks.registry import RewardFunction
    from offline_data.analysis.diff import DatasetDiff
    from offline_data.base.config import Settings
    from offline_data.base.progress import Progress
    from offline_data.project.sync import LockResult, SyncedDataset


def check(
    *datasets: DatasetLike | OnDisk,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    reward: RewardFunction | None = None,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
) -> Findings:
    """Check datasets on this disk with the rules of `offline-data check`, reading each file once.

    Several datasets are also compared with each other. Files of configuration are not read. A view
    is checked as the dataset that it is of.

    ```python
    for finding in offline_data.check("local:mine", ignore=["RL021"]):
        print(finding.severity, finding.code, finding.where, finding.message)
    ```

    Args:
        datasets: Ids (without a revision: the newest), paths, or loaded datasets.
        select: Codes of rules, their beginnings (`RL02`), or names; empty: all.
        ignore: Those to leave out.
        thresholds: Values in place of a rule's own, by code: `{"RL030": {"share": 0.1}}`.
        reward: Function of the environment, to compare rewards with (`RL043`). Called with arrays of
            some transitions, `reward(observation, action, next_observation)`; returns `[n]`.

    Returns:
        Findings by dataset as given, the most severe first. A dataset that is damaged is a finding
        (`RL001`), and so is a rule that raises (`RL000`); empty: none.

    Raises:
        NotFoundError, InvalidIdError: A dataset is not on this disk; it is not an id.
        UsageError: No dataset, or no such rule or threshold.
        AccessError: A folder cannot be read.
    """
    from offline_data.analysis.checks.formats import CheckOutcome, Findings
    from offline_data.analysis.checks.registry import select_rules
    from offline_data.analysis.checks.run import run_checks
    from offline_data.store.library import locate_folders

    chosen = settings_of(root, settings)
    paths: dict[Path, None] = {}
    for one in datasets:
        if isinstance(one, (str, os.PathLike, DatasetId)):
            paths |= dict.fromkeys(locate_folders(name_of(one, chosen), chosen))
        elif isinstance(path := getattr(one, "data_path", None), Path):
            paths[path] = None
        else:
            raise UsageError(
                f"A dataset is a {type(one).__name__}; expected an id, a path or a loaded dataset",
                hint="several are arguments of their own: check(a, b)",
            )
    if not paths:
        raise UsageError("There is no dataset to check")
    rules = select_rules(_selectors(select), _selectors(ignore), thresholds, reward)
    report = run_checks(list(paths), rules, workers=chosen.workers, progress=progress_of(progress))
    return Findings(report.findings, CheckOutcome(report).summary)


def _selectors(given: Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def provenance(
    data: DatasetLike | OnDisk,
    *,
    lock: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
) -> dict[str, str | None]:
    """Return what identifies a dataset on this disk, in text; see `Dataset.provenance`."""
    from offline_data.project.provenance import provenance_of

    chosen, here = settings_of(root, settings), Path("datasets.lock").absolute()
    file = user_path(lock, "lock") if lock is not None else here if here.exists() else None
    return provenance_of(entry_of(data, chosen), file, chosen, progress_of(progress))


def lock(
    file: str | os.PathLike[str] = "datasets.toml",
    *,
    upgrade: bool | Collection[str] = False,
    check: bool = False,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
) -> LockResult:
    """Write `datasets.lock`: revision, raw files and content digest of each dataset of a project.

    The table `datasets` of `datasets.toml` has short names with an id, or a table of `id` and
    options of `download`: `layout`, `episodes = "0:10"`, `checkpoints`, `images`, `keep_episodes`,
    `skip_bad_episodes`, `skip_bad_features`. Locked revisions are kept. A new dataset is locked as it is on this disk,
    else downloaded at its source's newest revision: only that tells its content.

    Args:
        file: `datasets.toml`; the lock file `datasets.lock` is next to it.
        upgrade: Names to lock at their newest revisions; True: all. A revision in `file` is kept.
        check: Whether to only compare the two files; `changes` then tells what has to be changed.

    Raises:
        UsageError: A file is not TOML or has wrong fields; or a dataset on this disk was made with
            other options.
        NotFoundError, NetworkError, IntegrityError, NoSpaceError, AccessError: See `download`.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "datasets.toml")
        >>> file.write_text('datasets.hopper = "d4rl:hopper-medium-v2"')
        41
        >>> lock(file, check=True).changes
        ('hopper is not in the lock file',)
    """
    from offline_data.project.sync import check_lock, lock_datasets

    path = user_path(file, "the file")
    if check:
        return check_lock(path)
    return lock_datasets(path, settings_of(root, settings), upgrade, progress_of(progress))


def sync(
    file: str | os.PathLike[str] = "datasets.toml",
    *,
    locked: bool = False,
    dry_run: bool = False,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
) -> tuple[SyncedDataset, ...]:
    """Make this disk hold the datasets of `datasets.lock`; see `lock`. Others are left alone.

    Datasets that are here are compared with the lock file, without a network; others are downloaded
    at the locked revision. If a raw file has another digest, nothing of its dataset is published.

    ```python
    for dataset in offline_data.sync(locked=True):
        print(dataset.name, dataset.path)
    ```

    Args:
        file: `datasets.toml`; the lock file is next to it.
        locked: Whether a lock file that is not up to date is an error; False: it is updated first.
        dry_run: Whether to only return what would be done; the lock file must be up to date.

    Raises:
        LockError: With `locked` or `dry_run`: the lock file is not up to date.
        IntegrityError: A dataset is not as locked; the message names each difference. Others are
            made first.
        UsageError, NotFoundError, NetworkError, NoSpaceError, AccessError: See `lock`.
    """
    from offline_data.project.sync import sync_datasets

    return sync_datasets(
        user_path(file, "the file"),
        settings_of(root, settings),
        locked=locked,
        dry_run=dry_run,
        progress=progress_of(progress),
    )


def diff(
    a: DatasetLike,
    b: DatasetLike,
    *,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
) -> DatasetDiff:
    """Compare two datasets on this disk, or two revisions: schema, episodes, values, statistics.

    Layout and packing do not matter. Values are equal if their bytes are: 0.0 and -0.0 differ.

    ```python
    found = offline_data.diff("local:mine@1", "local:mine@2")
    print(found.equal, found.episodes.added, found.values)
    ```

    Returns:
        The differences; falsy if there are none.

    Raises:
        NotFoundError, InvalidIdError: One is not on this disk; it is not an id.
        IntegrityError, AccessError: One is damaged, or cannot be read.
    """
    from offline_data.analysis.diff import diff_datasets
    from offline_data.store.reader import open_reader

    chosen = settings_of(root, settings)
    readers = [open_reader(entry_of(one, chosen).path) for one in (a, b)]
    return diff_datasets(readers[0], readers[1], progress_of(progress))
