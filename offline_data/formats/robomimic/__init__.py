"""Robomimic."""
