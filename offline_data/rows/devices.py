"""Devices of batches and rows: whether this machine has them."""

from __future__ import annotations

import warnings

import torch

from offline_data.base.errors import UsageError


def as_device(device: torch.device | str | int | None) -> torch.device:
    """Return a device, None: the CPU; raises `UsageError` if torch or this machine lacks it.

    `cuda` is the current device of this thread: in others, such as those that prefetch, it may be another.
    """
    try:
        found = torch.device("cpu" if device is None else device)
        module = getattr(torch, found.type, None)
        count = getattr(module, "device_count", lambda: None)()
    except (RuntimeError, TypeError, ValueError):
        found, count = None, 0
    if found is not None and (count is None or (found.index or 0) < count):
        numbered = found.type == "cuda" and found.index is None
        return torch.device("cuda", torch.cuda.current_device()) if numbered else found
    raise UsageError(
        f"device is {device!r}, which torch {torch.__version__} does not have on this machine",
        hint="leave it out for the CPU; for a GPU, torch must be built for it and see its driver: "
        "python -c 'import torch; print(torch.cuda.is_available())'",
    )


def pinnable(pin_memory: bool) -> bool:
    """Return `pin_memory`; warns and returns False, as torch does, if there is no accelerator."""
    if pin_memory and not getattr(torch, "accelerator", torch.cuda).is_available():
        warnings.warn(
            "pin_memory=True speeds up copies to an accelerator, and this machine has none: memory "
            "is not pinned",
            stacklevel=4,
        )
        return False
    return pin_memory
