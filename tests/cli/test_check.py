"""`check` and `rule` on the command line: exit codes, what is printed where, and files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_data.analysis.checks.reference import reference_page, rule_texts
from offline_data.analysis.checks.registry import all_rules
from offline_data_cli.main import main
from tests.analysis.checks.planted import clean_batch, write_clean_and_bad
from tests.cli.conftest import RUN, Cli, Terminal
from tests.toys.stored import write_stored

ONLY = ("--select", "RL02")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clean_and_bad(tmp_path_factory.mktemp("checked"))


@pytest.fixture(autouse=True)
def folder(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with `local:clean` and `local:bad` (a NaN, a constant feature), and a working folder."""
    shutil.copytree(written, tmp_path / "root", dirs_exist_ok=True)
    here = tmp_path / "project"
    (here / ".git").mkdir(parents=True)
    monkeypatch.chdir(here)
    return here


def test_exit_codes(cli: Cli) -> None:
    assert cli("check", "local:clean", *ONLY).code == 0
    assert cli("check", "local:bad", *ONLY).code == 1
    assert cli("check", "local:bad", "--select", "RL021").code == 0
    assert cli("check", "local:bad", "--select", "RL021", "--fail-on", "warning").code == 1
    assert cli("check", "local:bad", *ONLY, "--fail-on", "never").code == 0
    for wrong in ([], ["--all", "x"], ["x", "--fail-on", "eror"]):
        assert cli("check", *wrong).code == 2
    ran = cli("check", "local:bda")
    assert (ran.code, "did you mean local:bad" in ran.err) == (3, True)
    assert (
        "did you mean constant-feature?" in cli("check", "bad", "--select", "constnt-feature").err
    )


def test_what_is_printed(cli: Cli) -> None:
    ran = cli("check", "clean", "bad", *ONLY)
    assert ran.out.splitlines()[:3] == [
        "local:bad@1",
        "  RL020 error   observation, episode 1, row 13: 1 row has 1 NaN and 0 infinite values",
        "  RL021 warning observation: 1 of 3 dimensions ([0]) is constant",
    ]
    assert ran.out.splitlines()[-1] == "2 findings (1 error, 1 warning) in 1 of 2 datasets"
    assert cli("check", "--all", *ONLY).out == ran.out
    assert cli("check", "--all", *ONLY, "-q").out == "local:bad@1\n"
    counts = cli("check", "bad", *ONLY, "--statistics").rows
    assert counts[1:3] == [
        ["RL020", "non-finite-values", "error", "1", "1"],
        ["RL021", "constant-feature", "warning", "1", "1"],
    ]
    as_json = cli("check", "bad", *ONLY, "--json")
    assert as_json.code == 1
    assert as_json.json["counts"] == {"error": 1, "warning": 1, "info": 0}
    assert cli("check", "bad", *ONLY, "--output-format", "json").json == as_json.json


def test_a_terminal_has_80_columns_and_colours(terminal: Callable[..., Terminal]) -> None:
    shown = terminal()
    assert main(["check", "bad", *ONLY]) == 1
    assert "\x1b[1;31merror" in shown.out.getvalue()
    lines = shown.out.text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].startswith("      ")  # the rest of a finding
    shown = terminal()
    assert main(["check", "bad", *ONLY, "--output-format", "sarif"]) == 1
    assert json.loads(shown.out.getvalue())["version"] == "2.1.0"


def test_files_beside_what_is_printed(cli: Cli, folder: Path) -> None:
    names = ("a.sarif", "b.xml", "c.md", "d.json", "e.txt")
    outputs = [part for name in names for part in ("--out", f"out/{name}")]
    ran = cli("check", "bad", *ONLY, "--output-format", "github", *outputs)
    assert ran.code == 1
    assert ran.out.startswith("local:bad@1")  # e.txt is in the format of --output-format
    texts = {name: (folder / "out" / name).read_text() for name in names}
    assert json.loads(texts["a.sarif"])["runs"]
    assert texts["b.xml"].startswith("<?xml")
    assert texts["c.md"].startswith("**2 findings")
    assert json.loads(texts["d.json"])["findings"]
    assert texts["e.txt"].startswith("::error ")
    ran = cli("check", "bad", *ONLY, "--output-format", "github", "--out", "out/a.sarif")
    assert ran.out.startswith("::error ")
    assert cli("check", "bad", "--output-format", "sarif", "--out", "x.json").code == 1
    assert json.loads((folder / "x.json").read_text())["runs"]
    (folder / "link").symlink_to("target")
    os.mkfifo(folder / "pipe")
    with subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE, text=True) as reader:
        outputs = ["--out", "link", "--out", "pipe", "--output-format", "markdown"]
        assert cli("check", "bad", *ONLY, *outputs).code == 1
        assert reader.communicate()[0] == (folder / "target").read_text() != ""
    assert (folder / "link").is_symlink()
    ran = cli("check", "bad", *ONLY, "--out", "out")
    assert (ran.code, f"{folder / 'out'} cannot be written: " in ran.err) == (2, True)


