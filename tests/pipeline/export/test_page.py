"""`docs/export.md`: its table is that of the formats, and its commands and code run as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from offline_data.formats.writing.base import TARGETS, get_target
from offline_data_cli.app import command_tree
from tests.pipeline.export.conftest import flat_batch
from tests.remedy import assert_none
from tests.stories.conftest import Shell
from tests.toys.stored import write_stored

PAGE = (Path(__file__).parents[3] / "docs" / "export.md").read_text(encoding="utf-8")
_FLAGS = {
    "rows": "both, in every row",
    "ended": "both, in every row",
    "last": "both, in last rows",
    "one": "one for an episode",
    "none": "no",
}


def table() -> str:
    """Return what formats can hold as a table in Markdown."""
    head = (
        "format", "observation after the last action", "`terminated`, `truncated`", "several features",
        "without rewards", "text", "`info`", "other features", "columns of episodes",
        "images as JPEG, PNG",
    )  # fmt: skip
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    for name in TARGETS:
        holds = get_target(name).holds
        infos, episodes = (
            ", ".join(f"`{column}`" for column in sorted(held))
            if isinstance(held, frozenset)
            else held
            for held in (holds.info, holds.episodes)
        )
        cells = (
            f"`{name}`", holds.final_observation, _FLAGS[holds.flags], holds.nested,
            holds.rewards == "optional", holds.text, infos, holds.extra, episodes, holds.encoded,
        )  # fmt: skip
        shown = ("yes" if one is True else "no" if one is False else one for one in cells)
        lines.append(" | ".join(map(str, shown)))
    return "\n".join(f"| {line} |" for line in lines)


def test_the_table_is_that_of_the_formats() -> None:
    found = re.search(r"<!-- formats: .*? -->\n(.*?)\n\n", PAGE, re.DOTALL)
    assert found is not None
    assert found[1] == table(), f"replace the table in docs/export.md by\n{table()}"


@pytest.mark.slow
def test_the_commands_and_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(tmp_path)
    monkeypatch.chdir(tmp_path)
    write_stored(shell.root, "local:mine@1", flat_batch())
    lines = re.findall(r"^\$ offline-data (.*?)(?: +#.*)?$", PAGE, re.MULTILINE)
    assert [shell.run(*line.split()).returncode for line in lines] == [0, 0]
    assert (tmp_path / "mine.hdf5").is_file()
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env=shell.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "89 []\n"


def test_every_format_has_a_line_in_the_docs() -> None:
    assert_none(
        (name for name in TARGETS if f"--to {name}" not in PAGE and f"or `{name}`" not in PAGE),
        "write a line `--to NAME` for these formats in docs/export.md",
    )


def test_the_help_names_every_format() -> None:
    to = next(one for one in command_tree().commands["export"].params if one.name == "to")
    names = str(to.help).partition(". ")[2].rstrip(".")
    assert_none(
        set(re.split(r", | or ", names)) ^ set(TARGETS),
        "the help of `export --to` (cli/offline_data_cli/commands/export.py) names the formats of "
        "offline_data/formats/writing/base.py",
    )
