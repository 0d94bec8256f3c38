"""Arguments that the public functions share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast

from offline_data.base.config import resolve_settings
from offline_data.base.errors import UsageError
from offline_data.base.ids import DatasetId

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.base.config import Settings
    from offline_data.store.library import Entry

DatasetLike: TypeAlias = "str | os.PathLike[str] | DatasetId"
"""A dataset id `source:name[@revision]`, a name that only one dataset has (`hopper-medium-v2`), or the
path of a dataset directory."""

Sort: TypeAlias = Literal["name", "size"]  # of a list: by id, or the largest first

Range: TypeAlias = "tuple[int | None, int | None] | None"  # half-open, from 0; None: everything


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


def name_of(data: DatasetLike, settings: Settings, *, exact: bool = False) -> str:
    """Return the id or path of a dataset as text; raises like `resolve_name`."""
    from offline_data.formats.names import resolve_name
    from offline_data.store.library import text_of

    return resolve_name(text_of(data), settings, exact=exact)


def entry_of(data: DatasetLike | OnDisk, settings: Settings) -> Entry:
    """Find a dataset by its id, name or path, or that of a loaded dataset or view; raises like `locate`."""
    from offline_data.store.library import locate

    named = getattr(data, "data_path", data)
    return locate(name_of(cast("DatasetLike", named), settings), settings)
