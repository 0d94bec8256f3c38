"""Datasets in the forms of other programs: TorchRL, numpy, AgileRL, and files on disk."""
