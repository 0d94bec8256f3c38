"""Samplers, which choose the rows of a batch."""

from offline_data.rows.samplers.base import EpisodeIndex, Sampler, ValidRows
from offline_data.rows.samplers.prioritized import PrioritizedSampler, PrioritizedSliceSampler
from offline_data.rows.samplers.slices import SliceSampler, SliceSamplerWithoutReplacement
from offline_data.rows.samplers.uniform import RandomSampler, SamplerWithoutReplacement

__all__ = [
    "EpisodeIndex",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "Sampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "ValidRows",
]
