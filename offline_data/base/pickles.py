"""Pickles name the classes of this package by name alone, so that a class may change its module.

`pickle` names a class by the module that defines it. Objects of the classes here are made by a
function of `offline_data`, from a name: a public one, or one of `_CLASSES`.
"""

from __future__ import annotations

import copyreg
from functools import cache, partial
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T", bound=type)

_CLASSES = {
    "alignment.find": "Alignment LeafAlignment",
    "buffers.bridges.agile": "WorkerEpochs",
    "buffers.bridges.loader": "DatasetLoader EpochBatches Ranks Unchanged WholeBatches",
    "buffers.bridges.torchrl": "Collate LazyColumns RowsStorage",
    "buffers.dataset": "DatasetView TextDecoder",
    "buffers.derived.base": "Memory",
    "buffers.derived.delta": "DeltaTimestamps",
    "buffers.derived.n_step": "NStep",
    "buffers.derived.neighbour": "Neighbour",
    "buffers.derived.normalize": "Normalizer QuantileScale Scale _State",
    "buffers.derived.relabel": "Relabel",
    "buffers.derived.returns": "ReturnsToGo",
    "buffers.derived.stack": "ActionChunk FrameStack",
    "buffers.derived.timestep": "Timestep",
    "buffers.ensemble.episodes": "MixtureEpisodes",
    "buffers.ensemble.epochs": "MixtureBatches MixtureRows",
    "buffers.ensemble.leaves": "Agreement MemberLeaves",
    "buffers.ensemble.members": "GatherMany",
    "buffers.ensemble.mixture": "MixtureDraw",
    "buffers.experience_replay": "_NamesOfSource _PixelsToTensor",
    "buffers.gather.assemble": "Node",
    "buffers.lerobot_replay": "_Renamed",
    "buffers.prefetch": "Draw Prefetcher",
    "buffers.samplers.base": "Boundaries EpisodeIndex RingOrder ValidRows",
    "buffers.samplers.slices": "EpisodePieces SliceStarts",
    "buffers.samplers.sum_tree": "SumTree",
    "buffers.specs": "Spaces Specs",
    "buffers.storage.base": "InTime SelectedLeaves",
    "buffers.storage.dataset": "DatasetStorage",
    "buffers.storage.rows": "Frame",
    "buffers.storage.trajectory_index": "TrajectoryIndex",
    "buffers.streaming.windows": "BatchForm Position",
    "buffers.trajectories": "TrajectoryStorage",
    "buffers.transforms": "Chain Link",
    "buffers.views.episodes": "EpisodeTable ViewEpisodes",
    "buffers.views.rows": "Pieces RowList SubsetStorage",
    "config": "Settings TransferLimits",
    "errors": "AccessError AuditError AuthError BufferUsageError FormatError ImmutableError "
    "IntegrityError InvalidIdError LockError ManifestError MissingDependencyError NetworkError "
    "NewerFormatError NoNetworkError NoSpaceError NotFoundError OfflineDataError OfflineError "
    "StepError UnknownLeafError UnknownNameError UsageError WorkerDiedError",
    "ids": "DatasetId",
    "ingest.build": "NoEpisodesError StrictError",
    "ingest.options": "SeveralSplitsError Stored",
    "ingest.stream": "StreamPlan",
    "preprocess.steps.columns": "Cast Clip Concat Exclude Flatten Rename Select",
    "preprocess.steps.encoded": "Decode Encode",
    "preprocess.steps.episodes": "Dedupe Filter Split Subsample",
    "preprocess.steps.expressions": "Expression",
    "preprocess.steps.images": "Crop Grayscale Resize ToChw",
    "preprocess.steps.label": "Label Labels",
    "preprocess.steps.normalize": "Normalize NormalizeReturn",
    "preprocess.steps.rewards": "ReturnToGo RewardClip RewardScale RewardShift",
    "preprocess.steps.rows": "Resample Shift Trim",
    "processes.child": "ChildDiedError",
    "processes.protocol": "RemoteError",
    "progress": "SilentProgress",
    "project.diff": "DatasetDiff EpisodeDifferences FigureDifference ValueDifference",
    "project.lockfile": "LockedDataset",
    "project.sync": "LockResult SyncedDataset",
    "reports.catalog": "CatalogDataset",
    "reports.histograms": "FeatureHistogram",
    "reports.info": "DatasetInfo",
    "reports.listing": "Listing LocalDataset",
    "reports.replay": "EpisodeReplay Replay",
    "reports.stats": "DatasetStats EpisodeStats FeatureStats LeafStats Spread",
    "share.push": "Pushed",
    "sources.base": "Release Shard",
    "sources.files.mapping": "Ends FileMapping MappingQuestionError",
    "sources.files.proposal": "FoundArray Inspection",
    "sources.options": "Options",
    "sources.registry": "FolderOfDatasetsError",
    "store.encoded": "EncodedColumn",
    "store.join": "DamagedPartError",
    "store.layout": "LeafSpec TableSpec",
    "store.manifest": "HistoryStep Manifest",
    "store.reader": "DatasetReader",
    "store.removal": "DatasetRemoval RemovedDataset",
    "store.spaces": "LeafSpace",
    "store.verify": "Verification",
    "store.video": "StoredVideo VideoColumn",
    "targets.base": "Loss",
    "targets.run": "Exported",
    "text.tokenize": "_PrivateTensor",
}
"""Classes without a public name of which there are objects in pickles, by module."""
_MODULES = {name: module for module, names in _CLASSES.items() for name in names.split()}
_PUBLIC = frozenset(import_module("offline_data").__all__)
_NEW = copyreg.__newobj__  # type: ignore[attr-defined]
_names: dict[type, str] = {}


