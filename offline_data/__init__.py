"""Public offline-RL datasets on this disk once, checked against their source, sampled fast.

    import offline_data

    ds = offline_data.load_dataset("d4rl:hopper-medium-v2", batch_size=256)  # downloads once
    print(ds.sample()["observation"].shape)  # a TensorDict, as in TorchRL
    print(ds.filter("return > 1000"))  # a view of these episodes, to sample from as well
    arrays = offline_data.load_arrays("d4rl:hopper-medium-v2")  # numpy, without torch

`offline_data.search()` finds others, and `offline_data.convert` reads your own. TorchRL's names are in
`offline_data.torchrl`, AgileRL's in `offline_data.agilerl`. Names are imported on first use: importing the
package imports no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import lazy_loader

if sys.platform == "win32":
    raise ImportError(
        "offline-data needs Linux or macOS; on Windows, install it in WSL 2 "
        "(https://learn.microsoft.com/windows/wsl/install)"
    )

_import, _, _names = lazy_loader.attach_stub(__name__, __file__)  # of `__init__.pyi`
if find_spec("torchrl") is None:
    for _name in (
        *("Trajectory", "TrajectoryPredicate", "filter_trajectories", "find_start_stop_traj"),
        *("iter_trajectories", "traj"),
    ):
        _names.remove(_name)  # TorchRL's own

_TORCHRL = frozenset(
    (
        *("AtariDQNExperienceReplay", "BaseDatasetExperienceReplay", "D4RLExperienceReplay"),
        *("Flat2TED", "GenDGRLExperienceReplay", "ImmutableDatasetWriter", "LazyMemmapStorage"),
        *("LazyStackStorage", "LazyTensorStorage", "LeRobotExperienceReplay", "ListStorage"),
        *("MinariExperienceReplay", "OfflineToOnlineReplayBuffer", "OpenMLExperienceReplay"),
        *("OpenXExperienceReplay", "PairwiseDataset", "PrioritizedReplayBuffer", "PromptData"),
        *("PromptTensorDictTokenizer", "ReplayBuffer", "ReplayBufferEnsemble", "RewardData"),
        *("RobosetExperienceReplay", "RoundRobinWriter", "SamplerEnsemble", "StorageEnsemble"),
        *("TED2Flat", "TensorDictMaxValueWriter", "TensorDictPrioritizedReplayBuffer"),
        *("TensorDictReplayBuffer", "TensorDictRoundRobinWriter", "TensorDictTokenizer"),
        *("TensorStorage", "TokenizedDatasetLoader", "TopKRewardSelector", "Trajectory"),
        *("TrajectoryPredicate", "VD4RLExperienceReplay", "Writer", "WriterEnsemble"),
        *("create_infinite_iterator", "filter_trajectories", "find_start_stop_traj"),
        *("from_schema", "get_dataloader", "iter_trajectories", "prefill_replay_buffer"),
        *("split_trajs", "torchrl_dataset", "traj"),
    )
)
"""Names that `offline_data.torchrl` lists; they can be imported from here, too."""
_AGILERL = frozenset({"Transition", "to_tensordict", "to_torch_tensor"})

__all__ = [name for name in _names if name not in _TORCHRL | _AGILERL]


def __dir__() -> list[str]:
    return __all__.copy()


def __getattr__(name: str) -> Any:
    """Import a public name, or a module; raises `AttributeError` with similar names."""
    if name in {"_make", "_new"}:  # where pickles find them
        return getattr(import_module(f"{__name__}.base.pickles"), name)
    if name.startswith("_") or name in _names:
        return _import(name)
    if find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    from offline_data.base.ids import did_you_mean

    near = did_you_mean(name, _names, shown=f"{__name__}.{{}}".format)
    if name in {"filter", "preprocess", "sample", "split", "view"}:
        near = f"ds = {__name__}.load_dataset(ID), then ds.{name}(…)"
    hint = f"; {near}" if near else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


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
