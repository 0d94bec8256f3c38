"""Directories of TorchRL: memory-mapped TensorDicts, read and written."""
