"""Earlier name of a part of `offline_data.plugins`."""

import warnings

from offline_data.plugins import join_episodes

__all__ = ["join_episodes"]
warnings.warn(
    "offline_data.episodes.joining is now offline_data.plugins", DeprecationWarning, stacklevel=2
)
