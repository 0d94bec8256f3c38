"""Parts in order, from one process or several; what goes wrong in a child is told here."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offline_data.episodes import EpisodeBatch
from offline_data.errors import FormatError, OfflineDataError
from offline_data.ingest import build
from offline_data.ingest.build import read_parts
from offline_data.ingest.parsing import ParserProcess
from offline_data.testing.batches import assert_same_batch, concatenate
from offline_data.testing.raw import ToyRaw
from offline_data.testing.toy import toy_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTHS = tuple(1 + i % 4 for i in range(23))


@pytest.fixture
def always_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_WORTH_WORKERS", -1e9)


@contextmanager
def parsed(raw: ToyRaw) -> Iterator[ParserProcess]:
    """Open a dataset in a process of its own."""
    with ParserProcess(Path("toy")) as process:
        yield process.open(Opener(raw), None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Opener:
    """As much of a source as opens a dataset."""

    raw: ToyRaw

    def open(self, release: object, path: Path) -> ToyRaw:  # noqa: ARG002
        return self.raw


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("per_part", [1, 2, 40])
@pytest.mark.usefixtures("always_workers")
def test_order_and_values_do_not_depend_on_workers(workers: int, per_part: int) -> None:
    raw = ToyRaw(LENGTHS, per_part)
    with parsed(raw) as process:
        batches = list(read_parts(process, process.parts(1), workers))
    assert_same_batch(concatenate(batches), toy_batch(LENGTHS, text=True))
    assert max(len(batch.lengths) for batch in batches) <= per_part


@pytest.mark.usefixtures("always_workers")
def test_an_error_in_a_worker_keeps_its_kind_message_and_hint() -> None:
    raw = ToyRaw(LENGTHS, fails_at=11)
    read: list[EpisodeBatch] = []
    with parsed(raw) as process, pytest.raises(FormatError, match="11 is broken") as caught:
        read.extend(read_parts(process, raw.parts(1), 2))
    assert caught.value.hint == "look at it"


@pytest.mark.usefixtures("always_workers")
def test_a_killed_worker_is_an_error_with_a_next_step() -> None:
    raw = ToyRaw(LENGTHS, dies_at=8, parent=os.getpid())
    with parsed(raw) as process, pytest.raises(OfflineDataError, match="status 9") as caught:
        list(read_parts(process, raw.parts(1), 2))
    assert "OFFLINE_DATA_WORKERS=1" in str(caught.value.hint)


@pytest.mark.parametrize(
    "raw", [ToyRaw(LENGTHS), ToyRaw(LENGTHS, seconds=0.02, threaded=True)], ids=["fast", "threaded"]
)
def test_work_that_workers_cannot_shorten_starts_none(
    monkeypatch: pytest.MonkeyPatch, raw: ToyRaw
) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("a process was started")

    monkeypatch.setattr(build, "_read_in_workers", refuse)
    monkeypatch.setattr(build, "_WORTH_WORKERS", 0.1)
    with parsed(raw) as process:
        batches = list(read_parts(process, raw.parts(1), 8))
    assert sum(len(batch.lengths) for batch in batches) == len(LENGTHS)


def test_a_script_without_a_main_guard_may_load_at_its_top_level(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from pathlib import Path\n"
        "from offline_data.ingest import build, parsing\n"
        "from offline_data.testing.raw import ToyRaw\n"
        "build._WORTH_WORKERS = -1e9\n"
        "class Opener:\n"
        "    def open(self, release, path):\n"
        "        return ToyRaw((2, 3, 4, 5, 6, 7, 8, 9))\n"
        "with parsing.ParserProcess(Path('toy')) as raw:\n"
        "    raw.open(Opener(), None)\n"
        "    print(sum(b.transitions for b in build.read_parts(raw, raw.parts(1), 2)))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.returncode) == ("44\n", 0), done.stderr
