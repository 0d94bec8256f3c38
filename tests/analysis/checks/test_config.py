"""Configuration files: which is found, what they say, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_data.analysis.checks import Finding
from offline_data.analysis.checks.config import CheckConfig, find_config, read_config
from tests.refusals import Refusals

REFUSALS = Refusals.beside(__file__)

FULL = """
[check]
select = ["RL02", "constant-feature"]
ignore = ["RL022"]
fail-on = "warning"
baseline = "known/checks.json"
output-format = "github"
[check.per-dataset-ignores]
"d4rl:*-human-v1" = ["RL021"]
"local:mine@2" = ["non-finite-values"]
[check.thresholds.RL020]
"""


def finding(dataset: str, code: str = "RL021", rule: str = "constant-feature") -> Finding:
    return Finding(code, rule, "warning", dataset, "m")


def test_every_key(tmp_path: Path) -> None:
    file = tmp_path / "offline-data.toml"
    file.write_text(FULL)
    config = find_config(tmp_path)
    assert (config.select, config.ignore) == (("RL02", "constant-feature"), ("RL022",))
    assert (config.fail_on, config.output_format) == ("warning", "github")
    assert (config.baseline, config.file) == (tmp_path / "known" / "checks.json", file)
    assert config.thresholds == {"RL020": {}}
    assert config.ignores(finding("d4rl:pen-human-v1@3"))
    assert not config.ignores(finding("d4rl:pen-human-v1@3", "RL020", "non-finite-values"))
    assert not config.ignores(finding("d4rl:pen-expert-v1@3"))
    assert config.ignores(finding("local:mine@2", "RL020", "non-finite-values"))
    assert not config.ignores(finding("local:mine@3", "RL020", "non-finite-values"))


def test_the_nearest_file_with_the_table(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert find_config(inner) == CheckConfig()
    (tmp_path / "pyproject.toml").write_text("[tool.offline-data.check]\nfail-on = 'info'\n")
    assert find_config(inner).fail_on == "info"
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\n")
    assert find_config(inner).fail_on == "info"
    (tmp_path / "a" / "pyproject.toml").write_text(
        "[tool.offline-data.check]\nfail-on = 'warning'\n"
    )
    assert find_config(inner).fail_on == "warning"
    (tmp_path / "a" / "offline-data.toml").write_text("[check]\nfail-on = 'never'\n")
    assert find_config(inner).fail_on == "never"
    (inner / ".git").touch()  # a repository of its own, or a worktree
    assert find_config(inner) == CheckConfig()


LINES = [
    "selct = []",
    "select = 'RL020'",
    "select = [1]",
    "ignore = ['RL9']",
    "ignore = ['']",
    "fail-on = 'eror'",
    "fail-on = []",
    "fail_on = 'error'",
    "output-format = 3",
    "baseline = ''",
    'baseline = "a\\u0000b"',
    "per-dataset-ignores = 3",
    "per-dataset-ignores = {a = 'RL020'}",
    "per-dataset-ignores = {a = ['x']}",
    "thresholds = 3",
    "thresholds = {RL020 = 3}",
    "thresholds = {RL020 = {x = 3}}",
    "thresholds = {RL99 = {x = 3}}",
    "thresholds = {RL02 = {x = 3}}",
    "select = [",
]
TEXTS = {
    **{line: f"[check]\n{line}\n" for line in LINES},
    "deep lists": "[check]\nselect = " + "[" * 5000,
    "no table": "check = 3\n",
    "nothing": "",
    "2 MiB": "#" * (1 << 21),
}


@REFUSALS.of("texts", TEXTS)
@pytest.mark.parametrize("file", ["offline-data.toml", "pyproject.toml", "other.toml"])
def test_what_is_wrong_is_named_with_file_and_key(tmp_path: Path, name: str, file: str) -> None:
    """In the same words for each file, but for the name of the table."""
    path, text = tmp_path / file, TEXTS[name]
    if file != "offline-data.toml":
        text = text.replace("check", "tool.offline-data.check", 1)
    path.write_text(text)
    names: dict[object, str] = {path: "FILE", "tool.offline-data.check": "check"}
    REFUSALS.check("texts", name, lambda: read_config(path), names)


def test_files_that_cannot_be_configuration(tmp_path: Path) -> None:
    file = tmp_path / "offline-data.toml"
    names: dict[object, str] = {tmp_path: "FOLDER"}
    REFUSALS.check("files", "missing", lambda: read_config(file), names)
    REFUSALS.check("files", "a folder", lambda: read_config(tmp_path), names)
    file.write_bytes(b"\xff\xfe")
    REFUSALS.check("files", "UTF-16", lambda: find_config(tmp_path), names)
    file.write_text("")
    assert find_config(tmp_path) == CheckConfig()
    file.write_text("check = 3\n")
    REFUSALS.check("files", "no table", lambda: find_config(tmp_path), names)
