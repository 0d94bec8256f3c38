"""What `--plan` may name: whatever it is, the command ends with a documented code."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = "from offline_data_cli.main import run; run()"
FILES: dict[str, tuple[bytes | None, int]] = {
    "FIFO": (None, 5),
    "deep": (b"[" * 100_000, 5),
    "list": (b"[]", 5),
    "binary": (b"\x00\xff", 5),
    "of a text version": (b'{"format_version": "x"}', 5),
    "newer": (b'{"format_version": 99}', 5),
}


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("making", [False, True])
def test_a_file_that_is_no_plan(case: str, making: bool, tmp_path: Path) -> None:
    content, code = FILES[case]
    file = tmp_path / "plan.json"
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content)
    write_toy(tmp_path / "toy", [toy_batch([2])])
    command = ["worker", "--rank", "0"]
    if making:
        step = ("--step", "reward_clip:high=1", "--out", "made")
        command = ["preprocess", str(tmp_path / "toy"), *step, "--plan-only"]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command, "--plan", str(file)],
        env={**os.environ, "OFFLINE_DATA_HOME": str(tmp_path / "root")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == code, ran.stderr
    assert str(file) in ran.stderr
    assert "unexpected" not in ran.stderr
