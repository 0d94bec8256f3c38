"""Writers, which decide where a buffer's new rows go; one per file."""

from offline_data.buffers.writers.base import Writer
from offline_data.buffers.writers.immutable import ImmutableDatasetWriter, immutable
from offline_data.buffers.writers.max_value import TensorDictMaxValueWriter
from offline_data.buffers.writers.round_robin import RoundRobinWriter, TensorDictRoundRobinWriter

__all__ = [
    "ImmutableDatasetWriter",
    "RoundRobinWriter",
    "TensorDictMaxValueWriter",
    "TensorDictRoundRobinWriter",
    "Writer",
    "immutable",
]
