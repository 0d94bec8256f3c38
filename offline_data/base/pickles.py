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

_CLASSES = {  # without a public name, with objects in pickles, by module
    "analysis.alignment.find": "Alignment LeafAlignment",
    "analysis.checks.formats": "Findings",
    "analysis.diff": "DatasetDiff EpisodeDifferences FigureDifference ValueDifference",
    "analysis.figures": "DatasetStats EpisodeStats FeatureStats LeafStats Spread",
    "analysis.histograms": "FeatureHistogram",
    "analysis.info": "DatasetInfo",
    "analysis.replay": "EpisodeReplay Replay",
    "base.config": "Settings TransferLimits",
    "base.errors": "AccessError AuditError AuthError BufferUsageError FormatError ImmutableError "
    "IntegrityError InvalidIdError LockError ManifestError MissingDependencyError NetworkError "
    "NewerFormatError NoNetworkError NoSpaceError NotFoundError OfflineDataError OfflineError "
    "StepError UnknownLeafError UnknownNameError UsageError WorkerDiedError",
    "base.ids": "DatasetId",
    "base.progress": "SilentProgress",
    "buffers.bridges.epochs": "EpochBatches Ranks WorkerEpochs",
    "buffers.bridges.loader": "DatasetLoader Unchanged WholeBatches",
    "buffers.bridges.torchrl": "Collate LazyColumns RowsStorage",
    "buffers.commands": "StatsOfBuffer",
    "buffers.dataset": "DatasetView TextDecoder",
    "buffers.mixtures.episodes": "MixtureEpisodes",
    "buffers.mixtures.epochs": "MixtureBatches MixtureRows",
    "buffers.mixtures.leaves": "Agreement MemberLeaves",
    "buffers.mixtures.members": "GatherMany",
    "buffers.mixtures.mixture": "MixtureDraw",
    "buffers.prefetch": "Draw Prefetcher",
    "buffers.specs": "Spaces Specs",
    "buffers.streaming.windows": "BatchForm Position",
    "buffers.views.episodes": "EpisodeTable ViewEpisodes",
    "formats.base": "Release Shard",
    "formats.files.mapping": "Ends FileMapping MappingQuestionError",
    "formats.files.found": "FoundArray",
    "formats.options": "Options",
    "formats.registry": "FolderOfDatasetsError",
    "formats.search": "CatalogDataset",
    "formats.writing.base": "Loss",
    "pipeline.export.run": "Exported",
    "pipeline.ingest.build": "StrictError",
    "pipeline.ingest.inspection": "Inspection",
    "pipeline.ingest.reading": "NoEpisodesError",
    "pipeline.ingest.resolve": "SeveralSplitsError",
    "pipeline.ingest.stream": "StreamPlan",
    "pipeline.jobs.processes.child": "ChildDiedError",
    "pipeline.jobs.processes.protocol": "RemoteError",
    "pipeline.preprocess.steps.columns": "Cast Clip Concat Exclude Flatten Rename Select",
    "pipeline.preprocess.steps.encoded": "Decode Encode",
    "pipeline.preprocess.steps.episodes": "Dedupe Filter Split Subsample",
    "pipeline.preprocess.steps.expressions": "Expression",
    "pipeline.preprocess.steps.images": "Crop Grayscale Resize ToChw",
    "pipeline.preprocess.steps.label": "Label Labels",
    "pipeline.preprocess.steps.normalize": "Normalize NormalizeReturn",
    "pipeline.preprocess.steps.rewards": "ReturnToGo RewardClip RewardScale RewardShift",
    "pipeline.preprocess.steps.rows": "Resample Shift Trim",
    "project.lockfile": "LockedDataset",
    "project.share.push": "Pushed",
    "project.sync": "LockResult SyncedDataset",
    "rows.derived.base": "Memory",
    "rows.derived.delta": "DeltaTimestamps",
    "rows.derived.n_step": "NStep",
    "rows.derived.neighbour": "Neighbour",
    "rows.derived.normalize": "Normalizer QuantileScale Scale _State",
    "rows.derived.relabel": "Relabel",
    "rows.derived.returns": "ReturnsToGo",
    "rows.derived.stack": "ActionChunk FrameStack",
    "rows.derived.timestep": "Timestep",
    "rows.gather.assemble": "Node",
    "rows.samplers.base": "Boundaries EpisodeIndex RingOrder ValidRows",
    "rows.samplers.slices": "EpisodePieces SliceStarts",
    "rows.samplers.sum_tree": "SumTree",
    "rows.selection": "Pieces RowList SubsetStorage",
    "rows.storage": "DatasetStorage",
    "rows.trajectories": "TrajectoryStorage",
    "rows.transforms": "Chain Link",
    "store.encoded": "EncodedColumn",
    "store.join": "DamagedPartError",
    "store.layout": "LeafSpec TableSpec",
    "store.library": "DatasetRemoval Listing LocalDataset RemovedDataset Stored",
    "store.manifest": "HistoryStep Manifest",
    "store.reader": "DatasetReader",
    "store.spaces": "LeafSpace",
    "store.verify": "Verification",
    "store.video": "StoredVideo VideoColumn",
    "text.tokenize": "_PrivateTensor",
    "torchrl.adapt": "_PixelsToTensor _Renamed",
    "torchrl.experience_replay": "_NamesOfSource",
    "torchrl.storages.views": "InTime SelectedLeaves",
    "torchrl.storages.leaves": "Frame",
    "torchrl.storages.trajectory_index": "TrajectoryIndex",
}
_MODULES = {name: module for module, names in _CLASSES.items() for name in names.split()}
_PUBLIC = frozenset(import_module("offline_data")._names)
_NEW = copyreg.__newobj__  # type: ignore[attr-defined]
_names: dict[type, str] = {}


@cache
def named(name: str) -> Any:
    """Return the class of a name in pickles, or its method (`Manifest`); raises `AttributeError`."""
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
    kind = named(name)
    return kind.__new__(kind, *arguments)


def _make(name: str, *arguments: Any, **keywords: Any) -> Any:
    """Make an object with its class, or a method of that."""
    return named(name)(*arguments, **keywords)


_make.__module__ = _new.__module__ = "offline_data"
