"""The terminal as people know it: bare names, synonyms, new names, help, completion, settings."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_data.analysis.info import entry_info
from offline_data.fetch.progress import ByteProgress
from offline_data.store.library import entry_at, find
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch
from offline_data_cli.app import command_tree
from offline_data_cli.commands.environment import Shell
from offline_data_cli.complete import SCRIPTS
from offline_data_cli.help import EXAMPLES, GLOBALS, SYNONYMS
from offline_data_cli.main import main
from offline_data_cli.progress import Bars
from tests.cli.conftest import RUN, Cli, Terminal
from tests.remedy import assert_none
from tests.toys.d4rl import write_d4rl_hdf5
from tests.toys.stored import write_stored


def _commands() -> dict[str, Any]:
    top: Any = command_tree()
    verbs = {"": top, **top.commands}
    for group in ("cache", "config"):
        verbs |= {f"{group} {name}": one for name, one in verbs[group].commands.items()}
    return verbs


def test_a_bare_name_means_the_dataset_here_else_the_only_one_listed(cli: Cli, toy: Path) -> None:
    for name in ("toy", "local:toy", "toy@1", str(toy)):
        assert cli("info", name, "-q").out == "local:toy@1\n"
    assert cli("info", "pen-human-v1", "-q").out == "d4rl:pen-human-v1\n"
    ran = cli("info", "human-v2")
    assert (ran.code, ran.out) == (2, "")
    assert "4 datasets are called 'human-v2'" in ran.err
    assert "minari:D4RL/pen/human-v2" in ran.err


def test_in_a_terminal_it_asks_which(terminal: Callable[..., Terminal], toy: Path) -> None:
    shown = terminal("3\n")
    assert main(["info", "human-v2", "-q"]) == 0
    assert shown.out.text == "minari:D4RL/pen/human-v2\n"
    assert "1  minari:D4RL/door/human-v2" in shown.err.text
    for answer in ("0\n", "x\n", ""):
        terminal(answer)
        assert main(["info", "human-v2", "-q"]) == 2


def test_only_a_whole_name_is_deleted_or_renamed(cli: Cli, toy: Path) -> None:
    folder = write_stored(toy.parents[2], "local:some/toy2@1", toy_batch([2]))
    assert cli("path", "toy2").out == f"{folder}\n"
    for line in (("rm", "toy2", "--yes"), ("rename", "toy2", "b")):
        ran = cli(*line)
        assert (ran.code, "did you mean local:some/toy2?" in ran.err) == (3, True)
    assert cli("delete", "some/toy2", "--yes").code == 0
    assert not folder.exists()


@pytest.mark.parametrize("verb", ["rename", "cp"])
def test_files_outside_of_a_dataset_are_neither_linked_nor_copied(
    cli: Cli, toy: Path, tmp_path: Path, verb: str
) -> None:
    """A folder in a stranger's dataset may be a link; its files have the sizes of the manifest."""
    outside = tmp_path / "outside"
    shutil.move(toy / "steps", outside)
    (toy / "steps").symlink_to(outside)
    ran = cli(verb, "local:toy", "mine")
    assert ran.code == 5
    assert "leads out of the dataset directory" in ran.err
    assert [line.split("@")[0] for line in cli("list", "-q").out.splitlines()] == ["local:toy"]


def test_rename_and_cp_keep_every_byte_and_say_where_from(cli: Cli, toy: Path) -> None:
    before = {name: (toy / name).read_bytes() for name in entry_at(toy).manifest.digests}
    root = toy.parents[2]
    (toy / "mine.txt").write_text("a file of the user's")
    copied = cli("cp", "toy", "copy", "--json").json
    assert (copied["id"], copied["from"]) == ("local:copy@1", "local:toy@1")
    renamed = cli("mv", "toy", "new", "--json")
    assert renamed.json["id"] == "local:new@1"
    assert "mine.txt is not a file of the dataset; kept" in renamed.err
    assert sorted(path.name for path in toy.iterdir()) == ["mine.txt"]
    for name, parents, said in (("copy", ("local:toy@1",), "Copied"), ("new", (), "Renamed")):
        entry = entry_at(root / "local" / name / "1")
        assert verify(entry.path) == ()
        assert {file: (entry.path / file).read_bytes() for file in before} == before
        assert entry.manifest.parents == parents
        assert entry.manifest.notes[-1].startswith(f"{said} from local:toy@1 on ")
        assert entry_info(entry).id == f"local:{name}@1"
    ran = cli("cp", "new", "copy")
    assert (ran.code, "already exists" in ran.err) == (2, True)
    assert cli("cp", "new", "copy", "--force").code == 0
    assert cli("rename", "new", "new").code == 2
    assert cli("cp", "new", "a@b").code == 2


