"""Torchrl."""
