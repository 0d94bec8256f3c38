"""The dataset of the tests of rows, of which buffers give batches, and the members of mixtures."""

from tests.buffers.conftest import *
from tests.buffers.mixtures.conftest import *
