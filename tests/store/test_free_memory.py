"""Memory that is free, of a machine and of a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_data.base import files

MACHINE = "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:  5000 kB\nHugePages_Total:  0\n"
GROUP = {
    "memory.current": "3000\n",
    "memory.max": "10000\n",
    "memory.stat": "anon 1\ninactive_file 500\n",
}


@pytest.mark.parametrize(
    ("machine", "group", "expected"),
    [
        (None, GROUP, None),
        ("MemTotal:  9000 kB\n", GROUP, None),
        (MACHINE, {}, 5000 * 1024),
        (MACHINE, GROUP, 7500),
        (MACHINE, {**GROUP, "memory.max": "max\n"}, 5000 * 1024),
        (MACHINE, {**GROUP, "memory.max": "9000000000\n"}, 5000 * 1024),
        (MACHINE, {**GROUP, "memory.current": "20000\n"}, 0),
    ],
)  # fmt: skip
def test_free_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: str | None,
    group: dict[str, str],
    expected: int | None,
) -> None:
    for name, text in {**group, **({} if machine is None else {"meminfo": machine})}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(files, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(files, "_GROUP", tmp_path)
    assert files.free_memory() == expected
