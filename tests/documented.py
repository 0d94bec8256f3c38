"""Run the code of a page in its order, and compare the output that the page shows."""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.stories.conftest import Shell

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NOT_RUN = ("sh", "yaml")
"""Languages of blocks that are not run: installation, batch queues, services."""


def read(page: str) -> str:
    """Return the text of a page by its path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def follow(text: str, environment: Mapping[str, str]) -> str:
    """Run the blocks of a page in the working directory, in one namespace; returns everything printed.

    A block of Python or TOML that begins with the comment `# NAME` is also written to that file. A block
    `text` is the output of the one before it, to the letter.
    """
    shell, names, printed, last = Shell(Path.cwd(), environment), {"__name__": "page"}, "", ""
    for language, code in BLOCK.findall(text):
        if language == "text":
            assert last == code, f"a block prints:\n{last}"
        elif language not in NOT_RUN:
            if name := re.match(r"# ([\w-]+\.(?:py|toml))\n", code):
                Path(name[1]).write_text(code, encoding="utf-8")
            last = _run(shell, language, code, names)
            printed += last
    return printed


def _run(shell: Shell, language: str, code: str, names: dict[str, Any]) -> str:
    if language == "console":
        return "".join(_command(shell, line) for line in code.splitlines())
    out = io.StringIO()
    if language == "python":
        with patch.dict(os.environ, shell.environ, clear=True), redirect_stdout(out):
            exec(compile(code, "page", "exec"), names)  # noqa: S102 - the page is ours
    else:
        assert language == "toml"
    return out.getvalue()


def _command(shell: Shell, line: str) -> str:
    dollar, program, *arguments = shlex.split(line, comments=True)
    assert (dollar, program) == ("$", "offline-data"), line
    return shell.run(*arguments).stdout
