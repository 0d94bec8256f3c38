"""D4RL's published HDF5 files, all 179 ids, without the d4rl package."""

from offline_data.sources.d4rl.adapter import D4RL

__all__ = ["D4RL"]
