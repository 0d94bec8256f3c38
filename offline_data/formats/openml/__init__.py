"""Openml."""
