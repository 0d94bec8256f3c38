"""What a new dataset's manifest says of its parent, of spaces, and of what was cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from offline_data.ids import parse_id
from offline_data.preprocess.header import header_of, recipe_json
from offline_data.preprocess.options import Options
from offline_data.preprocess.plan import Plan
from offline_data.preprocess.preparing import prepare
from offline_data.preprocess.spec import recipe_of
from offline_data.preprocess.tasks import MeasureJob
from offline_data.store.manifest import Manifest
from offline_data.store.reader import DatasetReader, open_reader
from tests.preprocess.runs import write_rich

SPACES = {"observation": {"low": 1}, "action": {"low": 2}, "state": {"low": 3}, "goal": {"low": 4}}


def measured(plan: Plan, step: Any) -> list[Any]:
    job: Any = MeasureJob(plan, step)
    return [one for task in range(plan.count) for one in job(task)]


@pytest.fixture(params=["compact", "ted"])
def reader(tmp_path: Path, request: pytest.FixtureRequest) -> DatasetReader:
    folder = write_rich(tmp_path / "rich", layout=request.param)
    path = folder / "manifest.json"
    more = {"spaces": SPACES, "notes": ["one"], "licence": "MIT", "citation": "Me"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    return open_reader(folder)


def header(reader: DatasetReader, stages: Sequence[str], frames: int | None = None) -> Manifest:
    options = Options(num_frames=frames, layout="compact")
    plan = prepare(reader, recipe_of(stages), options, measured, in_place=True).plan
    return header_of(parse_id("local:new@abc"), plan, reader, "f" * 64, Options(num_frames=frames))


@pytest.mark.parametrize(
    ("stage", "gone"),
    [
        ("clip:action,low=1", set()),
        ("cast:action=float64", {"action"}),
        ("cast:observation.half=float32", {"observation"}),
        ("exclude:observation.image", {"observation"}),
        ("rename:state=belief", {"state"}),
        ("flatten:observation.image", {"observation"}),
    ],
)
def test_spaces_go_with_what_they_are_of(reader: DatasetReader, stage: str, gone: set[str]) -> None:
    found = header(reader, [stage])
    assert set(found.spaces) == set(SPACES) - gone
    said = [note for note in found.notes if note.startswith("Spaces of ")]
    assert len(said) == bool(gone)
    assert all(name in said[0] for name in gone)


def test_what_stays(reader: DatasetReader) -> None:
    found = header(reader, ["clip:action,low=1"])
    assert (found.licence, found.citation, found.notes[0]) == ("MIT", "Me", "one")
    assert (found.id, found.source, found.name, found.revision) == (
        "local:new@abc",
        "local",
        "new",
        "abc",
    )
    assert (found.parents, found.layout) == (("local:rich@7",), "compact")
    assert found.converter["options"] == {
        "recipe": [{"step": "clip", "keys": ["action"], "low": 1, "high": None}],
        "num_frames": None,
        "fingerprint": "f" * 64,
    }


def test_where_an_episode_is_cut(reader: DatasetReader) -> None:
    found = header(reader, ["clip:action,low=1"], 6)
    assert found.notes[-1] == "Episode 2 of local:rich@7 is cut after 2 of 4 steps: truncated there"
    assert found.converter["options"]["num_frames"] == 6
    for whole in (4, 23, 24):
        assert header(reader, ["clip:action,low=1"], whole).notes == ("one",)


def test_what_steps_learnt_is_said_but_for_schemas(reader: DatasetReader) -> None:
    options = Options()
    recipe = recipe_of(["normalize:observation.state"])
    plan = prepare(reader, recipe, options, measured, in_place=True).plan
    (told,) = recipe_json(plan.recipe)
    assert told["step"] == "normalize"
    assert set(told["leaves"]) == {"observation/state"}
    assert json.loads(json.dumps(told)) == told
