"""`list --remote minari` where the hub cannot be reached or answers nonsense."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from offline_data.config import Settings
from offline_data.errors import FormatError, IntegrityError
from offline_data.sources.minari import Minari
from offline_data.testing.servers import Answer, LocalServer, Request

PROGRAM = "from offline_data_cli.main import run; run()"


class Answers(LocalServer):
    """Answers a path with a text, everything else with 404."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__()
        self.answers = answers

    def answer(self, request: Request) -> Answer:
        text = self.answers.get(request.path)
        return Answer(b"", 404) if text is None else Answer(text.encode())


def test_a_hub_that_cannot_be_reached_takes_seconds_and_one_line(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "OFFLINE_DATA_HOME": str(tmp_path),
        "HF_ENDPOINT": "http://127.0.0.1:1",
        "HF_HUB_OFFLINE": "0",
    }
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--no-progress", "list", "minari", "--remote"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert time.monotonic() - begin < 20
    assert done.returncode == 0  # the catalogue of the package stands in
    assert "D4RL/door/human-v2" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("minari: http://127.0.0.1:1/api/datasets")
    assert "catalogue that comes with the package" in line


REPO = [{"id": "a/pen"}]
NAMESPACE = "/datasets/a/pen/resolve/main/namespace_metadata.json"


@pytest.mark.parametrize(
    "answers",
    [
        {"/api/datasets": "<html>log in</html>"},
        {"/api/datasets": '{"error": "x"}'},
        {"/api/datasets": '["a"]' * 2},
        {"/api/datasets": "[1]"},
        {"/api/datasets": '[{"id": 3}]'},
        {"/api/datasets": '[{"name": "x"}]'},
        {"/api/datasets": '[{"id": "a\\u001b[2J"}]'},
        {"/api/datasets": '[{"id": "\\ud800"}]'},
        {"/api/datasets": "[" * 10**5},
        {"/api/datasets": json.dumps(REPO), NAMESPACE: "[]"},
        {"/api/datasets": json.dumps(REPO), NAMESPACE: '{"datasets": "pen"}'},
        {"/api/datasets": json.dumps(REPO), NAMESPACE: '{"datasets": [["pen"]]}'},
        {"/api/datasets": json.dumps(REPO), NAMESPACE: '{"datasets": ["\\ud800"]}'},
    ],
)
def test_answers_that_are_no_listing(tmp_path: Path, answers: dict[str, str]) -> None:
    with (
        Answers(answers) as server,
        pytest.raises((FormatError, IntegrityError), match=r"127\.0\.0\.1"),
    ):
        listed(tmp_path, server.url)


def listed(tmp_path: Path, url: str, **more: Any) -> list[str]:
    settings = Settings(tmp_path, hub_endpoint=url, minari_remote="hf://a", **more)
    return [entry.name for entry in Minari().remote(settings)]


def test_a_repository_is_a_namespace_or_a_dataset_or_neither(tmp_path: Path) -> None:
    repos = [{"id": "a/pen"}, {"id": "a/cart-v0"}, {"id": "a/notes"}]
    answers = {
        "/api/datasets": json.dumps(repos),
        NAMESPACE: '{"datasets": ["pen/human-v0", "pen/expert-v0"]}',
        "/datasets/a/cart-v0/resolve/main/data/metadata.json": "{}",
    }
    with Answers(answers) as server:
        assert listed(tmp_path, server.url) == ["cart-v0", "pen/expert-v0", "pen/human-v0"]