def test_a_damaged_dataset_is_not_copied(cli: Cli, toy: Path) -> None:
    name = next(iter(entry_at(toy).manifest.digests))
    content = bytearray((toy / name).read_bytes())
    content[-1] ^= 1
    (toy / name).write_bytes(content)
    ran = cli("cp", "toy", "copy")
    said = (
        f"error: {toy / name} does not match its checksum\nhint: `offline-data check --files {toy}`"
    )
    assert (ran.code, ran.err.startswith(said)) == (5, True)
    assert cli("list", "-q").out == "local:toy@1\n"
    ran = cli("verify", "--all")
    assert (ran.code, "1 of " in ran.err) == (5, True)
    assert cli("verify").code == cli("verify", "toy", "--all").code == 2


def test_filter_and_split_share_the_episodes(cli: Cli, tmp_path: Path) -> None:
    folder = write_stored(tmp_path / "root", "local:ten@1", toy_batch(range(1, 11)))
    kept = cli("filter", "ten", "length > 7", "--out", "long", "--json").json
    assert (kept[0]["episodes"], kept[0]["transitions"]) == (3, 8 + 9 + 10)
    made = cli("split", "ten", "a=0.7", "b=0.3", "--seed", "1", "--json").json
    assert [(one["part"], one["id"].partition("@")[0], one["episodes"]) for one in made] == [
        ("a", "local:ten-a", 7), ("b", "local:ten-b", 3),
    ]  # fmt: skip
    lengths = [length for one in made for length in open_reader(_path(one)).lengths.tolist()]
    assert sorted(lengths) == list(range(1, 11))
    assert entry_at(_path(made[0])).manifest.parents == ("local:ten@1",)
    for wrong in (["a"], ["a=0.7", "a=0.3"], ["a=0.7", "b=0.7"]):
        assert cli("split", "ten", *wrong, "--out", "x").code == 2
    assert find(tmp_path / "root", entry_at(folder).id) is not None


def _path(made: dict[str, str]) -> Path:
    return Path(made["path"])


def test_tail_and_sample(cli: Cli, toy: Path) -> None:
    rows = [one["index"] for one in cli("tail", "toy", "-n", "2", "--json").json]
    assert rows == [3, 4]
    ends = cli("tail", "toy", "-n", "9", "--episode", "0", "--json").json
    assert [(one["episode"], one["step"]) for one in ends] == [(0, 0), (0, 1), (0, 2)]
    drawn = [
        cli("sample", "toy", "--batch", "4", "--seed", seed, "--json").json["leaves"]
        for seed in ("0", "0", "1", "2", "3")
    ]
    assert drawn[0] == drawn[1]
    assert any(one != drawn[0] for one in drawn)
    assert drawn[0]["index"]["shape"] == [4]
    ran = cli("sample", "toy", "--batch", "8", "--slices", "4")
    assert (ran.code, "No episode" in ran.err) == (2, True)


def test_every_example_can_be_typed_and_every_help_ends_alike(cli: Cli) -> None:
    commands = _commands()
    assert_none(
        set(EXAMPLES) ^ set(commands),
        "each verb has an example in EXAMPLES of cli/offline_data_cli/help.py, and nothing else has",
    )
    for verb, command in commands.items():
        for example in EXAMPLES[verb]:
            words = shlex.split(example)
            if words[0] != "eval":
                top = commands[""].make_context("offline-data", list(words))
                found, rest = commands[""], words
                while rest and hasattr(found, "commands"):
                    name, found, rest = found.resolve_command(top, rest)
                assert found.make_context(name, rest, parent=top)
        assert command.epilog.startswith("Examples:\n  ")
        assert command.epilog.endswith(GLOBALS)
    assert set(SYNONYMS.values()) <= set(commands)
    assert not set(SYNONYMS) & set(commands)


def test_synonyms_run_and_other_words_are_explained(cli: Cli, toy: Path) -> None:
    assert cli("describe", "toy", "-q").out == "local:toy@1\n"
    ran = cli("combine", "a", "b")
    assert (ran.code, "DatasetMixture" in ran.err) == (2, True)
    assert "Did you mean 'verify'" in cli("verfy", "toy").err


