"""Datasets of a project: `datasets.toml`, `datasets.lock`, `sync` and `push`.

It uses downloads and digests of datasets as they are. Start with `lockfile`; `share.push` sends a dataset to the
hub or to a folder.
"""
