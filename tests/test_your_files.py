"""`docs/your-files.md`, run as written: the recording, the proposal, both ways to convert, data in memory."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from offline_data.formats.files.mapping import Ends, FileMapping
from tests.stories.conftest import Shell

PAGE = (Path(__file__).parents[1] / "docs" / "your-files.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(tmp_path)
    monkeypatch.chdir(tmp_path)

    def run(code: str) -> None:
        line = [sys.executable, "-W", "error", "-c", code]
        subprocess.run(line, cwd=tmp_path, env=shell.environ, check=True)

    python = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (proposal,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    look, convert = re.findall(r"^\$ offline-data (.*)$", PAGE, re.MULTILINE)
    run(python[0])
    assert shell.run(*look.split()).stdout
    written = (tmp_path / "map.toml").read_text()
    assert written.endswith(proposal)
    for line in ('final_observation = "missing"', 'ends.otherwise = "truncated"'):
        written = written.replace(f"# {line}", line)
    (tmp_path / "map.toml").write_text(written)
    assert "67" in shell.run(*convert.split()).stdout
    run("\n".join(python[1:]))
    listed = shell.run("list", "-q").stdout
    assert all(
        f"local:{name}@" in listed for name in ("lab", "lab2", "from-arrays", "from-episodes")
    )


def test_all_fields_are_on_the_page() -> None:
    names = [
        each.name for each in fields(FileMapping) if each.name not in {"leaves", "ends", "episodes"}
    ]
    for name in (*names, *(f"ends.{each.name}" for each in fields(Ends))):
        assert f"`{name}`" in PAGE
