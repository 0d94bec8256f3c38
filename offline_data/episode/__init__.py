"""Whole episodes as arrays: the one shape that readers return and writers take.

It knows neither files nor formats. Start with `EpisodeBatch` in `batch`; `fields` has the names of
features, and `cut` and `joining` make episodes of rows and batches of episodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.episode.fields import Dropped, Key, Skipped, join_key, split_key

if TYPE_CHECKING:
    from offline_data.episode.batch import EpisodeBatch

__all__ = ["Dropped", "EpisodeBatch", "Key", "Skipped", "join_key", "split_key"]


def __getattr__(name: str) -> Any:
    """Import the batch on use: it needs numpy, which listing datasets does not."""
    if name != "EpisodeBatch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from offline_data.episode.batch import EpisodeBatch

    return EpisodeBatch
