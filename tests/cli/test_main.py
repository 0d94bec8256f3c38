"""Every way a command line can end, and the options that every verb takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from offline_data.base import errors
from offline_data.base.config import Settings
from offline_data.reports import environment
from offline_data.testing.toy import toy_batch
from offline_data_cli.app import command_tree
from offline_data_cli.main import EXIT_CODES, exit_code
from tests.cli.conftest import Cli, program
from tests.toys.stored import write_stored

CODES = {
    errors.OfflineDataError: 1,
    errors.LockError: 1,
    errors.UsageError: 2,
    errors.BufferUsageError: 2,
    errors.UnknownNameError: 3,
    errors.UnknownLeafError: 3,
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
    errors.NoNetworkError: 6,
    errors.NoSpaceError: 7,
    errors.AccessError: 2,
    errors.MissingDependencyError: 1,
    errors.ImmutableError: 1,
    errors.StepError: 1,
    errors.WorkerDiedError: 1,
}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """`env` raises what is put in this list."""
    planned: list[BaseException] = []

    def fail(settings: Settings) -> NoReturn:
        raise planned.pop()

    monkeypatch.setattr(environment, "environment", fail)
    return planned


def test_every_error_has_its_code_and_is_told_with_its_hint(
    cli: Cli, failing: list[BaseException]
) -> None:
    tree = {v for v in vars(errors).values() if isinstance(v, type)}
    assert {kind for kind in tree if issubclass(kind, errors.OfflineDataError)} == set(CODES)
    assert EXIT_CODES[-1] == (BaseException, 1)
    for kind, code in CODES.items():
        failing.append(kind("This went wrong\nat that place", hint="do this"))
        ran = cli("env")
        assert (ran.code, ran.out) == (code, "")
        assert code == exit_code(kind("x"))
        assert ran.err == "error: This went wrong\n  at that place\nhint: do this\n"
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


@pytest.mark.parametrize(
    ("error", "said"),
    [(KeyError("oops"), "KeyError: 'oops'"), (BrokenPipeError(32, "Broken pipe"), "BrokenPipe")],
)
def test_an_unexpected_error_asks_for_a_report(
    cli: Cli, failing: list[BaseException], error: Exception, said: str
) -> None:
    failing.append(error)
    ran = cli("env")
    first, second = ran.err.splitlines()
    assert ran.code == 1
    assert first.startswith(f"error: unexpected {said}")
    assert "please report this with the output of `offline-data env`" in second
    for flags in (("-v",), ("-qv",), ("-v", "--json")):
        failing.append(error)
        assert "Traceback (most recent call last)" in cli("env", *flags).err


def test_no_arguments_shows_first_steps_and_version(cli: Cli) -> None:
    ran = cli()
    assert (ran.code, ran.err) == (0, "")
    lines = [line.strip() for line in ran.out.splitlines() if line.startswith("  ")]
    *commands, python = lines
    assert [line.split()[:2] for line in commands] == [
        ["offline-data", verb] for verb in ("search", "download", "info")
    ]
    assert cli(*commands[0].split()[1:]).code == cli(*commands[2].split()[1:]).code == 0
    assert python.startswith(f'offline_data.load_dataset("{commands[2].split()[-1]}"')
    assert cli("--json").code == 2
    version = environment.installed_version("offline-data")
    for arguments in (("--version",), ("list", "--version"), ("--version", "-q")):
        assert cli(*arguments).out == f"offline-data {version}\n"
    for line in ("--version --json", "--json cache ls --version"):
        ran = cli(*line.split())
        assert (ran.code, ran.json) == (0, {"version": version})


def test_ctrl_c(cli: Cli, failing: list[BaseException]) -> None:
    failing.append(KeyboardInterrupt())
    ran = cli("env")
    said = "interrupted; run the same command again to continue"
    assert (ran.code, ran.err) == (130, f"error: {said}\n")
    failing.append(KeyboardInterrupt("interrupted; --resume continues"))
    error = cli("env", "--json").json["error"]
    assert (error["code"], error["message"]) == ("interrupted", "interrupted; --resume continues")


def test_a_library_s_warning_is_one_line(tmp_path: Path) -> None:
    for revision in ("1", "2"):
        folder = write_stored(tmp_path / "root", f"local:toy@{revision}", toy_batch([2]))
    (folder / "manifest.json").write_text("{")
    ran = program("info", "local:toy", "--json")
    assert (ran.code, ran.json["id"]) == (0, "local:toy@1")
    (line,) = ran.err.splitlines()
    assert line.startswith(f"warning: {folder} is passed over: ")


def test_every_verb_takes_every_global_option() -> None:
    top = command_tree()
    verbs = dict(top.commands)
    for group in ("cache", "config"):
        verbs.update({f"{group} {name}": verb for name, verb in verbs[group].commands.items()})
    assert verbs.keys() >= {"download", "cache rm", "config set"}
    flags = {
        "--offline", "--json", "--quiet", "-q", "--yes", "-y", "--no-progress", "-v", "--verbose",
        "--format", "--color", "--no-truncate", "-V",
    }  # fmt: skip
    for name, verb in verbs.items():
        options = {option for parameter in verb.params for option in parameter.opts}
        assert options >= flags | {"--root", "--version"}, name
        assert not any(p.secondary_opts for p in verb.params), name


@pytest.mark.parametrize(
    "line",
    [
        "--root {} --json cache dir",
        "cache --root {} --json dir",
        "cache dir --root {} --json",
        "--json --root /elsewhere cache dir --root={}",
        "--json -q cache dir --root={}",
    ],
)
def test_global_options_at_any_place(cli: Cli, tmp_path: Path, line: str) -> None:
    there = str(tmp_path / "there")
    assert cli(*line.format(there).split()).json == {"root": there}


def test_offline_is_passed_on_and_not_taken_back(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("env", "--json").json["settings"]["offline"] is False
    assert cli("--offline", "env", "--json").json["settings"]["offline"] is True
    monkeypatch.setenv("OFFLINE_DATA_OFFLINE", "1")
    assert cli("env", "--json").json["settings"]["offline"] is True


def test_the_module_is_the_command() -> None:
    line = [sys.executable, "-m", "offline_data_cli", "no-such-verb"]
    ran = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "No such command 'no-such-verb'" in ran.stderr
