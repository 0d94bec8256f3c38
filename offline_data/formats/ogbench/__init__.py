"""Ogbench."""
