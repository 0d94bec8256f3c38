"""Earlier name of a part of `offline_data.plugins`."""

import warnings

from offline_data.plugins import fingerprint

__all__ = ["fingerprint"]
warnings.warn(
    "offline_data.sources.fingerprint is now offline_data.plugins", DeprecationWarning, stacklevel=2
)
