"""Public offline-RL datasets on this disk once, proven equal to their source, sampled fast.

Names are imported on first use: importing the package imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offline_data.buffers.bridges.agile import (
        ReplayDataset,
        Transition,
        to_tensordict,
        to_torch_tensor,
    )
    from offline_data.buffers.bridges.schema import from_schema
    from offline_data.buffers.bridges.ted_flat import Flat2TED, TED2Flat
    from offline_data.buffers.buffer import ReplayBuffer, TensorDictReplayBuffer
    from offline_data.buffers.dataset import BaseDatasetExperienceReplay
    from offline_data.buffers.derived import (
        action_chunk,
        frame_stack,
        n_step,
        normalize,
        relabel,
        return_to_go,
    )
    from offline_data.buffers.ensemble import (
        DatasetMixture,
        ReplayBufferEnsemble,
        SamplerEnsemble,
        StorageEnsemble,
        WriterEnsemble,
    )
    from offline_data.buffers.experience_replay import D4RLExperienceReplay, MinariExperienceReplay
    from offline_data.buffers.load import load_dataset, open_dataset, register_dataset
    from offline_data.buffers.samplers import (
        PrioritizedSampler,
        PrioritizedSliceSampler,
        RandomSampler,
        Sampler,
        SamplerWithoutReplacement,
        SliceSampler,
        SliceSamplerWithoutReplacement,
    )
    from offline_data.buffers.storage import (
        LazyMemmapStorage,
        LazyTensorStorage,
        ListStorage,
        TensorStorage,
    )
    from offline_data.buffers.trajectories import split_trajs
    from offline_data.buffers.writers import (
        ImmutableDatasetWriter,
        RoundRobinWriter,
        TensorDictMaxValueWriter,
        TensorDictRoundRobinWriter,
        Writer,
    )
    from offline_data.preprocess.steps.base import Step
    from offline_data.preprocess.steps.registry import register_step

    __version__: str

__all__ = [
    "BaseDatasetExperienceReplay",
    "D4RLExperienceReplay",
    "DatasetMixture",
    "Flat2TED",
    "ImmutableDatasetWriter",
    "LazyMemmapStorage",
    "LazyTensorStorage",
    "ListStorage",
    "MinariExperienceReplay",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "ReplayBuffer",
    "ReplayBufferEnsemble",
    "ReplayDataset",
    "RoundRobinWriter",
    "Sampler",
    "SamplerEnsemble",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "Step",
    "StorageEnsemble",
    "TED2Flat",
    "TensorDictMaxValueWriter",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorStorage",
    "Transition",
    "Writer",
    "WriterEnsemble",
    "__version__",
    "action_chunk",
    "frame_stack",
    "from_schema",
    "load_dataset",
    "n_step",
    "normalize",
    "open_dataset",
    "register_dataset",
    "register_step",
    "relabel",
    "return_to_go",
    "split_trajs",
    "to_tensordict",
    "to_torch_tensor",
]

_NAMES = {
    "buffers.bridges.agile": "ReplayDataset Transition to_tensordict to_torch_tensor",
    "buffers.bridges.schema": "from_schema",
    "buffers.bridges.ted_flat": "Flat2TED TED2Flat",
    "buffers.buffer": "ReplayBuffer TensorDictReplayBuffer",
    "buffers.dataset": "BaseDatasetExperienceReplay",
    "buffers.derived": "action_chunk frame_stack n_step normalize relabel return_to_go",
    "buffers.ensemble": (
        "DatasetMixture ReplayBufferEnsemble SamplerEnsemble StorageEnsemble WriterEnsemble"
    ),
    "buffers.experience_replay": "D4RLExperienceReplay MinariExperienceReplay",
    "buffers.load": "load_dataset open_dataset register_dataset",
    "buffers.samplers": (
        "PrioritizedSampler PrioritizedSliceSampler RandomSampler Sampler "
        "SamplerWithoutReplacement SliceSampler SliceSamplerWithoutReplacement"
    ),
    "buffers.storage": "LazyMemmapStorage LazyTensorStorage ListStorage TensorStorage",
    "buffers.trajectories": "split_trajs",
    "buffers.writers": (
        "ImmutableDatasetWriter RoundRobinWriter TensorDictMaxValueWriter "
        "TensorDictRoundRobinWriter Writer"
    ),
    "preprocess.steps.base": "Step",
    "preprocess.steps.registry": "register_step",
}
"""Public names, by the module of this package that each lives in."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


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
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("offline-data")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"
