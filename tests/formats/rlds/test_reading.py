"""RLDS records to episodes: every value against protobuf's reading, and each rule that is applied."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError
from offline_data.episode import EpisodeBatch
from offline_data.episode.joining import concatenate
from offline_data.episode.notes import count_episodes
from offline_data.formats.base import Release, RemoteFile
from offline_data.formats.rlds.episodes import (
    NOTE_FINAL_STEP,
    NOTE_FLAGS,
    NOTE_NO_FINAL,
    NOTE_REWARD,
    NOTE_TERMINAL,
)
from offline_data.formats.rlds.source import OpenX
from offline_data.pipeline.ingest import Options, convert
from offline_data.raw.images import encode_image
from offline_data.raw.tfrecord import read_records
from offline_data.store.encoded import EncodedColumn
from offline_data.store.reader import open_reader
from offline_data.testing.sources import SourceCase
from tests.formats.contract import Contract
from tests.refusals import Refusals
from tests.toys.rlds import (
    decode_example,
    encode_example,
    toy_features,
    toy_record,
    write_rlds,
    write_toy_rlds,
)

REFUSALS = Refusals.beside(__file__)
Record = dict[str, Any]
LENGTHS = [3, 4, 1, 2, 3, 4, 1]
"""Of the episodes of `write_toy_rlds`, numbered 0 to 6; `val` has the last two."""


def read(folder: Path, **options: Any) -> EpisodeBatch:
    release = replace(OpenX().release_of(folder, "mine"), options=Options(**options))
    assert release.local is not None
    opened = OpenX().open(release, release.local)
    return concatenate([batch for shard in opened.shards() for batch in opened.read(shard)])


def records_of(folder: Path) -> list[tuple[str, Record]]:
    """Read all records by protobuf, `train` first, with the name of their split."""
    paths = sorted(folder.glob("*.tfrecord-*"), key=lambda path: "-val." in path.name)
    return [
        ("val" if "-val." in path.name else "train", decode_example(record.data))
        for path in paths
        for record in read_records(path)
    ]


def expected(records: list[tuple[str, Record]]) -> dict[str, list[Any]]:
    """Return rows of every leaf, from protobuf's lists: ten lines of numpy that know the toy only."""
    rows: dict[str, list[Any]] = {}
    for split, r in records:
        last = {"steps/action/move": 2, "steps/action/close": 1, "steps/reward": 1}
        t = len(r["steps/reward"])
        empty = all(not r[name][-n:].any() for name, n in last.items())
        n = t - (empty and t > 1)
        flat = {k: np.reshape(r[k], (t, -1)) for k in last}
        state = r["steps/observation/state"].reshape(t, 3)
        ends = np.cumsum(r["steps/observation/points/ragged_row_lengths_0"])[:-1]
        parts = np.split(r["steps/observation/points/ragged_flat_values"], ends)
        points = [part.tolist() for part in parts]
        clouds = [np.frombuffer(zlib.decompress(b), "<i2") for b in r["steps/observation/cloud"]]
        whole = [*range(t), *([t - 1] if n == t else [])]
        table = {
            "observation/state": state[whole],
            "observation/cloud": [clouds[i].reshape(2, 2) for i in whole],
            "observation/points": [json.dumps(points[i]) for i in whole],
            "observation/instruction": [
                r["steps/observation/instruction"][i].decode() for i in whole
            ],
            "observation/image": [r["steps/observation/image"][i] for i in whole],
            "observation/depth": [r["steps/observation/depth"][i] for i in whole],
            "action/move": flat["steps/action/move"][:n],
            "action/close": flat["steps/action/close"][:n].astype(np.int32),
            "next/reward": flat["steps/reward"][:n],
            "next/terminated": [
                [i == n - 1 and bool(r["steps/is_terminal"][-1])] for i in range(n)
            ],
            "next/truncated": [[i == n - 1 and not r["steps/is_terminal"][-1]] for i in range(n)],
            "discount": r["steps/discount"][:n],
            "language_instruction": [b.decode() for b in r["steps/language_instruction"][:n]],
            "label": r["steps/label"][:n],
            "wide": r["steps/wide"][:n],
            "split": [split],
            "episode_metadata/id": r["episode_metadata/id"],
            "episode_metadata/file_path": [r["episode_metadata/file_path"][0].decode()],
        }
        for key, values in table.items():
            rows.setdefault(key, []).extend(values)
    return rows


