"""Every way a command line can end: codes, words, and nothing that should not be shown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, NoReturn

import pytest

from offline_data import errors
from offline_data.reports import environment
from offline_data_cli.main import EXIT_CODES, exit_code

if TYPE_CHECKING:
    from offline_data.config import Settings
    from tests.cli.conftest import Cli

CODES = {
    errors.OfflineDataError: 1,
    errors.UsageError: 2,
    errors.InvalidIdError: 2,
    errors.NotFoundError: 3,
    errors.AuthError: 4,
    errors.IntegrityError: 5,
    errors.FormatError: 5,
    errors.ManifestError: 5,
    errors.NewerFormatError: 5,
    errors.AuditError: 5,
    errors.NetworkError: 6,
    errors.OfflineError: 6,
    errors.NoSpaceError: 7,
    errors.AccessError: 2,
    errors.MissingDependencyError: 1,
    errors.ImmutableError: 1,
}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """`env` raises what is put in this list."""
    planned: list[BaseException] = []

    def fail(settings: Settings) -> NoReturn:
        raise planned.pop()

    monkeypatch.setattr(environment, "environment", fail)
    return planned


def test_every_class_of_the_tree_is_in_this_table() -> None:
    tree = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.OfflineDataError)
    }
    assert tree == set(CODES)


@pytest.mark.parametrize(("kind", "code"), CODES.items())
def test_codes_words_and_hints(
    cli: Cli,
    failing: list[BaseException],
    kind: type[errors.OfflineDataError],
    code: int,
) -> None:
    failing.append(kind("This went wrong\nat that place", hint="do this"))
    ran = cli("env")
    assert ran.code == code == exit_code(kind("x"))
    assert ran.out == ""
    assert ran.err == "error: This went wrong\n  at that place\nhint: do this\n"


def test_no_hint_is_one_line(cli: Cli, failing: list[BaseException]) -> None:
    failing.append(errors.NotFoundError("Nothing there"))
    assert cli("env").err == "error: Nothing there\n"


@pytest.mark.parametrize("arguments", [("--json", "env"), ("env", "--json")])
def test_json_errors_go_to_stdout(
    cli: Cli, failing: list[BaseException], arguments: tuple[str, ...]
) -> None:
    failing.append(errors.OfflineError("Not here", hint="go online"))
    ran = cli(*arguments)
    assert (ran.code, ran.err) == (6, "")
    assert ran.json == {"error": {"code": "offline", "message": "Not here", "hint": "go online"}}


def test_an_unexpected_error_asks_for_a_report(cli: Cli, failing: list[BaseException]) -> None:
    failing.append(KeyError("oops"))
    ran = cli("env")
    assert ran.code == 1
    first, second = ran.err.splitlines()
    assert first == "error: unexpected KeyError: 'oops'"
    assert "offline-data env" in second
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("flags", [("-v",), ("-qv",), ("-v", "--json")])
def test_v_shows_the_traceback(
    cli: Cli, failing: list[BaseException], flags: tuple[str, ...]
) -> None:
    failing.append(KeyError("oops"))
    assert "Traceback (most recent call last)" in cli("env", *flags).err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lisst",), "No such command"),
        (("list", "--bogus"), "--bogus"),
        (("info",), "ID"),
        (("head", "local:x", "-n", "0"), "-n"),
        (("head", "local:x", "-n", "many"), "-n"),
        (("download", "d4rl:x", "--layout", "zip"), "--layout"),
        (("cache",), "Missing command"),
        (("list", "--root"), "--root"),
    ],
)
def test_usage_errors(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    ran = cli(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.splitlines()[-1].startswith("hint: offline-data")
    as_json = cli("--json", *arguments)
    assert (as_json.code, as_json.json["error"]["code"]) == (2, "usage")
    assert said in as_json.json["error"]["message"]


def test_no_arguments_is_help(cli: Cli) -> None:
    ran = cli()
    assert ran.code == 0
    assert "Usage: offline-data" in ran.out


def test_ctrl_c(cli: Cli, failing: list[BaseException]) -> None:
    failing.append(KeyboardInterrupt())
    ran = cli("env")
    assert ran.code == 130
    assert ran.err == "error: interrupted; run the same command again to continue\n"
    failing.append(KeyboardInterrupt())
    assert cli("env", "--json").json["error"]["code"] == "interrupted"


def test_the_table_ends_with_what_fits_all() -> None:
    assert EXIT_CODES[-1] == (BaseException, 1)


_RUN = "from offline_data_cli.main import run; run()"

_WAITING = """
import sys, time
from offline_data.reports import environment

def wait(settings):
    print("ready", file=sys.stderr, flush=True)
    time.sleep(60)

environment.environment = wait
from offline_data_cli.main import run
sys.argv = ["offline-data", "env"]
run()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_cleanly(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WAITING], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert said == "error: interrupted; run the same command again to continue\n"


@pytest.mark.parametrize(
    "arguments", [("cache", "dir"), ("info", "local:x", "--offline", "--json"), ("env", "--json")]
)
def test_a_reader_that_leaves_is_no_error(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        ended = subprocess.run(
            [sys.executable, "-c", _RUN, *arguments],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_pipe_that_breaks_inside_the_library_is_an_error(
    cli: Cli, failing: list[BaseException]
) -> None:
    failing.append(BrokenPipeError(32, "Broken pipe"))
    ran = cli("env")
    assert ran.code == 1
    assert ran.err.startswith("error: unexpected BrokenPipeError")


def test_completion_offers_verbs() -> None:
    words = {"_OFFLINE_DATA_COMPLETE": "complete_bash", "COMP_WORDS": "offline-data ver"}
    ended = subprocess.run(
        [sys.executable, "-c", _RUN],
        env={**os.environ, **words, "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.split() == ["verify"]


def test_json_is_one_value_without_escape_codes(cli: Cli) -> None:
    ran = cli("env", "--json")
    assert "\x1b" not in ran.out
    assert set(json.loads(ran.out)) >= {"version", "python", "platform", "packages", "settings"}
