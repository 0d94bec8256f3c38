"""What a library warns of is one line on stderr, in our words."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_revision_that_cannot_be_read(tmp_path: Path, options: tuple[str, ...]) -> None:
    for revision in ("1", "2"):
        folder = tmp_path / "local" / "toy" / revision
        write_toy(folder, [toy_batch([2])], dataset=f"local:toy@{revision}")
    (folder / "manifest.json").write_text("{")
    program = "from offline_data_cli.main import run; run()"
    ran = subprocess.run(
        [sys.executable, "-c", program, "info", "local:toy", *options],
        env={**os.environ, "OFFLINE_DATA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, "local:toy@1" in ran.stdout) == (0, True)
    (line,) = ran.stderr.splitlines()
    assert line.startswith(f"warning: {folder} is passed over: ")
