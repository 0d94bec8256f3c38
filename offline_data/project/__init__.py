"""Datasets of a project: content digests, `datasets.toml`, `datasets.lock`, and differences."""
