"""From raw data to a published directory: ranges, strictness, failures that leave nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError
from offline_data.base.ids import parse_id
from offline_data.base.progress import SILENT
from offline_data.episode import Dropped, EpisodeBatch
from offline_data.formats.base import Part, SourceInfo
from offline_data.formats.options import Options
from offline_data.pipeline.ingest import reading
from offline_data.pipeline.ingest.build import BuildJob, DatasetBuild
from offline_data.pipeline.ingest.conversion import finish_and_publish
from offline_data.pipeline.ingest.reading import chosen_parts
from offline_data.store.library import entry_at
from offline_data.store.publish import staging_folder
from offline_data.store.reader import open_reader
from offline_data.testing.toy import ToyRaw, toy_batch
from tests.pipeline.ingest.test_shards import Notes


def make(raw: ToyRaw, settings: Settings, options: Options | None = None) -> Path:
    target = parse_id("local:toy@1")
    destination = settings.root / target.folder / "1"
    with staging_folder(settings.staging, target.folder, destination) as staging:
        job = BuildJob(target, "toy", "compact", destination, options or Options())
        folder = staging / "dataset"
        with DatasetBuild(raw, job, 1, folder) as begun:
            finish_and_publish(begun, job, SILENT, folder)
    return destination


def test_a_dataset_appears_whole(settings: Settings) -> None:
    info = SourceInfo(5, 2, notes=("a note",), licence="MIT", spaces={"action": {"n": 3}})
    manifest = entry_at(make(ToyRaw((2, 3), info=info), settings)).manifest
    assert manifest.counts["transitions"] == 5
    assert (manifest.notes, manifest.licence) == (("a note",), "MIT")
    assert manifest.spaces == {"action": {"n": 3}}
    assert manifest.converter["adapter"] == "toy"
    assert manifest.audit["differences"] == 0
    assert list(settings.staging.iterdir()) == []


def test_a_finished_build_changes_nothing(settings: Settings, tmp_path: Path) -> None:
    """The next step is requested before the answer to the last one is read."""
    job = BuildJob(parse_id("local:toy@1"), "toy", "compact", tmp_path / "published")
    with DatasetBuild(ToyRaw((2, 3)), job, 1, tmp_path) as begun:
        assert sum(iter(begun.step, 0)) == 2
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        before = [(path.stat().st_mtime_ns, path.read_bytes()) for path in files]
        assert begun.step() == 0
        assert [(path.stat().st_mtime_ns, path.read_bytes()) for path in files] == before


def test_a_source_that_breaks_half_way_leaves_nothing(settings: Settings) -> None:
    with pytest.raises(FormatError, match="episode 7 is broken"):
        make(ToyRaw((2,) * 9, fails_at=7), settings)
    assert [path for path in settings.root.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("episodes", "ids"),
    [((0, 2), [0, 1]), ((3, None), [3, 4, 5, 6]), ((1, 6), [1, 2, 3, 4, 5]), ((None, 1), [0])],
)
def test_a_range_of_episodes_is_exactly_that(
    settings: Settings, episodes: tuple[int | None, int | None], ids: list[int]
) -> None:
    path = make(ToyRaw((1, 2, 3, 4, 5, 6, 7)), settings, Options(episodes=episodes))
    assert open_reader(path).episodes["id",].tolist() == ids
    assert entry_at(path).partial


def test_a_part_is_left_out_where_a_range_ends_before_it() -> None:
    parts = ToyRaw((1,) * 7).parts(1)
    assert [(part.first, part.stop) for part in chosen_parts(parts, (1, 4))] == [(1, 2), (2, 4)]


def test_images_are_decoded_an_episode_at_a_time_where_each_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "PART_BYTES", 1)
    pieces = reading.decode_images(iter([toy_batch([2, 3, 1])]))
    assert [piece.lengths.tolist() for piece in pieces] == [[2], [3], [1]]


def test_strict_refuses_what_would_be_dropped(settings: Settings) -> None:
    info = SourceInfo(dropped=(Dropped("metadata/policy", "weights are not per step"),))
    raw = ToyRaw((2, 2), info=info)
    with pytest.raises(FormatError, match="metadata/policy"):
        make(raw, settings, Options(strict=True))
    manifest = entry_at(make(raw, settings)).manifest
    assert manifest.dropped == ({"key": "metadata/policy", "reason": "weights are not per step"},)


def test_warnings_of_batches_are_told(settings: Settings, tmp_path: Path) -> None:
    class Warns(ToyRaw):
        def read_part(self, part: Part) -> EpisodeBatch:
            return replace(super().read_part(part), warnings=(f"look at {part.first}",))

    notes = Notes()
    target = parse_id("local:toy@1")
    job = BuildJob(target, "toy", "compact", settings.root / target.folder / "1")
    with DatasetBuild(Warns((1, 2)), job, 1, tmp_path / "dataset") as begun:
        finish_and_publish(begun, job, notes, tmp_path / "dataset")
    assert notes.told == ["look at 0", "look at 1"]
