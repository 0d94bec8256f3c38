"""`export`: datasets as files of other formats."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from offline_data.api.arguments import DatasetLike, entry_of, settings_of
from offline_data.base.config import user_path
from offline_data.base.errors import UsageError
from offline_data.base.progress import progress_of

if TYPE_CHECKING:
    from offline_data.base.config import Settings
    from offline_data.base.progress import Progress
    from offline_data.buffers.dataset import Dataset
    from offline_data.buffers.mixtures.dataset_mixture import DatasetMixture
    from offline_data.formats.writing.episodes import ExportMember
    from offline_data.pipeline.export.run import Exported
    from offline_data.torchrl.ensembles.buffer import ReplayBufferEnsemble

    Exportable: TypeAlias = DatasetLike | Dataset | ReplayBufferEnsemble | DatasetMixture


def export(
    data: Exportable,
    dest: str | os.PathLike[str],
    *,
    to: str,
    view: str | None = None,
    observation: str | None = None,
    fps: float | None = None,
    video: Literal["h264", "av1", "none"] = "h264",
    format_version: str = "3.0",
    strict: bool = False,
    dry_run: bool = False,
    force: bool = False,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
) -> Exported:
    """Write a dataset, a view, or the episodes of a mixture as files of another format.

    Before anything is written, `losses` of the result (with `dry_run`, without writing) lists all that
    the format cannot hold. What was written is read back by the reader that `convert` uses for this
    format and compared with the dataset, value by value: `losses` are the differences that were found.
    One that was not expected is an error; else the files are renamed to `dest`. A receipt
    (`export.json` in a folder, `NAME.export.json` next to a file) has the content digest of the dataset,
    its history, the losses, and the SHA-256 of every file. An export of the same data to the same place
    is not repeated.

    | `to` | `dest` | loaded by |
    |---|---|---|
    | `minari` | the root of a dataset `NAME-vN`: `ROOT/NAME-v0` | `minari.load_dataset`, with MINARI_DATASETS_PATH=ROOT |
    | `d4rl` | a file `.hdf5` | `d4rl.qlearning_dataset(env, h5py_arrays)` |
    | `lerobot` | a folder | `LeRobotDataset(repo_id, root=dest)` |
    | `robomimic` | a file `.hdf5` | `robomimic.utils.dataset.SequenceDataset` |
    | `rlds` | a folder | `tfds.builder_from_directory` |
    | `parquet` | a folder | `datasets.load_dataset(dest)`, Polars, DuckDB |
    | `hf` | a folder | `datasets.load_from_disk` |
    | `zarr` | a folder `.zarr` | `zarr.open`, Diffusion Policy's `ReplayBuffer` |
    | `npz` | a file `.npz` | `numpy.load` |
    | `d3rlpy` | a file `.h5` | `d3rlpy.dataset.ReplayBuffer.load` |
    | `ogbench` | a file `.npz` | `ogbench.load_dataset` |
    | `ted` | a folder | `TensorDict.load_memmap(dest + "/ted")` |

    Transforms and derived features of a buffer are not applied: the stored features are written.

    Args:
        data: A dataset id, the path of a dataset directory, a loaded dataset or view, or an ensemble or
            mixture of these: the episodes of each of its members, once.
        dest: The file or folder; new, empty, or of an earlier export.
        to: The format.
        view: Name of a saved view of the dataset; see `DatasetView.save`.
        observation: Feature of observations, as `observation/state`, for formats that hold one.
        fps: LeRobot: frames per second; None: the environment's `render_fps`.
        video: LeRobot: encoding of images as video; `none` keeps them as images in the tables.
        format_version: LeRobot: `3.0` or `2.1`.
        strict: Whether to raise if anything would be lost.
        dry_run: Whether to only return what would be written and lost.
        force: Whether to replace a file that `export` did not write.

    Raises:
        UsageError: No such format, or an option that it does not have; a destination with other files,
            or in the root; features that the format cannot hold
            at all, or whose names it gives to something else (rename them); something would be lost
            and `strict` is set; members with different features.
        IntegrityError: What was read back differs from the dataset, and `losses` does not say so.
            `dest` is unchanged.
        MissingDependencyError: A package that the format needs; the hint says how to install it.
        NotFoundError, InvalidIdError, AccessError, NoSpaceError: Of the dataset, of the disk.

    Example:
        >>> import tempfile, h5py, numpy as np
        >>> from offline_data import convert
        >>> episode = {
        ...     "observations": np.eye(3),
        ...     "actions": np.ones((2, 1)),
        ...     "rewards": [1.0, 2.0],
        ...     "terminations": True,
        ...     "seed": 7,
        ... }
        >>> with tempfile.TemporaryDirectory() as temporary:
        ...     root, file = f"{temporary}/root", f"{temporary}/tiny.hdf5"
        ...     _ = convert([episode], "tiny", root=root)
        ...     exported = export("local:tiny", file, to="d4rl", root=root)
        ...     with h5py.File(file) as written:
        ...         rewards = written["rewards"][:].tolist()
        >>> rewards, [str(loss) for loss in exported.losses]
        ([1.0, 2.0], ['episodes/seed: there is no place for it'])
    """
    from offline_data.episode.fields import split_key
    from offline_data.formats.writing.base import ExportOptions
    from offline_data.formats.writing.episodes import ExportedEpisodes
    from offline_data.pipeline.export.run import export_episodes
    from offline_data.reports.pages.preview import card_files

    chosen = settings_of(root, settings)
    options = ExportOptions(
        observation=split_key(observation) if observation else None,
        fps=fps,
        video=video,
        format_version=format_version,
    )
    return export_episodes(
        ExportedEpisodes(tuple(_members_of(data, view, chosen))),
        user_path(dest, "the destination"),
        to,
        chosen,
        progress_of(progress),
        options=options,
        card=lambda entry, shown, header: card_files(entry, shown, header=header),
        strict=strict,
        dry_run=dry_run,
        force=force,
    )


def _members_of(data: Any, view: str | None, settings: Settings) -> list[ExportMember]:
    """Return the episodes of a dataset, view or mixture; those of a mixture are listed once."""
    from offline_data.formats.writing.episodes import ExportMember
    from offline_data.store.reader import open_reader

    if hasattr(data, "members"):
        if view is not None:
            raise UsageError("view is the name of a view of one dataset, and this is a mixture")
        every = {id(one): one for one in data.members}.values()
        return [member for one in every for member in _members_of(one, None, settings)]
    if not hasattr(data, "data_path"):
        path = entry_of(data, settings).path
        if view is None:
            return [ExportMember.of(open_reader(path))]
        from offline_data.buffers.load import open_dataset

        data = open_dataset(path)
    from offline_data.pipeline.preprocess.api import selection_of

    buffer = data if view is None else data.saved_view(view)
    reader, step = open_reader(buffer.data_path), getattr(buffer, "saved_step", None)
    return [ExportMember.of(reader, selection_of(buffer.storage), step)]
