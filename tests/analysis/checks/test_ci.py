"""The GitHub Action, step by step as written, on a small project; the hook and the page beside it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from offline_data.analysis.checks.registry import all_rules
from offline_data.testing.toy import write_toy
from offline_data_cli.main import main
from tests.analysis.checks.planted import changed, clean_batch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
PAGE = (ROOT / "docs" / "datasets-in-ci.md").read_text("utf-8")
CPU = "--extra-index-url https://download.pytorch.org/whl/cpu"
"""Arguments of pip: torch without CUDA."""
INSTALL = f'python -m pip install "offline-data${{VERSION:+==$VERSION}}" {CPU}'


class Runner:
    """Runs the action's `run` steps with bash, as GitHub does, in a folder."""

    def __init__(self, folder: Path, **inputs: str) -> None:
        self.folder, self.bin = folder, folder.parent / "bin"
        defaults = {name: one["default"] for name, one in ACTION["inputs"].items()}
        root = str(folder.parent / "root")
        self.values = {f"inputs.{k}": v for k, v in {**defaults, "root": root, **inputs}.items()}
        self.outputs = folder.parent / "outputs"
        self.bin.mkdir(exist_ok=True)
        code = "from offline_data_cli.main import run; run()"
        (self.bin / "offline-data").write_text(
            f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$@\"\n"
        )
        (self.bin / "offline-data").chmod(0o755)

    def expand(self, text: str) -> str:
        """Replace `${{ a || b }}`."""

        def value(found: re.Match[str]) -> str:
            names = [name.strip() for name in found[1].split("||")]
            return next(filter(None, (self.values.get(name, "") for name in names)), "")

        return re.sub(r"\$\{\{(.*?)\}\}", value, text)

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run the steps up to the first that fails; returns the last one run."""
        for step in ACTION["runs"]["steps"]:
            if "run" not in step or step["run"] == INSTALL:  # this checkout is installed
                continue
            self.outputs.write_text("")
            environ = {name: self.expand(text) for name, text in step["env"].items()}
            ended = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.folder / self.expand(step.get("working-directory", ".")),
                env={
                    **os.environ,
                    **environ,
                    "GITHUB_OUTPUT": str(self.outputs),
                    "PATH": f"{self.bin}:{os.environ['PATH']}",
                },
                capture_output=True,
                text=True,
                check=False,
            )
            if ended.returncode:
                return ended
            for line in self.outputs.read_text().splitlines():
                name, _, text = line.partition("=")
                self.values[f"steps.{step['id']}.outputs.{name}"] = text
        return ended


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of three files: a dataset directory, the configuration, a script."""
    folder = tmp_path / "project"
    write_dataset(folder / "data" / "runs")
    (folder / "pyproject.toml").write_text(
        '[tool.offline-data.check]\nselect = ["RL02"]\nfail-on = "warning"\n'
    )
    (folder / "train.py").write_text("import offline_data\n")
    (folder / ".git").mkdir()
    return folder


def write_dataset(path: Path, *, nan: bool = False) -> None:
    seen = clean_batch().observations["observation",].copy()
    if nan:
        seen[14, 1] = float("nan")
    path.mkdir(parents=True, exist_ok=True)
    batch = changed(clean_batch(), observations={("observation",): seen})
    write_toy(path, [batch], dataset="local:runs@1")


@pytest.mark.slow
def test_the_action_on_a_project(project: Path) -> None:
    ran = Runner(project, datasets="data/runs").run()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"no findings in 1 dataset, by 4 of {len(all_rules())} rules\n"
    for file in (project / "data").rglob("*"):
        if file.is_file():
            file.unlink()
    write_dataset(project / "data" / "runs", nan=True)
    ran = Runner(project, datasets="data/runs").run()
    assert ran.returncode == 1
    assert ran.stdout.splitlines()[0] == (
        "::error file=data/runs/manifest.json,title=RL020 non-finite-values::local:runs@1: "
        "observation, episode 1, row 13: 1 row has 1 NaN and 0 infinite values"
    )
    (result,) = json.loads((project / "offline-data.sarif").read_text())["runs"][0]["results"]
    (place,) = result["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "data/runs/manifest.json"


def _recording(runner: Runner, sync: str) -> None:
    """Replace the program: `sync` runs a line of shell, `check` prints its arguments."""
    program = runner.bin / "offline-data"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = sync ]; then {sync}; else printf "%s\\n" "$@"; fi\n'
    )
    program.chmod(0o755)


