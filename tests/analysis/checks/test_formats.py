"""Formats are what their schemas say, and texts of strangers stay texts in each of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import xmlschema

from offline_data.analysis.checks import CheckReport, Finding
from offline_data.analysis.checks.baseline import Comparison
from offline_data.analysis.checks.finding import CheckedDataset
from offline_data.analysis.checks.formats import CheckOutcome, one_line, render
from offline_data.analysis.checks.registry import all_rules

HOSTILE = (
    "a|b [red]x[/red] \x1b[31m`c`\x1b[0m <b>&amp;</b> ]]> \r\n::set-output name=x::y\n::error::z %0A, "
    "[text](http://h) {0} @bob \ud800\ufffe\x00\u202e\u2028'\""
)
NAN = Finding(
    "RL020", "non-finite-values", "error", "local:a@1", "2 rows", "action", 1, 7, 2, None, "filter"
)
FLAT = replace(NAN, code="RL021", rule="constant-feature", severity="warning", dataset="local:b@1")
ODD = Finding("XX001", HOSTILE, "info", HOSTILE, HOSTILE, HOSTILE, 1, 2, 3, HOSTILE, HOSTILE)
BROKEN = Finding("RL000", "rule-failed", "error", "local:b@1", HOSTILE, about="X")


def outcome(*findings: Finding, folder: Path = Path("/data"), **more: Any) -> CheckOutcome:
    ids = ("local:a@1", "local:b@1", HOSTILE)
    checked = (CheckedDataset(one, folder / f"d{n}", 5, 2, 9) for n, one in enumerate(ids))
    report = CheckReport(tuple(checked), ("RL020", "RL021", "XX001"), findings)
    return CheckOutcome(report, folder=folder, **more)


ALL = outcome(NAN, FLAT, BROKEN, ODD)

JUNIT = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
<xs:complexType name="result" mixed="true">
 <xs:attribute name="type"/><xs:attribute name="message"/>
</xs:complexType>
<xs:complexType name="case"><xs:choice minOccurs="0" maxOccurs="unbounded">
  <xs:element name="skipped" type="result"/><xs:element name="failure" type="result"/>
  <xs:element name="error" type="result"/>
  <xs:element name="system-out" type="xs:string"/><xs:element name="system-err" type="xs:string"/>
 </xs:choice>
 <xs:attribute name="name" type="xs:string" use="required"/>
 <xs:attribute name="classname" type="xs:string"/><xs:attribute name="time" type="xs:decimal"/>
</xs:complexType>
<xs:complexType name="suite"><xs:sequence>
  <xs:element name="testcase" type="case" minOccurs="0" maxOccurs="unbounded"/>
 </xs:sequence>
 <xs:attribute name="name" type="xs:string" use="required"/>
 <xs:attribute name="tests" type="xs:nonNegativeInteger" use="required"/>
 <xs:attribute name="failures" type="xs:nonNegativeInteger" use="required"/>
 <xs:attribute name="errors" type="xs:nonNegativeInteger" use="required"/>
 <xs:attribute name="skipped" type="xs:nonNegativeInteger"/>
</xs:complexType>
<xs:element name="testsuites"><xs:complexType><xs:sequence>
  <xs:element name="testsuite" type="suite" minOccurs="0" maxOccurs="unbounded"/>
 </xs:sequence><xs:attribute name="name" type="xs:string"/></xs:complexType></xs:element>
</xs:schema>"""
"""What of Jenkins' schema of JUnit reports we write, with its names, order and required attributes."""


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    """Return the schema of an object with no other properties, as SARIF's are."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


TEXT = {"type": "string"}
MESSAGE = _object("text", text=TEXT)
LEVEL = {"enum": ["none", "note", "warning", "error"]}
RULE = _object(
    "id",
    id=TEXT,
    name=TEXT,
    shortDescription=MESSAGE,
    fullDescription=MESSAGE,
    help=MESSAGE,
    defaultConfiguration=_object(level=LEVEL),
)
ARTIFACT = _object(
    "artifactLocation", artifactLocation=_object(uri={**TEXT, "format": "uri-reference"})
)
LOCATION = _object(
    physicalLocation=ARTIFACT, logicalLocations=_list(_object(fullyQualifiedName=TEXT))
)
RESULT = _object(
    "message",
    ruleId=TEXT,
    ruleIndex={"type": "integer", "minimum": -1},
    level=LEVEL,
    message=MESSAGE,
    locations=_list(LOCATION),
    partialFingerprints={"type": "object", "additionalProperties": TEXT},
    properties={"type": "object"},
)
DRIVER = _object("name", name=TEXT, version=TEXT, rules={**_list(RULE), "uniqueItems": True})
RUN = _object(
    "tool",
    tool=_object("driver", driver=DRIVER),
    invocations=_list(_object("executionSuccessful", executionSuccessful={"type": "boolean"})),
    results=_list(RESULT),
)
SARIF = _object(
    "version runs",
    **{"$schema": {**TEXT, "format": "uri"}, "version": {"enum": ["2.1.0"]}, "runs": _list(RUN)},
)
"""What of the schema of SARIF 2.1.0 we write; the whole one accepts our reports, too."""


@pytest.mark.parametrize("fail_on", ["error", "info", "never"])
def test_junit(fail_on: Any) -> None:
    text = render(replace(ALL, fail_on=fail_on), "junit")
    xmlschema.XMLSchema(JUNIT).validate(text)
    root = ElementTree.fromstring(text.encode())  # noqa: S314 -- our own
    suites = [{name: one.get(name) for name in ("tests", "failures", "errors")} for one in root]
    # Each rule that ran is a test, and so is RL000 where a rule failed
    some, none = ("1", "0") if fail_on != "never" else ("0", "0"), "0"
    below = some[0] if fail_on == "info" else none
    assert suites == [
        {"tests": "3", "failures": some[0], "errors": none},
        {"tests": "4", "failures": below, "errors": some[0]},
        {"tests": "3", "failures": below, "errors": none},
    ]
    names = [case.get("name") for case in root[0]]
    assert names == ["RL020 non-finite-values", "RL021 constant-feature", "XX001"]
    out = root[1].findall("testcase/system-out")
    assert len(out) == {"error": 1, "info": 0, "never": 2}[fail_on]
    if fail_on == "error":
        (failure,) = root[0].findall("testcase/failure")
        assert failure.attrib == {"type": "error", "message": "2 rows"}
        assert failure.text == "action, episode 1, row 7: 2 rows\nhint: filter"


def test_sarif() -> None:
    log = json.loads(render(ALL, "sarif"))
    jsonschema.Draft7Validator(SARIF).validate(log)
    (run,) = log["runs"]
    assert run["invocations"] == [{"executionSuccessful": False}]
    rules = run["tool"]["driver"]["rules"]
    for result, finding in zip(run["results"], ALL.findings, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.code
    assert [one["level"] for one in run["results"]] == ["error", "warning", "error", "note"]
    places = [one["locations"][0]["physicalLocation"] for one in run["results"]]
    assert places[0] == {"artifactLocation": {"uri": "d0/manifest.json"}}
    odd = run["results"][3]["message"]["text"]
    assert r"\[text\](http://h) {{0}}" in odd  # neither a link nor a placeholder
    outside = json.loads(render(replace(outcome(NAN), folder=Path("/else")), "sarif"))["runs"][0]
    (location,) = outside["results"][0]["locations"]
    assert (
        location["physicalLocation"]["artifactLocation"]["uri"] == "file:///data/d0/manifest.json"
    )
    prints = {json.dumps(one["partialFingerprints"]) for one in run["results"]}
    assert len(prints) == 4
    moved = outcome(replace(NAN, row=99, dataset="local:a@2"))
    again = json.loads(render(moved, "sarif"))["runs"][0]["results"][0]
    assert json.dumps(again["partialFingerprints"]) in prints
    assert json.loads(render(outcome(), "sarif"))["runs"][0]["results"] == []


def test_github() -> None:
    text = render(ALL, "github")
    lines = text.splitlines()
    assert lines[0] == (
        "::error file=d0/manifest.json,title=RL020 non-finite-values::"
        "local:a@1: action, episode 1, row 7: 2 rows"
    )
    assert [line.split(" ")[0] for line in lines[:4]] == [
        "::error",
        "::warning",
        "::error",
        "::notice",
    ]
    assert len(lines) == 5  # the last one is the summary: no message has begun a line of its own
    properties, _, message = lines[3].removeprefix("::notice ").partition("::")
    pairs = [pair.partition("=")[::2] for pair in properties.split(",")]
    assert [name for name, _ in pairs] == ["file", "title"]
    title = pairs[1][1].replace("%2C", ",").replace("%3A", ":").replace("%25", "%")
    assert title == one_line(f"XX001 {HOSTILE}")
    assert "%250A" in message


def test_markdown() -> None:
    lines = render(ALL, "markdown").splitlines()
    assert lines[0].startswith("**4 findings (2 errors, 1 warning, 1 info) in 3 datasets")
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[2:]]
    assert [len(row) for row in rows] == [5] * 6
    assert rows[2] == [" error ", " `RL020` non-finite-values ", " `local:a@1` ", " `action, episode 1, row 7` ", " 2 rows "]  # fmt: skip
    for markup in ("<b>", "m`c`", " [text](", "@bob"):
        assert markup not in rows[5][4]
    assert [cell.count("`") for cell in rows[5][2:4]] == [2, 2]  # code, in which nothing is markup
    assert (
        render(outcome(), "markdown")
        == f"**no findings in 3 datasets, by 3 of {len(all_rules())} rules**\n"
    )


def test_human() -> None:
    assert render(outcome(NAN, FLAT), "human").splitlines() == [
        "local:a@1",
        "  RL020 error action, episode 1, row 7: 2 rows",
        "",
        "local:b@1",
        "  RL021 warning action, episode 1, row 7: 2 rows",
        "",
        "hint: RL020 non-finite-values: filter",
        "hint: RL021 constant-feature: filter",
        "2 findings (1 error, 1 warning) in 2 of 3 datasets",
    ]
    known = outcome(NAN, FLAT, baseline=Comparison((FLAT,), 1, 0, strange=False))
    assert known.summary == "1 finding (1 warning) in 1 of 3 datasets; 1 in the baseline"
    assert not known.failed


def test_json() -> None:
    report = json.loads(render(ALL, "json"))
    assert (report["version"], report["failed"], report["fail_on"]) == (1, True, "error")
    assert report["counts"] == {"error": 2, "warning": 1, "info": 1}
    assert report["findings"][0]["row"] == 7
    assert report["findings"][3]["message"] == HOSTILE
    assert report["datasets"][0]["path"] == "/data/d0"
    assert report["statistics"][0] == {
        "code": "RL000", "rule": "rule-failed", "severity": "error", "findings": 1, "datasets": 1
    }  # fmt: skip
    known = outcome(NAN, baseline=Comparison((), 1, 2, strange=False))
    assert json.loads(render(known, "json"))["baseline"] == {"known": 1, "gone": 2}


@pytest.mark.parametrize("form", ["human", "json", "junit", "sarif", "github", "markdown"])
def test_no_control_character_gets_through(form: Any) -> None:
    text = render(ALL, form)
    assert text.endswith("\n")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028\ud800-\udfff\ufffe]", text)


@pytest.mark.parametrize(
    ("fail_on", "failed"), [("error", "EB"), ("warning", "EBW"), ("info", "EBWI"), ("never", "")]
)
def test_what_fails(fail_on: Any, failed: str) -> None:
    for letter, finding in {"E": NAN, "B": BROKEN, "W": FLAT, "I": ODD}.items():
        assert outcome(finding, fail_on=fail_on).failed == (letter in failed)
    assert not outcome(fail_on=fail_on).failed


def test_the_page_has_every_field_of_json() -> None:
    page = (Path(__file__).parents[3] / "docs" / "datasets-in-ci.md").read_text("utf-8")
    part = page[page.index("The JSON report") : page.index("## 7.")]
    report = json.loads(render(outcome(NAN, baseline=Comparison((NAN,), 0, 0, False)), "json"))
    lists = [report, report["baseline"]]
    lists += [report[name][0] for name in ("datasets", "statistics", "findings")]
    fields = {name for one in lists for name in one}
    assert fields == set(re.findall(r"`(\w+)`", part)) - {"json"}
