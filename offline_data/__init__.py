"""Public offline-RL datasets on this disk once, proven equal to their source, sampled fast.

Names are imported on first use: importing the package imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offline_data.buffers.buffer import ReplayBuffer, TensorDictReplayBuffer
    from offline_data.buffers.dataset import BaseDatasetExperienceReplay
    from offline_data.buffers.experience_replay import (
        D4RLExperienceReplay,
        MinariExperienceReplay,
    )
    from offline_data.buffers.load import load_dataset, open_dataset
    from offline_data.buffers.samplers import RandomSampler, SamplerWithoutReplacement
    from offline_data.buffers.writers import ImmutableDatasetWriter

    __version__: str

__all__ = [
    "BaseDatasetExperienceReplay",
    "D4RLExperienceReplay",
    "ImmutableDatasetWriter",
    "MinariExperienceReplay",
    "RandomSampler",
    "ReplayBuffer",
    "SamplerWithoutReplacement",
    "TensorDictReplayBuffer",
    "__version__",
    "load_dataset",
    "open_dataset",
]

_HOMES = {
    "BaseDatasetExperienceReplay": "dataset",
    "D4RLExperienceReplay": "experience_replay",
    "ImmutableDatasetWriter": "writers",
    "MinariExperienceReplay": "experience_replay",
    "RandomSampler": "samplers",
    "ReplayBuffer": "buffer",
    "SamplerWithoutReplacement": "samplers",
    "TensorDictReplayBuffer": "buffer",
    "load_dataset": "load",
    "open_dataset": "load",
}
"""Module of `offline_data.buffers` that each public name lives in."""


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "__version__":
        value: Any = _version()
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