@cache
def named(name: str) -> Any:
    """Return the class of a name in pickles, or its method: `Manifest`, `EncodedColumn.of`.

    Raises `AttributeError` if there is none.
    """
    name, _, method = name.partition(".")
    where = f"offline_data.{_MODULES[name]}" if name in _MODULES else "offline_data"
    found = getattr(import_module(where), name)
    return getattr(found, method) if method else found


def name_of(value: Any) -> str | None:
    """Return the name of a class, function or method of this package, for `named`; None without one."""
    name: str = getattr(value, "__qualname__", "")
    head = name.partition(".")[0]
    if (head in _MODULES or head in _PUBLIC) and value.__module__.startswith("offline_data."):
        found = named(head)
        return name if value in (found, getattr(found, name[len(head) + 1 :], None)) else None
    return None


def by_name(reduced: Any) -> Any:
    """Return what a method `__reduce__` returned, with a class by its name, not its module."""
    make, arguments, *more = reduced
    name = name_of(make.func if isinstance(make, partial) else make)
    if name is None:  # a subclass of another package, say
        return reduced
    if isinstance(make, partial):
        return partial(_make, name, *make.args, **make.keywords), arguments, *more
    return _make, (name, *arguments), *more


def pickled_by_name(kind: T) -> T:
    """Pickle objects of this class, and of its subclasses, by the name of their class; a decorator."""
    kind.__reduce_ex__ = _reduce_ex  # type: ignore[method-assign, assignment]
    return kind


def _reduce_ex(value: object, protocol: int) -> Any:
    reduced: Any = object.__reduce_ex__(value, max(protocol, 2))
    if reduced[0] is not _NEW:
        return by_name(reduced)
    kind = type(value)
    name = _names.get(kind) or name_of(kind)
    if name is None:
        return reduced
    _names[kind] = name
    return _new, (name, *reduced[1][1:]), *reduced[2:]


def _new(name: str, *arguments: Any) -> Any:
    """Make an object without calling its constructor."""
    kind = named(name)
    return kind.__new__(kind, *arguments)


def _make(name: str, *arguments: Any, **keywords: Any) -> Any:
    """Make an object with its class, or a method of that."""
    return named(name)(*arguments, **keywords)


_make.__module__ = _new.__module__ = "offline_data"
