"""Zarr."""