def assert_rows(batch: EpisodeBatch, rows: dict[str, list[Any]]) -> None:
    found = {
        "/".join(key): column
        for table in (batch.steps, batch.observations, batch.episodes)
        for key, column in table.items()
    }
    assert found.keys() >= rows.keys()
    assert not found.keys() - rows.keys() - {"start", "length", "return"} - {
        "terminated", "truncated", "final_observation",
    }  # fmt: skip
    for key, values in rows.items():
        column: Any = found[key]
        if isinstance(column, EncodedColumn):
            assert column.images() == values, key
        else:
            assert np.asarray(column).tolist() == np.asarray(values, column.dtype).tolist(), key


def test_every_value_after_the_disk(tmp_path: Path, settings: Settings) -> None:
    folder = write_toy_rlds(tmp_path / "toy")
    stored = convert(folder, "toy", settings, Options(audit="all", split="all"))
    batch = open_reader(stored.path).episode_batch(0, 7)
    assert_rows(batch, expected(records_of(folder)))
    assert batch.lengths.tolist() == LENGTHS
    assert {str(column.dtype) for column in batch.steps.values()} == {
        "float32", "int32", "int64", "bool", "object",
    }  # fmt: skip
    manifest = stored.manifest
    assert manifest.about["labels"] == {"steps/label": ["pick", "place"]}
    assert (manifest.about["description"], manifest.citation) == ("A toy.", "Nobody, 2024.")
    assert manifest.spaces["action"] == {"move": "float32 [2]", "close": "int32 [1]"}
    assert any("float64" in note and "steps/wide" in note for note in manifest.notes)
    assert any("`split` in the episode table" in note for note in manifest.notes)
    assert count_episodes(7, NOTE_NO_FINAL) in manifest.notes  # of both splits, each once


@pytest.mark.parametrize("final_step", [False, True])
def test_every_value(tmp_path: Path, *, final_step: bool) -> None:
    folder = write_toy_rlds(tmp_path / "toy", final_step=final_step)
    batch = read(folder)
    assert_rows(batch, expected(records_of(folder)))
    has = [final_step and length > 1 for length in LENGTHS]
    assert batch.lengths.tolist() == [n - one for n, one in zip(LENGTHS, has, strict=True)]
    assert batch.final_observation.tolist() == has
    assert (count_episodes(sum(has), NOTE_FINAL_STEP) in batch.notes) == final_step
    # of one step there is nothing to take away
    assert count_episodes(has.count(False), NOTE_NO_FINAL) in batch.notes


def one(tmp_path: Path, change: Callable[[Record], object], features: Any = None) -> EpisodeBatch:
    """Read one episode of three steps, of which a test changed the record."""
    record = toy_record(1, 3)
    change(record)
    return read(write_rlds(tmp_path / "one", {"train": [[record]]}, features=features))


def set_last(names: str, **more: Any) -> Callable[[Record], None]:
    """Clear leaves of the last step, and set others in it."""

    def change(record: Record) -> None:
        for name in names.split():
            record[f"steps/{name}"][-2 if name == "action/move" else -1 :] = 0
        for name, value in more.items():
            record[f"steps/{name}"][-1] = value

    return change


def no_discount(reward: float) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        del record["steps/discount"]
        set_last("action/move action/close", reward=reward)(record)

    return change


def nan_action(record: Record) -> None:
    set_last(EMPTY)(record)
    record["steps/action/move"][-2:] = np.nan


def no_flags(*names: str) -> Callable[[Record], object]:
    return lambda record: [record[f"steps/is_{name}"].fill(0) for name in names]


