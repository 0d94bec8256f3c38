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

_HOMES = {
    "BaseDatasetExperienceReplay": "dataset",
    "D4RLExperienceReplay": "experience_replay",
    "DatasetMixture": "ensemble",
    "Flat2TED": "bridges.ted_flat",
    "ImmutableDatasetWriter": "writers",
    "LazyMemmapStorage": "storage",
    "LazyTensorStorage": "storage",
    "ListStorage": "storage",
    "MinariExperienceReplay": "experience_replay",
    "PrioritizedSampler": "samplers",
    "PrioritizedSliceSampler": "samplers",
    "RandomSampler": "samplers",
    "ReplayBuffer": "buffer",
    "ReplayBufferEnsemble": "ensemble",
    "ReplayDataset": "bridges.agile",
    "RoundRobinWriter": "writers",
    "Sampler": "samplers",
    "SamplerEnsemble": "ensemble",
    "SamplerWithoutReplacement": "samplers",
    "SliceSampler": "samplers",
    "SliceSamplerWithoutReplacement": "samplers",
    "StorageEnsemble": "ensemble",
    "TED2Flat": "bridges.ted_flat",
    "TensorDictMaxValueWriter": "writers",
    "TensorDictReplayBuffer": "buffer",
    "TensorDictRoundRobinWriter": "writers",
    "TensorStorage": "storage",
    "Transition": "bridges.agile",
    "Writer": "writers",
    "WriterEnsemble": "ensemble",
    "action_chunk": "derived",
    "frame_stack": "derived",
    "from_schema": "bridges.schema",
    "load_dataset": "load",
    "n_step": "derived",
    "normalize": "derived",
    "open_dataset": "load",
    "register_dataset": "load",
    "relabel": "derived",
    "return_to_go": "derived",
    "split_trajs": "trajectories",
    "to_tensordict": "bridges.agile",
    "to_torch_tensor": "bridges.agile",
}
"""Module of `offline_data.buffers` that each public name lives in."""

_STEPS = {"Step": "base", "register_step": "registry"}
"""Module of `offline_data.preprocess.steps` that these live in."""


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "__version__":
        value: Any = _version()
    elif name in _STEPS:
        value = getattr(import_module(f"offline_data.preprocess.steps.{_STEPS[name]}"), name)
    elif name in _HOMES:
        value = getattr(import_module(f"offline_data.buffers.{_HOMES[name]}"), name)
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
