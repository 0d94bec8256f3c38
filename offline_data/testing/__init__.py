"""Contract tests and toy data, for adapters of this package and of others."""
