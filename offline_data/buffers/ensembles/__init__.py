"""Several buffers as one, in TorchRL's forms: each batch is some sub-batches, one below the other."""

from offline_data.buffers.ensembles.buffer import ReplayBufferEnsemble
from offline_data.buffers.ensembles.sampler import SamplerEnsemble
from offline_data.buffers.ensembles.storage import StorageEnsemble
from offline_data.buffers.ensembles.writer import WriterEnsemble

__all__ = ["ReplayBufferEnsemble", "SamplerEnsemble", "StorageEnsemble", "WriterEnsemble"]
