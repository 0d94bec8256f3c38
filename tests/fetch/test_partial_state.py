from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offline_data.disk import boot_id
from offline_data.fetch import cache as cache_module
from offline_data.fetch.cache import PartialState, state_path

NOTE = PartialState("http://host/x", '"tag"', 200_000, "boot 1", 60_000)


def test_a_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = state_path(tmp_path / "key.part")
    assert path == tmp_path / "key.json"
    path.write_bytes(NOTE.encode())
    assert PartialState.read(path) == NOTE


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            b'{"url": "http://host/x", "validator": "\\"tag\\""}',
            PartialState("http://host/x", '"tag"'),
        ),
        (b'{"url": 7, "validator": [], "total": -1, "boot": {}, "durable": "9"}', PartialState()),
        (b'{"durable": -5}', PartialState()),
        (b'{"url": "http://ho', PartialState()),
        (b"[1]", PartialState()),
        (b"", PartialState()),
    ],
)
def test_what_a_note_does_not_say_is_not_known(
    content: bytes, expected: PartialState, tmp_path: Path
) -> None:
    path = tmp_path / "key.json"
    path.write_bytes(content)
    assert PartialState.read(path) == expected


def test_a_missing_note_says_nothing(tmp_path: Path) -> None:
    assert PartialState.read(tmp_path / "key.json") == PartialState()


@pytest.mark.parametrize(
    ("written", "running", "here", "trusted"),
    [
        ("boot 1", "boot 1", 150_000, 150_000),
        ("boot 1", "boot 2", 150_000, 60_000),
        ("boot 1", None, 150_000, 60_000),
        (None, "boot 2", 150_000, 60_000),
        (None, None, 150_000, 60_000),
        ("boot 1", "boot 2", 50_000, 50_000),
    ],
)
def test_only_the_system_that_wrote_them_is_trusted_with_bytes_that_were_not_synced(
    written: str | None,
    running: str | None,
    here: int,
    trusted: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache_module, "boot_id", lambda: running)
    assert PartialState(boot=written, durable=60_000).trusted(here) == trusted


def test_the_running_system_is_named_alike_every_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert boot_id() == boot_id() != ""
    missing: Any = tmp_path / "boot_id"
    monkeypatch.setattr("offline_data.disk._BOOT_ID", missing)
    assert boot_id() is None