def test_configuration_and_the_command_line(cli: Cli, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(
        '[tool.offline-data.check]\nselect = ["RL02"]\nignore = ["RL020"]\nfail-on = "warning"\n'
    )

    def codes(*arguments: str) -> list[str]:
        found = cli("check", "bad", "--json", *arguments).json["findings"]
        return [one["code"] for one in found]

    assert codes() == ["RL021"]
    assert cli("check", "bad").code == 1
    assert cli("check", "bad", "--fail-on", "error").code == 0
    assert codes("--ignore", "RL021") == []
    assert codes("--select", "RL020,RL021") == ["RL020", "RL021"]
    other = folder / "other.toml"
    other.write_text(
        '[check]\nselect = ["RL02"]\noutput-format = "markdown"\n'
        '[check.per-dataset-ignores]\n"local:b*" = ["RL020"]\n'
    )
    assert codes("--config", "other.toml") == ["RL021"]
    assert cli("check", "bad", "--config", "other.toml").out.startswith("**1 finding")
    other.write_text("[check]\nselct = []\n")
    ran = cli("check", "bad", "--config", "other.toml")
    assert (ran.code, "did you mean select?" in ran.err) == (2, True)
    assert f"{other}: check has the unknown key 'selct'" in ran.err


def test_a_baseline(cli: Cli, folder: Path, tmp_path: Path) -> None:
    ran = cli("check", "--all", *ONLY, "--write-baseline", "known.json")
    assert (ran.code, "2 findings are in the baseline" in ran.err) == (0, True)
    ran = cli("check", "--all", *ONLY, "--baseline", "known.json")
    assert ran.code == 0
    assert (
        ran.out
        == f"no findings in 2 datasets, by 4 of {len(all_rules())} rules; 2 in the baseline\n"
    )
    shutil.rmtree(tmp_path / "root" / "local" / "bad")
    write_stored(tmp_path / "root", "local:bad@2", clean_batch())
    ran = cli("check", "--all", *ONLY, "--baseline", "known.json")
    known = folder / "known.json"
    assert f"no longer found: 2 of the baseline (to update it: --write-baseline {known})" in ran.err
    ran = cli("check", "clean", *ONLY, "--baseline", "known.json")
    assert "is about a dataset of this run" in ran.err
    assert cli("check", "--all", *ONLY, "--write-baseline", "known.json").code == 0
    assert json.loads(known.read_text())["findings"] == []
    known.write_text("{}")
    for name in ("--baseline", "--write-baseline"):
        ran = cli("check", "--all", name, "known.json")
        assert (ran.code, "The baseline " in ran.err) == (2, True)


def test_damaged_and_missing_datasets(cli: Cli, tmp_path: Path) -> None:
    manifest = tmp_path / "root" / "local" / "bad" / "1" / "manifest.json"
    manifest.write_text("{")
    for arguments in (["--all"], ["local:bad"], ["local:bad@1", "local:clean"]):
        ran = cli("check", *arguments, "--json", *ONLY)
        assert (ran.code, [one["code"] for one in ran.json["findings"]]) == (1, ["RL001"])
    assert cli("check", "--all", *ONLY, "--write-baseline", "x.json").code == 0
    shutil.rmtree(tmp_path / "root")
    assert cli("check", "--all").code == 3


def test_a_failed_rule_fails_the_run_with_any_baseline(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("why")

    monkeypatch.setattr("offline_data.analysis.checks.rules.values.ConstantFeature.findings", fail)
    ran = cli("check", "clean", *ONLY)
    assert ran.code == 1
    assert "Rule RL021 (constant-feature) failed: KeyError: 'why'" in ran.out
    assert cli("check", "clean", *ONLY, "--write-baseline", "known.json").code == 1
    assert cli("check", "clean", *ONLY, "--baseline", "known.json").code == 1


@pytest.mark.slow
def test_an_interrupted_run_writes_nothing(folder: Path, tmp_path: Path) -> None:
    code = (
        "import os, signal\nfrom offline_data.analysis.checks.rules.values import NonFiniteValues\n"
        "NonFiniteValues.measure = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
    )
    arguments = ["check", "--all", *ONLY, "--out", "x.json", "--write-baseline", "y.json"]
    ended = subprocess.run(
        [sys.executable, "-c", code + RUN, *arguments], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 130, ended.stderr
    assert list(folder.iterdir()) == [folder / ".git"]


def test_rules_are_explained(cli: Cli) -> None:
    rows = {row[0]: row for row in cli("rule").rows[1:]}
    assert rows.keys() == rule_texts().keys()
    assert rows["RL020"][1:3] == ["non-finite-values", "error"]
    shown = cli("rule", "constant-feature").out
    assert shown.startswith("RL021 constant-feature, warning\n\nA dimension of a feature has")
    assert "hint: drop the dimension" in shown
    assert cli("rule", "RL02", "-q").out == "RL020\nRL021\nRL022\nRL023\n"
    assert cli("rule", "RL000", "--json").json[0]["name"] == "rule-failed"


def test_paragraphs_are_not_indented_in_a_terminal(terminal: Callable[..., Terminal]) -> None:
    shown = terminal()
    assert main(["rule", "RL020"]) == 0
    lines = shown.out.text.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.startswith(" ") for line in lines)


def test_the_page_of_rules_is_up_to_date(cli: Cli) -> None:
    page = Path(__file__).parents[2] / "docs" / "rules.md"
    again = "run `offline-data rule --all > docs/rules.md`"
    assert page.read_text("utf-8") == reference_page(), again
    assert cli("rule", "--all").out == page.read_text("utf-8")
    headings = set(re.findall(r"(?m)^## (.*)$", page.read_text("utf-8")))
    assert headings == {f"{one.code} {one.name}" for one in rule_texts().values()}
