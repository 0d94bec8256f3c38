"""Links that belong to another user, as far as `os.lstat` can tell."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


def link(place: Path, target: Path, owner: int, patch: pytest.MonkeyPatch) -> None:
    """Make a link of another user; where only root could, `os.lstat` says that it is theirs."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)
    if os.geteuid() == 0:
        os.lchown(place, owner, -1)
        return
    real = os.lstat

    def lstat(path: Any, **more: Any) -> Any:
        found = real(path, **more)
        return os.stat_result((*found[:4], owner, *found[5:])) if Path(path) == place else found

    patch.setattr(os, "lstat", lstat)
