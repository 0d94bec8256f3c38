"""Datasets that are read from their host while they are used."""

from offline_data.buffers.streaming.dataset import StreamingDataset

__all__ = ["StreamingDataset"]
