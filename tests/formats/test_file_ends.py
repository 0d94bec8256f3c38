"""Where episodes of the user's own files end: parts, tables, interleaved rows, padding, automatic resets."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, UsageError
from offline_data.episode.autoreset import find_autoreset
from offline_data.formats.files.mapping import MappingQuestionError, read_mapping
from offline_data.pipeline.ingest import Options, convert, inspect_files
from offline_data.raw.images import decode_into, encode_image
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.toy import toy_batch, write_toy
from tests.refusals import Refusals
from tests.slow import every, every_second
from tests.toys.files import WRITERS, Arrays, write_h5, write_npz, write_pt

REFUSALS = Refusals.beside(__file__)
PARTS = ((5, 4), (6, 3))
"""Lengths of the episodes in each part."""
LEAVES = {"observation": "observation", "action": "action", "next/reward": "reward"}


def episode(number: int, length: int) -> Arrays:
    """Return the rows of an episode: observation `100·number + t`, no two alike."""
    t = np.arange(length)
    return {
        "observation": 100.0 * number + t,
        "action": 0.25 * (100 * number + t),
        "reward": 0.5 * (100 * number + t),
        "done": t == length - 1,
        "terminated": (t == length - 1) & (number % 2 == 0),
        "truncated": (t == length - 1) & (number % 2 == 1),
        "counted": np.full(length, number),
    }


def rows_of(part: int, names: tuple[str, ...], parts: Any = PARTS) -> Arrays:
    """Return the rows of the episodes of a part, with numbers that restart in each part besides."""
    first = sum(map(len, parts[:part]))
    episodes = [episode(first + k, length) for k, length in enumerate(parts[part])]
    found = {name: np.concatenate([one[name] for one in episodes]) for name in episodes[0]}
    found["restarted"] = np.repeat(np.arange(len(parts[part])), parts[part])
    found["lengths"] = np.array(parts[part])
    return {name: found[name] for name in ("observation", "action", "reward", *names)}


def write_parts(path: Path, container: str, names: tuple[str, ...], parts: Any = PARTS) -> str:
    """Write a folder of files, or one file of groups; return the pattern that names them."""
    some = [rows_of(number, names, parts) for number in range(len(parts))]
    kind, _, suffix = container.partition(" of ")
    if kind == "files":
        write_folder(path, suffix, some)
        return f"*.{suffix}"
    if suffix == "pt":
        write_pt(path, some)
        return "*"
    groups = {f"data/part_{n}/{k}": v for n, rows in enumerate(some) for k, v in rows.items()}
    WRITERS[suffix](path, groups)
    return "data/part_*"


FILES = [f"files of {suffix}" for suffix in ("csv", "parquet", "npz", "h5", "pt")]
GROUPS = [f"groups of {suffix}" for suffix in ("h5", "zarr", "npz", "npy", "pt")]
WAYS: dict[str, tuple[dict[str, str], str]] = {
    "done": ({"done": "done"}, "episodes"),
    "flags": ({"terminated": "terminated", "truncated": "truncated"}, "episodes"),
    "restarted": ({"episode": "restarted"}, "episodes"),
    "restarted, done": ({"episode": "restarted", "done": "done"}, "episodes"),
    "counted": ({"episode": "counted"}, "table"),
    "counted, flags": (
        {"episode": "counted", "terminated": "terminated", "truncated": "truncated"},
        "table",
    ),
}
"""Ends by what is in the files, and what `parts` must be."""


def place_of(tmp_path: Path, container: str) -> Path:
    _, _, suffix = container.partition(" of ")
    return tmp_path / ("all" if container.startswith("files") else f"x.{suffix}")


def mapping_of(ends: dict[str, str], otherwise: str | None = "truncated", **more: Any) -> Any:
    """Return a mapping of `LEAVES` without final observations; `otherwise`: how other episodes end."""
    ends = ends if otherwise is None else {**ends, "otherwise": otherwise}
    return {"leaves": LEAVES, "final_observation": "missing", "ends": ends, **more}


def proposed(path: Path, otherwise: str = "truncated") -> Any:
    """Return the proposed mapping of files without final observations."""
    found = inspect_files(path).mapping.to_json() | {"final_observation": "missing"}
    found.setdefault("ends", {})["otherwise"] = otherwise
    return found


def write_folder(path: Path, suffix: str, parts: Any) -> Path:
    path.mkdir(parents=True)
    for number, rows in enumerate(parts):
        WRITERS[suffix](path / f"part_{number}.{suffix}", rows)
    return path


def stored(path: Path, mapping: Any, settings: Settings, **options: Any) -> DatasetReader:
    given = Options(mapping=read_mapping(mapping), audit="all", **options)
    return open_reader(convert(path, "toy", settings, given).path)


def check_rows(reader: DatasetReader, lengths: list[int], ends: dict[str, str]) -> None:
    """Compare every row with `episode`: values, the next observation, and flags."""
    assert reader.lengths.tolist() == lengths
    expected = [episode(number, length) for number, length in enumerate(lengths)]
    table = reader.transitions_at(np.arange(sum(lengths)))
    for leaf, name in LEAVES.items():
        values = np.concatenate([one[name] for one in expected])
        key = tuple(leaf.split("/"))
        np.testing.assert_array_equal(table[key].reshape(-1), values, err_msg=leaf)
    following = np.concatenate(
        [np.r_[one["observation"][1:], one["observation"][-1:]] for one in expected]
    )
    np.testing.assert_array_equal(table["next", "observation"].reshape(-1), following)
    for flag in ("terminated", "truncated"):
        if flag in ends:
            wanted = np.concatenate([one[flag] for one in expected])
            np.testing.assert_array_equal(table["next", flag][:, 0], wanted)


@pytest.mark.parametrize(("container", "way"), every(6, [*FILES, *GROUPS], WAYS))
def test_ends_act_inside_parts(
    tmp_path: Path, container: str, way: str, settings: Settings
) -> None:
    ends, parts = WAYS[way]
    path = place_of(tmp_path, container)
    each = write_parts(path, container, tuple(ends.values()))
    check_rows(stored(path, mapping_of(ends, each=each, parts=parts), settings), [5, 4, 6, 3], ends)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("container", ["files of csv", "files of npz", "groups of h5"])
def test_an_end_inside_a_part_is_asked_about(
    tmp_path: Path, container: str, way: str, settings: Settings
) -> None:
    ends, _ = WAYS[way]
    path = place_of(tmp_path, container)
    each = write_parts(path, container, tuple(ends.values()))
    with pytest.raises(MappingQuestionError, match=r"has an end in row 4 of 9") as caught:
        stored(path, mapping_of(ends, each=each), settings)
    lines = [line.split("#")[0].strip() for line in caught.value.lines]
    assert lines == ['parts = "episodes"', 'parts = "table"']


@pytest.mark.parametrize(
    ("container", "way"),
    every(3, ["files of csv", "files of parquet", "groups of h5"], WAYS),
)
def test_the_proposal_says_what_a_part_is(
    tmp_path: Path, container: str, way: str, settings: Settings
) -> None:
    ends, parts = WAYS[way]
    path = place_of(tmp_path, container)
    names = {"restarted": "episode", "counted": "episode_index"}
    some = [rows_of(number, tuple(ends.values())) for number in range(2)]
    some = [{names.get(name, name): v for name, v in rows.items()} for rows in some]
    if container.startswith("files"):
        write_folder(path, container.split()[-1], some)
    else:
        groups = enumerate(some)
        write_h5(path, {f"data/demo_{n}/{k}": v for n, rows in groups for k, v in rows.items()})
    found = inspect_files(path).mapping
    assert found.parts == parts
    assert set(found.ends.arrays) == set(ends)
    check_rows(stored(path, proposed(path), settings), [5, 4, 6, 3], ends)


def test_one_episode_in_each_part_needs_no_field(tmp_path: Path, settings: Settings) -> None:
    path = tmp_path / "all"
    each = write_parts(path, "files of csv", ("done", "counted"), ((5,), (4,), (6,)))
    found = inspect_files(path)
    assert (found.mapping.each, found.mapping.parts) == (each, None)
    check_rows(stored(path, mapping_of({"done": "done"}, each=each), settings), [5, 4, 6], {})


def test_files_that_divide_episodes(tmp_path: Path, settings: Settings) -> None:
    """As `push_to_hub` writes them: rows 0 to 6 and 7 to 14 of episodes of 5, 4 and 6 rows."""
    rows = rows_of(0, ("counted", "done"), ((5, 4, 6),))
    cuts = [{k: v[cut] for k, v in rows.items()} for cut in (slice(0, 7), slice(7, 15))]
    numbered = [{"episode_index": part.pop("counted"), **part} for part in cuts]
    logs = write_folder(tmp_path / "logs", "csv", cuts)
    assert "parts" in [question.place for question in inspect_files(logs).questions]
    hub = [{k: v for k, v in part.items() if k != "done"} for part in numbered]
    write_folder(tmp_path / "hub/data", "parquet", hub)
    mapping = proposed(tmp_path / "hub")
    assert (mapping["each"], mapping["parts"]) == ("data/*.parquet", "table")
    check_rows(stored(tmp_path / "hub", mapping, settings), [5, 4, 6], {})


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_parts_of_a_table_have_the_same_columns(
    tmp_path: Path, suffix: str, settings: Settings
) -> None:
    """Whole numbers in one file and others in the next are floats; another shape is an error."""
    first, second = (rows_of(number, ("counted",)) for number in range(2))
    whole = {**first, "reward": first["reward"].astype(int)}
    mapping = mapping_of({"episode": "counted"}, each=f"*.{suffix}", parts="table")

    def read(name: str, *parts: Arrays) -> DatasetReader:
        path = write_folder(tmp_path / name, suffix, parts)
        return stored(path, mapping, settings, force=True)

    assert read("floats", whole, second).step(("next", "reward")).dtype == np.float64
    bad = {"huge": {**second, "reward": np.full(9, 2**53 + 1)}}
    bad |= {"wide": {**second, "action": np.zeros((9, 2))}} if suffix == "npz" else {}
    for name, other in bad.items():
        call = partial(read, name, first, other)
        REFUSALS.check("columns", f"{name}, {suffix}", call, {tmp_path: "FOLDER"})


# ---- both a number and flags -----------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "npz", "h5", "parquet"])
def test_a_number_and_done(tmp_path: Path, suffix: str, settings: Settings) -> None:
    """Episodes 0 and 1 end by a limit of time, the last one is done; done inside an episode is an error."""
    rows = rows_of(0, ("counted",), ((5, 4, 6),)) | {"done": np.arange(15) == 14}
    rows["episode"] = rows.pop("counted")
    path = WRITERS[suffix](tmp_path / f"log.{suffix}", rows)
    mapping = proposed(path, "terminated")
    assert mapping["ends"] == {"episode": "episode", "done": "done", "otherwise": "terminated"}
    reader = stored(path, mapping, settings)
    check_rows(reader, [5, 4, 6], {})
    assert np.flatnonzero(reader.step(("next", "truncated"))).tolist() == [4, 8]
    assert np.flatnonzero(reader.step(("next", "terminated"))).tolist() == [14]
    WRITERS[suffix](path, {**rows, "done": np.isin(np.arange(15), [4, 6, 8, 14])})
    with pytest.raises(FormatError, match=r"'done', is set before the last row of episode 1"):
        stored(path, mapping, settings, force=True)


# ---- interleaved rows ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "lengths"),
    [
        ([0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1], [6, 6]),
        ([0, 1, 2] * 4, [4, 4, 4]),
        ([7, 7, 3, 7, 3, 3, 3, 3, 3, 3, 3, 7], [4, 8]),
        (["b", "a", "b", "a", "b", "a", "b", "a", "b", "a", "b", "b"], [7, 5]),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "npz", "h5"])
def test_numbers_that_come_back(
    tmp_path: Path, suffix: str, numbers: Any, lengths: list[int], settings: Settings
) -> None:
    numbers = np.array(numbers)
    if suffix == "h5" and numbers.dtype.kind == "U":
        numbers = numbers.astype(h5py.string_dtype())
    count = len(numbers)
    rows = {"observation": 1.0 * np.arange(count), "action": np.arange(count) / 4}
    rows |= {"reward": np.arange(count) / 2, "episode": numbers}
    path = WRITERS[suffix](tmp_path / f"log.{suffix}", rows)
    mapping = mapping_of({"episode": "episode"}, rows="steps")
    with pytest.raises(UsageError, match="again in row") as caught:
        stored(path, mapping, settings)
    assert "interleaved = true" in str(caught.value.hint)
    assert inspect_files(path).mapping.interleaved
    reader = stored(path, {**mapping, "interleaved": True}, settings)
    assert reader.lengths.tolist() == lengths
    first = list(dict.fromkeys(numbers.tolist()))
    order = [n for number in first for n in range(count) if numbers[n] == number]
    np.testing.assert_array_equal(reader.step(("action",)), np.array(order) / 4)
    np.testing.assert_array_equal(reader.step(("next", "reward"))[:, 0], np.array(order) / 2)


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        ([0, 1, 2], None),
        ([1, 2, 3], None),
        ([30001446, 30001463, 30001480], [30001446, 30001463, 30001480]),
        (["stay-a", "stay-b", "stay-c"], ["stay-a", "stay-b", "stay-c"]),
    ],
)
def test_names_of_episodes_are_kept(
    tmp_path: Path, names: list[Any], kept: list[Any] | None, settings: Settings
) -> None:
    rows = rows_of(0, (), ((5, 4, 6),)) | {"stay": np.repeat(names, [5, 4, 6])}
    path = WRITERS["csv"](tmp_path / "icu.csv", rows)
    reader = stored(path, mapping_of({"episode": "stay"}, rows="steps"), settings)
    assert (("id",) in reader.episodes) == (kept is not None)
    if kept is not None:
        found = np.asarray(reader.episodes["id",])
        assert reader.as_text(("id",), found, "episodes").tolist() == kept


# ---- whole files, padding, and arrays by number ------------------------------------------------------


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_file_that_is_one_episode(tmp_path: Path, suffix: str, settings: Settings) -> None:
    path = WRITERS[suffix](tmp_path / f"run.{suffix}", rows_of(0, (), ((7,),)))
    mapping = mapping_of({}, rows="steps")
    with pytest.raises(MappingQuestionError, match="does not say where the episodes") as caught:
        stored(path, mapping, settings)
    assert caught.value.lines == ['parts = "episodes"  # the file is one episode']
    assert "parts" in [question.place for question in inspect_files(path).questions]
    check_rows(stored(path, {**mapping, "parts": "episodes"}, settings), [7], {})


def padded(lengths: list[int], filling: float, *, states: int = 0) -> Arrays:
    most = max(lengths)
    obs = np.full((len(lengths), most + states, 2), filling)
    act = np.full((len(lengths), most, 1), filling)
    for e, length in enumerate(lengths):
        obs[e, : length + states] = 100.0 * (e + 1) + np.arange(length + states)[:, None]
        act[e, :length] = 0.5 * (100 * (e + 1) + np.arange(length))[:, None]
    return {"obs": obs, "act": act}


@pytest.mark.parametrize(
    ("suffix", "states", "filling"),
    every_second(["npz", "h5", "zarr", "npy", "pt"], [0, 1], [0.0, np.nan]),
)
def test_padding_is_asked_about(
    tmp_path: Path, suffix: str, states: int, filling: float, settings: Settings
) -> None:
    arrays = padded([5, 8, 3], filling, states=states)
    path = WRITERS[suffix](tmp_path / f"x.{suffix}", arrays)
    found = inspect_files(path)
    assert found.mapping.rows == "episodes"
    assert "padding" in [question.place for question in found.questions]
    leaves = {"observation": "obs", "action": "act"}
    final = "extra_row" if states else "missing"
    mapping = mapping_of({}, rows="episodes", leaves=leaves, final_observation=final)
    with pytest.raises(MappingQuestionError, match="the last 5 rows of episode 2 are zeros"):
        stored(path, mapping, settings)
    for padding, lengths in (("zeros", [5, 8, 3]), ("none", [8, 8, 8])):
        reader = stored(path, {**mapping, "padding": padding}, settings, force=True)
        assert reader.lengths.tolist() == lengths
        actions = [arrays["act"][e, :length] for e, length in enumerate(lengths)]
        np.testing.assert_array_equal(reader.step(("action",)), np.concatenate(actions))


@pytest.mark.parametrize("states", [0, 1])
@pytest.mark.parametrize("name", ["mask", "valid", "episode_masks"])
def test_a_mask_is_proposed_as_lengths(
    tmp_path: Path, name: str, states: int, settings: Settings
) -> None:
    arrays = padded([5, 8, 3], 0.0)
    arrays[name] = np.arange(8) < np.array([[5], [8], [3]])
    path = write_npz(tmp_path / "x.npz", arrays)
    mapping = proposed(path)
    assert (mapping["rows"], mapping["ends"]["lengths"]) == ("episodes", name)
    assert stored(path, mapping, settings).lengths.tolist() == [5, 8, 3]
    arrays[name] = arrays[name][:, ::-1]
    write_npz(path, arrays)
    with pytest.raises(UsageError, match=r"is a mask .* with the rows of an episode first"):
        stored(path, mapping, settings, force=True)


@pytest.mark.parametrize("suffix", ["npz", "h5", "npy"])
def test_arrays_numbered_by_episode(tmp_path: Path, suffix: str, settings: Settings) -> None:
    """`observations_0`, `actions_0`, …: also eleven of them, in the order of numbers."""
    lengths = [5, 4, 6, 3, 2, 2, 2, 2, 2, 2, 7]
    arrays: Arrays = {}
    for number, length in enumerate(lengths):
        rows = episode(number, length)
        arrays |= {f"{name}s_{number}": rows[name] for name in ("observation", "action", "reward")}
    path = WRITERS[suffix](tmp_path / f"x.{suffix}", arrays)
    mapping = proposed(path)
    assert (mapping["each"], mapping["ends"]) == ("_*", {"otherwise": "truncated"})
    check_rows(stored(path, mapping, settings), lengths, {})


# ---- columns ---------------------------------------------------------------------------------------


N, TEXT = np.arange(6.0), np.array([f"go to {n}" for n in range(6)])
NUMBERS_AS_TEXT = np.array([f"[{n}.0, {n}.5]" for n in range(6)])
COLUMNS: dict[str, tuple[Arrays, dict[str, Any]]] = {
    "by prefix": ({"obs_x": N, "obs_y": N, "act_l": N}, {"observation": ("obs_x", "obs_y"), "action": ("act_l",)}),
    "next by prefix": ({"obs_x": N, "next_obs_x": N, "action": N}, {"observation": ("obs_x",), "next/observation": ("next_obs_x",), "action": "action"}),
    "a whole name": ({"observation": N, "obs_x": N, "action": N}, {"observation": "observation", "action": "action"}),
    "other names": ({"state_x": N, "state_y": N, "a": N}, {}),
    "numbered": ({f"{name}_{n}": N for name in ("obs", "act") for n in range(2)}, {"observation": ("obs_0", "obs_1")}),
    "numbers as text": ({"obs": NUMBERS_AS_TEXT, "action": N}, {"observation": "NAME"}),
    "words": ({"obs": TEXT, "action": N}, {"observation": "obs"}),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_a_table(tmp_path: Path, name: str) -> None:
    columns, leaves = COLUMNS[name]
    found = inspect_files(WRITERS["csv"](tmp_path / "x.csv", {**columns, "done": N == 5}))
    assert found.mapping.each is None
    assert {leaf: found.mapping.leaves[leaf] for leaf in leaves} == leaves
    looks = {one.name: one.looks_like for one in found.arrays}.get("obs", "")
    assert looks.startswith("numbers as text") == (name == "numbers as text")


def test_leaves_below_next_keep_their_shape(tmp_path: Path, settings: Settings) -> None:
    rows = rows_of(0, ("done",), ((5, 4, 6),)) | {"jacobian": np.arange(90.0).reshape(15, 2, 3)}
    leaves = {**LEAVES, "next/jacobian": "jacobian"}
    mapping = mapping_of({"done": "done"}, rows="steps", leaves=leaves)
    reader = stored(write_npz(tmp_path / "x.npz", rows), mapping, settings)
    np.testing.assert_array_equal(reader.step(("next", "jacobian")), rows["jacobian"])
    assert reader.step(("next", "reward")).shape == (15, 1)


# ---- images ----------------------------------------------------------------------------------------


def image_rows(encoding: str, count: int = 15) -> tuple[Any, list[bytes]]:
    """Return frames `[count, 16, 24, 3]` of sizes that differ, and their files."""
    rng = np.random.default_rng(0)
    frames = np.zeros((count, 16, 24, 3), np.uint8)
    frames[:, :8] = rng.integers(0, 255, (count, 8, 24, 3))
    frames[::2, 4:] = np.arange(count)[::2, None, None, None]
    files = [encode_image(frame, encoding) for frame in frames]
    for frame, file in zip(frames, files, strict=True):
        decode_into(file, encoding, frame, "a frame")
    return frames, files


def padded_files(files: list[bytes]) -> Any:
    most = max(map(len, files))
    return np.array([np.frombuffer(file.ljust(most, b"\0"), np.uint8) for file in files])


@pytest.mark.parametrize("encoding", ["jpeg", "png"])
@pytest.mark.parametrize(
    "way", ["h5 padded", "h5 of any length", "h5 strings", "npz padded", "npz strings", "parquet"]
)
def test_rows_of_image_files_are_images(
    tmp_path: Path, way: str, encoding: str, settings: Settings
) -> None:
    frames, files = image_rows(encoding)
    assert len({len(file) for file in files}) > 1
    rows: Arrays = rows_of(0, ("done",), ((5, 4, 6),))
    del rows["observation"]
    grid = padded_files(files)
    suffix, _, form = way.partition(" ")
    path = tmp_path / f"x.{suffix}"
    if suffix == "parquet":
        column = pa.array([{"bytes": file, "path": None} for file in files])
        pq.write_table(pa.table({**rows, "image": column}), path)
    elif form == "of any length":
        write_h5(path, rows)
        with h5py.File(path, "a") as file:
            column = file.create_dataset("image", (15,), h5py.vlen_dtype(np.uint8))
            for number, data in enumerate(files):
                column[number] = np.frombuffer(data, np.uint8)
    else:
        image = np.array(files) if form == "strings" else grid
        WRITERS[suffix](path, {**rows, "image": image})
    mapping = proposed(path)
    assert mapping["leaves"]["observation"] == ("image/bytes" if suffix == "parquet" else "image")
    reader = stored(path, mapping, settings)
    (leaf,) = [one for key, one in reader.observation_leaves.items() if key[0] == "observation"]
    assert (leaf.encoding, leaf.shape) == (encoding, (16, 24, 3))
    found = reader.transitions_at(np.arange(15))
    np.testing.assert_array_equal(np.asarray(found["observation",]), frames)
    following = np.minimum(np.arange(15) + 1, np.repeat([4, 8, 14], [5, 4, 6]))
    np.testing.assert_array_equal(np.asarray(found["next", "observation"]), frames[following])


@pytest.mark.parametrize("jump", [False, True])
def test_next_images_are_compared(tmp_path: Path, jump: bool, settings: Settings) -> None:
    frames, files = image_rows("png", 18)
    rows = rows_of(0, ("done",), ((5, 4, 6),))
    del rows["observation"]
    grid = padded_files(files)
    before = np.concatenate([np.arange(5), np.arange(6, 10), np.arange(11, 17)])
    after = before + 1
    if jump:
        after[1] = 0
    path = write_npz(tmp_path / "x.npz", {**rows, "image": grid[before], "next_image": grid[after]})
    leaves = {"observation": "image", "next/observation": "next_image", "action": "action"}
    ends = {"done": "done", "otherwise": "truncated"}
    reader = stored(path, {"leaves": leaves, "rows": "steps", "ends": ends}, settings)
    assert reader.lengths.tolist() == ([2, 3, 4, 6] if jump else [5, 4, 6])
    found = reader.transitions_at(np.arange(15))
    np.testing.assert_array_equal(np.asarray(found["observation",]), frames[before])
    np.testing.assert_array_equal(np.asarray(found["next", "observation"]), frames[after])


# ---- automatic resets ------------------------------------------------------------------------------


def vector_log(mode: str, lengths: list[int], *, after: bool = True) -> Arrays:
    """Return the rows that one environment of a vector of the mode leaves; `cut` is one long run in pieces."""

    def state(e: int, t: int) -> list[float]:
        return [(0.0 if mode == "cut" else 100.0 * e) + t, float(t)]

    rows: list[tuple[Any, Any, float, bool]] = []
    begin = 0
    for e, n in enumerate(lengths):
        for t in range(n):
            first, number = (begin, 0) if mode == "cut" else (0, e)
            then = state(number, first + t + 1)
            if t == n - 1 and mode == "same_step" and e + 1 < len(lengths):
                then = state(e + 1, 0)
            rows.append((state(number, first + t), then, 1.0, t == n - 1))
        if mode == "next_step" and e + 1 < len(lengths):
            rows.append((state(e, n), state(e + 1, 0), 0.0, False))
        begin += n
    now, following, rewards, ends = (np.array(column) for column in zip(*rows, strict=True))
    arrays = {
        "observations": now.astype("f4"),
        "actions": np.arange(len(rows), dtype="f4")[:, None],
        "rewards": rewards.astype("f4"),
        "terminals": np.zeros(len(rows), bool),
        "timeouts": ends,
    }
    return arrays | ({"next_observations": following.astype("f4")} if after else {})


CLEAN = [5, 4, 6] * 6


@pytest.mark.parametrize(
    ("mode", "container", "after"),
    every_second(
        ["next_step", "same_step", "none", "cut"], ["memory", "h5", "npz", "mapping"], [True, False]
    ),
)
def test_rows_of_automatic_resets(
    tmp_path: Path, mode: str, container: str, after: bool, settings: Settings
) -> None:
    arrays = vector_log(mode, CLEAN, after=after)
    data: Any = arrays
    if container != "memory":
        write = write_npz if container == "npz" else write_h5
        data = write(tmp_path / f"x.{'npz' if container == 'npz' else 'hdf5'}", arrays)
    more: dict[str, Any] = {}
    if container == "mapping":
        leaves = {"observation": "observations", "action": "actions", "next/reward": "rewards"}
        ends = {"terminated": "terminals", "truncated": "timeouts"}
        more["mapping"] = {"leaves": leaves, "rows": "steps", "ends": ends}
        if after:
            leaves["next/observation"] = "next_observations"
        else:
            more["mapping"]["final_observation"] = "missing"
    stored = offline_data.convert(data, "x", root=settings.root, progress=False, **more)
    found = [one.about for one in offline_data.check(stored.path, select=["RL018"], progress=False)]
    seen = mode in {"next_step", "same_step"} and (after or mode == "next_step")
    assert found == [mode] * seen
    if container == "mapping":
        asked = [q.place for q in inspect_files(data).questions]
        assert ("autoreset" in asked) == seen
    if mode not in {"next_step", "same_step"}:
        return
    more.get("mapping", more)["autoreset"] = mode
    stored = offline_data.convert(data, "x", root=settings.root, progress=False, force=True, **more)
    reader = open_reader(stored.path)
    clean = vector_log("none", CLEAN)
    assert reader.lengths.tolist() == CLEAN
    table = reader.transitions_at(np.arange(sum(CLEAN)))
    np.testing.assert_array_equal(table["observation",], clean["observations"])
    np.testing.assert_array_equal(table["next", "reward"][:, 0], clean["rewards"])
    known = mode == "next_step" and after
    assert np.asarray(reader.episodes["final_observation",]).tolist() == [known] * len(CLEAN)
    if known:
        np.testing.assert_array_equal(table["next", "observation"], clean["next_observations"])
    assert offline_data.check(stored.path, select=["RL018"], progress=False) == []


def test_autoreset_is_for_flat_files(tmp_path: Path, settings: Settings) -> None:
    log = vector_log("none", [3], after=False)
    arrays = {"observations": log["observations"], "actions": log["actions"]}
    path = write_npz(tmp_path / "x.npz", arrays | {"terminals": log["timeouts"]})
    for name, data in {"a file": path, "episodes": []}.items():
        call = partial(offline_data.convert, data, "x", root=settings.root, progress=False)
        REFUSALS.check("autoreset", name, partial(call, autoreset="same_step"))


@pytest.mark.parametrize("count", [10, 11])
def test_ten_ends_are_needed(count: int) -> None:
    arrays = vector_log("same_step", [5] * count)
    lengths = np.full(count, 5)

    def states(rows: Any, after: bool) -> Any:
        return arrays["next_observations" if after else "observations"][rows]

    found = find_autoreset(states, lengths, np.ones(count, bool), arrays["rewards"])
    assert found == (None if count == 10 else ("same_step", 10))


@pytest.mark.parametrize("length", [1, 2])
def test_episodes_without_a_step_inside_show_nothing(tmp_path: Path, length: int) -> None:
    write_toy(tmp_path / "toy", [toy_batch([length] * 15)])
    assert offline_data.check(tmp_path / "toy", select=["RL018"], progress=False) == []