EMPTY = "action/move action/close reward discount"
ENDS: dict[str, tuple[Callable[[Record], object], int, list[int], str]] = {
    "nothing in it": (set_last(EMPTY), 2, [1], NOTE_FINAL_STEP),
    "NaN is nothing": (nan_action, 2, [1], NOTE_FINAL_STEP),
    "terminal, which the step before is": (set_last(EMPTY, is_terminal=1), 2, [1], NOTE_FINAL_STEP),
    "not terminal, nor is the step before": (set_last(EMPTY, is_terminal=0), 2, [], NOTE_FINAL_STEP),
    "a reward": (set_last("action/move action/close discount"), 3, [2], NOTE_NO_FINAL),
    "closes": (set_last("action/move reward discount"), 3, [2], NOTE_NO_FINAL),
    "a discount": (set_last("action/move action/close reward"), 3, [2], NOTE_NO_FINAL),
    "moves": (set_last("action/close reward discount"), 3, [2], NOTE_NO_FINAL),
    "not the last": (set_last(f"{EMPTY} is_last"), 3, [2], NOTE_NO_FINAL),
    # as RLDS defines it: a last action of zeros would look the same, and has no next observation
    "no discount, no reward": (no_discount(0), 2, [1], NOTE_FINAL_STEP),
    "no discount, a reward": (no_discount(1), 3, [2], NOTE_NO_FINAL),
    "clips end with their record": (no_flags("first", "last"), 3, [2], NOTE_FLAGS),
    "no first step": (no_flags("first"), 3, [2], NOTE_FLAGS),
    "no last step": (no_flags("last"), 3, [2], NOTE_FLAGS),
    "terminal inside": (lambda r: r["steps/is_terminal"].__setitem__(0, 1), 3, [0, 2], NOTE_TERMINAL),
}  # fmt: skip
"""What is in the last step, how many steps there are, which of them are terminated, and a note."""


@pytest.mark.parametrize("name", ENDS)
def test_a_last_step_is_an_observation_only_where_nothing_else_is_in_it(
    tmp_path: Path, name: str
) -> None:
    change, steps, terminated, note = ENDS[name]
    record = toy_record(1, 3)
    change(record)
    terminal = bool(record["steps/is_terminal"][-1])
    batch = one(tmp_path, change, changed("steps/discount", None) if "no disc" in name else None)
    assert batch.lengths.tolist() == [steps]
    assert batch.final_observation.tolist() == [steps == 2]
    state = np.asarray(batch.observations["observation", "state"])[:, 0]
    assert state.tolist() == [1001, 1002, 1003, 1003][: steps + 1]
    ends = [one for one in terminated if one != steps - 1 or terminal]
    assert np.flatnonzero(batch.steps["next", "terminated"]).tolist() == ends
    assert np.flatnonzero(batch.steps["next", "truncated"]).tolist() == [steps - 1] * (not terminal)
    assert count_episodes(1, note) in batch.notes


def changed(path: str, feature: Any) -> Any:
    """Return the toy's features with another one at a path, or none for None."""
    tree = toy_features()
    node = tree["featuresDict"]["features"]
    *above, name = path.split("/")
    for part in above:
        node = node[part].get("sequence", {}).get("feature", node[part])["featuresDict"]["features"]
    if feature is None:
        del node[name]
    else:
        node[name] = feature
    return tree


def tensor(dtype: str, *shape: int, **more: Any) -> Any:
    sizes = {"dimensions": [str(size) for size in shape]}
    return {"tensor": {"dtype": dtype, "shape": sizes, "encoding": "none", **more}}