def test_layouts_of_output(cli: Cli, toy: Path) -> None:
    table = cli("list", "--format", "table").out.splitlines()
    assert table[0].split() == ["ID", "STEPS", "EPISODES", "SIZE", "LAYOUT"]
    assert "\t" in cli("list").out
    assert cli("list", "--format", "json").json == cli("list", "--json").json
    assert cli("info", "local:x", "--format", "json").json["error"]["code"] == "not_found"
    assert "\x1b[" in cli("list", "--format", "table", "--color", "always").out
    assert "\x1b[" not in cli("list", "--format", "table").out


def test_a_terminal_has_colours_and_whole_tables(
    terminal: Callable[..., Terminal], toy: Path
) -> None:
    shown = terminal(width=40)
    assert main(["list", "-V"]) == main(["list"]) == 0
    assert "\x1b[36mlocal:toy@1" in shown.out.getvalue()
    assert "LAYOUT not shown: widen the" in shown.out.text
    shown = terminal(width=40)
    assert main(["list", "--no-truncate", "--color", "never"]) == 0
    assert "LAYOUT" in shown.out.getvalue()
    assert "\x1b[36m" not in shown.out.getvalue()
    shown = terminal()
    assert main(["verify", "toy"]) == 0
    assert "\x1b[32mOK" in shown.out.getvalue()


def test_the_config_file_is_changed_in_place(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sub" / "config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "empty"))
    monkeypatch.delenv("OFFLINE_DATA_HOME")
    assert cli("config", "path").out == f"{tmp_path}/empty/offline_data/config.toml\n"
    file.parent.mkdir()
    file.write_text('# mine\nroot = "/a" # here\n[mirrors]\n"http://a/" = "http://b/"\n')
    monkeypatch.setenv("OFFLINE_DATA_CONFIG", str(file))
    assert cli("config", "set", "workers", "3").code == 0
    assert cli("config", "set", "root", str(tmp_path / "data")).code == 0
    for key, value in (("offline", "maybe"), ("workers", "0"), ("workers", "x"), ("mirrors", "x")):
        assert cli("config", "set", key, value).code == 2
    assert file.read_text() == (
        f'# mine\nroot = "{tmp_path}/data" # here\nworkers = 3\n\n[mirrors]\n"http://a/" = "http://b/"\n'
    )
    assert cli("config", "get", "root").out == f"{tmp_path}/data\n"
    assert cli("config", "get", "--json").json["mirrors"] == ["http://a/=http://b/"]
    assert cli("config", "get", "rot").code == 3
    monkeypatch.setenv("EDITOR", f"{sys.executable} -c pass")
    monkeypatch.delenv("VISUAL", raising=False)
    assert cli("config", "edit").code == 0
    monkeypatch.setenv("EDITOR", "/no/such/editor")
    assert cli("config", "edit").code == 2


def test_a_step_in_full(cli: Cli) -> None:
    described = {one["name"]: one for one in cli("step", "--json").json}
    (gamma, key) = described["return_to_go"]["arguments"]
    assert (gamma["name"], gamma["type"], gamma["default"]) == ("gamma", "number", 1.0)
    assert (key["type"], key["required"]) == ("text", False)
    assert all(each["text"] for one in described.values() for each in one["arguments"])
    assert described["encode"]["arguments"][1]["type"] == "png or jpeg or h264"
    shown = cli("step", "clip").out
    assert "--step clip:action,low=-1,high=1" in shown
    assert "keys\tfeatures\trequired" in shown
    assert cli("step", "clp").code == 3


