"""`docs/your-files.md`, run as written: the recording, the proposal, both ways to convert, data in memory."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from offline_data.formats.files.mapping import Ends, FileMapping
from tests.pseudo_terminal import type_into
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
    look, convert = re.findall(r"```console\n\$ offline-data (.*)\n", PAGE)
    (dialogue,) = re.findall(r"```text\n\$ offline-data (.*?)```", PAGE, re.DOTALL)
    run(python[0])
    assert shell.run(*look.split()).stdout
    written = (tmp_path / "map.toml").read_text()
    assert written.endswith(proposal)
    for line in ('final_observation = "missing"', 'ends.otherwise = "truncated"'):
        written = written.replace(f"# {line}", line)
    (tmp_path / "map.toml").write_text(written)
    assert "67" in shell.run(*convert.split()).stdout
    run("\n".join(python[1:]))
    for name, value in shell.environ.items():
        monkeypatch.setenv(name, value)
    asks(dialogue, tmp_path)
    listed = shell.run("list", "-q").stdout
    assert all(
        f"local:{name}@" in listed
        for name in ("lab", "lab2", "lab3", "from-arrays", "from-episodes")
    )


def asks(dialogue: str, folder: Path) -> None:
    """Type the answers of a dialogue, and compare its lines; `…` stands for some."""
    command, *lines = dialogue.splitlines()
    prompts = re.compile(r"(.*(?:: |\[y/N\] ))(lab3|[12y])")
    answers = [(found[1], f"{found[2]}\n") for line in lines if (found := prompts.fullmatch(line))]
    code, said = type_into(command.split(), answers, folder)
    assert code == 0
    place = 0
    for line in lines:
        if line != "…":
            assert f"{line}\n" in said[place:], said
            place = said.index(f"{line}\n", place)


def test_all_fields_are_on_the_page() -> None:
    names = [
        each.name for each in fields(FileMapping) if each.name not in {"leaves", "ends", "episodes"}
    ]
    for name in (*names, *(f"ends.{each.name}" for each in fields(Ends))):
        assert f"`{name}`" in PAGE
