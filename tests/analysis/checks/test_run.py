"""A run: rules that raise, datasets that cannot be read, selectors, thresholds, order."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.analysis.checks import Finding, Rule, run_checks
from offline_data.analysis.checks.block import RowBlock, all_leaves
from offline_data.analysis.checks.registry import all_rules, select_rules
from offline_data.analysis.checks.rule import Measured
from offline_data.analysis.checks.rules.values import NonFiniteValues
from offline_data.episode import Key
from offline_data.pipeline.preprocess.steps.registry import step_names
from offline_data.store.reader import DatasetReader
from tests.analysis.checks.planted import Write, changed, clean_batch
from tests.remedy import assert_none


class _Raises(Rule):
    """A rule with a defect."""

    code, name, severity = "XX001", "raises", "info"

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        self._maybe("leaves")
        return all_leaves(reader)

    def measure(self, block: RowBlock, key: Key) -> int:
        del key
        self._maybe("measure")
        return len(block)

    def merge(self, first: int, second: int) -> int:
        self._maybe("merge")
        return first + second

    def findings(self, measured: Measured) -> Iterable[Finding]:
        self._maybe("findings")
        return [self.finding(measured.reader, f"{sum(measured.leaves.values())} rows")]

    def across(self, measured: Any) -> Iterable[Finding]:
        self._maybe("across")
        return [self.finding(measured[1].reader, "two datasets")]

    def _maybe(self, place: str) -> None:
        if place == self.place:
            raise KeyError(place)


@pytest.mark.parametrize("place", ["leaves", "measure", "merge", "findings", "across"])
def test_a_rule_that_raises_is_named_and_the_others_go_on(write: Write, place: str) -> None:
    batch = clean_batch()
    bad = batch.observations["observation",].copy()
    bad[0] = np.nan
    paths = [
        write(changed(batch, observations={("observation",): bad})),
        write(clean_batch(seed=1)),
    ]
    report = run_checks(paths, [_Raises(place), NonFiniteValues()], block_items=40)
    failed = [one for one in report.findings if one.code == "RL000"]
    assert len(failed) == (1 if place == "across" else 2)
    assert failed[0].message == f"Rule XX001 (raises) failed: KeyError: '{place}'"
    assert failed[0].severity == "error"
    assert [one.row for one in report.findings if one.code == "RL020"] == [0]


def test_a_rule_that_raises_cannot_be_ignored(write: Write) -> None:
    path = write(clean_batch())
    report = run_checks([path], [_Raises("findings")], ignored=lambda _: True)
    assert [one.code for one in report.findings] == ["RL000"]


def test_the_rule_itself(write: Write) -> None:
    paths = [write(clean_batch()), write(clean_batch((5,)))]
    report = run_checks(paths, [_Raises("")])
    messages = [(one.dataset, one.message) for one in report.findings]
    first, second = (one.id for one in report.datasets)
    # Each transition of observation, action, reward, terminated and truncated
    assert messages == [(first, "205 rows"), (second, "25 rows"), (second, "two datasets")]


def test_a_damaged_dataset_is_a_finding(write: Write) -> None:
    damaged, whole = write(clean_batch()), write(clean_batch())
    rows = damaged / "steps" / "rows.memmap"
    rows.write_bytes(rows.read_bytes()[:-8])
    report = run_checks([damaged, whole], [NonFiniteValues()])
    (one,) = report.findings
    assert (one.code, one.severity, one.dataset) == ("RL001", "error", str(damaged))
    assert "steps/rows.memmap" in one.message
    assert [one.transitions for one in report.datasets] == [0, 41]


def test_what_is_no_dataset_is_a_finding(tmp_path: Path) -> None:
    (one,) = run_checks([tmp_path], []).findings
    assert one.code == "RL001"


def test_selectors() -> None:
    def codes(*select: str, ignore: tuple[str, ...] = ()) -> set[str]:
        return {rule.code for rule in select_rules(select, ignore)}

    assert codes("RL") == set(all_rules())
    assert codes("RL") - codes() == {"RL008"}
    assert codes("RL02") == {"RL020", "RL021", "RL022", "RL023"}
    assert codes("constant-feature") == {"RL021"}
    assert codes("RL02", ignore=("RL020",)) == {"RL021", "RL022", "RL023"}
    assert codes("RL020", "RL021", ignore=("RL02",)) == {"RL020", "RL021"}


def test_every_rule_is_documented() -> None:
    for code, rule in all_rules().items():
        assert rule.code == code
        assert rule.name == rule.name.lower().replace(" ", "-"), f"{code}: write `name` as a-b-c"
        assert rule.severity in {"info", "warning", "error"}, f"{code}: correct `severity`"
        summary = f"{code}: the docstring begins with a sentence, the summary, and has a paragraph below it"
        assert rule.summary().endswith("."), summary
        assert "\n\n" in (rule.__doc__ or ""), summary
        same = f"{code}: `explained` has a text for each of `thresholds`"
        assert rule.explained.keys() == rule.thresholds.keys(), same
    names = collections.Counter(rule.name for rule in all_rules().values())
    assert_none((name for name in names if names[name] > 1), "give each rule a name of its own")


def test_hints_name_steps_that_exist() -> None:
    known = set(step_names())
    for rule in all_rules().values():
        for name in re.findall(r"--step (\w+)", rule.hint + (rule.__doc__ or "")):
            assert name in known, (
                f"the hint or docstring of {rule.code} names an unknown step {name}"
            )
