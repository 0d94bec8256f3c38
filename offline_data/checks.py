"""Earlier name of a part of `offline_data.plugins`."""

import warnings

from offline_data.plugins import Finding, Rule

__all__ = ["Finding", "Rule"]
warnings.warn("offline_data.checks is now offline_data.plugins", DeprecationWarning, stacklevel=2)
