"""Several buffers sampled as one: TorchRL's ensembles of sub-batches, and mixtures of rows."""
