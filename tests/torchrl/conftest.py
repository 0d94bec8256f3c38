"""The dataset of the tests of rows, of which buffers give batches."""

from tests.rows.conftest import (
    _one_thread,
    batch,
    compact,
    ds,
    folder,
    folders_of_batch,
    gathering,
    growing,
    new_sampler,
    own_folder,
    recording,
    steps,
    truth,
)

__all__ = [
    "_one_thread",
    "batch",
    "compact",
    "ds",
    "folder",
    "folders_of_batch",
    "gathering",
    "growing",
    "new_sampler",
    "own_folder",
    "recording",
    "steps",
    "truth",
]
