"""Summaries of datasets, catalogues and this machine as frozen values; nothing is printed."""
