"""Contract tests and toy data, for adapters of this package and of others; `assert_clean`."""

from offline_data.testing.clean import assert_clean

__all__ = ["assert_clean"]
