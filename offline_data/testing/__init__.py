"""Contract tests of adapters and steps, with the data they need; `assert_clean`."""

from offline_data.testing.clean import assert_clean

__all__ = ["assert_clean"]
