"""Public offline-RL datasets on this disk once, checked against their source, sampled fast.

`__init__.pyi` lists the public names. They are imported on first use: importing the package imports no
torch.
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

_import, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
if find_spec("torchrl") is None:
    for _name in (
        *("Trajectory", "TrajectoryPredicate", "filter_trajectories", "find_start_stop_traj"),
        *("iter_trajectories", "traj"),
    ):
        __all__.remove(_name)  # TorchRL's own


def __getattr__(name: str) -> Any:
    """Import a public name, or a module; raises `AttributeError` with similar names."""
    if name in {"_make", "_new"}:  # where pickles find them
        return getattr(import_module(f"{__name__}.base.pickles"), name)
    if name.startswith("_") or name in __all__:
        return _import(name)
    if find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    from offline_data.base.ids import did_you_mean

    near = did_you_mean(name, __all__, shown=f"{__name__}.{{}}".format)
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
