"""Merged datasets hold the episodes of each, in order, and leaves that differ are refused by name."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, OfflineDataError, UsageError
from offline_data.episode import EpisodeBatch, Key
from offline_data.episode.notes import count_rows
from offline_data.store.history import history_of
from offline_data.store.layout import MANIFEST, LayoutName
from offline_data.store.manifest import dump_manifest, read_manifest
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch
from tests.cli.conftest import (
    Cli,
    cli,  # noqa: F401 - a fixture
)
from tests.films import film_batch
from tests.pictures import encoded_batch
from tests.pipeline.preprocess.runs import rich_batch
from tests.toys.stored import write_stored


def write(
    root: Path, name: str, batch: EpisodeBatch, layout: LayoutName = "compact", **more: Any
) -> str:
    folder = write_stored(root, f"local:{name}@1", batch, layout=layout)
    if more:
        (folder / MANIFEST).write_text(dump_manifest(replace(read_manifest(folder), **more)))
    return f"local:{name}"


def assert_holds(path: Path, parts: list[tuple[str, EpisodeBatch]], types: dict[Key, str]) -> None:
    """Compare every value of the episodes of `parts`, in the given types; leaves are those of `types`."""
    reader = open_reader(path)
    assert verify(path) == ()
    episode, sources = 0, []
    for _, batch in parts:
        made = reader.episode_batch(episode, episode + len(batch.lengths))
        assert made.lengths.tolist() == batch.lengths.tolist()
        assert made.final_observation.tolist() == batch.final_observation.tolist()
        found = {**made.steps, **made.observations}
        assert found.keys() == types.keys()
        for key, column in {**batch.steps, **batch.observations}.items():
            if key in types:
                assert found[key].dtype == types[key], key
                np.testing.assert_array_equal(found[key], column, err_msg=str(key))
        sources += made.episodes["source",].tolist()
        for key, column in batch.episodes.items():
            np.testing.assert_array_equal(made.episodes[key], column)
        episode += len(batch.lengths)
    assert sources == [source for source, batch in parts for _ in batch.lengths]
    assert reader.episode_count == episode


def types_of(batch: EpisodeBatch) -> dict[Key, str]:
    return {k: str(column.dtype) for k, column in {**batch.steps, **batch.observations}.items()}


@pytest.mark.parametrize("layouts", [("compact", "compact"), ("ted", "ted"), ("ted", "compact")])
def test_equal_schemas(layouts: tuple[LayoutName, LayoutName], settings: Settings) -> None:
    one, other = rich_batch([3, 1, 4], unknown_final=(1,)), rich_batch([2, 5], unknown_final=())
    a, b = map(partial(write, settings.root), "ab", (one, other), layouts)
    made = offline_data.merge(a, b, name="both", audit="all", settings=settings)
    assert made.layout == (layouts[0] if len(set(layouts)) == 1 else "compact")
    assert_holds(made.path, [("local:a@1", one), ("local:b@1", other)], types_of(one))
    manifest = made.manifest
    assert manifest.parents == ("local:a@1", "local:b@1")
    assert [step.id for step in history_of(manifest)] == [*manifest.parents, manifest.id]
    assert history_of(manifest)[-1].action == "merge"
    again = offline_data.merge(a, b, name="both", settings=settings)
    assert (again.existed, again.id) == (True, made.id)


def test_notes_that_count_are_added_up(settings: Settings) -> None:
    notes = [(count_rows(rows, "x."), "y.") for rows in (2, 3)]
    batches = [replace(rich_batch([3]), notes=some) for some in notes]
    ids = map(partial(write, settings.root), "ab", batches)
    found = offline_data.merge(*ids, name="both", settings=settings).manifest.notes
    assert found[:2] == ("In 5 rows x.", "y.")
    assert not [note for note in found[2:] if note.startswith(("In ", "y"))]


@pytest.mark.parametrize("encoding", ["png", "video"])
def test_images_stay_encoded(encoding: str, tmp_path: Path, settings: Settings) -> None:
    parts = [encoded_batch([2, 1]), encoded_batch([3])]
    if encoding == "video":
        parts = [film_batch(tmp_path, first_episode=4 * n)[0] for n in range(2)]
    ids = map(partial(write, settings.root), "ab", parts)
    made = open_reader(offline_data.merge(*ids, name="both", audit="all", settings=settings).path)
    assert verify(made.path) == ()
    for key, column in made.episode_batch(0, made.episode_count).observations.items():
        wanted = np.concatenate([np.asarray(part.observations[key]) for part in parts])
        np.testing.assert_array_equal(np.asarray(column), wanted)
    assert encoding in {leaf.encoding for leaf in made.observation_leaves.values()}


def test_common_leaves(settings: Settings) -> None:
    one, other = toy_batch([3, 1]), toy_batch([2], text=True)
    other = replace(other, episodes={**other.episodes, ("task",): np.array(["x"], object)})
    a, b = write(settings.root, "a", one), write(settings.root, "b", other)
    made = offline_data.merge(a, b, name="both", common_leaves=True, settings=settings)
    common = {key: kind for key, kind in types_of(one).items() if key in types_of(other)}
    parts = [("local:a@1", one), ("local:b@1", replace(other, episodes=toy_batch([2]).episodes))]
    assert_holds(made.path, parts, common)
    assert {"key": "task", "reason": "It is not in local:a@1."} in [*made.manifest.dropped]


def test_numbers_are_cast(settings: Settings) -> None:
    one, other = toy_batch([3, 1]), toy_batch([2])
    counts: list[dict[Key, Any]] = [
        {("count",): np.array([1, -2, 3, 4], np.int8)},
        {("count",): np.array([200, 7], np.uint8)},
    ]
    one = replace(one, steps={**one.steps, **counts[0]})
    action = other.steps["action",].astype(np.float64) + 1e-12
    other = replace(other, steps={**other.steps, **counts[1], ("action",): action})
    a, b = map(partial(write, settings.root), "ab", (one, other))
    made = offline_data.merge(a, b, name="both", cast=True, settings=settings)
    kinds = {**types_of(one), ("count",): "int16", ("action",): "float64"}
    assert_holds(made.path, [("local:a@1", one), ("local:b@1", other)], kinds)


@pytest.mark.parametrize(
    "layouts",
    [("compact", "ted"), pytest.param(("ted", "compact"), marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("table", ["steps", "observations", "episodes"])
@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (np.int64(2**53 + 1), np.float64(0.5), "float64 does not hold 9007199254740993"),
        (np.int64(-(2**62) - 1), np.float32(0.5), "float64 does not hold -4611686018427387905"),
        (np.uint64(2**64 - 1), np.int64(-1), "float64 does not hold 18446744073709551615"),
        (np.int64(2**63 - 1), np.uint64(3), "float64 does not hold 9223372036854775807"),
        (np.int64(2**53 + 1), np.complex64(1j), "complex128 does not hold 9007199254740993"),
        (np.int64(2**53), np.float64(0.5), "float64"),
        (np.int32(2**31 - 1), np.float32(0.5), "float64"),
        (np.uint32(2**32 - 1), np.int64(-1), "int64"),
        (np.int16(2**15 - 1), np.float16(0.5), "float32"),
        (np.bool_(True), np.float64(0.5), "float64"),
        (np.float64(1e300), np.float32(np.nan), "float64"),
    ],
)
def test_casts_give_the_values_back(
    one: Any, other: Any, found: str, table: str, layouts: Any, settings: Settings
) -> None:
    parts = []
    for name, value, layout in zip("ab", (one, other), layouts, strict=True):
        batch = toy_batch([3, 1])
        rows = {"steps": 4, "observations": 6, "episodes": 2}[table]
        column = np.full(rows, 1, value.dtype)
        column[-1] = value
        key: Key = ("info", "x") if table == "observations" else ("x",)
        changed: Any = {table: {**getattr(batch, table), key: column}}
        batch = replace(batch, **changed)
        parts.append((f"local:{name}@1", batch))
        write(settings.root, name, batch, layout)
    options: dict[str, Any] = {"name": "x", "cast": True, "settings": settings}
    if " " in found:
        with pytest.raises(UsageError) as caught:
            offline_data.merge("local:a", "local:b", **options)
        place = "x of the episodes" if table == "episodes" else "/".join(key)
        said = f"{place} is {one.dtype} [] in local:a@1, {other.dtype} [] in local:b@1, and {found} of local:a@1"
        assert said in caught.value.message
        return
    made = offline_data.merge("local:a", "local:b", audit="all", **options)
    kinds = types_of(parts[0][1])
    assert_holds(made.path, parts, {**kinds, key: found} if table != "episodes" else kinds)


def test_provenance_of_datasets_that_were_merged_before(settings: Settings) -> None:
    names = [write(settings.root, name, toy_batch([2])) for name in "abc"]
    offline_data.merge(*names[:2], name="two", settings=settings)
    made = offline_data.merge("local:two", names[2], name="three", settings=settings)
    reader = open_reader(made.path)
    source = reader.as_text(("source",), np.array(reader.episodes["source",]), "episodes")
    assert source.tolist() == ["local:a@1", "local:b@1", "local:c@1"]
    kept = offline_data.open_dataset(made.path).filter("source == 'local:b@1'")
    assert len(kept) == 2


def test_descriptions(settings: Settings) -> None:
    said: list[dict[str, Any]] = [
        {"about": {"fps": 10, "author": "A", "robot": "x"}, "licence": "MIT", "citation": "[1]", "spaces": {"action": 1}},
        {"about": {"fps": 10, "author": "B", "robot": "x"}, "licence": "CC0", "citation": "[2]", "spaces": {"action": 2}},
    ]  # fmt: skip
    a, b = (write(settings.root, n, toy_batch([2]), **said[i]) for i, n in enumerate("ab"))
    manifest = offline_data.merge(a, b, name="both", settings=settings).manifest
    assert manifest.about == {"fps": 10, "robot": "x"}
    assert (manifest.licence, manifest.citation, manifest.spaces) == ("MIT; CC0", "[1]\n\n[2]", {})
    dropped = "Dropped, because the datasets differ in it: about.author, spaces.action."
    assert dropped in manifest.notes
    c = write(settings.root, "c", toy_batch([2]), about={"fps": 30})
    with pytest.raises(UsageError, match="fps differs: 10 in local:a@1, 30 in local:c@1"):
        offline_data.merge(a, c, name="x", settings=settings)
    d = write(settings.root, "d", toy_batch([2]))
    assert offline_data.merge(a, d, name="x", settings=settings).manifest.licence is None


def test_another_dataset_of_that_name(settings: Settings) -> None:
    a, b, c = (write(settings.root, name, toy_batch([2])) for name in "abc")
    first = offline_data.merge(a, b, name="both", settings=settings)
    with pytest.raises(UsageError, match=r"local:both@.* already exists"):
        offline_data.merge(a, c, name="both", settings=settings)
    made = offline_data.merge(a, c, name="both", force=True, settings=settings)
    assert not first.path.exists()
    assert open_reader(made.path).episode_count == 2


def test_a_failed_merge_leaves_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (write(settings.root, name, toy_batch([2] * 9)) for name in "ab")
    read = DatasetReader.episode_batch

    def fail(self: DatasetReader, first: int, stop: int) -> EpisodeBatch:
        if self.manifest.name == "b":
            raise FormatError("no more")
        return read(self, first, stop)

    with monkeypatch.context() as patch:
        patch.setattr(DatasetReader, "episode_batch", fail)
        with pytest.raises(OfflineDataError, match="no more"):
            offline_data.merge(a, b, name="both", settings=settings)
    assert not (settings.root / "local" / "both").exists()
    assert not [path for path in settings.staging.iterdir() if path.is_dir()]
    assert not offline_data.merge(a, b, name="both", settings=settings).existed


def test_the_command(cli: Cli, settings: Settings) -> None:  # noqa: F811
    for name, lengths in (("one", [3, 2]), ("more", [4, 1])):
        write(settings.root, name, toy_batch(lengths, text=name == "one"))
    at = ("--root", str(settings.root))
    ran = cli("merge", "one", "local:more", "--out", "both", "--common-leaves", "--json", *at)
    assert (ran.code, ran.json[0]["episodes"]) == (0, 4)
    shown = cli("info", "local:both", "--history", "--json", *at).json["history"]
    assert [step["action"] for step in shown] == ["convert", "convert", "merge"]
    refused = cli("merge", "local:one", "--out", "x", *at)
    assert (refused.code, refused.out) == (2, "")
    assert "merge takes two datasets or more, each once; found local:one@1" in refused.err
