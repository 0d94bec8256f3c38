"""Encoders of mp4 files, and what they leave behind."""

from __future__ import annotations

import os
from pathlib import Path

import av
import numpy as np
import pytest

from offline_data.raw.video import ENCODERS, Mp4Writer


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="not Linux")
@pytest.mark.parametrize("codec", ENCODERS)
def test_no_thread_becomes_a_real_time_one(codec: str, tmp_path: Path) -> None:
    """As root, SVT-AV1 makes itself and its caller such; the tests run as root in containers."""
    if ENCODERS[codec][0] not in av.codecs_available:
        pytest.skip(f"no {codec} here")
    usual = os.sched_getscheduler(0)
    writer = Mp4Writer(tmp_path / "x.mp4", (64, 64), 10, codec)
    threads = [int(thread.name) for thread in Path("/proc/self/task").iterdir()]
    assert {os.sched_getscheduler(thread) for thread in threads} == {usual}
    for _ in range(3):
        writer.write(np.zeros((64, 64, 3), np.uint8))
    writer.close()
    assert os.sched_getscheduler(0) == usual
