"""Functions that get, describe and remove datasets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, overload

from offline_data.api.arguments import (
    DatasetLike,
    OnDisk,
    Range,
    Sort,
    entry_of,
    name_of,
    settings_of,
)
from offline_data.base.config import user_path
from offline_data.base.errors import UsageError
from offline_data.base.ids import DatasetId
from offline_data.base.progress import progress_of
from offline_data.episode.fields import split_key
from offline_data.store.layout import DEFAULT_AUDIT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from offline_data.analysis.figures import DatasetStats
    from offline_data.analysis.info import DatasetInfo
    from offline_data.analysis.replay import Replay
    from offline_data.base.config import Settings
    from offline_data.base.progress import Progress
    from offline_data.buffers.dataset import Dataset
    from offline_data.formats.base import ActionKind
    from offline_data.formats.files.mapping import FileMapping
    from offline_data.formats.options import TextOptions
    from offline_data.formats.search import CatalogDataset
    from offline_data.pipeline.ingest.inspection import Inspection
    from offline_data.pipeline.jobs.executors import Executor
    from offline_data.store.arrays import Style
    from offline_data.store.layout import AuditMode, LayoutName
    from offline_data.store.library import DatasetRemoval, Listing, LocalDataset, Stored
    from offline_data.store.verify import Verification


def download(
    id: DatasetLike,
    *,
    layout: LayoutName | None = None,
    episodes: Range = None,
    checkpoints: Range = None,
    images: Literal["encoded", "raw"] | None = None,
    video: Literal["keep", "png", "raw", "skip"] | None = None,
    only: str | None = None,
    text: TextOptions | None = None,
    audit: AuditMode = DEFAULT_AUDIT,
    strict: bool = False,
    keep_raw: bool = False,
    keep_episodes: bool = False,
    skip_bad_episodes: bool = False,
    skip_bad_features: bool = False,
    allow_changed: bool = False,
    force: bool = False,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
    executor: Executor | None = None,
) -> Stored:
    """Download a dataset and convert it, unless it is on this disk already.

    `load_dataset` downloads if needed; use this to prepare a machine. An interrupted download
    resumes.

    ```python
    stored = offline_data.download("minari:D4RL/door/human-v2")
    print(stored.id, stored.path, stored.transitions)
    ```

    Args:
        id: `source:name[@revision]`, or where a dataset was pushed to: `hf://OWNER/NAME`,
            `https://…`, or a path. It is verified and copied.
        layout: `compact` or `ted`; None: as on disk, `compact` for a new dataset.
        episodes: Range of episodes to convert; the dataset then has a separate revision.
        checkpoints: Range of checkpoints, for sources that have them (`atari_dqn`).
        images: `raw`: store pixels; `encoded`: keep JPEG and PNG files; None: `encoded`, but
            accept an existing dataset of either kind.
        video: Videos (`lerobot`): `keep`: keep the mp4 files, whose frames are decoded when sampled;
            `png`: store each frame as an image; `raw`: store pixels; `skip`: leave videos out; None:
            `keep`, but accept an existing dataset of any kind.
        only: Names of features to convert (`lerobot`), separated by commas, each with what is below
            it: `"observation.state,observation.images.top"`. Videos of others are not downloaded.
            Actions, rewards, ends and tasks always stay; the dataset then has a separate revision.
        text: How text is tokenized, for sources of text (`hf`, `text`); an existing dataset is
            accepted with None.
        audit: Rows to read back and compare with the source: `"auto"` (all; of data with text,
            encoded images or layout `ted` those of the first GiB, and 1 % of the rows above),
            `"all"`, a fraction, or `"none"`.
        strict: Whether a feature that cannot be stored is an error.
        keep_raw: Whether to keep the raw files.
        keep_episodes: Whether to keep episodes whole if a next observation differs from the
            following row's; False: cut them there.
        skip_bad_episodes: Whether to leave out episodes that cannot be read.
        skip_bad_features: Whether to leave out infos (`minari`) that differ in shape or type between
            episodes, with a note.
        allow_changed: Whether to accept raw files of another size, or with another digest, than
            their source publishes.
        force: Whether to download and convert again.
        executor: Executor that fetches and converts shards; None: local processes.

    Raises:
        NotFoundError, OfflineError, NetworkError, AuthError: The files cannot be fetched.
        IntegrityError: Damaged or invalid files; nothing is published.
        NoSpaceError, AccessError: Disk errors.
        UsageError, InvalidIdError: Invalid argument.
    """
    from offline_data.pipeline import ingest

    chosen = settings_of(root, settings)
    options = ingest.Options(
        layout=layout,
        episodes=episodes,
        strict=strict,
        audit=audit,
        keep_raw=keep_raw,
        force=force,
        keep_episodes=keep_episodes,
        skip_bad_episodes=skip_bad_episodes,
        skip_bad_features=skip_bad_features,
        allow_changed=allow_changed,
        images=images,
        video=video,
        checkpoints=checkpoints,
        only=only,
        text=ingest.pinned_text(text, chosen),
    )
    from offline_data.store.library import requested_id

    dataset = id if isinstance(id, DatasetId) else requested_id(name_of(id, chosen))
    return ingest.download(dataset, chosen, options, progress_of(progress), executor=executor)


def convert(
    data: Any,
    name: str,
    *,
    source: str | None = None,
    layout: LayoutName | None = None,
    episodes: Range = None,
    checkpoints: Range = None,
    images: Literal["encoded", "raw"] | None = None,
    video: Literal["keep", "png", "raw", "skip"] | None = None,
    split: str | None = None,
    alignment: Literal["raw", "regenerated"] | None = None,
    autoreset: Literal["next_step", "same_step"] | None = None,
    only: str | None = None,
    text: TextOptions | None = None,
    mapping: str | os.PathLike[str] | Mapping[str, Any] | FileMapping | None = None,
    audit: AuditMode = DEFAULT_AUDIT,
    strict: bool = False,
    keep_episodes: bool = False,
    skip_bad_episodes: bool = False,
    skip_bad_features: bool = False,
    force: bool = False,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
    executor: Executor | None = None,
) -> Stored:
    """Convert a file, a folder, arrays, episodes or a replay buffer to the dataset `local:NAME`.

    - A path: files in the format of a source (a Minari folder, a D4RL HDF5, …), or a dataset
      directory, which is checked and copied with its revision if no option changes it.
    - A mapping of arrays, as `d4rl`'s `env.get_dataset()` has them: `observations` `[N, …]`,
      `actions` `[N, …]`, `rewards` `[N]`, `terminals` `[N]`, and optionally `timeouts` `[N]`,
      `next_observations` `[N, …]` and other arrays of N rows. Episodes end where `terminals` or
      `timeouts` is set. Without `next_observations` the observation after the last action of an
      episode is unknown.
    - An iterable of episodes, mappings or objects (Minari's, d3rlpy's, `ds.iter_episodes()`):
      `observations` `[T + 1, …]`, or `[T, …]` if the last one is unknown, `actions` `[T, …]`,
      `rewards` `[T]` (optional), `terminations` and `truncations` `[T]` or one bool for the last row (also
      called `terminals` and `timeouts`, or `terminated` and `truncated`; one of the two is enough, as
      the last row ends the episode), and optionally `infos`,
      `id` and `seed`. Observations, actions and infos may be nested mappings. A generator is
      consumed with a few episodes in memory.
    - A replay buffer of Stable-Baselines3, of TorchRL (its storage holds TED tensordicts) or of d3rlpy, in
      the order of time. It is an error if that is lost, as with another writer than a round-robin one.

    Files of any other layout are converted with a `mapping`, which `inspect_files` proposes. Values and
    dtypes are kept. Equal data are not written again.

    ```python
    episodes = [{"observations": seen, "actions": done, "rewards": got, "terminations": True}]
    offline_data.convert(episodes, "mine")
    ds = offline_data.load_dataset("local:mine")
    ```

    Args:
        data: See above; not modified.
        name: `NAME` or `local:NAME`.
        source: Source that defines the format of a path; None: detect it.
        layout: `compact` (None) or `ted`.
        episodes: Range of episodes to convert; the dataset then has a separate revision.
        checkpoints: Range of checkpoints, for sources that have them (`atari_dqn`).
        images: `raw`: store pixels; `encoded` and None: keep JPEG and PNG files.
        video: Frames of videos (`lerobot`): `png` and None: store each as an image; `raw`: store
            pixels; `skip`: leave videos out.
        only: Names of features to convert; see `download`.
        split: Split of a folder that has several, such as `train` and `val`; `all`: all as one
            dataset, in which `ds.episodes["split"]` tells them apart.
        alignment: Of LIBERO files: `raw` if observations were recorded after the action of their row,
            `regenerated` if before it; None: decided by the movements.
        autoreset: Mode of the vector environment that recorded arrays or a D4RL-like file: `next_step`
            drops the row of each reset, with `same_step` final observations are unknown; None: all rows
            are steps.
        text: How text is tokenized, for sources of text (`hf`, `text`); an existing dataset is
            accepted with None.
        mapping: Arrays of a file or folder by feature, and the ends of episodes: a TOML file, a mapping
            of the same content, or that of `inspect_files`; None: the format is that of a source.
        audit: Rows to read back and compare with the source, see `download`.
        strict: Whether a feature that cannot be stored is an error.
        keep_episodes: Whether to keep episodes whole if a next observation differs from the
            following row's; False: cut them there.
        skip_bad_episodes: Whether to leave out episodes that cannot be read.
        skip_bad_features: Whether to leave out infos (`minari`) that differ in shape or type between
            episodes, with a note.
        force: Whether to replace a dataset of that name.
        executor: Executor for the shards of a folder; None: local processes.

    Raises:
        NotFoundError: No such path, or no episodes.
        FormatError: Damaged data or an unknown format.
        UsageError: A dataset with that name and other data exists; a folder with several splits,
            and no `split`; or an invalid argument.
        AuditError, NoSpaceError, AccessError: See `download`.

    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as root:
        ...     arrays = {
        ...         "observations": np.arange(4.0).reshape(4, 1),
        ...         "actions": np.ones((4, 1)),
        ...         "rewards": np.ones(4),
        ...         "terminals": np.array([False, True, False, True]),
        ...     }
        ...     stored = convert(arrays, "tiny", root=root)
        ...     print(stored.transitions, stored.episodes, info("local:tiny", root=root).layout)
        4 2 compact
    """
    from offline_data.formats.files.mapping import read_mapping
    from offline_data.pipeline import ingest

    chosen = settings_of(root, settings)
    options = ingest.Options(
        layout=layout,
        episodes=episodes,
        strict=strict,
        audit=audit,
        force=force,
        keep_episodes=keep_episodes,
        skip_bad_episodes=skip_bad_episodes,
        skip_bad_features=skip_bad_features,
        images=images,
        video=video,
        checkpoints=checkpoints,
        split=split,
        alignment=alignment,
        autoreset=autoreset,
        only=only,
        text=ingest.pinned_text(text, chosen),
        mapping=None if mapping is None else read_mapping(mapping),
    )
    shown = progress_of(progress)
    if isinstance(data, (str, os.PathLike)):
        path = user_path(data, "the data")
        return ingest.convert(path, name, chosen, options, shown, source=source, executor=executor)
    if any(given is not None for given in (source, executor, split, alignment, only, mapping)):
        raise UsageError(
            "alignment=, mapping=, only=, source=, split= and executor= are for a file or folder; the data are in memory"
        )
    from offline_data.pipeline.ingest.in_memory import convert_in_memory
    from offline_data.pipeline.ingest.resolve import new_id

    return convert_in_memory(data, new_id(name), chosen, options, shown)


def merge(
    *datasets: DatasetLike,
    name: str,
    common_leaves: bool = False,
    cast: bool = False,
    layout: LayoutName | None = None,
    audit: AuditMode = DEFAULT_AUDIT,
    force: bool = False,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
) -> Stored:
    """Make the dataset `local:NAME` of the episodes of several datasets on this disk, in their order.

    The episode column `source` has the id of the dataset that each episode is from. The description
    (spaces, environment, fields of `about`) keeps what all datasets say alike.

    ```python
    stored = offline_data.merge("local:a", "local:b", name="both")
    ```

    Args:
        datasets: Two ids or paths, or more.
        name: Name of the new dataset.
        common_leaves: Whether features and columns of episodes that are not in all datasets are dropped,
            and listed in the manifest; False: all must have them.
        cast: Whether numbers of different types become the smallest type that has all values of both
            (`numpy.result_type`), an error where it does not hold a value; False: types must be equal.
        layout: `compact` or `ted`; None: that of the datasets, `compact` if they differ.
        audit: Rows to read back and compare: `"auto"`, `"all"`, a fraction, or `"none"`.
        force: Whether to replace a dataset of that name.

    Raises:
        NotFoundError: A dataset is not on this disk.
        UsageError: Features that differ, each with its types; another rate or tokenizer; another dataset
            of that name.
        AuditError, NoSpaceError, AccessError: See `convert`.
    """
    from offline_data.formats.options import Options
    from offline_data.pipeline.ingest.merge import merge

    chosen = settings_of(root, settings)
    entries = [entry_of(dataset, chosen) for dataset in datasets]
    options = Options(layout=layout, audit=audit, force=force)
    shown = progress_of(progress)
    return merge(entries, name, chosen, options, shown, common_leaves=common_leaves, cast=cast)


def inspect_files(path: str | os.PathLike[str]) -> Inspection:
    """List the arrays of a file or folder of any layout, and propose a mapping for `convert`.

    Read are HDF5, npz, folders of npy, zarr, Parquet, CSV, `.pt` files of plain tensors, and folders of
    one such file for each episode, in a child process; nothing in them is executed.

    ```python
    found = offline_data.inspect_files("recorded.h5")
    print(found)  # arrays, and questions about what the file does not tell
    mapping = found.answer(final_observation="missing", ends="truncated")
    offline_data.convert("recorded.h5", "mine", mapping=mapping)
    ```

    Raises:
        NotFoundError, AccessError: There is no such file, or it cannot be read.
        FormatError: It has no arrays, or is damaged.

    Example:
        >>> import pathlib, tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "recorded.npz")
        ...     np.savez(path, obs=np.eye(4), act=np.ones((3, 1)), terminated=np.arange(3) == 2)
        ...     found = inspect_files(path)
        ...     stored = convert(path, "tiny", mapping=found.mapping, root=folder)
        >>> found.mapping.final_observation, stored.transitions
        ('extra_row', 3)
    """
    from offline_data.pipeline import ingest

    return ingest.inspect_files(user_path(path, "the data"))


def load_arrays(
    id: DatasetLike,
    style: Style = "transitions",
    *,
    observation_key: str | tuple[str, ...] = "observation",
    names: Collection[str] | None = None,
    download: bool | Literal["force"] = True,
    revision: str | None = None,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
) -> dict[str, NDArray[Any]]:
    """Return a dataset as numpy arrays by D4RL's or OGBench's names, without importing torch; for JAX.

    The arrays equal those of `load_dataset(id).to_numpy(style)`, which documents styles and names,
    in a dict that scripts may change: writing to an array never changes the dataset. Features that
    have a file of their own (images, all of layout `ted`) are memory maps, read when they are used,
    if the rows follow each other in it; all other arrays are copies.

    ```python
    data = offline_data.load_arrays("d4rl:halfcheetah-medium-v2")
    batch = {name: array[rows] for name, array in data.items()}
    ```

    Args:
        id, download, revision: See `load_dataset`.
        style: `"transitions"`, `"episodes"`, `"qlearning"`, `"dataset"` or `"ogbench"`.
        observation_key: Feature to return as the observation; required if there are several.
        names: Arrays to read; None: all of the style.

    Returns:
        Array by name, in the order of `names`.

    Raises:
        NotFoundError, OfflineError, NetworkError, AuthError: The dataset is not available.
        IntegrityError: Damaged files.
        UsageError: Invalid argument; the observation has several features; `"episodes"` of a dataset
            with end flags inside of episodes; or copies that need more than the free memory.
    """
    from offline_data.store.arrays import check_style, observation_leaf, whole_arrays
    from offline_data.store.library import at_hand
    from offline_data.store.reader import open_reader

    check_style(style)
    chosen, shown, path = settings_of(root, settings), progress_of(progress), None
    name = name_of(id, chosen)
    if isinstance(download, bool) and revision is None:
        path = at_hand(name, chosen.root)
    if path is None:  # what converts takes as long to import as all else
        from offline_data.pipeline.ingest import ensure

        path = ensure(name, settings=chosen, download=download, revision=revision, progress=shown)
    reader = open_reader(path)
    key = observation_key
    return whole_arrays(
        reader,
        style,
        observation_leaf(reader, split_key(key) if isinstance(key, str) else tuple(key)),
        names,
    )


@overload
def list_datasets(
    source: str | None = None,
    *,
    remote: Literal[False] = False,
    prefix: str = "",
    sort: Sort = "name",
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
) -> Listing[LocalDataset]: ...


@overload
def list_datasets(
    source: str | None = None,
    *,
    remote: Literal[True],
    prefix: str = "",
    sort: Sort = "name",
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
) -> Listing[CatalogDataset]: ...


def list_datasets(
    source: str | None = None,
    *,
    remote: bool = False,
    prefix: str = "",
    sort: Sort = "name",
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
) -> Listing[LocalDataset] | Listing[CatalogDataset]:
    """List the datasets on this disk, or in catalogues; `notes` name datasets left out.

    ```python
    for dataset in offline_data.list_datasets():
        print(dataset.id, dataset.transitions, dataset.bytes)
    ```

    Args:
        source: Only those of this source; None: all.
        remote: Whether to list catalogues, of sources that are asked now (a packaged catalogue
            stands in for one that does not answer).
        prefix: Only ids, or names, that begin so.
        sort: By id (catalogues in their own order), or the largest first.

    Raises:
        NotFoundError: No such source.
        UsageError: Invalid argument.
        AccessError: The root cannot be read.
        NetworkError: With `remote`: a source does not answer, and has no packaged catalogue.
    """
    from offline_data.formats.registry import get_source, source_names
    from offline_data.store.library import Listing, list_local

    if sort not in {"name", "size"}:
        raise UsageError(f"sort is {sort!r}; expected 'name' or 'size'")
    # one that is known is enough: its adapter need not import here
    if source is not None and source not in source_names():
        get_source(source)
    chosen = settings_of(root, settings)
    listing: Listing[Any]
    if remote:
        from offline_data.formats import search as catalog

        listing = catalog.list_remote(source, chosen)
    else:
        listing = list_local(chosen.root, source)
    found: list[Any] = [
        one
        for one in listing.datasets
        if one.id.startswith(prefix) or one.id.partition(":")[2].startswith(prefix)
    ]
    if sort == "size":
        found.sort(key=lambda one: -(one.bytes or 0))
    return Listing(tuple(found), listing.notes)


def search(
    query: str = "",
    *,
    limit: int | None = None,
    min_bytes: int | None = None,
    max_bytes: int | None = None,
    min_episodes: int | None = None,
    max_episodes: int | None = None,
    action: ActionKind | None = None,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
) -> Listing[CatalogDataset]:
    """Search the packaged catalogues of all sources, and what is on this disk; uses no network.

    Args:
        query: Words, all of which must occur in the id or the summary; a word with `*`, `?` or
            `[…]` is a glob for ids. A word without matches is replaced by similar ones, which `notes`
            name.
        limit: Datasets to return at most.
        min_bytes: Least size of the download; an unknown size does not pass, here and below.
        max_bytes: Largest size of the download.
        min_episodes: Least number of episodes.
        max_episodes: Largest number of episodes.
        action: Only datasets of `"continuous"` or of `"discrete"` actions.

    Example:
        >>> [one.id for one in search("hopper expert v2", limit=1)]
        ['d4rl:hopper-expert-v2']
    """
    from offline_data.formats import search as catalog

    bounds = catalog.Bounds(min_bytes, max_bytes, min_episodes, max_episodes, action)
    return catalog.search(query, settings_of(root, settings), bounds, limit)


def info(
    id: DatasetLike,
    *,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
) -> DatasetInfo | CatalogDataset:
    """Return schema, counts, provenance and licence of a dataset, reading its manifest only.

    Returns:
        A `DatasetInfo` of a dataset on this disk, else the `CatalogDataset` of its source's list.

    Raises:
        NotFoundError: Neither on this disk nor in a catalogue; the hint names the nearest.
        InvalidIdError: Neither an id nor the path of a dataset directory.
        IntegrityError: Its manifest is damaged.
        NetworkError: Only its source could tell, and does not answer.
    """
    from offline_data.analysis.info import dataset_info

    chosen = settings_of(root, settings)
    return dataset_info(name_of(id, chosen), chosen)


def stats(
    id: DatasetLike,
    *,
    chunk: int | None = None,
    relative_to: str | None = None,
    absolute: Sequence[int] = (),
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
) -> DatasetStats:
    """Return minimum, maximum, mean, quantiles and more of every feature and of the episodes.

    They are of the T rows of each episode; the observation after its last action counts in minima and
    maxima alone.

    ```python
    found = offline_data.stats("local:arm", chunk=50, relative_to="observation/state", absolute=[6])
    found.actions.features.mean  # of each dimension of a relative action, over all chunks
    Path("norm_stats.json").write_text(json.dumps(found.norm_stats()))  # for openpi
    ```

    Args:
        id: A dataset id, the path of a dataset directory, or a loaded dataset.
        chunk: Also describe the actions of all chunks of this many rows inside of an episode.
        relative_to: Observation feature that is subtracted from the actions of a chunk: its value
            before the first of them. It has the action's shape.
        absolute: Dimensions of the action that it is not subtracted from, such as a gripper.

    Raises:
        NotFoundError, InvalidIdError, IntegrityError, AccessError: The dataset is not available.
        UsageError: No action, no whole chunk, or a state of another shape.
    """
    from offline_data.analysis.statistics import dataset_stats
    from offline_data.store.reader import open_reader

    entry = entry_of(id, settings_of(root, settings))
    return dataset_stats(
        open_reader(entry.path),
        progress_of(progress),
        chunk=chunk,
        relative_to=relative_to,
        absolute=absolute,
    )


def replay(
    id: DatasetLike | OnDisk,
    *,
    env: str | Any = None,
    episodes: int | None = None,
    tolerance: float = 1e-5,
    save: bool = False,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
) -> Replay:
    """Play the actions of a dataset in its environment, and compare every step with what is stored.

    Each episode starts from its stored seed, or MuJoCo state (`qpos` and `qvel` in infos); one without
    either continues the random numbers of the episode before it.

    ```python
    found = offline_data.replay("local:mine", episodes=10)
    print(found)
    # episode 3: diverging from step 17, observation 0.02: actions are shifted by one row
    found.reproduced, found.episodes[3].cause
    ```

    Args:
        id: A dataset id, the path of a dataset directory, or a loaded dataset; of a view, its episodes are
            played, each from its first step to its last.
        env: Id of a registered environment, or an environment; None: the id in the manifest, which
            must be registered. Keywords and wrappers of the manifest are not used.
        episodes: Number of episodes, from the first; None: all.
        tolerance: Largest difference that counts as rounding, relative to values above 1.
        save: Whether to record a summary in the manifest of the dataset, in place of an earlier one:
            number of episodes by outcome, environment, version of gymnasium, largest difference, date.

    Raises:
        NotFoundError, InvalidIdError, IntegrityError: No such dataset, or the environment is not
            registered with Gymnasium.
        AccessError: With `save`, the directory cannot be written to; nothing is played then.
        MissingDependencyError: gymnasium, or what the environment needs, is not installed.
        UsageError: No observation of numbers, no action, or an invalid argument.
    """
    import numpy as np

    from offline_data.analysis.replay import replay_dataset
    from offline_data.store.publish import amend_manifest, check_amendable
    from offline_data.store.reader import open_reader

    chosen, shown = settings_of(root, settings), progress_of(progress)
    entry = entry_of(id, chosen)
    if save:
        check_amendable(entry)
    reader = open_reader(entry.path)
    numbers = np.arange(reader.episode_count)
    if hasattr(id, "episodes"):
        from offline_data.buffers.views.episodes import ViewEpisodes

        if isinstance(id.episodes, ViewEpisodes):
            numbers = np.sort(id.episodes.numbers.numpy())
    found = replay_dataset(reader, shown, env=env, numbers=numbers[:episodes], tolerance=tolerance)
    if save:
        amend_manifest(entry, chosen.staging, shown, replay=found.to_manifest())
    return found


def plot(
    id: DatasetLike | Dataset,
    *,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
) -> Figure:
    """Draw returns, lengths, rewards, actions, observations, episodes and coverage, reading all rows.

    ```python
    figure = offline_data.plot("local:mine")  # a notebook shows it
    figure.savefig("mine.png")
    ```

    Args:
        id: A dataset id, the path of a dataset directory, or a loaded dataset; of a view, the
            dataset behind it is drawn.

    Returns:
        A `matplotlib.figure.Figure`; it is not registered with pyplot, so there is none to close.

    Raises:
        NotFoundError, InvalidIdError, IntegrityError, AccessError: As for `stats`.
        MissingDependencyError: matplotlib is not installed (`pip install 'offline-data[plots]'`).
    """
    from offline_data.reports.figure import draw, require_matplotlib
    from offline_data.reports.pictures import summarise
    from offline_data.store.reader import open_reader

    require_matplotlib()
    entry = entry_of(id, settings_of(root, settings))
    figure: Figure = draw(summarise(open_reader(entry.path), progress_of(progress)))
    return figure


def card(
    id: DatasetLike,
    *,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
) -> str:
    """Return a dataset card in the Hugging Face Hub's format, reading all rows for its statistics.

    A YAML header (`license`, `task_categories`, `tags`, `size_categories`), then schema, counts,
    statistics, provenance, how to load it, and its citation. Texts of the source are escaped.

    Raises `NotFoundError`, `InvalidIdError`, `IntegrityError`, `AccessError`.
    """
    from offline_data.analysis.info import entry_info
    from offline_data.analysis.statistics import dataset_stats
    from offline_data.reports.card import dataset_card
    from offline_data.store.reader import open_reader

    entry = entry_of(id, settings_of(root, settings))
    stats = dataset_stats(open_reader(entry.path), progress_of(progress))
    return dataset_card(entry_info(entry), stats)


def verify(
    id: DatasetLike,
    *,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
) -> Verification:
    """Compare all files of a dataset on this disk with the digests in its manifest.

    ```python
    assert offline_data.verify("local:mine"), "it is damaged"
    ```

    Returns:
        The problems found; truthy if there are none.

    Raises:
        NotFoundError, InvalidIdError: It is not on this disk; this is not an id.
        ManifestError, AccessError: The manifest, or a file, cannot be read.
    """
    from offline_data.store.verify import verify_entry

    return verify_entry(entry_of(id, settings_of(root, settings)), progress_of(progress))


def remove(
    *ids: DatasetLike,
    dry_run: bool = False,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
) -> DatasetRemoval:
    """Delete datasets without confirmation; other files in their directories are kept.

    Nothing is deleted unless all are found.

    Args:
        ids: Their ids (without a revision: the newest) or the paths of their directories.
        dry_run: Whether to only return what would be deleted.

    Raises:
        NotFoundError, InvalidIdError: One is not on this disk; it is not an id.
        AccessError: No permission to delete a file.
    """
    from offline_data.store.library import locate, remove_datasets

    chosen = settings_of(root, settings)
    names = [name_of(id, chosen, exact=True) for id in ids]
    return remove_datasets([locate(one, chosen, to_get=False) for one in names], dry_run=dry_run)
