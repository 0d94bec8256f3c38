"""Errors, settings, names, files, JSON and progress, which every other room uses.

It knows nothing of datasets, and imports numpy only inside functions. Start with `errors`, the tree of all
expected failures, and `config`, the settings of a run.
"""
