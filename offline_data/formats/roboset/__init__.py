"""Roboset."""
