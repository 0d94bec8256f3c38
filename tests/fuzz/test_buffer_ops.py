"""A few fixed seeds of random operations on growing buffers; `run` takes any other."""

from __future__ import annotations

import pytest

from tests.fuzz.buffer_ops import run


@pytest.mark.parametrize("block", range(3))
def test_buffers_do_what_a_list_of_dicts_does(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        run(seed)
