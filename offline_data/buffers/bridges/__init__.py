"""Bridges from datasets to TorchRL, numpy, AgileRL and torch's `DataLoader`."""
