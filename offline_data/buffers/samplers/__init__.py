"""Which transitions a batch has: one sampler a file."""

from offline_data.buffers.samplers.base import RowSet, Runs, Sampler
from offline_data.buffers.samplers.prioritized import PrioritizedSampler
from offline_data.buffers.samplers.prioritized_slices import PrioritizedSliceSampler
from offline_data.buffers.samplers.random import RandomSampler
from offline_data.buffers.samplers.slices import SliceSampler
from offline_data.buffers.samplers.slices_without_replacement import SliceSamplerWithoutReplacement
from offline_data.buffers.samplers.without_replacement import SamplerWithoutReplacement

__all__ = [
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "RowSet",
    "Runs",
    "Sampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
]