def test_convert_foresees_offers_and_explains(
    cli: Cli, tmp_path: Path, terminal: Callable[..., Terminal]
) -> None:
    import h5py
    import numpy as np

    folder = tmp_path / "many"
    (folder / "sub").mkdir(parents=True)
    write_d4rl_hdf5(folder / "a.hdf5")
    write_d4rl_hdf5(folder / "sub" / "b.hdf5")
    foreseen = cli("convert", str(folder / "a.hdf5"), "mine", "--dry-run", "--json").json
    assert (foreseen["from"], foreseen["files"], foreseen["dry_run"]) == ("d4rl", 1, True)
    assert cli("list", "--json").json == []
    ran = cli("convert", str(folder), "mine")
    assert ran.code == 5
    assert "is a folder of 2 datasets: a.hdf5 (d4rl), sub/b.hdf5 (d4rl)" in ran.err
    with h5py.File(tmp_path / "near.hdf5", "w") as file:
        for name in ("observations", "actions", "rewards"):
            file[name] = np.zeros((3, 2))
    said = cli("convert", str(tmp_path / "near.hdf5"), "mine").err
    assert "HDF5 with actions, observations, rewards; nearly D4RL, but has no terminals" in said
    with h5py.File(tmp_path / "near.hdf5", "a") as file:
        file["terminals"] = np.zeros(3)
        file["episode_terminals"] = np.zeros(3)
    said = cli("convert", str(tmp_path / "near.hdf5"), "mine", "--from", "d4rl").err
    assert "is not a D4RL file: it has 'episode_terminals', which d3rlpy writes" in said
    assert "hint: without --from, or with --from d3rlpy" in said
    terminal("2\n")
    assert main(["convert", str(folder), "mine"]) == 0


def test_a_resumed_transfer_s_speed_counts_new_bytes() -> None:
    with Bars().task("fetch", 400 << 20, "B") as bar:
        received = ByteProgress(bar, [400 << 20])
        received.add_resumed(0, 300 << 20)
        assert str(bar) == "300.0 MiB/400.0 MiB 0 B/s"
        received.at(0, 400 << 20)
        assert str(bar).startswith("400.0 MiB/400.0 MiB ")
    with Bars().task("fetch", None, "B") as bar:
        bar.advance(5)
        assert str(bar).startswith("5 B/size unknown ")


@pytest.mark.parametrize("shell", list(SCRIPTS))
def test_the_script_of_a_shell_is_one(cli: Cli, shell: str) -> None:
    assert set(SCRIPTS) == {one.value for one in Shell}
    script = cli("completion", shell).out
    assert "_OFFLINE_DATA_COMPLETE=complete_fish" in script
    if program := shutil.which(shell):
        checked = subprocess.run([program, "-n"], input=script, text=True, check=False)
        assert checked.returncode == 0


@pytest.mark.slow
def test_bash_completes_ids_behind_their_colon(toy: Path, tmp_path: Path) -> None:
    """The real shell asks the real program; bash cuts words at `:`, so only the rest is offered."""
    called = tmp_path / "offline-data"
    called.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{RUN}' \"$@\"\n")
    called.chmod(0o755)
    lines = {
        "offline-data ver": ["verify", "version"],
        "offline-data info local:t": ["toy"],
        "offline-data download roboset:DAPG(expert)/p": ["DAPG\\(expert\\)/pen_v2d-v1"],
        "offline-data preprocess toy --step norm": ["normalize", "normalize_return"],
        "offline-data list --rem": ["--remote"],
    }
    typed = "".join(
        f"COMP_LINE='{line}'; COMP_POINT={len(line)}; _offline_data_completion '{called}' 2>/dev/null;"
        'printf "%s\\n" "${COMPREPLY[@]}" --;'
        for line in lines
    )
    ran = subprocess.run(
        ["bash", "--norc", "-c", f"{SCRIPTS['bash']}\n{typed}"],
        capture_output=True,
        text=True,
        check=False,
    )
    offered = [part.split() for part in ran.stdout.split("--\n")[:-1]]
    assert dict(zip(lines, offered, strict=True)) == lines


@pytest.mark.parametrize("verb", EXAMPLES)
def test_an_example_is_one_line_that_can_be_pasted(
    verb: str, terminal: Callable[..., Terminal]
) -> None:
    screen = terminal()
    assert main([*verb.split(), "--help"]) == 0
    lines = screen.out.text.splitlines()
    begin = lines.index("Examples:") + 1
    shown = lines[begin : lines.index("", begin)]
    assert len(shown) == len(EXAMPLES[verb])
    for line, example in zip(shown, EXAMPLES[verb], strict=True):
        assert line.strip() in {f"offline-data {example}", example}
        assert len(line) <= 80


def test_a_shell_that_asks_for_completions_gets_no_first_steps() -> None:
    asked = {
        "_OFFLINE_DATA_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": "offline-data vers",
    }
    ran = subprocess.run(
        [sys.executable, "-c", "from offline_data_cli.main import run; run()"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split("\t")[0].strip() == "version"
