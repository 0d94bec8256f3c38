"""Derived features: computed from other rows of a dataset when a batch is made, not stored."""

from offline_data.rows.derived.base import Derived
from offline_data.rows.derived.delta import delta_timestamps
from offline_data.rows.derived.n_step import n_step
from offline_data.rows.derived.normalize import normalize
from offline_data.rows.derived.relabel import relabel
from offline_data.rows.derived.returns import return_to_go
from offline_data.rows.derived.stack import action_chunk, frame_stack
from offline_data.rows.derived.timestep import timestep

__all__ = [
    "Derived",
    "action_chunk",
    "delta_timestamps",
    "frame_stack",
    "n_step",
    "normalize",
    "relabel",
    "return_to_go",
    "timestep",
]
