"""Samplers: which transitions a batch has."""

from offline_data.buffers.samplers.base import RowSet, Runs, Sampler
from offline_data.buffers.samplers.prioritized import PrioritizedSampler, PrioritizedSliceSampler
from offline_data.buffers.samplers.slices import SliceSampler, SliceSamplerWithoutReplacement
from offline_data.buffers.samplers.uniform import RandomSampler, SamplerWithoutReplacement

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
