"""Files of what was recorded: compared with what is found, or written anew."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden"
RECORD = "OFFLINE_DATA_FREEZE=1 .venv/bin/pytest -m '' tests/frozen"
"""The command that writes the files anew, and drops names that no test has any more."""
_LINES, _WIDTH = 60, 300


def compare(file: str, name: str, found: Any) -> None:
    """Compare a value with the one of this name in a golden file, or record it there."""
    known, found = _read(file), json.loads(json.dumps(found))
    if os.environ.get("OFFLINE_DATA_FREEZE"):
        _write(file, {**known, name: found})
    elif name not in known:
        pytest.fail(f"{file}.json has no {name!r}; record it: {RECORD}", pytrace=False)
    elif found != known[name]:
        pytest.fail(f"{name!r} of {file}.json has changed\n{_diff(known[name], found)}", False)


def compare_names(file: str, names: Iterable[str]) -> None:
    """Compare the names in a golden file with those of all tests, or drop those that none has."""
    known, names = _read(file), set(names)
    if os.environ.get("OFFLINE_DATA_FREEZE"):
        _write(file, {name: value for name, value in known.items() if name in names})
    elif stale := sorted(known.keys() - names):
        pytest.fail(f"No test has {stale} of {file}.json; drop them: {RECORD}", pytrace=False)


def _read(file: str) -> dict[str, Any]:
    path = GOLDEN / f"{file}.json"
    known: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return known


def _write(file: str, known: dict[str, Any]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.fail("Several processes would write one file; record without -n", pytrace=False)
    (GOLDEN / f"{file}.json").write_text(_pretty(known) + "\n", encoding="utf-8")


def _pretty(value: Any) -> str:
    """Return indented JSON, in which a list of numbers is one line."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
    return re.sub(r"\[\n(\s*-?\d[-+.e\d]*,?\n)+\s*\]", lambda at: "".join(at[0].split()), text)


def _diff(known: Any, found: Any) -> str:
    """Return a unified diff; each line of a text is one of the diff."""
    texts = [_pretty(value).replace("\\n", "\n") for value in (known, found)]
    before, after = (text.splitlines() for text in texts)
    lines = list(unified_diff(before, after, "recorded", "found", lineterm=""))
    lines = [f"{line[:_WIDTH]}…" if len(line) > _WIDTH else line for line in lines]
    more = [f"… {len(lines) - _LINES} more lines"] if len(lines) > _LINES else []
    wanted = f"If users should see this change, record it, and say why in the commit: {RECORD}"
    return "\n".join([*lines[:_LINES], *more, "", wanted])
