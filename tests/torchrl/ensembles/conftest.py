"""The members of tests of mixtures."""

from tests.buffers.mixtures.conftest import folders, three

__all__ = ["folders", "three"]
