"""Earlier name of a part of `offline_data.plugins`."""

import warnings

from offline_data.plugins import Dropped, EpisodeBatch, Key, Skipped, join_key, split_key

__all__ = ["Dropped", "EpisodeBatch", "Key", "Skipped", "join_key", "split_key"]
warnings.warn("offline_data.episodes is now offline_data.plugins", DeprecationWarning, stacklevel=2)
