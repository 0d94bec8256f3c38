"""Minari."""
