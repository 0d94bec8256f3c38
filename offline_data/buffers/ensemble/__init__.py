"""Several buffers sampled as one: TorchRL's ensembles of sub-batches, and mixtures of rows."""

from offline_data.buffers.ensemble.buffer import ReplayBufferEnsemble
from offline_data.buffers.ensemble.dataset_mixture import DatasetMixture
from offline_data.buffers.ensemble.parts import SamplerEnsemble, StorageEnsemble, WriterEnsemble

__all__ = [
    "DatasetMixture",
    "ReplayBufferEnsemble",
    "SamplerEnsemble",
    "StorageEnsemble",
    "WriterEnsemble",
]
