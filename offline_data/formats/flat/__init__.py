"""Flat."""
