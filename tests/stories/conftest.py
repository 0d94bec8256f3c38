"""The command as a user starts it: a process of its own, with an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

COMMAND = (sys.executable, "-c", "from offline_data_cli.main import run; run()")


@dataclass(frozen=True)
class Shell:
    """Starts `offline-data` with a root, a Minari folder and caches under one folder."""

    folder: Path
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def environ(self) -> dict[str, str]:
        dropped = ("OFFLINE_DATA_", "HF_", "MINARI_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        return {
            **kept,
            "OFFLINE_DATA_HOME": str(self.root),
            "MINARI_DATASETS_PATH": str(self.folder / "minari"),
            "HF_HOME": str(self.folder / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "COLUMNS": "80",
            **self.extra,
        }

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env=self.environ,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **more,
        )

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, f"{arguments}: {process.returncode}\n{out}\n{err}"
        assert "Traceback" not in err
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)

    def datasets(self) -> list[str]:
        return [entry["id"] for entry in self.json("list")]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)
