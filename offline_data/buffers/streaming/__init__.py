"""Datasets that are streamed from their host."""

from offline_data.buffers.streaming.dataset import StreamingDataset

__all__ = ["StreamingDataset"]
