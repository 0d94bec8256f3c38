"""Public offline-RL datasets on this disk once, checked against their source, sampled fast.

Names are imported on first use: importing the package imports no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offline_data.api import card as card
    from offline_data.api import check as check
    from offline_data.api import convert as convert
    from offline_data.api import diff as diff
    from offline_data.api import download as download
    from offline_data.api import info as info
    from offline_data.api import list_datasets as list_datasets
    from offline_data.api import load_arrays as load_arrays
    from offline_data.api import lock as lock
    from offline_data.api import plot as plot
    from offline_data.api import push as push
    from offline_data.api import remove as remove
    from offline_data.api import search as search
    from offline_data.api import stats as stats
    from offline_data.api import sync as sync
    from offline_data.api import verify as verify
    from offline_data.buffers.bridges.agile import ReplayDataset as ReplayDataset
    from offline_data.buffers.bridges.agile import Transition as Transition
    from offline_data.buffers.bridges.agile import to_tensordict as to_tensordict
    from offline_data.buffers.bridges.agile import to_torch_tensor as to_torch_tensor
    from offline_data.buffers.bridges.schema import from_schema as from_schema
    from offline_data.buffers.bridges.ted_flat import Flat2TED as Flat2TED
    from offline_data.buffers.bridges.ted_flat import TED2Flat as TED2Flat
    from offline_data.buffers.bridges.torchrl import Trajectory as Trajectory
    from offline_data.buffers.bridges.torchrl import TrajectoryPredicate as TrajectoryPredicate
    from offline_data.buffers.bridges.torchrl import filter_trajectories as filter_trajectories
    from offline_data.buffers.bridges.torchrl import find_start_stop_traj as find_start_stop_traj
    from offline_data.buffers.bridges.torchrl import iter_trajectories as iter_trajectories
    from offline_data.buffers.bridges.torchrl import traj as traj
    from offline_data.buffers.buffer import ReplayBuffer as ReplayBuffer
    from offline_data.buffers.dataset import (
        BaseDatasetExperienceReplay as BaseDatasetExperienceReplay,
    )
    from offline_data.buffers.derived import action_chunk as action_chunk
    from offline_data.buffers.derived import frame_stack as frame_stack
    from offline_data.buffers.derived import n_step as n_step
    from offline_data.buffers.derived import normalize as normalize
    from offline_data.buffers.derived import relabel as relabel
    from offline_data.buffers.derived import return_to_go as return_to_go
    from offline_data.buffers.derived import timestep as timestep
    from offline_data.buffers.ensemble import DatasetMixture as DatasetMixture
    from offline_data.buffers.ensemble import ReplayBufferEnsemble as ReplayBufferEnsemble
    from offline_data.buffers.ensemble import SamplerEnsemble as SamplerEnsemble
    from offline_data.buffers.ensemble import StorageEnsemble as StorageEnsemble
    from offline_data.buffers.ensemble import WriterEnsemble as WriterEnsemble
    from offline_data.buffers.ensemble.offline_to_online import (
        OfflineToOnlineReplayBuffer as OfflineToOnlineReplayBuffer,
    )
    from offline_data.buffers.ensemble.offline_to_online import (
        prefill_replay_buffer as prefill_replay_buffer,
    )
    from offline_data.buffers.experience_replay import (
        AtariDQNExperienceReplay as AtariDQNExperienceReplay,
    )
    from offline_data.buffers.experience_replay import D4RLExperienceReplay as D4RLExperienceReplay
    from offline_data.buffers.experience_replay import (
        GenDGRLExperienceReplay as GenDGRLExperienceReplay,
    )
    from offline_data.buffers.experience_replay import (
        MinariExperienceReplay as MinariExperienceReplay,
    )
    from offline_data.buffers.experience_replay import (
        OpenMLExperienceReplay as OpenMLExperienceReplay,
    )
    from offline_data.buffers.experience_replay import (
        RobosetExperienceReplay as RobosetExperienceReplay,
    )
    from offline_data.buffers.experience_replay import (
        VD4RLExperienceReplay as VD4RLExperienceReplay,
    )
    from offline_data.buffers.lerobot_replay import (
        LeRobotExperienceReplay as LeRobotExperienceReplay,
    )
    from offline_data.buffers.load import load_dataset as load_dataset
    from offline_data.buffers.load import open_dataset as open_dataset
    from offline_data.buffers.load import register_dataset as register_dataset
    from offline_data.buffers.load import torchrl_dataset as torchrl_dataset
    from offline_data.buffers.openx_replay import OpenXExperienceReplay as OpenXExperienceReplay
    from offline_data.buffers.prioritized import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from offline_data.buffers.prioritized import (
        TensorDictPrioritizedReplayBuffer as TensorDictPrioritizedReplayBuffer,
    )
    from offline_data.buffers.samplers import PrioritizedSampler as PrioritizedSampler
    from offline_data.buffers.samplers import PrioritizedSliceSampler as PrioritizedSliceSampler
    from offline_data.buffers.samplers import RandomSampler as RandomSampler
    from offline_data.buffers.samplers import Sampler as Sampler
    from offline_data.buffers.samplers import SamplerWithoutReplacement as SamplerWithoutReplacement
    from offline_data.buffers.samplers import SliceSampler as SliceSampler
    from offline_data.buffers.samplers import (
        SliceSamplerWithoutReplacement as SliceSamplerWithoutReplacement,
    )
    from offline_data.buffers.storage import LazyMemmapStorage as LazyMemmapStorage
    from offline_data.buffers.storage import LazyStackStorage as LazyStackStorage
    from offline_data.buffers.storage import LazyTensorStorage as LazyTensorStorage
    from offline_data.buffers.storage import ListStorage as ListStorage
    from offline_data.buffers.storage import TensorStorage as TensorStorage
    from offline_data.buffers.streaming import StreamingDataset as StreamingDataset
    from offline_data.buffers.tensordict_buffer import (
        TensorDictReplayBuffer as TensorDictReplayBuffer,
    )
    from offline_data.buffers.trajectories import split_trajs as split_trajs
    from offline_data.buffers.views.episode import Episode as Episode
    from offline_data.buffers.writers import ImmutableDatasetWriter as ImmutableDatasetWriter
    from offline_data.buffers.writers import RoundRobinWriter as RoundRobinWriter
    from offline_data.buffers.writers import TensorDictMaxValueWriter as TensorDictMaxValueWriter
    from offline_data.buffers.writers import (
        TensorDictRoundRobinWriter as TensorDictRoundRobinWriter,
    )
    from offline_data.buffers.writers import Writer as Writer
    from offline_data.checks.finding import Finding as Finding
    from offline_data.preprocess.steps.base import Step as Step
    from offline_data.preprocess.steps.registry import register_step as register_step
    from offline_data.sources.options import TextOptions as TextOptions
    from offline_data.text.data import PairwiseDataset as PairwiseDataset
    from offline_data.text.data import PromptData as PromptData
    from offline_data.text.data import RewardData as RewardData
    from offline_data.text.data import (
        create_infinite_iterator as create_infinite_iterator,
    )
    from offline_data.text.data import get_dataloader as get_dataloader
    from offline_data.text.documents import Documents as Documents
    from offline_data.text.tokenize import (
        PromptTensorDictTokenizer as PromptTensorDictTokenizer,
    )
    from offline_data.text.tokenize import TensorDictTokenizer as TensorDictTokenizer
    from offline_data.text.tokenize import (
        TokenizedDatasetLoader as TokenizedDatasetLoader,
    )
    from offline_data.text.topk import TopKRewardSelector as TopKRewardSelector

    __version__: str

_NAMES = {
    "api": (
        "card check convert diff download info list_datasets load_arrays lock plot push remove search "
        "stats sync verify"
    ),
    "buffers.bridges.agile": "ReplayDataset Transition to_tensordict to_torch_tensor",
    "buffers.bridges.schema": "from_schema",
    "buffers.bridges.ted_flat": "Flat2TED TED2Flat",
    "buffers.bridges.torchrl": (
        "Trajectory TrajectoryPredicate filter_trajectories find_start_stop_traj iter_trajectories traj"
    ),
    "buffers.buffer": "ReplayBuffer",
    "buffers.dataset": "BaseDatasetExperienceReplay",
    "buffers.derived": "action_chunk frame_stack n_step normalize relabel return_to_go timestep",
    "buffers.ensemble": (
        "DatasetMixture ReplayBufferEnsemble SamplerEnsemble StorageEnsemble WriterEnsemble"
    ),
    "buffers.experience_replay": (
        "AtariDQNExperienceReplay D4RLExperienceReplay GenDGRLExperienceReplay "
        "MinariExperienceReplay OpenMLExperienceReplay "
        "RobosetExperienceReplay VD4RLExperienceReplay"
    ),
    "text.data": ("PairwiseDataset PromptData RewardData create_infinite_iterator get_dataloader"),
    "text.documents": "Documents",
    "text.tokenize": ("PromptTensorDictTokenizer TensorDictTokenizer TokenizedDatasetLoader"),
    "text.topk": "TopKRewardSelector",
    "buffers.load": "load_dataset open_dataset register_dataset torchrl_dataset",
    "buffers.ensemble.offline_to_online": "OfflineToOnlineReplayBuffer prefill_replay_buffer",
    "buffers.lerobot_replay": "LeRobotExperienceReplay",
    "buffers.openx_replay": "OpenXExperienceReplay",
    "buffers.prioritized": "PrioritizedReplayBuffer TensorDictPrioritizedReplayBuffer",
    "buffers.samplers": (
        "PrioritizedSampler PrioritizedSliceSampler RandomSampler Sampler "
        "SamplerWithoutReplacement SliceSampler SliceSamplerWithoutReplacement"
    ),
    "buffers.storage": (
        "LazyMemmapStorage LazyStackStorage LazyTensorStorage ListStorage TensorStorage"
    ),
    "buffers.streaming": "StreamingDataset",
    "buffers.tensordict_buffer": "TensorDictReplayBuffer",
    "buffers.trajectories": "split_trajs",
    "buffers.views.episode": "Episode",
    "buffers.writers": (
        "ImmutableDatasetWriter RoundRobinWriter TensorDictMaxValueWriter "
        "TensorDictRoundRobinWriter Writer"
    ),
    "checks.finding": "Finding",
    "preprocess.steps.base": "Step",
    "preprocess.steps.registry": "register_step",
    "sources.options": "TextOptions",
}
"""Public names, by the module of this package that each lives in."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_OPTIONAL = "buffers.bridges.torchrl"
"""Module whose names are TorchRL's own: there where it is installed."""

