"""Data sources: one adapter each, found by name in `registry`."""