ODD: dict[str, tuple[Any, Any, Any]] = {
    "uint64 as its bits": (tensor("uint64"), np.array([-1, 2, 3]), [2**64 - 1, 2, 3]),
    "float16": (tensor("float16"), np.array([0.5, 1, 2], np.float32), [0.5, 1, 2]),
    "bytes of bfloat16": (tensor("bfloat16", 1, encoding="bytes"), [b"\x80\x3f", b"\x00\x40", b"\x40\x40"], [[1.0], [2.0], [3.0]]),
    "bytes of float64": (tensor("float64", encoding="bytes"), [np.float64(x).tobytes() for x in (0.1, 0.2, 0.3)], [0.1, 0.2, 0.3]),
    "two texts a step": (tensor("string", 2), [b"a", b"b"] * 3, [["a", "b"]] * 3),
    "a name with a slash": (tensor("int32"), np.array([4, 5, 6]), [4, 5, 6]),
    "missing, but optional": (tensor("int32", optional=True), None, [0, 0, 0]),
    "missing text, optional": (tensor("string", optional=True), None, [None] * 3),
    "shapes that differ": (tensor("uint8", -1, encoding="zlib"), [zlib.compress(bytes(range(n))) for n in (1, 0, 2)], ["[0]", "[]", "[0, 1]"]),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_odd_features(tmp_path: Path, case: str) -> None:
    feature, values, wanted = ODD[case]
    name = "deep/odd" if "slash" in case else "odd"
    tree = changed("steps/label", tensor("int64"))
    steps = tree["featuresDict"]["features"]["steps"]["sequence"]["feature"]
    steps["featuresDict"]["features"][name] = feature
    stored = {} if values is None else {f"steps/{name}": values}
    batch = one(tmp_path, lambda record: record.update(stored), tree)
    column = batch.steps[tuple(name.split("/"))]
    assert column.tolist() == wanted
    if values is None:
        assert any("odd is missing" in note for note in batch.notes)


IMAGE = "steps/observation/image"


def image(dtype: str, *sizes: int) -> Any:
    return {"image": {"dtype": dtype, "shape": {"dimensions": [str(size) for size in sizes]}}}


def test_images_are_what_they_are_and_not_what_is_said(tmp_path: Path) -> None:
    """Neither the encoding nor, where it may vary, the size comes from features.json."""
    pixels = np.arange(3 * 7 * 9 * 3, dtype=np.uint8).reshape(3, 7, 9, 3)
    files = [encode_image(image, "png") for image in pixels]
    tree = changed(IMAGE, image("uint8", -1, -1, 3))
    batch = one(tmp_path, lambda r: r.update({IMAGE: files}), tree)
    column: Any = batch.observations["observation", "image"]
    assert (column.encoding, column.shape) == ("png", (4, 7, 9, 3))
    assert np.array_equal(column, pixels[[0, 1, 2, 2]])
    depth = np.linspace(-1, 1, 3 * 4 * 5, dtype="<f4").reshape(3, 4, 5, 1)  # as their four bytes
    files = [encode_image(one.view(np.uint8).reshape(4, 5, 4), "png") for one in depth]
    tree = changed("steps/label", image("float32", 4, 5, 1))
    batch = one(tmp_path / "depth", lambda r: r.update({"steps/label": files}), tree)
    assert np.array_equal(batch.steps[("label",)], depth)


def test_names_that_mean_something_else_here(tmp_path: Path) -> None:
    tree = toy_features()
    features = tree["featuresDict"]["features"]
    features["length"] = tensor("int64")
    features["steps"]["sequence"]["feature"]["featuresDict"]["features"]["done"] = tensor("bool")
    values = {"length": np.array([7]), "steps/done": np.array([0, 1, 0])}
    batch = one(tmp_path, lambda r: r.update(values), tree)
    assert batch.episodes["episode", "length"].tolist() == [7]
    assert batch.steps["steps", "done"].tolist() == [False, True, False]


def test_what_cannot_be_read_is_listed(tmp_path: Path) -> None:
    tree = changed("steps/label", {"video": {"shape": {}}})
    tree["featuresDict"]["features"]["photo"] = {"image": {"shape": {}, "dtype": "uint8"}}
    folder = write_rlds(tmp_path / "toy", {"train": [[toy_record(1, 3)]]}, features=tree)
    info = OpenX().open(OpenX().release_of(folder, "x"), folder).info
    assert [leaf.key for leaf in info.dropped] == ["steps/label", "photo"]
    batch = one(tmp_path, lambda r: r.pop("steps/reward"), changed("steps/reward", None))
    assert batch.steps["next", "reward"].tolist() == [[0.0]] * 3
    assert NOTE_REWARD in batch.notes


# ---- damage ------------------------------------------------------------------------------------


def put(name: str, values: Any) -> Callable[[Record], object]:
    return lambda record: record.update({name: values})


def put_one(name: str, row: int, value: Any) -> Callable[[Record], object]:
    return lambda record: record[name].__setitem__(row, value)


ROWS, CLOUD = "steps/observation/points/ragged_row_lengths_0", "steps/observation/cloud"
SMALL = encode_image(np.zeros((2, 2, 3), np.uint8), "jpeg")
BAD: dict[str, Callable[[Record], object]] = {
    "no step": lambda r: r.update({k: v[:0] for k, v in r.items() if "steps" in k}),
    "two steps": lambda r: r.update({"steps/reward": r["steps/reward"][:2]}),
    "no label": lambda r: r.pop("steps/label"),
    "another kind": put("steps/label", [b"1"] * 3),
    "another type": put("steps/label", np.ones(3, np.float32)),
    "beyond int32": put_one("steps/action/close", 0, 2**40),
    "beyond bool": put_one("steps/is_first", 0, 2),
    "no text": put("steps/language_instruction", [b"\xff"] * 3),
    "wrong lengths": put(ROWS, np.array([9, 9, 9])),
    "lengths right modulo 2**64": put(ROWS, np.array([2**63 - 1, 2**63 - 1, 5])),
    "no zlib": put(CLOUD, [b"not zlib"] * 3),
    "more than its shape": put(CLOUD, [zlib.compress(bytes(1 << 20))] * 3),
    "a smaller image": put_one(IMAGE, 1, SMALL),
    "an empty image": put_one(IMAGE, 1, b""),
    "two of an episode": put("episode_metadata/id", np.array([1, 2])),
}


class TestContract(Contract):
    @pytest.fixture(params=[False, True], ids=["actions", "final steps"])
    def case(self, tmp_path: Path, request: Any) -> SourceCase:
        raw = write_toy_rlds(tmp_path / "raw", final_step=request.param)
        opening = ("dataset_info.json", "features.json", "steps-label.labels.txt")
        names = [*opening, *sorted(p.name for p in raw.iterdir() if "tfrecord" in p.name)]
        files = tuple(RemoteFile(name, (f"https://host.invalid/{name}",)) for name in names)
        return SourceCase(OpenX(), Release("toy", "0.1.0", files, opening=opening), raw)


@REFUSALS.of("records", BAD)
def test_a_bad_record_is_named_and_may_be_left_out(tmp_path: Path, name: str) -> None:
    bad = toy_record(1, 3)
    BAD[name](bad)
    folder = write_rlds(tmp_path / "toy", {"train": [[toy_record(0, 2), bad, toy_record(2, 3)]]})
    REFUSALS.check("records", name, lambda: read(folder), {tmp_path: "FOLDER"})
    batch = read(folder, skip_bad_episodes=True)
    assert batch.episodes["episode_metadata", "id"].tolist() == [0, 2]
    (skipped,) = batch.skipped
    assert skipped.where.endswith("record 1")
    assert skipped.reason[:40] in str(REFUSALS.known["records"][name])


def test_a_zlib_bomb_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do many small ones: what all of a record may take is bounded, whatever is declared."""
    packer = zlib.compressobj()
    begin = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    monkeypatch.setattr("offline_data.formats.rlds.values._MOST_BYTES", 1 << 24)
    small = zlib.compress(bytes(6 << 20))

    for shape, packed, said in [
        ((8,), [begin + 1023 * block, *[zlib.compress(bytes(8))] * 2], "more than 8 bytes"),
        ((-1,), [begin + 1023 * block, b"", b""], "more than 16,777,216 bytes"),
        ((-1,), [small] * 3, "more than 4,194,304 bytes"),
        ((6 << 20,), [small] * 3, "would take 18,874,368 bytes"),
    ]:
        tree = changed("steps/label", tensor("uint8", *shape, encoding="zlib"))
        tracemalloc.start()
        try:
            with pytest.raises(FormatError, match=said):
                one(tmp_path, put("steps/label", packed), tree)
            assert tracemalloc.get_traced_memory()[1] < 1 << 26
        finally:
            tracemalloc.stop()


def info(**fields: Any) -> Callable[[Path], object]:
    return lambda to: write_rlds(to, {"train": [[toy_record(1, 3)]]}, **fields)


def features(tree: Any) -> Callable[[Path], object]:
    return lambda to: write_rlds(to, {"train": [[toy_record(1, 3)]]}, features=tree)


def other_size(folder: Path) -> None:
    other, tree = toy_record(1, 2), changed(IMAGE, image("uint8", -1, -1, 3))
    other[IMAGE] = [SMALL, SMALL]
    write_rlds(folder, {"train": [[toy_record(0, 2), other]]}, features=tree)


def stated(*lengths: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        path = write_toy_rlds(folder) / "dataset_info.json"
        known = json.loads(path.read_text())
        next(s for s in known["splits"] if s["name"] == "train")["shardLengths"] = lengths
        path.write_text(json.dumps(known))

    return write


def two_versions(folder: Path) -> None:
    for version in ("0.1.0", "0.2.0"):
        write_toy_rlds(folder / version)


ONE = {"name": "train", "shardLengths": ["1"]}
FOLDERS: dict[str, Callable[[Path], object]] = {
    "array_record": info(fileFormat="array_record"),
    "no splits": info(splits=None),
    "a split that leads out": info(splits=[{"name": "../x"}]),
    "lengths of text": info(splits=[{**ONE, "shardLengths": ["x"]}]),
    "no lengths": info(splits=[{**ONE, "shardLengths": []}]),
    "shards without lengths": info(splits=[{"name": "train", "numShards": "3"}]),
    "a template that leads out": info(splits=[{**ONE, "filepathTemplate": "../../{SPLIT}"}]),
    "no files": info(splits=[{"name": "test", "shardLengths": ["1", "1"]}]),
    "more records stated": stated("9", "2"),
    "fewer records stated": stated("2", "2"),
    "no steps": features({"featuresDict": {"features": {}}}),
    "a feature of 3": features({"featuresDict": {"features": {"steps": {"sequence": {"feature": 3}}}}}),
    "no features": features({"featuresDict": {}}),
    "a negative size": features(changed("steps/label", tensor("int64", -7))),
    "a huge size": features(changed("steps/label", tensor("int64", 1 << 20, 1 << 20))),
    **{f"an unknown {name}": features(changed(f"steps/{name}", tensor("float99"))) for name in ("reward", "is_first", "is_last", "is_terminal")},
    "images of another size": other_size,
    "two versions": two_versions,
}  # fmt: skip


@REFUSALS.of("folders", FOLDERS)
def test_a_folder_that_is_not_what_it_should_be(tmp_path: Path, name: str) -> None:
    FOLDERS[name](tmp_path / "toy")
    REFUSALS.check("folders", name, lambda: read(tmp_path / "toy"), {tmp_path: "FOLDER"})
    assert name != "two versions" or not OpenX().accepts(tmp_path / "toy")


def test_the_folder_above_the_version(tmp_path: Path) -> None:
    write_toy_rlds(tmp_path / "toy" / "0.1.0")
    assert OpenX().accepts(tmp_path / "toy")
    assert len(read(tmp_path / "toy").lengths) == 7


def test_no_more_than_a_batch_is_in_memory(tmp_path: Path) -> None:
    """A file of 200 records is read in batches, and none of them holds the file's bytes."""
    record = toy_record(1, 2)
    record["steps/observation/image"] = [record["steps/observation/image"][0] + bytes(1 << 20)] * 2
    folder = write_rlds(tmp_path / "toy", {"train": [[encode_example(record)] * 40]})
    opened = OpenX().open(OpenX().release_of(folder, "x"), folder)
    sizes = [len(batch.lengths) for batch in opened.read(opened.shards()[0])]
    assert sum(sizes) == 40
    assert max(sizes) <= 16


def test_what_tfds_decodes(realdata: Path) -> None:
    """Files of TFDS 4.9.10 give the values that it decodes; JPEG within its other rounding."""
    folder = realdata / "rlds_tfds_generated"
    truth = np.load(folder / "toy_robot_expected.npz")
    batch = read(folder / "toy_robot")
    splits = batch.episodes[("split",)].tolist()
    seen = 0
    for name, wanted in truth.items():
        split, number, t, key = name.split("|")
        episode = splits.index(split) + int(number)
        path = tuple(key.removeprefix("steps/").split("/"))
        if path[0] == "episode_metadata":
            found = batch.episodes[path][episode]
        elif path[0] in {"is_first", "is_last"}:
            continue
        else:
            renamed = {"reward": ("next", "reward"), "is_terminal": ("next", "terminated")}
            path, row = renamed.get(path[0], path), batch.starts[episode] + int(t)
            found = (
                batch.observations[path][row + episode] if path[0] == "observation"
                else batch.steps[path][row]
            )  # fmt: skip
        seen += 1
        if isinstance(found, str):
            points = key == "steps/points"
            text = wanted.tolist() if points else bytes(wanted).decode()
            assert (json.loads(found) if points else found) == text
        elif key.endswith("wrist_image"):
            assert np.abs(np.asarray(found, int) - wanted).max() <= 16
        else:
            same = np.reshape(found, wanted.shape).astype(wanted.dtype) == wanted
            assert same.all(), name
    assert seen == 565


def test_clips_of_bridge(realdata: Path) -> None:
    """Octo's records: no is_last, no rewards, images of cameras that are not there are black."""
    folder = realdata / "rlds_octo_bridge" / "bridge_dataset" / "1.0.0"
    batch = read(folder)
    assert batch.lengths.tolist() == [10] * 50
    assert not batch.final_observation.any()
    assert not batch.steps["next", "terminated"].any()
    records = records_of(folder)
    actions = np.concatenate([r["steps/action"] for _, r in records]).reshape(-1, 7)
    assert np.array_equal(batch.steps[("action",)], actions)
    images: Any = batch.observations["observation", "image_0"]
    files = [r["steps/observation/image_0"] for _, r in records]
    assert images.images() == [one for some in files for one in (*some, some[-1])]
