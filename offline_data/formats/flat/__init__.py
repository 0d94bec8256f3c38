"""Flat files: one row per action in every array, cut into episodes by their flags."""
