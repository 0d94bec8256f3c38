"""A conversion in a child process: parts in order, and one error for whatever goes wrong there."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from offline_data.base.errors import AccessError, FormatError, NoSpaceError, OfflineDataError
from offline_data.base.ids import parse_id
from offline_data.episode import EpisodeBatch
from offline_data.episode.joining import concatenate
from offline_data.formats.base import RandomAccess
from offline_data.pipeline.ingest import reading
from offline_data.pipeline.ingest.build import BuildJob
from offline_data.pipeline.ingest.conversion import ConversionProcess
from offline_data.pipeline.ingest.in_memory import InMemoryEpisodes
from offline_data.pipeline.ingest.reading import ParsedParts, parsed, read_parts
from offline_data.testing.toy import ToyRaw, assert_same_batch, toy_batch

pytestmark = pytest.mark.usefixtures("processes")

RAISED: dict[str, tuple[Exception, type[OfflineDataError], str]] = {
    "key": (KeyError("x"), FormatError, "KeyError: 'x'"),
    "unicode": (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), FormatError, "UnicodeDecode"),
    "overflow": (OverflowError("too\nlarge"), FormatError, "OverflowError: too large"),
    "recursion": (RecursionError("deep"), FormatError, "RecursionError: deep"),
    "memory": (MemoryError(), FormatError, "memory"),
    "disk": (OSError(errno.EIO, "I/O error"), FormatError, "I/O error"),
    "permission": (PermissionError(errno.EACCES, "denied"), AccessError, "denied"),
    "files": (OSError(errno.EMFILE, "Too many open files"), AccessError, "Too many open"),
    "ours": (NoSpaceError("the disk is full"), NoSpaceError, "the disk is full"),
}
LENGTHS = tuple(1 + i % 4 for i in range(23))


def failing(path: Path, *, error: Exception | None = None, kill: int | None = None) -> Any:
    """Fail in the way asked for where a raw file would be opened."""
    if error is not None:
        raise error
    if kill is not None:
        os.kill(os.getpid(), kill)
    pytest.fail(str(path))


def convert(opened: Any) -> None:
    job = BuildJob(parse_id("local:x@1"), "toy", "compact", Path("nowhere"))
    with ConversionProcess(Path("some/raw.hdf5")) as process:
        process.open(opened)
        with process.writing(job, 1, Path("nowhere")):
            pytest.fail("it was opened")


@pytest.mark.slow
def test_an_exception_becomes_an_error_that_names_the_file() -> None:
    with ConversionProcess(Path("some/raw.hdf5")) as process:
        for what, (error, kind, said) in RAISED.items():
            with pytest.raises(OfflineDataError, match=said) as caught:
                process.open(partial(failing, error=error))
            assert type(caught.value) is kind
            assert "\n" not in caught.value.message
            assert what == "ours" or "some/raw.hdf5" in caught.value.message
            assert "in failing" in str(caught.value.__cause__)  # where it was raised, for -v


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS])
def test_a_crash_is_the_files_fault(number: signal.Signals) -> None:
    with pytest.raises(FormatError, match=f"some/raw.hdf5 is damaged: .* {number.name}"):
        convert(partial(failing, kill=number))


@pytest.mark.slow
def test_being_killed_is_not() -> None:
    with pytest.raises(OfflineDataError, match="SIGKILL") as caught:
        convert(partial(failing, kill=signal.SIGKILL))
    assert type(caught.value) is OfflineDataError


ENDS = """
import atexit, os
from pathlib import Path
from offline_data.base.errors import OfflineDataError
from offline_data.pipeline.ingest.conversion import ConversionProcess
from offline_data.pipeline.jobs.processes import child

assert child.can_fork()
atexit.register(print, "end")
print("once", end=" ")  # waits in a buffer that the child has, too
try:
    with ConversionProcess(Path("x.hdf5")) as process:
        os.kill(process._child.pid, {number})
        process.describe("d4rl", "x")
except OfflineDataError as error:
    print(error)
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")


def run_script(text: str) -> str:
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    return ran.stdout


@pytest.mark.slow
@linux
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
def test_a_forked_process_ends_alone(name: str) -> None:
    out = run_script(ENDS.replace("{number}", str(int(signal.Signals[name]))))
    assert name in out
    assert out.count("once") == out.count("end\n") == 1


@pytest.mark.slow
@linux
def test_a_forked_process_does_nothing_at_its_end_that_is_the_programs(tmp_path: Path) -> None:
    out = run_script(
        "import atexit, os\n"
        "from pathlib import Path\n"
        "from offline_data.pipeline.jobs.processes.child import ForkedProcess\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "atexit.register(lambda: (folder / str(os.getpid())).touch())\n"
        "for main in (lambda: None, lambda: 1 / 0):\n"
        "    print(ForkedProcess(main, quiet=True).wait())\n"
        "print(os.getpid())\n"
    )
    first, second, program = out.split()
    assert (first, second) == ("1", "1")
    assert [path.name for path in tmp_path.iterdir()] == [program]


