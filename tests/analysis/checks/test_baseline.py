"""Baselines: only new findings count, whatever the revision, the place and the order."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from offline_data.analysis.checks import CheckReport, Finding
from offline_data.analysis.checks.baseline import compare, read_baseline, write_baseline
from offline_data.analysis.checks.finding import CheckedDataset
from offline_data.base.errors import UsageError
from tests.refusals import Refusals

REFUSALS = Refusals.beside(__file__)

NAN = Finding("RL020", "n", "error", "local:a@1", "2 rows", "next/observation", 1, 7, 2)
FLAT = Finding("RL021", "c", "warning", "local:a@1", "flat", "observation", about="[3]")
BROKEN = Finding("RL000", "rule-failed", "error", "local:a@1", "it broke", about="X")
OTHER = replace(NAN, dataset="local:b@1")


def report(*findings: Finding, datasets: str = "a", rules: str = "RL020 RL021") -> CheckReport:
    checked = (CheckedDataset(f"local:{name}@9", Path(name), 1, 1, 1) for name in datasets)
    return CheckReport(tuple(checked), tuple(rules.split()), findings)


def test_known_findings_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    assert write_baseline(file, report(NAN, FLAT, BROKEN)) == 2
    known = read_baseline(file)
    moved = replace(NAN, dataset="local:a@2", leaf="observation", episode=0, row=1, message="x")
    same = compare(report(moved, FLAT), known)
    assert (same.new, same.known, same.gone, same.strange) == ((), 2, 0, False)
    more = compare(report(replace(NAN, count=3)), known)
    assert ([one.count for one in more.new], more.known, more.gone) == ([3], 0, 1)
    twice = compare(report(NAN, replace(NAN, count=1)), known)  # one identity, a larger sum
    assert (len(twice.new), twice.known) == (2, 0)
    fewer = compare(report(replace(NAN, count=1), replace(FLAT, about="[4]")), known)
    assert ([one.about for one in fewer.new], fewer.gone) == (["[4]"], 1)


def test_a_failed_rule_is_never_known(tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    entry = {"dataset": "local:a", "code": "RL000", "leaf": None, "about": "X", "count": 1}
    file.write_text(json.dumps({"offline_data_baseline": 1, "findings": [entry]}))
    assert compare(report(BROKEN), read_baseline(file)).new == (BROKEN,)


def test_what_was_not_looked_for_is_not_gone(tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    write_baseline(file, report(NAN, OTHER, FLAT, datasets="ab"))
    known = read_baseline(file)
    assert compare(report(rules="RL021"), known).gone == 1
    assert compare(report(datasets="b"), known).gone == 1
    assert compare(report(datasets="ab"), known).gone == 3
    assert compare(report(datasets="c"), known).strange
    assert not compare(report(datasets="c"), read_baseline(_empty(tmp_path))).strange


def _empty(folder: Path) -> Path:
    write_baseline(folder / "empty.json", report())
    assert (folder / "empty.json").read_text() == (
        '{\n "offline_data_baseline": 1,\n "findings": []\n}\n'
    )
    return folder / "empty.json"


def test_the_file_is_sorted_and_stable(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    write_baseline(one, report(NAN, FLAT, OTHER, datasets="ab"))
    write_baseline(two, report(OTHER, FLAT, NAN, datasets="ba"))
    assert one.read_bytes() == two.read_bytes()
    lines = one.read_text().splitlines()
    assert lines[2:5] == [
        ' "findings": [',
        '  {"dataset": "local:a", "code": "RL020", "leaf": "observation", "about": null, "count": 2},',
        '  {"dataset": "local:a", "code": "RL021", "leaf": "observation", "about": "[3]", "count": 1},',
    ]


def test_writing_again_keeps_what_this_run_did_not_look_for(tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    write_baseline(file, report(NAN, FLAT, OTHER, datasets="ab"))
    assert write_baseline(file, report(replace(NAN, count=1), rules="RL020")) == 3
    counts = {identity[:2]: count for identity, count in read_baseline(file).items()}
    assert counts == {
        ("local:a", "RL020"): 1,
        ("local:a", "RL021"): 1,
        ("local:b", "RL020"): 2,
    }


def test_names_that_are_no_text(tmp_path: Path) -> None:
    file, odd = tmp_path / "known.json", replace(FLAT, about="b\udcff", leaf="é\n\x1b[0m")
    write_baseline(file, report(odd))
    assert compare(report(odd), read_baseline(file)).new == ()


DEEP = "[" * 9999
WRONG: list[dict[str, object]] = [
    {"dataset": 3}, {"code": None}, {"leaf": []}, {"about": {}}, {"count": 0},
    {"count": True}, {"count": 1.0}, {"count": 10**30}, {"more": 1},
]  # fmt: skip
HOSTILE = [
    "", "[]", "3", "{", "{}", '{"offline_data_baseline": 1}', DEEP,
    '{"offline_data_baseline": 2, "findings": []}',
    '{"offline_data_baseline": true, "findings": []}',
    '{"offline_data_baseline": 1, "findings": {}}',
    '{"offline_data_baseline": 1, "findings": [3]}',
    '{"offline_data_baseline": 1, "findings": [{"dataset": "a"}]}',
    *(
        json.dumps({"offline_data_baseline": 1, "findings": [
            {"dataset": "a", "code": "c", "leaf": None, "about": None, "count": 1, **wrong}
        ]})
        for wrong in WRONG
    ),
]  # fmt: skip


TEXTS = {"deep lists" if text == DEEP else text: text for text in HOSTILE}


@REFUSALS.of("texts", TEXTS)
def test_what_is_no_baseline_is_refused_and_kept(tmp_path: Path, name: str) -> None:
    file = tmp_path / "known.json"
    file.write_text(TEXTS[name])
    for call in (partial(read_baseline, file), partial(write_baseline, file, report(NAN))):
        REFUSALS.check("texts", name, call, {file: "FILE"})
    assert file.read_text() == TEXTS[name]


def test_damaged_baselines_give_a_sentence(tmp_path: Path) -> None:
    draw, file = np.random.default_rng(0), tmp_path / "known.json"
    write_baseline(file, report(NAN, FLAT))
    whole, refused = file.read_bytes(), []
    for _ in range(120):
        data = bytearray(whole)
        for place in draw.integers(len(data), size=2):
            data[place] = draw.integers(256)
        file.write_bytes(data)
        try:
            read_baseline(file)
        except UsageError as error:
            refused.append(error.message)
    assert len(refused) > 60
    assert all(str(file) in message for message in refused)
