"""Leaves that offline RL needs beyond the rows of a batch: computed from indices, not stored."""

from offline_data.buffers.derived.action_chunk import action_chunk
from offline_data.buffers.derived.base import Derived
from offline_data.buffers.derived.frame_stack import frame_stack
from offline_data.buffers.derived.n_step import n_step
from offline_data.buffers.derived.normalize import normalize
from offline_data.buffers.derived.relabel import relabel
from offline_data.buffers.derived.return_to_go import return_to_go

__all__ = [
    "Derived",
    "action_chunk",
    "frame_stack",
    "n_step",
    "normalize",
    "relabel",
    "return_to_go",
]
