"""Data sources: one adapter each, looked up by name in `registry`."""
