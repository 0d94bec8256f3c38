"""`docs/record.md`, run as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from offline_data.pipeline.record.dataset import COLUMNS
from offline_data.pipeline.record.log import SYNC_SECONDS
from tests.stories.conftest import Shell

PAGE = (Path(__file__).parents[1] / "docs" / "record.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page(tmp_path: Path) -> None:
    pytest.importorskip("torchrl")
    shell = Shell(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    line = [sys.executable, "-W", "error", "-c", code]
    subprocess.run(line, cwd=tmp_path, env=shell.environ, check=True)
    listed = shell.run("list", "-q").stdout
    assert "local:cartpole@" in listed
    assert "local:many@" in listed
    assert "local:from-buffer@" in listed


def test_names_and_numbers_are_those_of_the_code() -> None:
    assert all(f"`{name}`" in PAGE for name in COLUMNS)
    assert f"within {SYNC_SECONDS:.0f} seconds" in PAGE
