"""Buffers with names and arguments of TorchRL's that the other buffers do not have.

Nothing else imports it but the public functions. Start with `experience_replay`; `ensembles` has those of
several buffers.
"""

from offline_data import rows as rows  # raises where torch is missing
