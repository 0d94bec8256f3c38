"""Errors, settings, names, files, JSON and progress, which every other package uses.

It knows nothing of datasets, and only `exact` imports numpy when it is loaded. Start with `errors`, the tree of all
expected failures, and `config`, the settings of a run.
"""
