"""Datasets to sample from: buffers, views, mixtures, loaders and streams.

It adds to `rows` what a user holds, and knows nothing of how a dataset was made, except where it streams.
Start with `dataset` and `buffer`; `load` opens a dataset of this disk.
"""

from offline_data import rows as rows  # raises where torch is missing
