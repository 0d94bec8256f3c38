"""Contract tests and toy data, for this package's adapters and for other people's."""
