"""The user's own files: each format by each way to end episodes, against the arrays that were written."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, UsageError
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.formats.base import Release
from offline_data.formats.files.mapping import (
    NUMBERINGS,
    FileMapping,
    MappingQuestionError,
    read_mapping,
)
from offline_data.formats.files.source import Files
from offline_data.pipeline.ingest import Options, convert, inspect_files
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import Episode, SourceCase, SourceContract, assert_episodes
from tests.refusals import Refusals
from tests.slow import every, slow_but
from tests.toys.files import TABLES, WRITERS, Arrays, toy_episodes, write_h5, write_npz, write_pt

REFUSALS = Refusals.beside(__file__)
EPISODES = toy_episodes()
LENGTHS = [len(one["act"]) for one in EPISODES]
LEAVES = {"observation": "obs", "action": "act", "next/reward": "rew"}
CSV_LEAVES = {"observation": ["obs_0", "obs_1"], "action": ["act_0"], "next/reward": "rew"}


def joined(episodes: list[Arrays]) -> Arrays:
    return {name: np.concatenate([one[name] for one in episodes]) for name in episodes[0]}


def as_rows(episodes: list[Arrays], final: str) -> list[Arrays]:
    """Return episodes with the final observation where `final` says."""
    found = []
    for one in episodes:
        rows = dict(one)
        if final in {"missing", "next_array"}:
            rows |= {"obs": one["obs"][:-1]}
        if final == "next_array":
            rows |= {"next_obs": one["obs"][1:]}
        if final == "last_row":  # flags and rewards of the state of their row
            rows["act"] = np.concatenate([one["act"], one["act"][:1] * 0 + 7])
            for name in ("rew", "term", "trunc"):
                rows[name] = np.concatenate([np.zeros_like(one[name][:1]), one[name]])
        found.append(rows)
    return found


WAYS: dict[str, Any] = {
    "flags": {"terminated": "term", "truncated": "trunc"},
    "done": {"done": "done", "terminated": "term"},
    "episode": {"episode": "id", "terminated": "term"},
    "lengths": {"lengths": "len", "terminated": "term"},
    "offsets": {"offsets": "ends", "terminated": "term"},
    "offsets from 0": {"offsets": "ends", "terminated": "term"},
    "cuts": {"cuts": "cuts", "terminated": "term"},
}
OF_EPISODES = {"lengths", "offsets", "offsets from 0", "cuts"}
"""Those whose arrays have a value for each episode."""
FINALS = ["missing", "next_array", "last_row", "extra_row"]


def with_way(rows: list[Arrays], way: str) -> Arrays:
    """Return all rows with the arrays that say where episodes end."""
    arrays = joined(rows)
    counts = [len(one["act"]) for one in rows]
    arrays["done"] = arrays["term"] | arrays["trunc"]
    if way == "episode":
        arrays["id"] = np.repeat([7, 3, 5], counts)
    elif way == "lengths":
        arrays["len"] = np.array(counts)
    elif way.startswith("offsets"):
        arrays["ends"] = np.cumsum([0, *counts])[way == "offsets" :]
    elif way == "cuts":
        arrays["cuts"] = np.cumsum([len(one["act"]) for one in rows[:-1]])
    return arrays


def mapping_of(suffix: str, final: str, ends: dict[str, str], **more: Any) -> FileMapping:
    leaves: dict[str, Any] = dict(CSV_LEAVES if suffix == "csv" else LEAVES)
    if final == "next_array":
        leaves["next/observation"] = ["next_obs_0", "next_obs_1"] if suffix == "csv" else "next_obs"
    if final == "last_row":
        more["reward_of"] = "row_before"
        own = set(ends) & {*NUMBERINGS} or "each" in more
        ends = {**ends, "flags_of": "row_before"} if own else ends
    given = {"leaves": leaves, "final_observation": final, "ends": ends, **more}
    return read_mapping(given)


def stored(path: Path, mapping: Any, settings: Settings, **options: Any) -> DatasetReader:
    done = convert(path, "toy", settings, Options(mapping=mapping, audit="all", **options))
    return open_reader(done.path)


def truth_of(episodes: list[Arrays], final: str) -> list[Episode]:
    """Return what must be stored of toy episodes, all but the dtypes."""
    found = []
    for one in episodes:
        after = one["obs"][1:]
        if final == "missing":
            after = np.concatenate([after[:-1], one["obs"][-2:-1]])
        found.append({
            ("observation",): one["obs"][:-1].tolist(),
            ("next", "observation"): after.tolist(),
            ("action",): one["act"].tolist(),
            REWARD: one["rew"][:, None],
            TERMINATED: one["term"][:, None],
            TRUNCATED: one["trunc"][:, None],
            ("episode", "final_observation"): final != "missing",
        })  # fmt: skip
    return found


def check(reader: DatasetReader, final: str, episodes: list[Arrays] = EPISODES) -> None:
    """Compare every leaf of every row with the episodes."""
    assert_episodes(reader, truth_of(episodes, final))


@pytest.mark.parametrize(("final", "way", "suffix"), every(8, FINALS, WAYS, WRITERS))
def test_each_format_by_each_way_to_end_episodes(
    tmp_path: Path, suffix: str, way: str, final: str, settings: Settings
) -> None:
    if suffix in TABLES and (way in OF_EPISODES or final == "extra_row"):
        pytest.skip("all columns of a table have as many rows")
    path = WRITERS[suffix](tmp_path / f"x.{suffix}", with_way(as_rows(EPISODES, final), way))
    reader = stored(path, mapping_of(suffix, final, WAYS[way]), settings)
    check(reader, final)
    if suffix != "csv":
        table = reader.transitions_at(np.arange(1))
        assert table["observation",].dtype == np.float32
    assert "mapping" in str(reader.manifest.revision)


@pytest.mark.parametrize(("final", "suffix"), every(4, FINALS, WRITERS))
def test_a_file_for_each_episode(
    tmp_path: Path, suffix: str, final: str, settings: Settings
) -> None:
    """Eleven files: the tenth is not between the first and the second."""
    if suffix in TABLES and final == "extra_row":
        pytest.skip("all columns of a table have as many rows")
    episodes = toy_episodes((3, 1, 4, 2, 2, 1, 1, 2, 1, 3, 2))
    folder = tmp_path / "all"
    folder.mkdir()
    (folder / "README.md").touch()
    for number, rows in enumerate(as_rows(episodes, final)):
        WRITERS[suffix](folder / f"ep_{number}.{suffix}", rows)
    mapping = mapping_of(suffix, final, WAYS["flags"], each=f"ep_*.{suffix}")
    check(stored(folder, mapping, settings), final, episodes)


@pytest.mark.parametrize("final", FINALS)
@pytest.mark.parametrize("way", ["lengths", "cuts"])
def test_flags_of_episodes(tmp_path: Path, way: str, final: str, settings: Settings) -> None:
    arrays = with_way(as_rows(EPISODES, final), way)
    arrays["ended"] = np.array([one["term"][-1] for one in EPISODES])
    path = write_npz(tmp_path / "x.npz", arrays)
    ends = {**WAYS[way], "terminated": "ended", "flags_of": "episode"}
    mapping = mapping_of("npz", final, WAYS[way])
    given = {**mapping.to_json(), "ends": ends}
    check(stored(path, read_mapping(given), settings), final)
    given["ends"] = {**ends, "terminated": "term"}
    with pytest.raises(
        UsageError, match=r"ends.terminated: 'term' has .* expected 3, one for each"
    ):
        stored(path, read_mapping(given), settings, force=True)


def test_flags_of_parts(tmp_path: Path, settings: Settings) -> None:
    """A group for each episode, with a single flag."""
    groups = [{**one, "ended": np.asarray(one["term"][-1])} for one in EPISODES]
    arrays = {f"ep_{n}/{k}": v for n, one in enumerate(groups) for k, v in one.items()}
    path = write_h5(tmp_path / "x.h5", arrays)
    ends = {"terminated": "ended", "flags_of": "episode"}
    check(stored(path, mapping_of("h5", "extra_row", ends, each="ep_*"), settings), "extra_row")


@pytest.mark.parametrize(
    "suffix", slow_but(lambda suffix: suffix != "zarr", ["h5", "npz", "npy", "zarr", "pt"])
)
def test_a_group_for_each_episode(tmp_path: Path, suffix: str, settings: Settings) -> None:
    episodes = toy_episodes((3, 1, 4, 2, 2, 1, 1, 2, 1, 3, 2))
    if suffix == "pt":
        path, each = write_pt(tmp_path / "x.pt", episodes), "*"
    else:
        arrays = {f"data/demo_{n}/{k}": v for n, one in enumerate(episodes) for k, v in one.items()}
        path, each = WRITERS[suffix](tmp_path / f"x.{suffix}", arrays), "data/demo_*"
    reader = stored(path, mapping_of(suffix, "extra_row", WAYS["flags"], each=each), settings)
    check(reader, "extra_row", episodes)


def padded(rows: list[Arrays]) -> Arrays:
    """Return `[E, T, …]` arrays, with NaN or True in what is not a row."""
    found = {}
    for name in rows[0]:
        most = max(len(one[name]) for one in rows)
        filling = True if rows[0][name].dtype == bool else np.nan
        shape = (len(rows), most, *rows[0][name].shape[1:])
        found[name] = np.full(shape, filling, rows[0][name].dtype)
        for e, one in enumerate(rows):
            found[name][e, : len(one[name])] = one[name]
    return found


@pytest.mark.parametrize(
    ("final", "way", "suffix"),
    every(4, FINALS, ["flags", "done", "lengths"], ["h5", "npz", "npy", "zarr", "pt"]),
)
def test_padded_episodes(
    tmp_path: Path, suffix: str, way: str, final: str, settings: Settings
) -> None:
    rows = as_rows(EPISODES, final)
    arrays = padded([{**one, "done": one["term"] | one["trunc"]} for one in rows])
    arrays["len"] = np.array([len(one["act"]) for one in rows])
    path = WRITERS[suffix](tmp_path / f"x.{suffix}", arrays)
    check(stored(path, mapping_of(suffix, final, WAYS[way], rows="episodes"), settings), final)


class MappedFiles(Files):
    """Files with a mapping of their own, for the contract."""

    mapping = mapping_of("npz", "extra_row", WAYS["lengths"])

    def accepts(self, path: Path) -> bool:
        return path.suffix == ".npz" and path.is_file()

    def release_of(self, path: Path, name: str) -> Release:
        return replace(super().release_of(path, name), options=Options(mapping=self.mapping))


class TestFiles(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        path = write_npz(tmp_path / "x.npz", with_way(EPISODES, "lengths"))
        release = MappedFiles().release_of(path, "x")
        return SourceCase(MappedFiles(), release, path, lambda _: truth_of(EPISODES, "extra_row"))


# ---- proposals and questions ---------------------------------------------------------------------


def answered(path: Path, **answers: str) -> FileMapping:
    """Return the proposed mapping of a file, as a user edits it: one line for each question."""
    found = inspect_files(path)
    text = found.toml
    for question in found.questions:
        name = question.place.removeprefix("ends.")
        value = answers.pop(name)
        (line,) = [one for one in question.lines if f'"{value}"' in one]
        assert f"# {line}" in text
        text = text.replace(f"# {line}", line)
    assert answers == {}
    file = path.parent / "map.toml"
    file.write_text(text)
    return read_mapping(file)


NAMES = {"obs": "observations", "act": "actions", "rew": "rewards", "term": "terminals", "trunc": "timeouts"}  # fmt: skip
TRIPS: dict[str, tuple[str, str, str | None, dict[str, str]]] = {
    "d4rl": ("h5", "next_array", None, {"next_obs": "next_observations", **NAMES}),
    "d4rl without next": ("h5", "missing", None, NAMES),
    "ogbench": ("npz", "last_row", None, NAMES),
    "robomimic": ("h5", "next_array", "data/demo_*", {"obs": "obs/state", "next_obs": "next_obs/state"}),
    "folder": ("npz", "extra_row", "*.npz", {}),
    "folder of CSV": ("csv", "missing", "*.csv", {}),
    "csv": ("csv", "missing", None, {}),
    "parquet": ("parquet", "missing", None, {"obs": "observation.state", "act": "action", "rew": "next.reward"}),
    "zarr": ("zarr", "missing", None, {"obs": "data/obs", "act": "data/action", "ends": "meta/episode_ends"}),
    "pt": ("pt", "extra_row", None, {"len": "lengths"}),
}  # fmt: skip
"""Suffix, final observation and parts of files, and their names of arrays."""


def renamed(arrays: Arrays, names: dict[str, str]) -> Arrays:
    return {names.get(name, name): values for name, values in arrays.items()}


@pytest.mark.parametrize("name", TRIPS)
def test_a_proposed_mapping_converts(tmp_path: Path, name: str, settings: Settings) -> None:
    suffix, final, each, names = TRIPS[name]
    way = {"zarr": "offsets", "pt": "lengths"}.get(name, "flags")
    rows = as_rows(EPISODES, final)
    path = tmp_path / f"x.{suffix}"
    if each is None:
        arrays = with_way(rows, way)
        del arrays["done"]
        WRITERS[suffix](path, renamed(arrays, names))
    elif each.startswith("*"):
        path = tmp_path / "x"
        path.mkdir()
        for number, one in enumerate(rows):
            WRITERS[suffix](path / f"{number}.{suffix}", renamed(one, names))
    else:
        groups = enumerate(renamed(one, names) for one in rows)
        write_h5(path, {f"data/demo_{n}/{k}": v for n, one in groups for k, v in one.items()})
    asked = {"final_observation": final} if final in {"missing", "last_row"} else {}
    mapping = answered(path, **asked)
    assert mapping.each == each
    if final == "last_row":
        said = "next/reward for each observation"
        with pytest.raises(MappingQuestionError, match=said) as caught:
            stored(path, mapping, settings)
        mapping = mapping.with_answer(caught.value.place, "row_before")
    reader = stored(path, mapping, settings)
    check(reader, final)


def test_questions_are_usage_errors_that_show_the_lines(tmp_path: Path, settings: Settings) -> None:
    path = write_h5(tmp_path / "x.h5", with_way(as_rows(EPISODES, "missing"), "episode"))
    mapping = read_mapping({"leaves": LEAVES, "ends": {"episode": "id"}})
    with pytest.raises(MappingQuestionError) as caught:
        stored(path, mapping, settings)
    lines = caught.value.message.splitlines()
    assert lines[2].startswith('final_observation = "missing"   # ')
    assert lines[3].startswith('final_observation = "last_row"  # ')
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 -- our own
    assert (again.place, again.choices) == (caught.value.place, caught.value.choices)
    mapping = mapping.with_answer("final_observation", "missing")
    with pytest.raises(MappingQuestionError, match="not known how episodes end") as caught:
        stored(path, mapping, settings)
    reader = stored(path, mapping.with_answer(caught.value.place, "terminated"), settings)
    assert np.asarray(reader.episodes["terminated",]).all()


def test_another_mapping_is_another_revision(tmp_path: Path, settings: Settings) -> None:
    path = write_npz(tmp_path / "x.npz", with_way(EPISODES, "lengths"))
    mapping = mapping_of("npz", "extra_row", WAYS["lengths"])
    first = convert(path, "toy", settings, Options(mapping=mapping))
    assert convert(path, "toy", settings, Options(mapping=mapping)).existed
    other = replace(mapping, episodes={"rows": "len"})
    with pytest.raises(UsageError, match="made from other files or options"):
        convert(path, "toy", settings, Options(mapping=other))
    second = convert(path, "toy", settings, Options(mapping=other, force=True))
    assert first.id.revision != second.id.revision
    recorded = second.manifest.converter["options"]["mapping"]
    assert read_mapping(json.loads(json.dumps(recorded))) == other
    assert np.asarray(open_reader(second.path).episodes["rows",]).tolist() == LENGTHS


def test_jumps_end_episodes_or_are_kept(tmp_path: Path, settings: Settings) -> None:
    arrays = with_way(as_rows(EPISODES, "next_array"), "flags")
    arrays["next_obs"][5] += 100  # the second step of the third episode
    path = write_h5(tmp_path / "x.h5", arrays)
    mapping = mapping_of("h5", "next_array", WAYS["flags"], episodes={})
    for keep, lengths in ((False, [3, 1, 2, 2]), (True, LENGTHS)):
        reader = stored(path, mapping, settings, keep_episodes=keep, force=keep)
        assert reader.lengths.tolist() == lengths
        table = reader.transitions_at(np.arange(8))
        np.testing.assert_array_equal(table["next", "observation"], arrays["next_obs"])
        assert table["next", "truncated"][5] == (not keep)
        notes = (*reader.manifest.notes, "")
        assert any("not the observation of the row after" in note for note in notes) != keep


def test_leaves_besides_and_values_of_episodes(tmp_path: Path, settings: Settings) -> None:
    count = sum(LENGTHS)
    arrays = with_way(EPISODES, "lengths") | {
        "x": np.arange(count), "y": np.arange(count) * 2, "note": np.array([f"é{n}" for n in range(count)]),
        "simulator": np.arange(count + 3), "seed": np.array([4, 5, 6]), "cost": np.arange(count) % 2,
        "unused": np.zeros((2, 2)), "objects": np.array([{}, 1], object),
    }  # fmt: skip
    more = {"extra/xy": ("x", "y"), "info/simulator": "simulator", "extra/note": "note"}
    leaves: Any = {**LEAVES, **more, "next/cost": "cost"}
    mapping = mapping_of("npz", "extra_row", WAYS["lengths"], episodes={"seed": "seed"})
    mapping = replace(mapping, leaves=leaves)
    reader = stored(write_npz(tmp_path / "x.npz", arrays), mapping, settings)
    table = reader.transitions_at(np.arange(count))
    np.testing.assert_array_equal(table["extra", "xy"], np.stack([arrays["x"], arrays["y"]], 1))
    np.testing.assert_array_equal(table["next", "cost"][:, 0], arrays["cost"])
    assert table["info", "simulator"].tolist() == [0, 1, 2, 4, 6, 7, 8, 9]
    assert table["next", "info", "simulator"].tolist() == [1, 2, 3, 5, 7, 8, 9, 10]
    assert list(reader.episode_batch(0, 3).steps["extra", "note"]) == arrays["note"].tolist()
    assert np.asarray(reader.episodes["seed",]).tolist() == [4, 5, 6]
    dropped = {one.key: one.reason for one in reader.manifest.dropped_leaves}
    assert dropped["unused"] == "It is not mapped."
    assert dropped["objects"] == "It has Python objects, which are a pickle."


def test_bad_episodes_are_skipped_by_name(tmp_path: Path, settings: Settings) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    for number, rows in enumerate(EPISODES):
        kept = {k: v for k, v in rows.items() if (number, k) != (1, "act")}
        write_npz(folder / f"ep_{number}.npz", kept)
    mapping = mapping_of("npz", "extra_row", WAYS["flags"], each="ep_*.npz")
    with pytest.raises(FormatError, match=r"ep_1\.npz: .*leaves.action is 'act'.*no such array"):
        stored(folder, mapping, settings)
    reader = stored(folder, mapping, settings, skip_bad_episodes=True)
    check(reader, "extra_row", [EPISODES[0], EPISODES[2]])
    assert reader.manifest.skipped[0]["where"].endswith("ep_1.npz")
    write_npz(folder / "ep_1.npz", EPISODES[1])
    (folder / "ep_0.npz").write_bytes(b"PK\3\4")  # the first one, by which the mapping is tried
    other = replace(settings, root=tmp_path / "other")
    with pytest.raises(FormatError, match=r"ep_0\.npz is damaged"):
        stored(folder, mapping, other)
    reader = stored(folder, mapping, other, skip_bad_episodes=True)
    check(reader, "extra_row", [EPISODES[1], EPISODES[2]])
    assert [one["where"][-8:] for one in reader.manifest.skipped] == ["ep_0.npz"]


# ---- what is refused ---------------------------------------------------------------------------------


def missing(leaves: Any = LEAVES, **ends: str) -> dict[str, Any]:
    return {"leaves": leaves, "final_observation": "missing", "ends": ends}


BAD_MAPPINGS: dict[str, dict[str, Any]] = {
    "a typo": {"leaves": {"observation": "obss", "action": "act"}},
    "an unknown key": {"leafs": {}},
    "a wrong value": {"leaves": LEAVES, "rows": "step"},
    "a wrong type": {"leaves": {"action": 3}},
    "no action": {"leaves": {"observation": "obs"}},
    "a leaf below a leaf": {"leaves": {**LEAVES, "observation/x": "act"}},
    "a leaf with ..": {"leaves": {**LEAVES, "extra/../x": "act"}},
    "a flag as a leaf": {"leaves": {**LEAVES, "next/done": "term"}},
    "two ways to end": {"leaves": LEAVES, "ends": {"episode": "id", "lengths": "len"}},
    "a path out of the folder": {"leaves": LEAVES, "each": "../*"},
    "an absolute path": {"leaves": LEAVES, "each": "/etc/*"},
    "no ends": {"leaves": LEAVES, "final_observation": "missing"},
    "lengths that do not add up": missing(lengths="wrong", otherwise="truncated"),
    "flags that are not": missing(terminated="rew"),
    "a leaf with other rows": missing({**LEAVES, "extra/x": "wrong"}, terminated="term"),
    "an observation more, of none": {**missing(terminated="term"), "final_observation": "extra_row"},
    "text as rewards": {"leaves": {**LEAVES, "next/reward": "words"}},
    "objects": {"leaves": {**LEAVES, "action": "objects"}},
    "padded or not": {"leaves": {"observation": "cube", "action": "cube"}},
}  # fmt: skip


@REFUSALS.of("mappings", BAD_MAPPINGS)
def test_bad_mappings(tmp_path: Path, name: str, settings: Settings) -> None:
    arrays = with_way(as_rows(EPISODES, "missing"), "episode") | {
        "wrong": np.array([3, 4]), "words": np.array(["a"] * 8), "cube": np.zeros((5, 4, 3)),
        "objects": np.array([{}] * 8, object),
    }  # fmt: skip
    path = write_npz(tmp_path / "x.npz", arrays)

    def call() -> object:
        return stored(path, read_mapping(BAD_MAPPINGS[name]), settings)

    REFUSALS.check("mappings", name, call, {tmp_path: "FOLDER"})
    assert not list(settings.root.rglob("manifest.json"))


class Bomb:
    """Says by a file that it was unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    import torch

    file = tmp_path / "ran"
    np.savez(tmp_path / "x.npz", a=np.array([Bomb(file)], object), b=np.zeros(3))
    torch.save({"a": Bomb(file)}, tmp_path / "x.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Bomb(file)))
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "a.npy", np.array([Bomb(file)], object))
    assert {one.looks_like for one in inspect_files(tmp_path / "x.npz").arrays} == {
        "it has Python objects, which are a pickle",
        "",
    }
    assert "pickle" in inspect_files(tmp_path / "folder").arrays[0].looks_like
    with pytest.raises(FormatError, match=r"asks for (posix|os)\.system; only plain values"):
        inspect_files(tmp_path / "x.pt")
    with pytest.raises(FormatError, match="has no arrays that are read"):
        inspect_files(tmp_path / "old.pt")
    assert not file.exists()


