"""Memory added by a piece of work, measured in a fresh process (Linux)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_CODE = """\
import re, sys
from pathlib import Path
# Not ru_maxrss, which a child inherits from its parent.
def peak(): return int(re.search(r'{field}:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])
{setup}
before = peak()
{work}
print((peak() - before) // 1024)
"""


def added_mib(setup: str, work: str, *arguments: str | Path, field: str = "VmHWM") -> int:
    """Return the MiB that `work` adds to the peak memory of a process that has run `setup`.

    Resident memory including pages of mapped files; child processes are not counted.

    Args:
        setup: Python code: imports, and anything else that should not be counted.
        work: Python code; both can use `sys` and `Path`.
        arguments: `sys.argv[1:]` of the process.
        field: `VmHWM`, or `RssAnon`: what the process has at the end, without pages of mapped files,
            which the system maps 16 around each that is read, and takes back.
    """
    code = _CODE.format(setup=setup, work=work, field=field)
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    return int(done.stdout.split()[-1])
