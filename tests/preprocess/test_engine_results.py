"""What a new dataset says of itself: episodes, words, spaces, notes, the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.config import Settings
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.spec import Stage
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch, write_toy
from tests.preprocess import oracle
from tests.preprocess.oracle import Row, check, episodes_of, mapped
from tests.preprocess.pairs import (
    CLIP,
    LAYOUTS,
    clipped,
    flags,
    plain_flags,
    plain_root_only,
    plain_scaled,
    root_only,
    scaled,
)
from tests.preprocess.runs import (
    LENGTHS,
    Shuffled,
    make,
    rich_batch,
    small_groups,
    write_plain,
    write_rich,
)


def test_numbers_that_are_none(tmp_path: Path, settings: Settings) -> None:
    batch = toy_batch([2, 3])
    batch.steps["next", "reward"][3] = np.nan
    batch.observations["observation", "state"][2, 1] = -np.inf
    batch.observations["observation", "state"][1, 0] = -0.0
    write_toy(tmp_path / "toy", [batch])
    parent = tmp_path / "toy"
    ways: dict[str, list[Stage]] = {"step": [CLIP], "fn": [doubled]}
    for name, stages in ways.items():
        found = make(parent, stages, tmp_path / name, settings, executor=Shuffled(shards=True))
        plain = clipped if name == "step" else plain_doubled
        check(tmp_path / name, mapped(episodes_of(parent), plain))
        assert dict(found.manifest.non_finite) == {
            "next/reward": {"nan": 1, "inf": 0},
            "observation/state": {"nan": 0, "inf": 1},
        }


def doubled(td: Any) -> Any:
    for place in (td, td["next"]):
        place["observation", "state"] = place["observation", "state"] * 2
    return td


def plain_doubled(row: Row) -> Row:
    for key in (("observation", "state"), ("next", "observation", "state")):
        row[key] = row[key] * 2
    return row


def test_the_episode_table_follows_the_steps(tmp_path: Path, settings: Settings) -> None:
    parent = write_rich(tmp_path / "rich")
    make(parent, [flags], tmp_path / "out", settings)
    check(tmp_path / "out", mapped(episodes_of(parent), plain_flags))


def test_the_manifest(tmp_path: Path, settings: Settings) -> None:
    parent = write_plain(tmp_path / "toy")
    found = make(parent, [CLIP], tmp_path / "out", settings)
    text = oracle.Plain(tmp_path / "out").manifest
    assert text["id"] == f"local:out@{text['converter']['options']['fingerprint'][:12]}"
    assert (text["source"], text["name"]) == ("local", "out")
    assert text["parents"] == ["local:toy@1"]
    assert text["layout"] == "compact"
    assert text["converter"]["adapter"] == "preprocess"
    assert text["converter"]["options"]["recipe"] == [
        {"step": "clip", "keys": ["action"], "low": -4004, "high": -1002}
    ]
    rows = sum(LENGTHS)
    audit = {"mode": "all", "rows": rows, "of": rows, "episodes": 7, "differences": 0}
    assert text["audit"] == audit
    assert (found.existed, found.path) == (False, tmp_path / "out")
    again = make(parent, [CLIP], tmp_path / "out", settings)
    assert (again.existed, again.manifest) == (True, found.manifest)


def test_a_few_rows_of_every_task_are_read_back(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch)
    parent = write_plain(tmp_path / "toy")
    for mode, rows in [("none", 0), (0.01, 12)]:
        found = make(parent, [CLIP], tmp_path / str(mode), settings, audit=mode)
        assert found.manifest.audit["rows"] >= rows
        assert (found.manifest.audit["rows"] == 0) == (mode == "none")


def test_the_result_outlives_its_parent(tmp_path: Path, settings: Settings) -> None:
    import shutil

    parent = write_rich(tmp_path / "rich")
    make(parent, [root_only, CLIP], tmp_path / "out", settings)
    expected = mapped(mapped(episodes_of(parent), plain_root_only), clipped)
    shutil.rmtree(parent)
    check(tmp_path / "out", expected)
    assert verify(tmp_path / "out") == ()


def test_a_parent_that_was_replaced_is_read_anew(tmp_path: Path, settings: Settings) -> None:
    """What was opened before under the same path, in the same process, is another dataset now."""
    toy, middle = write_plain(tmp_path / "toy"), tmp_path / "middle"
    made = {}
    for fn, plain in [(scaled, plain_scaled), (flags, plain_flags)]:
        make(toy, [fn], middle, settings, force=True)
        made[fn.__name__] = tmp_path / fn.__name__
        make(middle, [CLIP], made[fn.__name__], settings)
        check(made[fn.__name__], mapped(mapped(episodes_of(toy), plain), clipped))


def silent(td: Any) -> Any:
    td["observation", "mission"] = td["observation", "mission"] * 0
    return td


def plain_silent(row: Row) -> Row:
    row["observation", "mission"] = row["observation", "mission"] * 0
    return row


def test_text_that_is_told_apart_keeps_its_words(tmp_path: Path, settings: Settings) -> None:
    parent = write_rich(tmp_path / "rich")
    words = oracle.Plain(parent).words("observations", "observation", "mission")
    for layout in LAYOUTS:
        make(parent, [silent], tmp_path / layout, settings, layout=layout)
        plain = oracle.Plain(tmp_path / layout)
        table = "ted" if layout == "ted" else "steps"
        for key in (("observation", "mission"), ("next", "observation", "mission")):
            assert plain.words(table, *key) == words
        again = tmp_path / f"{layout}-again"
        make(tmp_path / layout, [CLIP], again, settings)
        assert oracle.Plain(again).words(table, "next", "observation", "mission") == words
        check(again, mapped(mapped(episodes_of(parent), plain_silent), clipped))


def test_words_of_every_table_are_taken_over(tmp_path: Path, settings: Settings) -> None:
    parent = write_rich(tmp_path / "rich")
    before = oracle.Plain(parent)
    stages: list[Stage] = [scaled, "rename:observation.mission=observation.order,plan=script"]
    make(parent, stages, tmp_path / "out", settings)
    after = oracle.Plain(tmp_path / "out")
    mission = before.words("observations", "observation", "mission")
    assert after.words("observations", "observation", "order") == mission
    assert after.words("steps", "script", "words") == before.words("steps", "plan", "words")
    np.testing.assert_array_equal(
        after.leaf("steps", "script", "words"), before.leaf("steps", "plan", "words")
    )
    assert after.table()["label",].tolist() == [f"label {n % 3}" for n in range(len(LENGTHS))]


def test_spaces_licence_and_the_rest_of_what_the_source_said(
    tmp_path: Path, settings: Settings
) -> None:
    import json

    parent = write_plain(tmp_path / "toy")
    path = parent / "manifest.json"
    said = {
        "spaces": {"observation": {"type": "Box"}, "action": {"type": "Discrete"}},
        "environment": {"id": "Door-v1"},
        "about": {"author": "somebody"},
        "licence": "CC-BY-4.0",
        "citation": "Somebody, 2021",
        "notes": ["Rewards are late."],
        "dropped": [{"key": "info/video", "reason": "too large"}],
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), **said}))
    make(parent, ["cast:action=float64"], tmp_path / "out", settings)
    found = oracle.Plain(tmp_path / "out").manifest
    assert found["spaces"] == {"observation": {"type": "Box"}}
    assert {key: found[key] for key in said if key not in {"spaces", "notes"}} == {
        key: value for key, value in said.items() if key not in {"spaces", "notes"}
    }
    assert found["notes"][0] == "Rewards are late."
    assert "Spaces of action are left out" in found["notes"][-1]


def test_a_leaf_whose_file_has_another_ones_name(tmp_path: Path, settings: Settings) -> None:
    def rows(td: Any) -> Any:
        td["rows"] = td["action"] * 2 + td["action"].new_zeros(1200)
        return td

    def plain_rows(row: Row) -> Row:
        row["rows",] = row["action",] * 2 + np.zeros(1200, np.float32)
        return row

    parent = write_plain(tmp_path / "toy")
    with pytest.raises(StepError, match="A large leaf of steps cannot be called 'rows'"):
        make(parent, [rows], tmp_path / "out", settings)
    make(parent, [rows], tmp_path / "ted", settings, layout="ted")
    check(tmp_path / "ted", mapped(episodes_of(parent), plain_rows))


def test_functions_that_leave_out_all_they_may(tmp_path: Path, settings: Settings) -> None:
    def bare(td: Any) -> Any:
        return td.select("done")

    parent = write_plain(tmp_path / "toy")
    needed = {"action", "reward", "done", "terminated", "truncated"}
    wanted = mapped(
        episodes_of(parent), lambda row: {k: v for k, v in row.items() if k[-1] in needed}
    )
    for layout in LAYOUTS:
        found = make(parent, [bare], tmp_path / layout, settings, layout=layout)
        check(tmp_path / layout, wanted)
        assert "not returned by bare, kept as they were" in found.manifest.notes[0]
        make(tmp_path / layout, [CLIP], tmp_path / f"{layout}2", settings)
        check(tmp_path / f"{layout}2", mapped(wanted, clipped))


def test_the_rich_batch_has_no_two_values_alike() -> None:
    batch = rich_batch()
    state = batch.observations["observation", "state"][:, 0]
    known = np.delete(state, np.cumsum(batch.lengths + 1)[3] - 1)
    assert len(np.unique(known)) == len(known)
    assert (known != 0).all()
