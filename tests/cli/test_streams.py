"""Standard streams that are closed, full, broken or ASCII: a documented end, one line or nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from offline_data.errors import AccessError
from offline_data.testing.toy import toy_batch, write_toy
from offline_data_cli.main import exit_code

if TYPE_CHECKING:
    from pathlib import Path

FD = {"stdin": 0, "stdout": 1, "stderr": 2}
COMMANDS: dict[str, tuple[tuple[str, ...], int]] = {
    "--help": (("--help",), 0),
    "list --help": (("list", "--help"), 0),
    "--version": (("--version",), 0),
    "completion": (("--show-completion", "bash"), 0),
    "cache dir": (("cache", "dir"), 0),
    "list": (("list",), 0),
    "list --json": (("list", "--json"), 0),
    "search": (("search", "pen"), 0),
    "info": (("info", "local:toy"), 0),
    "head": (("head", "local:toy"), 0),
    "env": (("env",), 0),
    "not found": (("info", "local:x"), 3),
    "not found --json": (("info", "local:x", "--json"), 3),
    "usage": (("lisst",), 2),
    "a question": (("rm", "local:toy"), 2),
    "a dry run": (("rm", "local:toy", "--dry-run"), 0),
}
FULL_IS = 7
STREAMS = (
    "stdin closed",
    "stdout closed",
    "stderr closed",
    "all closed",
    "stdout full",
    "stderr full",
    "stdout broken",
    "stderr broken",
    "stdout for reading",
    "ASCII",
)


@dataclass(frozen=True)
class Ended:
    code: int
    out: bytes
    err: bytes


def run(arguments: tuple[str, ...], streams: str, root: Path) -> Ended:
    """Run the program with its streams as said, as a shell's redirections make them."""
    what, _, how = streams.partition(" ")
    taken = list(FD.values()) if what == "all" else [FD[what]] if what in FD else []

    def redirect() -> None:
        for number in taken:
            if how == "closed":
                os.close(number)
                continue
            if how == "broken":
                reading, opened = os.pipe()
                os.close(reading)
            else:
                full = how == "full"
                opened = os.open("/dev/full" if full else "/dev/null", os.O_WRONLY if full else 0)
            os.dup2(opened, number)

    ended = subprocess.run(
        [sys.executable, "-c", "from offline_data_cli.main import run; run()", *arguments],
        env={
            **os.environ,
            "OFFLINE_DATA_HOME": str(root),
            "OFFLINE_DATA_OFFLINE": "1",
            "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
            **({"PYTHONIOENCODING": "ascii"} if what == "ASCII" else {}),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        preexec_fn=redirect if taken else None,
        check=False,
        timeout=120,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("streams")
    path = folder / "local" / "toy" / "1"
    path.mkdir(parents=True)
    write_toy(path, [toy_batch([3, 2], text=True)])
    return folder


def expected(command: str, streams: str) -> int:
    """Return the exit code: a stdout that takes nothing fails what has something for it."""
    _, code = COMMANDS[command]
    prints = code == 0 or "--json" in command
    if streams == "stdout full" and prints:
        return FULL_IS
    if streams == "stdout for reading" and prints:
        return exit_code(AccessError("no"))
    if streams == "stdout broken" and prints:
        return 0
    return code


FEW = ("--help", "list --json", "not found", "a question")
CASES = [
    *((command, streams) for command in COMMANDS for streams in ("stdout full", "all closed")),
    *((command, streams) for command in FEW for streams in STREAMS),
]


@pytest.mark.parametrize(("command", "streams"), sorted(set(CASES)))
def test_every_command_on_every_stream(command: str, streams: str, root: Path) -> None:
    arguments, _ = COMMANDS[command]
    ended = run(arguments, streams, root)
    for word in (b"Traceback", b"unexpected", b"Exception ignored", b"sys.std"):
        assert word not in ended.err + ended.out
    assert ended.code == expected(command, streams), ended.err
    if (
        streams in {"stdout full", "stdout for reading"}
        and ended.code in {2, FULL_IS}
        and command not in {"usage", "a question"}
    ):
        assert ended.err.count(b"\n") <= 2
        assert b"error: The output could not be written: " in ended.err


def test_what_ascii_cannot_have_is_written_plainly(root: Path) -> None:
    listed = run(("search", "door", "--json"), "ASCII", root)
    assert json.loads(listed.out.decode("ascii"))
    folder = root / "caf\u00e9 \u2192 \U0001f600"
    printed = run(("cache", "dir", "--root", str(folder)), "ASCII", root)
    assert printed.out.decode("ascii").strip().endswith(r"caf\xe9 -> \U0001f600")
    as_json = run(("cache", "dir", "--json", "--root", str(folder)), "ASCII", root)
    assert json.loads(as_json.out) == {"root": str(folder)}


def test_a_name_that_is_no_text_is_printed_as_it_is(root: Path) -> None:
    name = os.fsencode(root) + b"/\xff\xfe"
    printed = run(("cache", "dir", "--root", os.fsdecode(name)), "", root)
    assert (printed.code, printed.out) == (0, name + b"\n")
    as_json = run(("cache", "dir", "--json", "--root", os.fsdecode(name)), "", root)
    assert json.loads(as_json.out) == {"root": os.fsdecode(name)}