__all__ = sorted(  # noqa: PLE0605 -- each name is said once, above
    ["__version__", *(name for name in _HOMES if _HOMES[name] != _OPTIONAL or find_spec("torchrl"))]
)


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "__version__":
        value: Any = _version()
    elif name in _HOMES:
        value = getattr(import_module(f"offline_data.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__", "__spec__"})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("offline-data")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"


class _OnImport:
    """Calls a function with a module of TorchRL's when that is imported.

    It looks for no plugins itself. An entry of `sys.meta_path`, which goes once it was asked.
    """

    def __init__(self, module: str, then: Callable[[Any], None]) -> None:
        self.module, self.then = module, then

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:  # noqa: ARG002
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_then(module: Any) -> None:
                run(module)
                self.then(module)

            spec.loader.exec_module = run_and_then  # type: ignore[method-assign]
        return spec


def _register_datasets(module: Any) -> None:
    """Make `offline_data:…` an id of TorchRL's `load_dataset`, if this version has a registry."""
    if hasattr(module, "register_dataset"):
        module.register_dataset(
            "offline_data", "offline_data.buffers.load:torchrl_dataset", replace=True
        )


def _register_parts(_: Any) -> None:
    """Make samplers and writers TorchRL's, if they are imported; see `bridges.parts.register`."""
    parts = sys.modules.get("offline_data.buffers.bridges.parts")
    if parts is not None:
        parts.register()


for _module, _then in (
    ("torchrl.data.datasets.utils", _register_datasets),
    ("torchrl.data.replay_buffers.writers", _register_parts),
):
    if _module in sys.modules:
        _then(sys.modules[_module])
    else:
        sys.meta_path.insert(0, _OnImport(_module, _then))
