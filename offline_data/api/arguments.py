"""Arguments that the public functions share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from offline_data.config import resolve_settings
from offline_data.errors import UsageError

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.ids import DatasetId

DatasetLike: TypeAlias = "str | os.PathLike[str] | DatasetId"
"""A dataset id `source:name[@revision]`, or the path of a dataset directory."""

Sort: TypeAlias = Literal["name", "size"]
"""Order of a list: by id, or the largest first."""

Range: TypeAlias = "tuple[int | None, int | None] | None"
"""A half-open range, counted from 0; None: everything."""


class OnDisk(Protocol):
    """A loaded dataset: it knows its directory."""

    @property
    def data_path(self) -> Path:
        """The dataset directory."""


def settings_of(root: str | os.PathLike[str] | None, settings: Settings | None) -> Settings:
    """Return settings that are resolved already, else those of a root."""
    if settings is None:
        return resolve_settings(root=root)
    if root is not None:
        raise UsageError("root= and settings= both say where datasets are; give one of them")
    return settings
