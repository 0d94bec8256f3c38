"""Which transitions a batch has: one sampler a file."""

from offline_data.buffers.samplers.base import RowSet, Runs, Sampler
from offline_data.buffers.samplers.random import RandomSampler
from offline_data.buffers.samplers.without_replacement import SamplerWithoutReplacement

__all__ = ["RandomSampler", "RowSet", "Runs", "Sampler", "SamplerWithoutReplacement"]