REPORT = ["--output-format", "github", "--out", "offline-data.sarif"]


def test_what_is_checked(project: Path) -> None:
    """What is asked for, else what is locked (a restored cache may have others), else all."""
    runner = Runner(project)
    _recording(runner, '[ "$*" = "sync --locked --quiet" ] && printf "local:a@1\\nd4rl:b@2\\n"')
    assert runner.run().stdout.splitlines() == ["check", "--all", *REPORT]
    (project / "datasets.lock").write_text("")
    ran = runner.run()
    assert (ran.returncode, ran.stdout.splitlines()[1:3]) == (0, ["local:a@1", "d4rl:b@2"])
    _recording(runner, "echo drift >&2; exit 5")
    ran = runner.run()
    assert (ran.returncode, ran.stdout, ran.stderr) == (5, "", "drift\n")


def test_inputs_are_words_and_no_commands(project: Path) -> None:
    inputs = {
        "datasets": "$(touch a) `touch b`; * touch",
        "args": "; touch d",
        "sarif": "$(touch e)",
    }
    runner = Runner(project, **inputs)
    _recording(runner, "true")
    words = [*inputs["datasets"].split(), *inputs["args"].split(), *REPORT[:3], inputs["sarif"]]
    assert runner.run().stdout.splitlines() == ["check", *words]
    assert not any((project / name).exists() for name in "abde")
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
        assert step.get("shell") == ("bash" if "run" in step else None)


def test_the_install_step(tmp_path: Path) -> None:
    (step,) = (one for one in ACTION["runs"]["steps"] if one.get("run") == INSTALL)
    for version, expected in {"": "offline-data", "1.2": "offline-data==1.2"}.items():
        code = f"python() {{ printf '%s\\n' \"$@\"; }}\n{step['run']}"
        ran = subprocess.run(
            ["bash", "-c", code],
            env={"VERSION": version},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.splitlines() == ["-m", "pip", "install", expected, *CPU.split()]


def test_the_hook_can_be_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert hook["id"] == "offline-data-check"
    assert hook["additional_dependencies"] == [CPU.replace(" ", "=")]
    assert (hook["pass_filenames"], hook["always_run"], hook["language"]) == (False, True, "python")
    write_dataset(project.parent / "root" / "local" / "runs" / "1")
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(project.parent / "root"))
    monkeypatch.chdir(project)
    program, *arguments = [*shlex.split(hook["entry"]), *map(str, hook["args"])]
    assert (program, main(arguments)) == ("offline-data", 0)


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks can be read, and name what there is."""
    from offline_data.analysis.checks.config import read_config
    from offline_data.analysis.checks.run import run_checks

    blocks: dict[str, list[str]] = {}
    for language, body in re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL):
        blocks.setdefault(language, []).append(body)
    workflow, gitlab, hooks, packages = map(yaml.safe_load, blocks["yaml"])
    steps: list[dict[str, Any]] = workflow["jobs"]["datasets"]["steps"]
    assert steps[1].get("with", {}).keys() <= ACTION["inputs"].keys()
    assert steps[2]["with"]["sarif_file"] == "${{ steps.datasets.outputs.sarif }}"
    assert "sarif" in ACTION["outputs"]
    assert gitlab["datasets"]["artifacts"]["reports"]["junit"] in gitlab["datasets"]["script"][-1]
    assert gitlab["datasets"]["script"][0] == f"pip install offline-data {CPU}"
    assert hooks["repos"][0]["hooks"][0]["id"] == "offline-data-check"
    assert packages["additional_dependencies"][0] == CPU.replace(" ", "=")
    file = tmp_path / "pyproject.toml"
    file.write_text(blocks["toml"][1])
    assert read_config(file).fail_on == "warning"
    names: dict[str, Any] = {}
    exec(blocks["python"][1], names)  # noqa: S102 -- the page's own
    points = tomllib.loads(blocks["toml"][2])["project"]["entry-points"]
    assert points == {"offline_data.rules": {names["NoSeed"].name: "lab_rules:NoSeed"}}
    write_dataset(tmp_path / "set")
    (one,) = run_checks([tmp_path / "set"], [names["NoSeed"]()]).findings
    assert (one.code, one.message) == ("LAB001", "The seed is not recorded")
    assert "LAB001" not in all_rules()