@linux
def test_nothing_is_forked_beside_a_thread() -> None:
    out = run_script(
        "import threading\n"
        "from offline_data.pipeline.jobs.processes.child import can_fork\n"
        "print(can_fork(), end=' ')\n"
        "stop = threading.Event()\n"
        "threading.Thread(target=stop.wait).start()\n"
        "print(can_fork())\n"
        "stop.set()"
    )
    assert out == "True False\n"


@pytest.fixture
def always_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_WORTH_WORKERS", -1e9)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "per_part"), [(1, 1), (1, 40), (3, 2)])
@pytest.mark.usefixtures("always_workers")
def test_order_and_values_do_not_depend_on_workers(workers: int, per_part: int) -> None:
    raw = ParsedParts(Path("toy"), ToyRaw(LENGTHS, per_part))
    batches = list(read_parts(raw, raw.parts(1), workers))
    assert_same_batch(concatenate(batches), toy_batch(LENGTHS, text=True))
    assert max(len(batch.lengths) for batch in batches) <= per_part


@pytest.mark.slow
@pytest.mark.usefixtures("always_workers")
def test_an_error_in_a_worker_keeps_its_kind_message_and_hint() -> None:
    raw = ParsedParts(Path("toy"), ToyRaw(LENGTHS, fails_at=11))
    read: list[EpisodeBatch] = []
    with pytest.raises(FormatError, match="11 is broken") as caught:
        read.extend(read_parts(raw, raw.parts(1), 2))
    assert caught.value.hint == "look at it"


@pytest.mark.slow
@pytest.mark.usefixtures("always_workers")
def test_a_killed_worker_is_an_error_with_a_next_step() -> None:
    raw = ParsedParts(Path("toy"), ToyRaw(LENGTHS, dies_at=8, parent=os.getpid()))
    with pytest.raises(OfflineDataError, match="status 9") as caught:
        list(read_parts(raw, raw.parts(1), 2))
    assert "OFFLINE_DATA_WORKERS=1" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("raw", "worth", "workers"),
    [
        (ToyRaw(LENGTHS), 60.0, 8),  # a busy machine may take long for parts of no work
        (ToyRaw(LENGTHS, seconds=0.02, threaded=True), 0.3, 8),
        (ToyRaw(LENGTHS), 0.0, 1),
    ],
    ids=["fast", "threaded", "one worker"],
)
def test_work_that_workers_cannot_shorten_starts_none(
    monkeypatch: pytest.MonkeyPatch, raw: ToyRaw, worth: float, workers: int
) -> None:
    monkeypatch.setattr(ParsedParts, "read_in_processes", lambda *_: pytest.fail("a process"))
    monkeypatch.setattr(reading, "_WORTH_WORKERS", worth)
    dataset = ParsedParts(Path("toy"), raw)
    batches = list(read_parts(dataset, dataset.parts(1), workers))
    assert sum(len(batch.lengths) for batch in batches) == len(LENGTHS)


@pytest.mark.parametrize("threaded", [False, True])
def test_parsed_data_have_parts_if_they_had_any(threaded: bool) -> None:
    raw = parsed(Path("toy"), lambda _: ToyRaw(LENGTHS, threaded=threaded))
    assert isinstance(raw, RandomAccess)
    assert (raw.threaded, raw.parts(1)) == (threaded, ToyRaw(LENGTHS).parts(1))
    in_order = parsed(Path("toy"), lambda _: InMemoryEpisodes([], skip_bad=False))
    assert not isinstance(in_order, RandomAccess)


@pytest.mark.parametrize(
    ("seconds", "rows", "workers", "cores", "expected"),
    [
        (1.1, 200e6, 2, 2, False),  # long episodes: reading and writing fill both cores
        (5.0, 60e6, 2, 2, True),  # many short ones
        (1.5, 1e6, 8, 8, True),
        (0.9, 1e6, 8, 8, False),  # less than they take to start
        (10.0, 3e9, 8, 8, False),  # one thread writes as long
        (60.0, 1e9, 8, 1, False),
        (60.0, 1e9, 1, 8, False),
    ],
)
def test_processes_read_where_they_save_time(
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    rows: float,
    workers: int,
    cores: int,
    expected: bool,
) -> None:
    monkeypatch.setattr(reading, "usable_cores", lambda: cores)
    assert reading._saves_time(seconds, rows, workers) == expected
