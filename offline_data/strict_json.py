"""Earlier name of a part of `offline_data.plugins`."""

import warnings

from offline_data.plugins import parse_json, read_json

__all__ = ["parse_json", "read_json"]
warnings.warn(
    "offline_data.strict_json is now offline_data.plugins", DeprecationWarning, stacklevel=2
)
