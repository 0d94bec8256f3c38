"""Vd4rl."""
