"""`offline_data.check`, `assert_clean`, and rules of other packages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import offline_data
from offline_data.analysis.checks import Rule
from offline_data.analysis.checks.registry import all_rules, select_rules
from offline_data.base.config import Settings
from offline_data.base.ids import parse_id
from offline_data.testing import assert_clean
from tests.analysis.checks.planted import Write, clean_batch, write_clean_and_bad

VALUES = ["RL02"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with `local:clean` and `local:bad`, which has one NaN and a constant feature."""
    return write_clean_and_bad(tmp_path_factory.mktemp("checked"))


def test_ids_paths_and_loaded_datasets(root: Path) -> None:
    path = root / "local" / "bad" / "1"
    loaded = offline_data.load_dataset(path, batch_size=2)
    found = offline_data.check("local:bad", root=root, select=VALUES, progress=False)
    assert [(one.code, one.row, one.dataset) for one in found] == [
        ("RL020", 13, "local:bad@1"),
        ("RL021", None, "local:bad@1"),
    ]
    assert isinstance(found[0], offline_data.Finding)
    for one in (path, str(path), loaded, loaded.subset([0]), parse_id("local:bad@1")):
        settings = Settings(root, workers=2)
        assert offline_data.check(one, settings=settings, select="RL02") == found
    both = offline_data.check("local:clean", loaded, loaded, root=root, select=VALUES)
    assert both == found
    assert (
        offline_data.check("local:bad", root=root, select=VALUES, ignore=VALUES[0] + "0")
        == (found[1:])
    )


def test_a_damaged_manifest_is_a_finding(root: Path, tmp_path: Path, write: Write) -> None:
    path = write(clean_batch())
    (path / "manifest.json").write_text("{")
    (one,) = offline_data.check(path)
    assert (one.code, one.dataset) == ("RL001", str(path))
    home = tmp_path / "root" / "local" / "mine"
    home.mkdir(parents=True)
    path.rename(home / "1")
    for text in ("local:mine", "local:mine@1"):
        assert [o.code for o in offline_data.check(text, root=tmp_path / "root")] == ["RL001"]


def test_assert_clean_shows_the_line_of_the_test(root: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_clean("local:bad", root=root, select=VALUES)
    (shown,) = caught.traceback.filter(caught)
    assert shown.name == "test_assert_clean_shows_the_line_of_the_test"


def test_assert_clean(root: Path) -> None:
    assert_clean("local:clean", root=root, select=VALUES)
    assert_clean("local:bad", root=root, select=["RL021"], fail_on="error")
    with pytest.raises(AssertionError) as caught:
        assert_clean("local:clean", "local:bad", root=root, select=VALUES)
    lines = str(caught.value).splitlines()
    assert lines[1:4] == [
        "local:bad@1",
        "  RL020 error   observation, episode 1, row 13: 1 row has 1 NaN and 0 infinite values",
        "  RL021 warning observation: 1 of 3 dimensions ([0]) is constant",
    ]
    assert lines[-1] == "2 findings (1 error, 1 warning)"


@pytest.mark.slow
def test_torch_is_not_imported(root: Path) -> None:
    code = (
        "import sys, offline_data; offline_data.Finding; from offline_data.testing import *\n"
        f"found = offline_data.check('local:bad', root={str(root)!r}, select='RL02')\n"
        "assert found and not {'torch', 'pytest'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


PLUGIN = '''
from offline_data.plugins import Rule

class Short(Rule):
    """Episodes are short.

    Of a package.
    """

    code, name, severity = "LAB001", "short-episodes", "info"
    thresholds = {"length": 5}
    explained = {"length": "transitions"}

    def findings(self, measured):
        short = (measured.reader.lengths < self.limits["length"]).sum()
        if short:
            yield self.finding(measured.reader, f"{short} episodes are short", count=int(short))

class Taken(Short):
    code = "RL020"

class Nameless(Rule):
    code = "LAB002"

class Odd(Short):
    code, severity = "LAB003", "fatal"

class Unmade(Short):
    code, name = "LAB004", "unmade"
    def __init__(self, thresholds):
        raise KeyError("why")

text = "no rule"
'''
POINTS = {
    "short-episodes": "lab_rules:Short",
    "RL021": "lab_rules:Taken",
    "nameless": "lab_rules:Nameless",
    "odd": "lab_rules:Odd",
    "text": "lab_rules:text",
    "gone": "lab_gone:Rule",
    "unmade": "lab_rules:Unmade",
}


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with one rule, and others that cannot be used."""
    (tmp_path / "lab_rules.py").write_text(PLUGIN)
    info = tmp_path / "lab_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-rules\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in POINTS.items()]
    (info / "entry_points.txt").write_text("\n".join(["[offline_data.rules]", *lines]))
    monkeypatch.syspath_prepend(str(tmp_path))
    all_rules.cache_clear()
    yield
    sys.modules.pop("lab_rules", None)
    all_rules.cache_clear()


def test_rules_of_another_package(plugin: None, root: Path) -> None:
    select = ["LAB001"]
    assert offline_data.check("local:bad", root=root, select=select) == []
    (one,) = offline_data.check(
        "local:bad", root=root, select=select, thresholds={"short-episodes": {"length": 10}}
    )
    assert (one.code, one.message, one.count) == ("LAB001", "1 episodes are short", 1)


def test_packages_that_cannot_be_used_are_named_and_the_others_run(
    plugin: None, root: Path
) -> None:
    unusable = ["lab_rules:Taken", "nameless", "odd", "text", "gone", "LAB004"]
    found = offline_data.check("local:bad", root=root, select=[*VALUES, *unusable])
    assert [one.code for one in found if one.code != "RL000"] == ["RL020", "RL021"]
    said = {one.about: one.message for one in found if one.code == "RL000"}
    assert said.keys() == set(unusable)
    assert "lab_rules:Taken of the package lab-rules has the code RL020" in said["lab_rules:Taken"]
    assert "has no name and no severity" in said["nameless"]
    assert "has the severity 'fatal'" in said["odd"]
    assert "is not a subclass" in said["text"]
    assert "No module named 'lab_gone'" in said["gone"]
    assert "cannot be made: KeyError: 'why'" in said["LAB004"]
    assert offline_data.check("local:clean", root=root, ignore=[*unusable, "RL", "LAB"]) == []


class _Rewarded(Rule):
    code, name, severity = "XX043", "rewarded", "info"

    def __init__(self, thresholds: Any = None, reward: Any = None) -> None:
        super().__init__(thresholds)
        self.reward = reward


def test_a_reward_function_reaches_the_rule_that_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {**all_rules(), "XX043": _Rewarded}
    monkeypatch.setattr("offline_data.analysis.checks.registry.all_rules", lambda: known)

    def reward(*_: Any) -> None:
        return None

    for given in (reward, None):
        rules = {rule.code: rule for rule in select_rules(["RL020", "XX043"], reward=given)}
        assert vars(rules["XX043"])["reward"] is given
        assert "reward" not in vars(rules["RL020"])
