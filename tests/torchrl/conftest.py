"""The dataset of the tests of rows, of which buffers give batches."""

from tests.buffers.conftest import *
