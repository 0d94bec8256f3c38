"""Configuration files: which is found, what they say, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_data.analysis.checks import Finding
from offline_data.analysis.checks.config import CheckConfig, find_config, read_config
from offline_data.base.errors import UsageError

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


WRONG = {
    "selct = []": "check has the unknown key 'selct'",
    "select = 'RL020'": "check.select is 'RL020'; expected a list",
    "select = [1]": "check.select[0] is 1; expected text",
    "ignore = ['RL9']": "check.ignore[0]: No rule matches 'RL9'",
    "ignore = ['']": "check.ignore[0]: No rule matches ''",
    "fail-on = 'eror'": "check.fail-on is 'eror'; expected one of error, warning, info, never",
    "fail-on = []": "check.fail-on is []",
    "output-format = 3": "check.output-format is 3",
    "baseline = ''": "check.baseline is ''; expected the path of a file",
    'baseline = "a\\u0000b"': "check.baseline is",
    "per-dataset-ignores = 3": "check.per-dataset-ignores is 3; expected a table",
    "per-dataset-ignores = {a = 'RL020'}": "check.per-dataset-ignores.a is 'RL020'",
    "per-dataset-ignores = {a = ['x']}": "check.per-dataset-ignores.a[0]: No rule matches 'x'",
    "thresholds = 3": "check.thresholds is 3; expected a table",
    "thresholds = {RL020 = 3}": "check.thresholds.RL020 is 3; expected a table",
    "thresholds = {RL020 = {x = 3}}": "check.thresholds: Rule RL020 has no threshold 'x'",
    "thresholds = {RL99 = {x = 3}}": "check.thresholds: No rule matches 'RL99'",
    "thresholds = {RL02 = {x = 3}}": "rules match; name one",
    "select = [": "is not TOML",
    "select = " + "[" * 5000: "is not TOML",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_named_with_file_and_key(tmp_path: Path, line: str) -> None:
    for name, table in (
        ("offline-data.toml", "check"),
        ("pyproject.toml", "tool.offline-data.check"),
    ):
        file = tmp_path / name
        file.write_text(f"[{table}]\n{line}\n")
        with pytest.raises(UsageError) as caught:
            read_config(file)
        assert str(file) in caught.value.message
        expected = (
            WRONG[line].replace("check.", f"{table}.", 1).replace("check has", f"{table} has")
        )
        assert expected in caught.value.message


def test_the_nearest_key_is_offered(tmp_path: Path) -> None:
    file = tmp_path / "offline-data.toml"
    file.write_text("check.fail_on = 'error'\n")
    with pytest.raises(UsageError) as caught:
        find_config(tmp_path)
    assert caught.value.hint == "did you mean fail-on?"
    file.write_text("check = 3\n")
    with pytest.raises(UsageError, match="check is 3; expected a table"):
        find_config(tmp_path)


def test_files_that_cannot_be_configuration(tmp_path: Path) -> None:
    file = tmp_path / "offline-data.toml"
    with pytest.raises(UsageError, match="There is no file"):
        read_config(file)
    file.write_text("")
    with pytest.raises(UsageError, match=r"has no table \[tool.offline-data.check\]"):
        read_config(file)
    assert find_config(tmp_path) == CheckConfig()
    file.write_bytes(b"#" * (1 << 21))
    with pytest.raises(UsageError, match="larger than"):
        find_config(tmp_path)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not UTF-8"):
        find_config(tmp_path)
    with pytest.raises(UsageError, match="not a plain file"):
        read_config(tmp_path)
