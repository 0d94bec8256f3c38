"""Minari: datasets of Gymnasium environments, as files here or at a remote."""

from offline_data.sources.minari.adapter import Minari

__all__ = ["Minari"]
