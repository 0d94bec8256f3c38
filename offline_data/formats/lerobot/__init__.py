"""Lerobot."""
