"""Files and manifests: damage, licence, advisories, what was left out, schemas that differ."""

from __future__ import annotations

import re

import numpy as np
import pytest

from offline_data.checks.finding import SEVERITIES
from offline_data.checks.rules.files import advisories
from offline_data.sources.registry import get_source
from tests.checks.planted import Write, changed, clean_batch, found

FILES = [f"RL00{n}" for n in range(1, 8)]


@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_clean(write: Write, layout: str) -> None:
    path = write(clean_batch(), layout=layout)
    assert [one for code in FILES for one in found(path, code)] == []


def test_a_changed_byte(write: Write) -> None:
    path = write(clean_batch())
    rows = path / "steps" / "rows.memmap"
    data = bytearray(rows.read_bytes())
    data[40] ^= 1
    rows.write_bytes(data)
    (path / "notes.txt").write_text("mine")
    mine, damaged = found(path, "RL001")
    assert (damaged.about, damaged.severity) == ("steps/rows.memmap", "error")
    assert mine.message == "notes.txt is not in the manifest"


@pytest.mark.parametrize(("code", "field"), [("RL002", "licence"), ("RL003", "citation")])
@pytest.mark.parametrize("value", [None, " "])
def test_missing_words(write: Write, code: str, field: str, value: str | None) -> None:
    (one,) = found(write(clean_batch(), **{field: value}), code)
    assert (one.severity, one.message) == ("info", f"No {field} is stated")


def test_advisories_are_whole() -> None:
    known = {f"d4rl:{entry.name}" for entry in get_source("d4rl").catalog()}
    assert len({one.id for one in advisories()}) == len(advisories())
    for one in advisories():
        assert one.severity in SEVERITIES
        assert re.fullmatch(r"https://github\.com/[\w-]+/[\w-]+/issues/\d+", one.link)
        assert not one.summary.endswith(".")
        for pattern in one.datasets:
            matched = re.compile(re.escape(pattern).replace(r"\*", ".*"))
            assert any(matched.fullmatch(name) for name in known), pattern


def test_a_known_defect(write: Write) -> None:
    path = write(clean_batch(), dataset="d4rl:antmaze-umaze-diverse-v0@unversioned")
    first, second = found(path, "RL004")
    assert (first.about, first.severity) == ("antmaze-v0-timeouts", "error")
    assert (second.about, second.severity) == ("antmaze-umaze-diverse-terminals", "warning")
    assert "https://github.com/Farama-Foundation/D4RL/issues/199" in second.message
    assert found(write(clean_batch(), dataset="d4rl:antmaze-umaze-v2@unversioned"), "RL004") == []


def test_dropped_and_skipped(write: Write) -> None:
    dropped = tuple({"key": f"infos/{n}", "reason": "text"} for n in range(9))
    skipped = ({"where": "x.hdf5, episode 3", "reason": "it is cut short"},)
    path = write(clean_batch(), dropped=dropped, skipped=skipped)
    (one,) = found(path, "RL005")
    assert one.count == 9
    assert one.message.startswith("9 leaves of the source were dropped: infos/0, ")
    assert one.message.endswith("infos/7, …")
    (other,) = found(path, "RL006")
    assert (other.count, other.message[-15:]) == (1, "it is cut short")


def test_schema_drift(write: Write) -> None:
    batch = clean_batch()
    wide = changed(batch, steps={("action",): batch.steps["action",].astype(np.float64)})
    more = changed(batch, steps={("extra",): np.ones(41)})
    paths = [write(batch), write(wide), write(more), write(clean_batch(seed=3))]
    first, second = found(paths, "RL007")
    assert first.message == "Unlike local:set1@1: action is float64[2], not float32[2]"
    assert second.message == "Unlike local:set1@1: has also extra"
    others = [write(batch), write(wide, dataset="d4rl:x@1")]
    assert found(others, "RL007") == []
