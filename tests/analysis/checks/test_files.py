"""Damaged files, licence and citation, published defects, what was dropped or skipped, schemas."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from offline_data.analysis.checks.finding import Severity
from offline_data.analysis.checks.rules.files import Advisory, advisories
from offline_data.episode import Key
from offline_data.formats import corrections
from offline_data.formats.corrections import Correction
from offline_data.formats.registry import get_source
from offline_data.store.manifest import Manifest, dump_manifest, read_manifest
from tests.analysis.checks.planted import Write, changed, clean_batch, found

FILES = ["RL001", "RL008", "RL002", "RL003", "RL004", "RL005", "RL006", "RL009"]


def described(path: Path, **fields: Any) -> Path:
    """Give a dataset other fields, with the digest that the manifest then has."""
    manifest = replace(read_manifest(path), sha256=None, **fields)
    (path / "manifest.json").write_text(dump_manifest(manifest))
    return path


@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_clean(write: Write, layout: str) -> None:
    path = write(clean_batch(), layout=layout)
    for code in FILES:
        assert found(path, code) == []


def test_damaged_files(write: Write) -> None:
    path = write(clean_batch())
    rows = path / "steps" / "rows.memmap"
    data = bytearray(rows.read_bytes())
    data[100] ^= 1
    rows.write_bytes(data)
    (path / "notes.txt").write_text("mine")
    (damaged,) = found(path, "RL008")
    (foreign,) = found(path, "RL001")
    assert (damaged.about, damaged.severity) == ("steps/rows.memmap", "error")
    assert damaged.message.startswith("steps/rows.memmap has sha256 ")
    assert (foreign.about, foreign.severity) == ("notes.txt", "warning")
    assert foreign.message == "notes.txt is not in the manifest"


def test_a_changed_manifest(write: Write) -> None:
    path = write(clean_batch())
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace("CC-BY-4.0", "CC-BY-5.0"))
    (one,) = found(path, "RL001")
    assert one.about == "manifest.json"
    assert "changed since it was written" in one.message


@pytest.mark.parametrize("value", [None, "", "  "])
def test_licence_and_citation(write: Write, value: str | None) -> None:
    path = write(clean_batch(), licence=value, citation=value)
    for code in ("RL002", "RL003"):
        (one,) = found(path, code)
        assert (one.severity, one.leaf, one.row) == ("info", None, None)


def test_known_defects(write: Write) -> None:
    path = described(write(clean_batch()), source="d4rl", name="maze2d-umaze-v1")
    early, waypoints = found(path, "RL004")
    assert (early.about, early.severity) == ("maze2d-rewards-early", "warning")
    assert "https://github.com/Farama-Foundation/D4RL/issues/194" in early.message
    assert (waypoints.about, waypoints.severity) == ("maze2d-timeouts-are-waypoints", "info")


@pytest.mark.parametrize(
    ("fields", "converter", "command"),
    [
        ({"source": "local", "name": "x"}, {}, "convert PATH x --force"),
        ({"source": "local", "name": "x"}, {"reading": 1}, None),
        ({"source": "local", "name": "x"}, {"adapter": "other"}, None),
        (
            {"source": "local", "name": "x"},
            {"options": {"mapping": {"rows": "steps"}}},
            "convert PATH x --mapping FILE --force",
        ),
        ({"source": "toy", "name": "x", "id": "toy:x@1"}, {}, "download toy:x --force"),
    ],
)
def test_conversions_of_earlier_versions(
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    converter: dict[str, Any],
    command: str | None,
) -> None:
    lost = Correction("lost rows", lambda manifest: manifest.counts["transitions"] > 0)
    other = Correction("lost columns", lambda _: False)
    monkeypatch.setattr(corrections, "CORRECTIONS", {"toy": (lost, other)})
    path = described(write(clean_batch()), converter={"adapter": "toy", **converter}, **fields)
    messages = [one.message for one in found(path, "RL009")]
    said = f"An earlier version lost rows: make the dataset again with `offline-data {command}`"
    assert messages == [said] * (command is not None)


@pytest.mark.parametrize(
    ("value", "word", "converter", "problem", "command"),
    [
        (2.0**53, "a", {"adapter": "merge", "options": {"cast": True, "common_leaves": True}}, "rounded integers to floats",
         "merge local:a@1 local:b@1 --out x --common-leaves --cast --force"),
        (2.0**53, "a", {"adapter": "merge", "options": {"cast": True}, "reading": 1}, "", ""),
        (2.0**53, "a", {"adapter": "merge", "options": {"cast": False}}, "", ""),
        (2.0**53 - 1, "None", {"adapter": "merge", "options": {"cast": True}}, "", ""),
        (0.5, "None", {"adapter": "preprocess", "options": {"recipe": [{"step": "label", "file": "l.csv"}]}}, "wrote missing texts",
         "preprocess local:a@1 --step label:file=l.csv --out x --force"),
        (0.5, "a", {"adapter": "preprocess", "options": {"recipe": [{"step": "label", "file": "l.csv"}]}}, "", ""),
        (2.0**63, "a", {"adapter": "preprocess", "options": {"recipe": [{"step": "label", "file": "l.csv"}]}}, "rounded integers that a CSV",
         "preprocess local:a@1 --step label:file=l.csv --out x --force"),
        (0.5, "None", {"adapter": "preprocess", "options": {"recipe": [{"step": "clip"}]}}, "", ""),
        (2.0**63, "a", {"adapter": "files", "reading": 2}, "rounded large integers of CSV", "convert PATH x --force"),
        (2.0**53 - 1, "a", {"adapter": "files", "reading": 2}, "", ""),
        (2.0**63, "a", {"adapter": "files", "reading": 3}, "", ""),
    ],
)  # fmt: skip
def test_values_that_earlier_versions_changed(
    write: Write, value: float, word: str, converter: dict[str, Any], problem: str, command: str
) -> None:
    batch = clean_batch()
    columns: dict[Key, Any] = {("number",): np.full(batch.transitions, value), ("text",): np.full(batch.transitions, word, object)}  # fmt: skip
    batch = replace(batch, steps={**batch.steps, **columns})
    parents = ("local:a@1", "local:b@1")
    file = {"path": "a/x.csv.gz", "url": None, "size": 1, "sha256": None}
    path = described(
        write(batch), converter=converter, source="local", name="x", parents=parents, files=(file,)
    )
    messages = [one.message for one in found(path, "RL009")]
    assert len(messages) == bool(problem)
    for message in messages:
        assert message.startswith(f"An earlier version {problem}")
        assert f"`offline-data {command}`" in message


def test_defects_of_a_parent(write: Write) -> None:
    parents = ("d4rl:antmaze-large-play-v0@unversioned",)
    (one,) = found(write(clean_batch(), parents=parents), "RL004")
    assert (one.about, one.severity) == ("antmaze-v0-timeouts", "error")


def header(dataset: str, revision: str = "1", version: str = "0.1.0") -> Manifest:
    source, _, name = dataset.partition(":")
    made = {"name": "offline-data", "version": version}
    return Manifest(
        f"{dataset}@{revision}", source, name, revision, "compact", {}, {}, converter=made
    )


def test_what_an_advisory_affects() -> None:
    fields: Any = {"severity": "warning", "summary": "", "instead": "", "links": ()}
    one = Advisory(
        "x", datasets=("openx:a*",), excluded=("openx:ab",), revisions=("0.*",), **fields
    )
    assert one.affects(header("openx:ac", "0.1.0"))
    assert one.affects(header("openx:ac/train", "0.1.0"))
    assert not one.affects(header("openx:ac", "1.0.0"))
    assert not one.affects(header("openx:ab", "0.1.0"))
    assert not one.affects(header("minari:ac", "0.1.0"))
    own = Advisory("x", datasets=("*",), before="0.10", **fields)
    for version, affected in {
        "0.9.3": True,
        "0.10.0": False,
        "0.10": False,
        "1": False,
        "?": True,
    }.items():
        assert own.affects(header("d4rl:b", version=version)) is affected, version


def test_the_advisories_are_well_formed() -> None:
    entries = json.loads(
        files("offline_data.analysis.checks").joinpath("advisories.json").read_text("utf-8")
    )
    required: dict[str, Any] = {
        "name": str,
        "severity": str,
        "datasets": list,
        "summary": str,
        "instead": str,
        "links": list,
    }
    optional: dict[str, Any] = {"except": list, "revisions": list, "before": str}
    for entry in entries:
        assert required.keys() <= entry.keys() <= {*required, *optional}, entry["name"]
        for name, value in entry.items():
            assert isinstance(value, {**required, **optional}[name]), (entry["name"], name)
            assert value
            assert not isinstance(value, list) or all(isinstance(one, str) for one in value)
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry["name"])
        assert entry["severity"] in get_args(Severity)
        assert all(link.startswith("https://") for link in entry["links"])
        assert not entry["summary"].endswith(".")
    names = [entry["name"] for entry in entries]
    assert len(set(names)) == len(names) == len(advisories())


@pytest.mark.parametrize("advisory", advisories(), ids=lambda one: one.name)
def test_every_pattern_names_a_published_dataset(advisory: Advisory) -> None:
    for pattern in advisory.datasets:
        source = pattern.partition(":")[0]
        one = replace(advisory, datasets=(pattern,), revisions=("*",))
        names = [entry.name for entry in get_source(source).catalog()]
        assert any(one.affects(header(f"{source}:{name}")) for name in names), pattern


def test_dropped_leaves(write: Write) -> None:
    dropped = (
        {"key": "metadata/policy/bias", "reason": "It has no row."},
        {"key": "orientation", "reason": "It is in 1 of 3 files."},
        {"key": "height", "reason": "It is in 1 of 3 files."},
    )
    files_, policy = found(write(clean_batch(), dropped=dropped), "RL005")
    assert (files_.severity, files_.count, files_.about) == ("warning", 2, "height, orientation")
    assert files_.message == "Not kept: orientation, height (It is in 1 of 3 files)"
    assert (policy.severity, policy.count) == ("info", 1)


def test_skipped_episodes(write: Write) -> None:
    skipped = tuple({"where": f"episode_{n}", "reason": "It ends early."} for n in (3, 8))
    (one,) = found(write(clean_batch(), skipped=skipped), "RL006")
    assert (one.count, one.severity) == (2, "warning")
    assert one.message == "2 episodes were skipped, the first in episode_3: It ends early"


def test_schemas_of_a_family(write: Write) -> None:
    batch = clean_batch()
    other = changed(
        batch,
        steps={
            ("action",): batch.steps["action",].astype(np.float64),
            ("info", "x"): np.zeros((41, 1)),
        },
        observations={("observation",): np.tile(batch.observations["observation",], 2)},
    )
    first = write(batch, name="hopper-medium-v2")
    second = write(other, name="hopper-expert-v2")
    action, observation, minor = found([first, second], "RL007")
    assert (action.leaf, action.severity, action.about) == (
        "action",
        "warning",
        "local:hopper-medium-v2",
    )
    assert action.message == "It is float64 [2], and float32 [2] in local:hopper-medium-v2"
    assert observation.message.startswith("It is float32 [6], and float32 [3] in ")
    assert (minor.severity, minor.count, minor.leaf) == ("info", 1, None)
    assert "info/x is not in local:hopper-medium-v2" in minor.message
    assert action.dataset == "local:hopper-expert-v2@1"
    third = write(batch, name="hopper-random-v2")
    assert found([first, second, third], "RL007") == [action, observation, minor]


def test_schemas_of_others_are_not_compared(write: Write) -> None:
    batch = clean_batch()
    other = changed(batch, steps={("action",): batch.steps["action",].astype(np.float64)})
    hopper = write(batch, name="hopper-medium-v2")
    assert found([hopper, write(other, name="walker-medium-v2")], "RL007") == []
    assert found([hopper, write(batch, name="hopper-expert-v2")], "RL007") == []
    child = write(other, name="hopper-half", parents=("local:hopper-medium-v2@1",))
    assert found([hopper, child], "RL007") == []
    sibling = write(batch, name="other", parents=("local:hopper-medium-v2@1",))
    assert [one.leaf for one in found([child, sibling], "RL007")] == ["action"]
    assert found(hopper, "RL007") == []
