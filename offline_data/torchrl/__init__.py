"""Buffers that are written to, their storages and writers, and other names of TorchRL's.

Nothing else imports it but the public functions. Start with `buffer`, which adds writing to
`offline_data.buffers.buffer`; `storages` has where rows are written, `experience_replay` the dataset classes.
"""

from offline_data import rows as rows  # raises where torch is missing