def test_what_hdf5_only_claims_to_have(tmp_path: Path, settings: Settings) -> None:
    """Links are not followed, and a declared shape is not allocated."""
    secret = write_h5(tmp_path / "secret.h5", {"x": np.arange(8.0)})
    path = write_h5(tmp_path / "x.h5", with_way(as_rows(EPISODES, "missing"), "flags"))
    with h5py.File(path, "a") as file:
        file["linked"] = h5py.ExternalLink(str(secret), "x")
        file["soft"] = h5py.SoftLink("/rew")
        file.create_dataset("huge", (8, 1 << 40), "f8", chunks=(1, 1 << 10))
    looks = {one.name: one.looks_like for one in inspect_files(path).arrays}
    assert looks["linked"] == f"it is a link to '{secret}', which is not followed"
    assert "not followed" in looks["soft"]
    assert "declares" in looks["huge"]
    for leaf, name in (("next/reward", "linked"), ("action", "huge")):
        mapping = read_mapping(missing({**LEAVES, leaf: name}, terminated="term"))
        call = partial(stored, path, mapping, settings)
        REFUSALS.check("hdf5", name, call, {tmp_path: "FOLDER"})


def test_names_cannot_add_lines_to_the_proposal(tmp_path: Path) -> None:
    arrays: Arrays = {"obs": np.zeros((3, 2)), "act": np.zeros((3, 1))}
    arrays['x\n[leaves]\naction = "y"'] = np.zeros(5)
    text = inspect_files(write_h5(tmp_path / "x.h5", arrays)).toml
    assert text.count("[leaves]\n") == 1
    assert '"x\\n[leaves]' in text


@pytest.mark.parametrize("name", ["x.txt", "empty", "absent"])
def test_files_without_arrays(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    path = tmp_path / name
    REFUSALS.check("none", name, lambda: inspect_files(path), {tmp_path: "FOLDER"})


def test_the_functions(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "x.npz", with_way(EPISODES, "lengths"))
    found = offline_data.inspect_files(path)
    assert (found.source, found.mapping.final_observation) == (None, "extra_row")
    stored_ = offline_data.convert(path, "mine", mapping=found.mapping, root=tmp_path / "root")
    check(open_reader(stored_.path), "extra_row")
    call = partial(offline_data.convert, mapping=found.mapping, root=tmp_path)
    REFUSALS.check("none", "arrays", lambda: call({"observations": []}, "x"))
    REFUSALS.check("none", "of a format", lambda: call(path, "y", source="d4rl"))
