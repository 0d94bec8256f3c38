"""Rlds."""
