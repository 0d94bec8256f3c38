"""A command in a terminal of its own, in which answers are typed after prompts."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cli.conftest import RUN


def type_into(
    arguments: Sequence[str], answers: Sequence[tuple[str, str]], folder: Path
) -> tuple[int, str]:
    """Run `offline-data` in a folder; returns its exit code, and what the terminal shows without colours.

    `answers`: ends of prompts in their order, with the keys that are typed then. Fails after a minute.
    """
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execv(sys.executable, [sys.executable, "-c", RUN, *arguments])  # noqa: S606 - ours
    said, open_, end = b"", list(answers), time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                read = os.read(terminal, 1 << 16)
            except OSError:  # it has ended
                break
            if not read:
                break
            said += read
        elif open_ and said.endswith(open_[0][0].encode()):
            os.write(terminal, open_.pop(0)[1].encode())
    else:
        os.kill(child, 9)
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert open_ == [], said.decode()
    return code, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode()).replace("\r\n", "\n")
