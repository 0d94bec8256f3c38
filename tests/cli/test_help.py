"""Help in three lengths: `-h` fits a screen, `--help` has all but what belongs to few sources."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from offline_data.formats.options import Options, TextOptions, options_of
from offline_data.formats.registry import source_names
from offline_data_cli.app import command_tree
from offline_data_cli.help import CODES, COMMON, EXAMPLES, GLOBALS, OF_SOURCES
from offline_data_cli.main import EXIT_CODES, USAGE
from offline_data_cli.verbs import DOCUMENTATION
from tests.remedy import assert_none

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

SOURCES = {"atari_dqn", "hf", "lerobot", "libero", "text"}


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def _command(verb: str) -> Any:
    command = command_tree()
    for name in verb.split():
        command = command.commands[name]
    return command


@pytest.mark.parametrize("verb", EXAMPLES)
def test_the_short_help_fits_a_screen_with_the_prompt(cli: Cli, verb: str) -> None:
    short, full = (cli(*verb.split(), flag).out for flag in ("-h", "--help"))
    lines, less = (
        len(short.splitlines()),
        "remove options from COMMON in cli/offline_data_cli/help.py",
    )
    assert lines <= 23, f"`{verb} -h` has {lines} lines, more than a screen: {less}"
    assert len(short) < len(full)
    assert max(map(len, [*short.splitlines(), *full.splitlines()])) <= 80
    _, _, options = short.partition("\nOptions:\n")
    rows = options.partition("\n\n")[0].splitlines()
    assert all(re.match(r"  -\S.*  \S", row) for row in rows)  # a line each
    assert rows[-1].startswith("  -h, --help")
    assert not re.search(r"<\w+( \w+)*>|\[default|\(required\).*\(required\)", full)


def test_the_options_of_the_short_help(cli: Cli) -> None:
    for verb, names in COMMON.items():
        params = {param.name: param for param in _command(verb).params}
        shown = cli(verb, "-h").out
        listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", shown, re.MULTILINE)
        expected = {max(params[name].opts, key=len) for name in names.split()}
        assert {*listed} == {*expected, "--help"}


def test_a_verb_has_no_global_options_but_a_line_last(cli: Cli) -> None:
    for verb in EXAMPLES:
        lines = cli(*verb.split(), "--help").out.splitlines()
        assert lines[-1] == GLOBALS
        assert not [line for line in lines if re.match(r"  (-\w, )?--(root|json|yes|color)", line)]
    shown = cli("help", "options").out
    for name in ("--root DIR", "-q, --quiet", "--color auto|always|never", "-V, --version"):
        assert f"\n  {name} " in shown
    codes = re.findall(r"^  (\d+)  ", shown, re.MULTILINE)
    assert codes == list(CODES) == sorted(codes, key=int)
    assert {*map(int, codes)} == {0, USAGE, *(code for _, code in EXIT_CODES)}


def test_help_of_a_verb(cli: Cli) -> None:
    assert cli("help", "cache", "ls").out == cli("cache", "ls", "--help").out
    assert cli("help").out == cli("--help").out
    assert cli("help", "get").out == cli("download", "--help").out


def test_commands_in_texts_keep_their_lines(cli: Cli) -> None:
    lines = cli("worker", "-h").out.splitlines()
    (begin,) = [number for number, line in enumerate(lines) if "sbatch" in line]
    assert [line.split()[0] for line in lines[begin : begin + 2]] == ["sbatch", "--rank"]
    assert "\n    eval " in cli("completion", "--help").out
    for verb in EXAMPLES:
        assert not re.search(r"\\|[\x00-\x09\x0b-\x1f]", cli(*verb.split(), "--help").out)


@pytest.mark.parametrize("verb", ["download", "convert"])
def test_options_of_a_source_are_in_its_help_only(cli: Cli, verb: str) -> None:
    declared = {
        (option.flag or f"--{name.replace('_', '-')}"): option
        for table in (Options, TextOptions)
        for name, option in options_of(table).items()
        if option.help and option.only in {None, verb} and name != "split"
    }
    full = cli(verb, "--help").out
    (line,) = re.findall(rf"^Options for (.*): {verb} --help SOURCE$", full, re.MULTILINE)
    sources = line.split(", ")
    assert sources == sorted({s for option in declared.values() for s in option.sources})
    for source in sources:
        shown = cli(verb, "--help", source).out
        assert shown == cli("help", verb, source).out == cli(verb, f"{source}:x", "--help").out
        assert f"All other options: offline-data {verb} --help\n" in shown
        for flag, option in declared.items():
            assert (f"\n  {flag}" in shown) == (source in option.sources)
    for flag, option in declared.items():
        assert (f"\n  {flag}" in full) == (not option.sources)
    assert cli(verb, "--help", "d4rl").out == full


def test_sources_with_options_exist_and_have_an_example() -> None:
    tables = (options_of(Options), options_of(TextOptions))
    named = {source for table in tables for option in table.values() for source in option.sources}
    assert_none(
        named ^ set(OF_SOURCES),
        "each source that options of offline_data/formats/options.py name has an example in "
        "OF_SOURCES of cli/offline_data_cli/help.py",
    )
    assert named <= set(source_names())
    for source, line in OF_SOURCES.items():
        verb, *words = shlex.split(line)
        given = _command(verb).make_context(verb, words).params
        assert any(given[name] for name in given if _is_of(source, name)), line
        assert len(f"  offline-data {line}") <= 80


def _is_of(source: str, name: str) -> bool:
    tables = (options_of(Options), options_of(TextOptions))
    return any(name in table and source in table[name].sources for table in tables)


def test_the_documentation_is_that_of_the_project() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'Documentation = "{DOCUMENTATION}"' in project


def test_old_names_of_outputs_are_taken_and_hidden(
    cli: Cli, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    step = ("--step", "clip:action,low=0")
    assert cli("check", "toy", "--output", "a.json", "--out", "b.md").code == 0
    assert {"a.json", "b.md"} <= {path.name for path in tmp_path.iterdir()}
    assert cli("preprocess", "toy", *step, "--dest", "old").code == 0
    made = cli("preprocess", "toy", *step, "--out", "./new", "--json").json
    assert made["path"] == str(tmp_path / "new")
    assert cli("export", "toy", "old.npz", "--to", "npz").code == 0
    assert cli("export", "toy", "--out", "new.npz", "--to", "npz").code == 0
    for verb in ("check", "preprocess", "export"):
        assert not re.search(r"--(output|dest) |\bDEST\b", cli(verb, "--help").out)
