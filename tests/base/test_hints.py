"""Hints name what there is in the language they are read in, and the nearest name without a network."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import (
    InvalidIdError,
    NetworkError,
    NotFoundError,
    OfflineError,
    UsageError,
)
from offline_data.base.hints import FUNCTIONS, in_python
from offline_data.base.ids import parse_id
from offline_data.pipeline.ingest import Options
from offline_data.pipeline.ingest.resolve import suggest_command
from offline_data.testing.toy import toy_batch
from offline_data_cli.main import main
from offline_data_cli.verbs import HIDDEN, VERBS
from tests.remedy import assert_none
from tests.toys.stored import write_stored


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with the dataset `local:other`; offline."""
    write_stored(tmp_path / "root", "local:other@1", toy_batch([3, 2]))
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(tmp_path / "root"))
    monkeypatch.setenv("OFFLINE_DATA_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "root"


CALLS = {
    "`offline-data check --files '/a b'` shows": "`offline_data.verify('/a b')` shows",
    "`offline-data check --files /o'b`": "`offline-data check --files /o'b`",
    "`offline-data cache prune --force`": "`offline-data cache prune --force`",
    "`offline-data list minari --remote`": "`offline_data.list_datasets('minari', remote=True)`",
    "`offline-data convert PATH NAME --from openx`": "`offline_data.convert(PATH, NAME, source='openx')`",
    "another root: --root DIR": "another root: root=DIR",
    "without --layout, or --force": "without layout, or force=True",
    "leave --episodes out, --checkpoints A:B": "leave episodes out, checkpoints=(A, B)",
    "leave --split out; --alignment out": "leave split out; alignment out",
    "--resume without --layout to continue": "resume=True without layout to continue",
    "`offline-data convert P NAME --alignment shifted`": "`offline_data.convert(P, NAME, alignment='shifted')`",
    "`offline-data convert P NAME --from text --tokenizer gpt2 --pad --max-length 9`":
        "`offline_data.convert(P, NAME, source='text', text=TextOptions(tokenizer='gpt2', pad=True, max_length=9))`",
    "a larger --max-length, or without --pad; one: --split ''":
        "a larger max_length, or without pad=True; one: text=TextOptions(split='')",
    "--form prompt --column prompt=a --column completion=NAME, or else":
        "text=TextOptions(form='prompt', columns={'prompt': 'a', 'completion': NAME}), or else",
    "`offline-data download hf:a/b --split T --column text=A:B`":
        "`offline_data.download('hf:a/b', text=TextOptions(split='T', columns={'text': 'A:B'}))`",
    "--step cast:a,b=float64, it is": "'cast:a,b=float64', it is",
    "`ray start --head` prints --array=0-3": "`ray start --head` prints --array=0-3",
}  # fmt: skip


@pytest.mark.parametrize(("shell", "python"), CALLS.items())
def test_commands_become_calls(shell: str, python: str) -> None:
    error = UsageError("wrong", hint=shell)
    assert (error.hint, error.shell_hint) == (python, shell)
    assert in_python(python) == python


def test_an_error_says_it_in_python_and_the_command_in_its_own_words(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotFoundError) as caught:
        offline_data.load_dataset("d4rl:pen-human-v1", download=False)
    assert caught.value.hint == (
        "load it with download=True; to get it: `offline_data.download('d4rl:pen-human-v1')`"
    )
    assert main(["verify", "d4rl:pen-human-v1"]) == 3
    assert "to get it: `offline-data download d4rl:pen-human-v1`" in capsys.readouterr().err


@pytest.mark.parametrize("download", [True, False])
def test_a_misspelt_name_of_a_catalogue(root: Path, download: bool) -> None:
    with pytest.raises((NotFoundError, OfflineError)) as caught:
        offline_data.load_dataset("minari:D4RL/door/humn-v2", download=download)
    assert str(caught.value.hint).startswith("did you mean minari:D4RL/door/human-v2")


@pytest.mark.parametrize("name", ["oter", "othr@1", "local:oter"])
def test_a_misspelt_name_of_a_dataset_here(
    root: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ({}, {"download": False}, {"revision": "2"} if "@" not in name else {}):
        given: dict[str, Any] = options
        with pytest.raises((InvalidIdError, NotFoundError)) as caught:
            offline_data.load_dataset(name, **given)
        assert caught.value.hint == "did you mean local:other?"
    for verb in ("info", "verify", "download"):
        assert main([verb, name]) in {2, 3}
        assert "did you mean local:other?" in capsys.readouterr().err


def test_a_host_is_asked_once_about_a_misspelt_name(tmp_path: Path) -> None:
    settings = Settings(tmp_path)
    for name, tries in (("minari:D4RL/door/humn-v2", 1), ("minari:D4RL/door/human-v2", None)):
        with suggest_command(parse_id(name), settings, Options()) as asking:
            assert asking == replace(settings, transfer=replace(settings.transfer, tries=tries))
    with (
        pytest.raises(NetworkError) as caught,
        suggest_command(parse_id("minari:D4RL/door/humn-v2"), settings, Options()),
    ):
        raise NetworkError("no answer", hint="try later")
    assert str(caught.value.shell_hint).startswith("did you mean minari:D4RL/door/human-v2")
    assert str(caught.value.shell_hint).endswith("? try later")


def test_commands_in_hints_stand_between_backticks() -> None:
    """Only those are translated."""
    verbs = "|".join(FUNCTIONS)
    command = re.compile(rf'hint=f?"[^"]*(?<!`)\boffline-data (?:{verbs})\b[^"]*"')
    found = {f: command.findall(f.read_text("utf-8")) for f in Path("offline_data").rglob("*.py")}
    assert_none(
        (f"{file}: {text}" for file, texts in found.items() for text in texts),
        "write the command between backticks: `offline-data …`",
    )


def test_texts_name_commands_that_the_help_lists() -> None:
    command = re.compile(rf"`offline-data (?:{'|'.join(HIDDEN)})\b[^`]*`")
    found = {
        text
        for folder in ("offline_data", "cli")
        for file in Path(folder).rglob("*.py")
        for text in command.findall(file.read_text("utf-8"))
    }
    assert_none(
        found - {"`offline-data demo`", "`offline-data rule --all`"},  # they write these texts
        "name a command that `offline-data --help` lists: these are in HIDDEN of cli/offline_data_cli/verbs.py",
    )


def test_every_call_in_a_hint_can_be_made() -> None:
    for verb, name in FUNCTIONS.items():
        parameters = inspect.signature(getattr(offline_data, name)).parameters
        assert name in offline_data.__all__
        command = f"`offline-data {verb} X --root DIR" + " --force" * ("force" in parameters) + "`"
        assert in_python(command).startswith(f"`offline_data.{name}(X, root=DIR")
        assert "root" in parameters


@pytest.mark.parametrize(
    "command", ["info nosuch:thing", "check local:other --select ZZ999", "explain ZZ999"]
)
def test_commands_in_hints_are_listed_in_the_help(
    root: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main(command.split()) == 3
    (verb,) = re.findall(r"offline-data (\w+)", capsys.readouterr().err)
    assert verb in {name for panel in VERBS.values() for name in panel}
