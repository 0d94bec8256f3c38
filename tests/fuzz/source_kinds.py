"""Hostile files of the sources beside D4RL and Minari, and what their toys wrote into them.

`prepare` leaves the truth beside the case: what each episode has by leaf, by an independent reading
where a change is legal. An episode that was changed may be left out by `--skip-bad-episodes`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import pickle
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.disk import Stored, read_dataset
from tests.fuzz.harness import Kind, Plan, run_command
from tests.fuzz.mutations import EXTREMES, NASTY, spoil_bytes, spoil_hdf5, spoil_json_file
from tests.toys import gen_dgrl as dgrl
from tests.toys import rlds
from tests.toys.atari import toy_step, write_gz, write_replay_log
from tests.toys.ogbench import toy_arrays
from tests.toys.openml import toy_table
from tests.toys.robomimic import isaac_demo, libero_demo, toy_demo, write_demos
from tests.toys.roboset import toy_trial, write_trials
from tests.toys.text import CHAT_TEMPLATE, train_tokenizer, write_tokenizer
from tests.toys.vd4rl import toy_rows, write_vd4rl_hdf5
from tests.toys.webdataset import Flavour, toy_steps, write_tar

Leaves = dict[tuple[str, ...], Any]
REFUSED: Leaves = {("refused",): 1}
"""Truth of an episode that is damaged, and must not become a dataset."""
_REWARD, _END, _CUT = (("next", name) for name in ("reward", "terminated", "truncated"))


@dataclass
class Truth:
    """What a dataset may hold."""

    episodes: list[tuple[Leaves | None, bool]] = field(default_factory=list)
    """Leaves of each episode by key, `[T, …]` or `[T + 1, …]`, None: of any; whether it was changed."""
    known: bool = True
    """False where a change that no checksum shows may be anywhere: nothing is compared."""
    any_of: bool = False
    """Whether the dataset may have any of the episodes, in any order: a list of them was changed."""
    changed: bool = True
    """Whether there may be an error."""
    facts: Any = None


def source_kind(
    name: str,
    source: str,
    make: Callable[[Random, Path], Truth],
    check: Any = None,
    more: tuple[str, ...] = (),
) -> Kind:
    """Return a kind that converts the folder or file `in*` that `make` writes, with `more` options.

    Without a source the format is recognised.
    """

    def prepare(seed: int, folder: Path) -> Plan:
        random = Random(f"{name}-{seed}")
        truth = make(random, folder)
        (folder.parent / "truth").write_bytes(pickle.dumps(truth))
        path = min(folder.glob("in*"))  # the first; another may lie beside it
        options = ["--skip-bad-episodes"] if random.random() < 0.4 else []
        if name in {"rlds", "webdataset"}:
            options += random.choice(([], ["--images", "raw"], ["--images", "raw"]))
        if name == "lerobot":
            options += random.choice(([], ["--video", "png"], ["--video", "raw"]))
        named = ["--from", source] if source else []
        line = ["convert", f"case/{path.name}", "x", *named, *more, *options]
        done = frozenset({0, 2, 3, 5} if truth.changed else {0})
        root = ("--root", "case/root")
        verify = ("verify", "local:x", *root)
        return Plan(
            ((*line, *root), verify), (done, frozenset({0, 3})), facts={"skip": options[:1]}
        )

    def checked(folder: Path, plan: Plan, codes: list[int | None]) -> str | None:
        truth: Truth = pickle.loads((folder / "truth").read_bytes())  # noqa: S301 - our own
        if codes[0] != 0 or not truth.known:
            return None
        (path,) = (
            p for p in (folder / "case/root").rglob("manifest.json") if ".staging" not in p.parts
        )
        stored = without_encoded(path.parent)
        skip = plan.facts["skip"] == ["--skip-bad-episodes"]
        found: str | None = (check or compare)(truth, stored, skip=skip)
        return found

    return Kind(name, prepare, checked, _run)


def _run(folder: Path, number: int, line: tuple[str, ...]) -> int:
    """Run a command; most times shards are converted here, without the start of a new interpreter."""
    from offline_data.pipeline.ingest import shards
    from offline_data.pipeline.jobs.executors import InProcess

    if zlib.crc32(folder.name.encode()) % 12:
        shards.__dict__["LocalProcesses"] = lambda *_, **__: InProcess()
    return run_command(folder, number, line)


def without_encoded(dataset: Path) -> Stored:
    """Read a dataset without its images that are files, of which there is another test."""
    path = dataset / "manifest.json"
    manifest = json.loads(path.read_text())
    for table in manifest["schema"].values():
        table["leaves"] = [leaf for leaf in table["leaves"] if "encoding" not in leaf]
    copied = dataset.parent / "plain"
    shutil.copytree(dataset, copied)
    (copied / "manifest.json").write_text(json.dumps(manifest))
    return read_dataset(copied)


def episodes_of(stored: Stored) -> Iterator[Leaves]:
    """Yield the leaves of each episode, what is known before and after an action as `T + 1` rows."""
    lengths = stored.episodes["length",].tolist()
    for number, (start, length) in enumerate(
        zip(stored.episodes["start",].tolist(), lengths, strict=True)
    ):
        rows = slice(start, start + length)
        leaves = {key: values[rows] for key, values in stored.steps.items()}
        for key, values in stored.before.items():
            leaves[key] = np.concatenate([values[rows], stored.after[key][rows][-1:]])
        of_episode = {("episodes", *key): values[number] for key, values in stored.episodes.items()}
        yield leaves | of_episode


def compare(truth: Truth, stored: Stored, *, skip: bool) -> str | None:
    """Name the first leaf on disk that is not as it was written, or None."""
    found = list(episodes_of(stored))
    if truth.any_of:
        told = [leaves for leaves, _ in truth.episodes]
        odd = [n for n, one in enumerate(found) if all(_differ(one, t) for t in told)]
        return f"episodes {odd} are none of the source's" if odd else None
    places, gone = range(len(truth.episodes)), len(truth.episodes) - len(found)
    if gone and not skip:
        return f"{len(found)} episodes, expected {len(places)}"
    changed = [n for n in places if truth.episodes[n][1]]
    if skip and 0 in changed and found and not _differ(found[0], truth.episodes[0][0]):
        return None  # the others may differ in type from the first one, which was changed
    first = "none"
    for lost in combinations(changed, max(0, min(gone, len(changed)))):
        kept = [n for n in places if n not in lost]
        differ = [
            (n, problem)
            for n, one in zip(kept, found, strict=False)
            if (problem := _differ(one, truth.episodes[n][0]))
        ]
        if not differ and len(kept) == len(found):
            return None
        first = str(differ[0] if differ else f"{len(found)} episodes, expected {len(kept)}")
    return f"episode {first}"


def _differ(found: Leaves, expected: Leaves | None) -> str | None:
    if expected is REFUSED or expected == REFUSED:
        return "is damaged, and was not refused"
    for told, wanted in (expected or {}).items():
        optional = told[0] == "optional"
        key = told[1:] if optional else told
        if key not in found:
            if optional or key[0] == "state" or key[-1] in {"pixels", "image", "depth"}:
                continue
            return f"{key} is missing"
        values, want = np.asarray(found[key]), np.asarray(wanted)
        if optional and values.dtype.kind != want.dtype.kind:
            continue
        if values.ndim and values.size != want.size:
            values = values[:-1]  # there is no observation after the last action
        if values.size != want.size or not _equal(values.reshape(-1), want.reshape(-1)):
            return f"{'/'.join(key)} is {values!r:.200}, expected {want!r:.200}"
    return None


def _equal(found: Any, expected: Any) -> bool:
    """Return True for the same numbers in any type."""
    floats = found.dtype.kind in "fc" and expected.dtype.kind in "fc"
    return bool(np.array_equal(found, expected, equal_nan=floats))


def _told(read: Callable[[Any], Leaves], value: Any) -> Leaves | None:
    """Return what a changed value says, None where it says nothing."""
    try:
        return read(value)
    except Exception:  # noqa: BLE001 - of any kind
        return None


def _spoil(random: Random, path: Path, head: int = 512) -> None:
    path.write_bytes(spoil_bytes(random, path.read_bytes(), head=head))


# ---- RLDS --------------------------------------------------------------------------------------


def _make_rlds(random: Random, folder: Path) -> Truth:
    what = random.choice(("none", "values", "values", "values", "wire", "bytes", "json", "json"))
    final = random.random() < 0.3
    records: list[Any] = [
        rlds.toy_record(e, random.randint(1 + final, 4), final_step=final)
        for e in range(random.randint(1, 5))
    ]
    cut = random.randint(0, len(records) - 1)
    changed = set()
    if what in {"values", "wire"}:
        place = random.randrange(len(records))
        changed.add(place)
        if what == "values":
            for _ in range(random.choice((1, 1, 2))):
                _spoil_record(random, records[place])
            records[place] = rlds.encode_example(records[place])
        else:
            records[place] = spoil_bytes(random, rlds.encode_example(records[place]))
    shards = {"train": [records[:cut], records[cut:]] if cut else [records]}
    rlds.write_rlds(folder / "in", shards)
    if what == "bytes":
        path = random.choice(sorted((folder / "in").glob("*.tfrecord*")))
        _spoil(random, path, 64)
        changed |= set(range(cut)) if "00000-of-00002" in path.name else set(range(cut, 9))
    elif what == "json":
        spoil_json_file(
            random, folder / "in" / random.choice(("features.json", "dataset_info.json"))
        )
        changed |= set(range(9))
    told = [(rlds_leaves(record), number in changed) for number, record in enumerate(records)]
    if what == "json":  # a feature may have another name, or none
        told = [
            ({("optional", *key): v for key, v in (one or {}).items()}, bad) for one, bad in told
        ]
    names = (folder / "in" / "features.json").read_bytes()  # others are not in the dataset, then
    flags = (b'"reward"', b'"is_last"', b'"is_terminal"', b'"discount"', b'"action"')
    known = all(name in names for name in flags)
    return Truth(told, known, any_of=what == "json", changed=what != "none")


def _spoil_record(random: Random, record: dict[str, Any]) -> None:
    """Change the values of one feature of a record."""
    points = "steps/observation/points/ragged_row_lengths_0"
    if random.random() < 0.25:
        record[points] = _lengths(random, record)
        return
    name = random.choice(sorted(record))
    values = record[name]
    kind = random.randrange(8)
    big = np.array([random.choice((-1, *EXTREMES)) for _ in range(len(values))]).astype(object)
    if kind == 0:
        del record[name]
    elif kind == 1:
        record[name] = values[: random.randrange(len(values) + 1)]
    elif kind == 2:
        record[name] = [*values, *values] if isinstance(values, list) else np.tile(values, 2)
    elif kind == 3:
        kinds = [[b"x"] * len(values), np.ones(len(values)), np.arange(len(values)), []]
        record[name] = random.choice(kinds)
    elif kind == 4:
        record[f"{name}/{random.choice(('value', 'shape', 'ragged_row_lengths_0'))}"] = values
    elif not len(values):
        record[points] = _lengths(random, record)
    elif isinstance(values, list):
        bomb = zlib.compress(bytes(random.choice((1, 9, 64 << 20))))
        size = (1 << 31) - 1, 1 << 16
        png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"".join(n.to_bytes(4, "big") for n in size)
        odd = [b"", b"\xff", bomb, png + b"\x08\x02\0\0\0" + bytes(9), rlds.toy_depth(3)]
        one = random.randrange(len(values))
        odd.append(spoil_bytes(random, values[one], head=64))
        values[one] = random.choice(odd)
    elif values.dtype.kind == "f":
        values[random.randrange(len(values))] = random.choice((math.nan, math.inf, 1e30, -0.0))
    else:
        record[name] = (big % 2**64).astype(np.uint64).view(np.int64)


def _lengths(random: Random, record: dict[str, Any]) -> Any:
    """Lengths of sequences that do not add up, or only modulo 2**64."""
    lengths = np.array(record.get("steps/observation/points/ragged_row_lengths_0", []))
    if lengths.dtype.kind != "i" or not len(lengths):  # changed before
        return lengths
    if random.random() < 0.6 and len(lengths) > 2:
        total = int(lengths.sum())
        lengths[:] = 0
        lengths[:3] = 2**63 - 1, 2**63 - 1, 2 + total
    else:
        lengths[random.randrange(len(lengths))] = random.choice(
            (-1, 0, 5, 2**62, -(2**63), 2**63 - 1)
        )
    return lengths


def rlds_leaves(record: Any) -> Leaves | None:
    """Return the leaves of a record as protobuf and Pillow read it; None where one of them cannot."""
    from google.protobuf.message import DecodeError
    from PIL import Image

    data = record if isinstance(record, bytes) else rlds.encode_example(record)
    try:
        has = rlds.decode_example(data)
    except DecodeError:
        return REFUSED
    try:
        last = has["steps/is_last"].astype(bool)
        count = len(last)
        alone = count > 1 and last[-1]
        move, close = has["steps/action/move"].reshape(count, 2), has["steps/action/close"]
        reward, discount = has["steps/reward"], has["steps/discount"]
        alone &= not (move[-1].any() or close[-1] or reward[-1] or discount[-1])
        ends = has["steps/is_terminal"].astype(bool)
        if alone:
            ends[-2] |= ends[-1]
        stop = count - int(alone)
        lengths = has["steps/observation/points/ragged_row_lengths_0"].tolist()
        flat = has.get("steps/observation/points/ragged_flat_values", np.zeros(0)).tolist()
        if min(lengths) < 0 or sum(lengths) != len(flat):
            return REFUSED
        ends_at = np.cumsum([0, *lengths])
        points = [flat[a:b] for a, b in pairwise(ends_at)]
        cloud = [
            np.frombuffer(zlib.decompress(one), "<i2") for one in has["steps/observation/cloud"]
        ]
        leaves = {
            ("observation", "state"): has["steps/observation/state"],
            ("observation", "cloud"): np.stack(cloud),
            ("observation", "points"): [json.dumps(one) for one in points],
            ("observation", "instruction"): _text(has["steps/observation/instruction"]),
            ("action", "move"): move[:stop],
            ("action", "close"): close[:stop],
            ("discount",): discount[:stop],
            ("wide",): has["steps/wide"][:stop],
            ("label",): has["steps/label"][:stop],
            ("language_instruction",): _text(has["steps/language_instruction"])[:stop],
            _REWARD: reward[:stop],
            _END: ends[:stop],
            ("episodes", "id"): has["episode_metadata/id"][0],
        }
        leaves["episodes", "episode_metadata", "id"] = leaves.pop(("episodes", "id"))
        for name in ("image", "depth"):
            images = [Image.open(io.BytesIO(one)) for one in has[f"steps/observation/{name}"]]
            pixels = np.stack([np.asarray(image) for image in images])
            leaves["observation", name] = pixels
    except Exception:  # noqa: BLE001 - of which values no reading is known
        return None
    return leaves


def _text(values: Any) -> Any:
    return np.array([*(one.decode() for one in values), None], object)[:-1]


# ---- the hub's tar files of pickles ------------------------------------------------------------

_ODD_KEYS = (
    "../x",
    "",
    "a/b",
    ".",
    "x" * 300,
    7,
    None,
    "next",
    "done",
    "é",
    "a\0b",
    "CON",
    "bytes",
)


def _make_webdataset(random: Random, folder: Path) -> Truth:
    flavour: Flavour = random.choice(("array", "file", "bytes", "pil"))
    what = random.choice(("none", "object", "object", "object", "pickle", "bytes", "hostile"))
    shards: list[list[tuple[str, bytes]]] = [[], []]
    truth = Truth(known=what != "bytes", changed=what != "none")
    count = random.randint(1, 5)
    bad = random.randrange(count)
    for e in range(count):
        steps = toy_steps(e, random.randint(1, 4), flavour)
        value: Any = {"steps": steps, "episode_metadata": {"file_path": f"/x/{e}"}}
        told: Leaves | None = _steps_leaves(steps)
        changed = e == bad and what != "none"
        if changed and what == "object":
            value = _spoil_object(random, value)
            told = _told(lambda one: _steps_leaves(one["steps"]), value)
        data = pickle.dumps(value, random.choice((2, 4, 5)))
        if changed and what == "pickle":
            data, told = spoil_bytes(random, data), None
        elif changed and what == "hostile":
            from tests.fuzz.kinds import Call

            value["steps"][0]["action"] = Call(random)
            data, told = pickle.dumps(value), REFUSED
        truth.episodes.append((told, changed))
        name = f"episode_{e:06d}.data.pickle"
        shards[e >= count // 2].append((name, data))
    shards = [members for members in shards if members]
    for number, members in enumerate(shards):
        write_tar(folder / "in" / f"toy_{number:05d}.tar", members)
    if what == "bytes":
        _spoil(random, random.choice(sorted((folder / "in").iterdir())), 1024)
    return truth


def _steps_leaves(steps: list[Any]) -> Leaves:
    action = [
        s["action"] if not isinstance(s["action"], dict) else s["action"]["arm"] for s in steps
    ]
    key = ("action", "arm") if isinstance(steps[0]["action"], dict) else ("action",)
    return {
        ("observation", "state"): np.stack([s["observation"]["state"] for s in steps]),
        key: np.stack(action),
        ("discount",): np.stack([s["discount"] for s in steps]),
        _REWARD: np.stack([s["reward"] for s in steps]),
        _END: np.stack([s["is_terminal"] for s in steps]).astype(bool),
    }


def _spoil_object(random: Random, value: Any) -> Any:
    """Change one container or leaf of an episode to one of another kind."""
    steps = value["steps"]
    step = random.choice(steps)
    holder = random.choice((step, step, step["observation"], value, value["episode_metadata"]))
    key = random.choice(sorted(holder))
    old = holder[key]
    odd = [
        *NASTY[:30], b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n" + bytes(30), np.zeros((0,)), np.zeros((2, 0)),
        np.array(["a", "b"]), np.array([b"\xff"]), np.array([1, "x", None], object), np.float16(3), np.complex64(1j),
        np.array(0, "M8[s]"), np.zeros(3, "i4,f8"), np.zeros(3, ">f8"), {"bytes": b"x", "path": 3}, {1: 2}, [step], (),
    ]  # fmt: skip
    kind = random.randrange(5)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        holder[random.choice(_ODD_KEYS)] = old
    elif kind == 2 and isinstance(old, (np.ndarray, np.generic)):
        array = np.asarray(old)
        shapes = [
            array[None],
            array.astype("f8"),
            array.astype("i1"),
            array.astype("S"),
            array.tolist(),
        ]
        holder[key] = random.choice(shapes)
    elif kind == 3:
        value["steps"] = random.choice(
            ([], {}, tuple(steps), [steps], [*steps, None], "x", steps[:1])
        )
    else:
        holder[key] = random.choice(odd)
    return random.choice((value, value, value, value, [value], steps))


# ---- Atari DQN replay --------------------------------------------------------------------------


def _make_atari(random: Random, folder: Path) -> Truth:
    path, gapless = folder / "in", False
    # A checkpoint that is due between two episodes is never written, and the one at the end is only
    # joined to the one before it if a terminal of that is still in it.
    while not gapless:
        shutil.rmtree(path, ignore_errors=True)
        capacity = random.randint(12, 30)
        lengths = [random.randint(1, 14) for _ in range(random.randint(2, 12))]
        final = random.random() < 0.6
        log = write_replay_log(path, lengths, capacity=capacity, final=final)
        begins = [begin for begin, _ in log.written]
        gapless = begins == [capacity * n for n in range(len(begins))] and bool(begins)
        if gapless and final and len(begins) > 1:
            begin, stop = log.written[-1]
            stale = log.rows[stop - capacity : begin]
            gapless = any(one and not after for one, after in pairwise(stale))
    files = sorted(path.iterdir())
    columns = {"observation", "action", "reward"}
    known = True
    changes = random.choice((0, 1, 1, 2))
    for _ in range(changes):
        file = random.choice(files)
        kind = random.choice(("bytes", "cut", "gone", "array", "array", "array"))
        if kind == "gone":
            file.unlink(missing_ok=True)
        elif not file.exists():
            continue
        elif kind == "bytes":
            _spoil(random, file, 64)
        elif kind == "cut":
            file.write_bytes(file.read_bytes()[: -random.randint(1, 40)])
        else:
            with suppress(Exception):  # an earlier change left none
                _spoil_log(random, file)
            columns -= {one for one in columns if one in file.name}
            known &= "action" not in file.name  # which tells the rows
    stop = max(stop for _, stop in log.written)
    return Truth(
        known=known,
        changed=bool(changes),
        facts={"rows": log.rows[:stop], "columns": columns, "whole": not changes},
    )


def _spoil_log(random: Random, path: Path) -> None:
    """Change the array of a file, whose checksum is right."""
    values = np.load(io.BytesIO(gzip.decompress(path.read_bytes())))
    kind = random.randrange(7)
    if kind == 0:
        values = values.astype(random.choice(("f8", "i8", ">i4", "u1", "?", "f4", "O")))
    elif kind == 1:
        values = np.resize(
            values, (max(0, len(values) + random.choice((-1, 1))), *values.shape[1:])
        )
    elif kind == 2:
        values = random.choice((values[None], values.reshape(-1), values[..., None]))
    elif kind == 3 and values.ndim:
        values = np.asfortranarray(values)
    elif kind == 4 and values.ndim:
        values = values[::-1]
    elif kind == 5:
        out = io.BytesIO()
        np.save(out, values)
        data = bytearray(out.getvalue())
        header = data.index(b"shape")
        data[header : header + 60] = data[header : header + 60].replace(b"(", b"(9")[:60]
        path.write_bytes(gzip.compress(spoil_bytes(random, bytes(data), head=120)))
        return
    elif values.ndim:
        for _ in range(random.randint(1, 3)):
            flat = values.reshape(-1)
            flat[random.randrange(len(flat))] = random.choice((0, 1, 2, 40, 127))
    else:
        values = np.array(random.choice((-1, 0, 5, 2**62)))
    write_gz(path, values)


def _check_atari(truth: Truth, stored: Stored, *, skip: bool) -> str | None:
    """Hold that each episode is a run of rows of the log; all of them, where nothing was changed."""
    columns, rows = truth.facts["columns"], truth.facts["rows"]
    found = []
    for number, leaves in enumerate(episodes_of(stored)):
        code = leaves["action",].reshape(-1)
        at = int((code != 0).argmax())  # rows of zeros before it, where a terminal was changed
        begin = next((n - at for n, row in enumerate(rows) if row and _code(row) == code[at]), -1)
        if begin < 0:
            if code.any():
                return f"episode {number} begins with no row of the log: {code}"
            continue
        mine = rows[begin : begin + len(code)]
        found.append(mine)
        frames = np.zeros((len(mine), 5, 4), np.uint8)
        rewards = np.zeros(len(mine), np.float32)
        for place, row in enumerate(mine):
            if row:
                step = toy_step(*row)
                frames[place], rewards[place] = step["observation"], step["reward"]
        if not np.array_equal(code, [_code(row) if row else 0 for row in mine]):
            return f"episode {number} has the actions {code}, expected {mine}"
        if "observation" in columns and not np.array_equal(leaves["observation",][:-1], frames):
            return f"episode {number} has frames of other rows"
        if "reward" in columns and not np.array_equal(leaves[_REWARD].reshape(-1), rewards):
            return f"episode {number} has rewards {leaves[_REWARD]}, expected {rewards}"
    if truth.facts["whole"]:
        alone = [row for row in rows if row]
        every = [row for mine in found for row in mine]
        return None if every == alone else f"{len(every)} rows, expected {len(alone)}"
    return None


def _code(row: tuple[int, int]) -> int:
    return 1000 * (row[0] + 1) + row[1] + 1


# ---- Gen-DGRL ----------------------------------------------------------------------------------


def _make_gendgrl(random: Random, folder: Path) -> Truth:
    kind: Any = random.choice(("npz", "npz", "pickle"))
    what = random.choice(("none", "name", "arrays", "arrays", "member", "archive", "hostile"))
    lengths = [random.randint(1, 8) for _ in range(random.randint(1, 5))]
    bad = random.randrange(len(lengths))
    files: dict[str, bytes] = {}
    truth = Truth(changed=what != "none")
    for e, length in enumerate(lengths):
        arrays = dgrl.toy_arrays(e, length)
        suffix = "npz" if kind == "npz" else "npy"
        name = dgrl.toy_name(e, length, float(arrays["rewards"].sum()), suffix)
        changed = e == bad and what not in {"none", "archive"}
        data = dgrl.packed(arrays, kind)
        told: Leaves | None = _dgrl_leaves(arrays)
        if changed and what == "name":
            name, told = _lie(random, name), None
        elif changed and what == "arrays":
            _spoil_arrays(random, arrays)
            told = _told(_dgrl_leaves, arrays)
            data = dgrl.packed(arrays, kind)
        elif changed and what == "member":
            data = spoil_bytes(random, data, head=200)
            told = told if kind == "npz" else None
        elif changed and what == "hostile":
            from tests.fuzz.kinds import Call

            out = io.BytesIO()
            np.save(out, np.array({**arrays, "actions": Call(random)}, object))
            data, told = out.getvalue(), REFUSED
        files[f"bigfish/{name}"] = data
        written = name.partition("\0")[0]  # names in archives end there
        if written.endswith((".npy", ".npz")) and "/." not in f"/{written}":  # else not an episode
            truth.episodes.append((told, changed))
    form = random.choice(("tar", "tar.xz", "folder"))
    if form == "folder" and what != "archive":
        for name, data in files.items():
            with suppress(OSError, ValueError):  # no name of a file
                path = (folder / "in" / name.replace("..", "_")).resolve()
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        (folder / "in").mkdir(exist_ok=True)
        truth.known &= what != "name"  # others may stand first
        return truth
    path = dgrl.write_archive(folder / f"in.{form.replace('folder', 'tar')}", files)
    if what == "archive":
        _spoil(random, path, 1024)
        truth.known = path.suffix == ".xz" or kind == "npz"
        truth.any_of = True
    return truth


def _dgrl_leaves(arrays: dict[str, Any]) -> Leaves:
    ended = bool(arrays["dones"].reshape(-1)[-1])
    return {
        ("observation",): arrays["observations"][:-1] if ended else arrays["observations"],
        ("action",): arrays["actions"],
        _REWARD: arrays["rewards"],
        _END: arrays["dones"] != 0,
    }


def _lie(random: Random, name: str) -> str:
    """Change one part of a name of an episode."""
    parts = re.split(r"(?<=[_.])|(?=[_.])", name)
    odd = (
        "",
        "0",
        "-1",
        "9" * 30,
        "../x",
        "/",
        "x" * 300,
        "é",
        "nan",
        "\n",
        "1e5",
        "٣",
        "\\",
        "\0x",
    )
    parts[random.randrange(len(parts))] = random.choice(odd)
    return "".join(parts).lstrip("/") or "x"


def _spoil_arrays(random: Random, arrays: dict[str, Any]) -> None:
    """Change one array of several, or add one."""
    key = random.choice(sorted(arrays))
    values = arrays[key]
    kind = random.randrange(10)
    dtype = random.choice(("f8", "f4", "f2", "i8", "u1", ">f4", "?", "c8", "S3", "O", "i2"))
    if kind == 0:
        del arrays[key]
    elif kind == 1:
        with np.errstate(all="ignore"):
            arrays[key] = values.astype(dtype)
    elif kind == 2:
        arrays[key] = random.choice((values[:-1], values[:0], np.concatenate([values, values])))
    elif kind == 3:
        arrays[key] = random.choice(
            (values[None], values.reshape(-1), values[..., None], values[0])
        )
    elif kind == 4:
        arrays[random.choice(("more", "../x", "a/b", "é", "x" * 200))] = values
    else:
        odd = (np.nan, np.inf, 0.5, -1, 300, 1) if values.dtype.kind == "f" else (1,)
        values.reshape(-1)[random.randrange(values.size)] = random.choice(odd)


# ---- V-D4RL and RoboSet ------------------------------------------------------------------------


def _make_vd4rl(random: Random, folder: Path) -> Truth:
    lengths = [random.randint(1, 6) for _ in range(random.randint(1, 4))]
    if random.random() < 0.5:
        total = sum(lengths) + len(lengths)
        cuts = [random.randrange(1, total)] if random.random() < 0.7 else []
        write_vd4rl_hdf5(folder / "in", lengths, cuts)
        files = sorted((folder / "in").iterdir())
        return after_hdf5(random, folder, files, _hdf5_episodes)
    (folder / "in").mkdir()
    bad, what = random.randrange(len(lengths)), random.choice(("none", "arrays", "arrays", "bytes"))
    truth = Truth(changed=what != "none")
    for e, steps in enumerate(lengths):
        rows = toy_rows(e, steps, terminal=random.random() < 0.5)
        changed = e == bad and what != "none"
        told: Leaves | None = _vd4rl_leaves(rows)
        if changed and what == "arrays":
            _spoil_arrays(random, rows)
            told = _told(_vd4rl_leaves, rows)
        out = io.BytesIO()
        np.savez_compressed(out, **rows)  # type: ignore[arg-type] # numpy's stub
        data = (
            spoil_bytes(random, out.getvalue()) if changed and what == "bytes" else out.getvalue()
        )
        (folder / "in" / f"20220101T{120000 + e}-{e:032x}-{steps + 1}.npz").write_bytes(data)
        truth.episodes.append((told, changed))
    return truth


def _vd4rl_leaves(rows: dict[str, Any]) -> Leaves:
    leaves = {
        ("pixels",): rows["image"],
        ("action",): rows["action"][1:],
        _REWARD: rows["reward"][1:],
        ("next", "discount"): rows["discount"][1:],
    }
    return leaves | {("state", k): rows[k] for k in ("height", "orientations") if k in rows}


def _make_ogbench(random: Random, folder: Path) -> Truth:
    rows = [random.randint(2, 6) for _ in range(random.randint(1, 4))]
    arrays = toy_arrays(random.choice(("antmaze", "scene", "powderworld")), rows)
    what, file = random.choice(("none", "arrays", "arrays", "bytes")), folder / "in.npz"
    told: Any = _ogbench_leaves(arrays)
    if what == "arrays":
        _spoil_arrays(random, arrays)
        try:
            told = _ogbench_leaves(arrays)
        except Exception:  # noqa: BLE001 - of which values no reading is known
            told = None
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type] # numpy's stub
    data = spoil_bytes(random, out.getvalue()) if what == "bytes" else out.getvalue()
    file.write_bytes(data)
    if told is None:
        return Truth(known=False)
    return Truth([(one, what != "none") for one in told], changed=what != "none")


def _ogbench_leaves(arrays: dict[str, Any]) -> list[Leaves]:
    ends = np.flatnonzero(arrays["terminals"].reshape(-1)) + 1
    bounds = [0, *ends, *([] if ends[-1] == len(arrays["actions"]) else [len(arrays["actions"])])]
    return [
        {("observation",): arrays["observations"][a:b], ("action",): arrays["actions"][a : b - 1]}
        for a, b in pairwise(bounds)
    ]


def after_hdf5(random: Random, folder: Path, files: list[Path], read: Any) -> Truth:
    """Change objects or bytes of HDF5 files, and read them by h5py where objects were changed."""
    from tests.fuzz.cases import secret_hdf5

    changes = random.choice((0, 1, 1, 1, 2))
    path = random.choice(files)
    if changes and random.random() < 0.25:
        _spoil(random, path, 2048)
        return Truth(known=False)
    secret = secret_hdf5(folder)
    for _ in range(changes):
        spoil_hdf5(random, path, secret)
    try:
        told = read(files)
    except Exception:  # noqa: BLE001 - of which values no reading is known
        return Truth(known=False)
    return Truth([(one, bool(changes)) for one in told], changed=bool(changes))


def _hdf5_episodes(files: list[Path]) -> list[Leaves]:
    import h5py

    parts: dict[str, list[Any]] = {}
    for path in files:
        with h5py.File(path) as file:
            for name in ("observation", "action", "reward", "discount", "step_type"):
                parts.setdefault(name, []).append(file[name][()])
    whole = {name: np.concatenate(column) for name, column in parts.items()}
    starts = [*np.flatnonzero(whole["step_type"].reshape(-1) == 0), len(whole["step_type"])]
    cut = [{k: v[a:b] for k, v in whole.items()} for a, b in pairwise(starts)]
    return [_vd4rl_leaves({**rows, "image": rows["observation"]}) for rows in cut]


def _make_roboset(random: Random, folder: Path) -> Truth:
    files = []
    for seed in random.sample((0, 2, 10), random.randint(1, 2)):
        numbers = random.sample(range(12), random.randint(1, 3))
        trials = {
            f"Trial{n}": toy_trial(seed, n, random.randint(2, 5), old=random.random() < 0.1)
            for n in numbers
        }
        files.append(write_trials(folder / "in" / f"toy_seed{seed}.h5", trials))
    return after_hdf5(random, folder, files, _trials)


def _trials(files: list[Path]) -> list[Leaves]:
    import h5py

    found: list[Leaves] = []
    for path in sorted(files, key=lambda p: int(p.stem.removeprefix("toy_seed"))):
        with h5py.File(path) as file:
            names = [n for n in file if re.fullmatch("Trial[0-9]+", n)]
            for name in sorted(names, key=lambda one: int(one[5:])):
                read = {key: file[name][key][()] for key in ("observations", "actions", "rewards")}
                found.append(
                    {
                        ("observation",): read["observations"],
                        ("action",): read["actions"][:-1],
                        _REWARD: read["rewards"][1:],
                        ("episodes", "trial"): int(name[5:]),
                    }
                )
    return found


def _make_robomimic(random: Random, folder: Path) -> Truth:
    numbers = random.sample(range(12), random.randint(1, 3))
    kind = random.choice(("toy", "toy", "isaac", "libero"))
    demos: dict[int, dict[str, Any]] = {}
    whole = random.random() < 0.5
    for n in numbers:
        rows = random.randint(2, 5)
        if kind == "toy":
            demos[n] = toy_demo(n, rows, next_obs=whole)
        elif kind == "isaac":
            demos[n] = isaac_demo(n, rows, success=random.random() < 0.5)
        else:
            demos[n] = libero_demo(n, 30 + rows, raw=True)
    masks = {"train": numbers[:1]} if random.random() < 0.5 else {}
    path = write_demos(folder / "in.hdf5", demos, masks)
    return after_hdf5(random, folder, [path], _demos)


def _demos(files: list[Path]) -> list[Leaves]:
    """Read demonstrations by h5py; those of which only some next_obs were changed are cut."""
    import h5py

    found: list[Leaves] = []
    with h5py.File(files[0]) as file:
        names = [name for name in file["data"] if re.fullmatch("demo_[0-9]{1,9}", name)]
        for name in sorted(names, key=lambda one: int(one[5:])):
            group = file["data"][name]
            told: Leaves = {("action",): group["actions"][()], ("episodes", "demo"): int(name[5:])}
            if "rewards" in group:
                told[_REWARD] = group["rewards"][()]
            if "obs/ee_states" in group:
                told = {
                    key: value if key[0] == "episodes" else value[1:] for key, value in told.items()
                }
            for key in ("object", "joint_states"):
                if f"obs/{key}" in group:
                    told["observation", key] = group[f"obs/{key}"][()]
            _next_obs_are_the_rows_after(group)
            found.append(told)
    return found


def _next_obs_are_the_rows_after(group: Any) -> None:
    """Raise if a demonstration is cut, or has a next_obs that cannot be compared."""
    for key in ("object", "gripper", "image"):
        if f"next_obs/{key}" in group:
            after, before = group[f"next_obs/{key}"][()], group[f"obs/{key}"][()]
            np.testing.assert_array_equal(after[:-1], before[1:])


# ---- OpenML ------------------------------------------------------------------------------------

_CELLS: dict[str, Any] = {
    "1e3": 1000.0, " 7 ": 7.0, "+5": 5.0, "-.5": -0.5, "?": math.nan, "0x10": None, "1_0": None, "٣": None,
    "": None, "'": None, "1 2": None, "{0 1}": None, "'9'": 9.0, '"8"': 8.0, "%3": None, "9" * 400: None,
}  # fmt: skip
"""Words in the place of a number, and the number that they are; None: an error or any."""


def _make_openml(random: Random, folder: Path) -> Truth:
    rows, toy = (n := random.randint(2, 23)), toy_table(n)
    what = random.choice(
        ("none", "cell", "cell", "line", "header", "bytes", "json", "json", "parquet", "parquet")
    )
    toy.write(folder / "in", sparse=what in {"none", "bytes"} and random.random() < 0.3)
    path = folder / "in" / "data.arff"
    width: Any = list(toy.values("width"))
    truth = Truth(changed=what != "none", facts={"width": width})
    lines = path.read_text().split("\n")
    first = lines.index("% the rows") + 1
    at = random.randrange(rows)
    if what == "cell":
        cell = random.choice(sorted(_CELLS))
        words = lines[first + at].split(",")
        words[1] = cell
        lines[first + at] = ",".join(words)
        width[at] = _CELLS[cell]
    elif what == "line":
        row = lines[first + at]
        odd = (
            row + ",1",
            row[: random.randrange(1, len(row))],
            "{0 1",
            "'",
            "\0",
            "\u2028",
            "{99 1}",
            "%" + row,
        )
        lines[first + at] = random.choice(odd)
        truth.known = False
    elif what == "header":
        place = random.randrange(first - 1)
        headers = (
            "@attribute x {a,a}", "@attribute width real", "@attribute '../x' string", "@data", "", "@attribute",
            "@attribute x relational", "@attribute x {", "@relation", "x" * 999, "@ATTRIBUTE x date 'y'",
        )  # fmt: skip
        lines[place] = random.choice(headers)
        truth.known = False
    if what in {"cell", "line", "header"}:
        path.write_text("\n".join(lines))
    elif what == "bytes":
        _spoil(random, path)
        truth.known = False
    elif what == "json":
        spoil_json_file(random, folder / "in" / "description.json")
        truth.facts["moved"] = True
    elif what == "parquet":
        path.unlink()
        _parquet(random, folder / "in" / "data.pq", toy, truth)
    return truth


def _parquet(random: Random, path: Path, toy: Any, truth: Truth) -> None:
    """Write a table with a column of an odd type, or with bytes changed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    toy.parquet(path)
    if random.random() < 0.5:
        _spoil(random, path, 64)
        data = path.read_bytes()
        if random.random() < 0.5:  # most of what is to be parsed is at the end
            path.write_bytes(data[:-600] + spoil_bytes(random, data[-600:]))
        truth.known = False
        return
    table, n = pq.read_table(path), toy.rows
    odd = [
        pa.array([[1.0, 2.0]] * n), pa.array([{"a": 1, "b": "x"}] * n), pa.array([None] * n), pa.array([b"\xff"] * n),
        pa.array([1] * n, pa.timestamp("ns")), pa.array([2**60] * n), pa.array([True, None] * n)[:n],
        pa.array([[]] * n, pa.list_(pa.int8())), pa.array(["x"] * n, pa.large_string()), pa.array([2**64 - 1] * n, pa.uint64()),
        pa.array([1] * n, pa.decimal128(9, 2)), pa.array([5] * n).dictionary_encode(), pa.array([1.5] * n, pa.float16()),
        pa.array(["x", None] * n)[:n].dictionary_encode(), pa.array([1] * n, pa.duration("s")),
    ]  # fmt: skip
    name = random.choice(("more", "width", "a.b", "../x", "", "class ", "é" * 90))
    pq.write_table(table.append_column(name, random.choice(odd)), path, row_group_size=3)
    truth.known = name == "more"


def _check_openml(truth: Truth, stored: Stored, *, skip: bool) -> str | None:
    """Compare a column of numbers, whose place a changed description may change."""
    x, width = stored.before.get(("X",), stored.steps.get(("X",))), truth.facts["width"]
    if x is None or len(x) != len(width):
        gone = [w for w in width if w is None]
        if skip and x is not None and len(x) == len(width) - len(gone):
            width = [w for w in width if w is not None]
        elif truth.facts.get("moved"):
            return None
        else:
            return f"X has {None if x is None else len(x)} rows, expected {len(width)}"
    told = [n for n, w in enumerate(width) if w is not None]
    want = np.array([width[n] for n in told])
    columns = [x[told, c] for c in range(x.shape[1])]
    if truth.facts.get("moved") or any(np.array_equal(c, want, equal_nan=True) for c in columns):
        return None
    return f"no column of X is {want}: {x!r:.300}"


# ---- text --------------------------------------------------------------------------------------

_TEXTS = ("the cat sat", "a dog,\n barked", " ", "why?", 'the "moon"', "ünï😀", "x" * 300)


def _make_text(random: Random, folder: Path) -> Truth:
    """A file of texts in any format, some of which are none; or a file, or a tokenizer, with changes."""
    write_tokenizer(folder)
    suffix = random.choice(
        (".jsonl", ".json", ".csv", ".tsv", ".txt", ".parquet", ".arrow", ".jsonl.gz")
    )
    what = random.choice(("none", "cell", "cell", "bytes", "bytes", "line", "tokenizer"))
    texts: list[Any] = [random.choice(_TEXTS) for _ in range(random.randint(1, 20))]
    if what == "cell" and suffix.startswith(".json"):
        texts[random.randrange(len(texts))] = random.choice((*NASTY, None, "", "\0"))
    elif what == "cell":
        texts[random.randrange(len(texts))] = random.choice(("", "a\0b", "\u2028", "'", "é" * 9000))
    if suffix == ".txt":
        texts = [text.replace("\n", " ") for text in texts]
    path = folder / f"in{suffix}"
    _write_texts(path, texts)
    truth = Truth(known=what in {"none", "cell"}, changed=what != "none", facts=texts)
    if what == "bytes":
        path.write_bytes(spoil_bytes(random, path.read_bytes(), head=64))
    elif what == "line" and suffix not in {".parquet", ".arrow"}:
        odd = (
            b"\xff\xfe",
            b"{",
            b'{"text": 1',
            b"[" * 5000,
            b'"',
            b"\0",
            b"a,b,c",
            b"9" * 5000,
            b'{"text": "\\ud800"}',
        )
        data = path.read_bytes()
        at = random.randrange(len(data) + 1)
        path.write_bytes(data[:at] + b"\n" + random.choice(odd) + b"\n" + data[at:])
    elif what == "tokenizer":
        spoil_json_file(random, folder / "tokenizer.json")
    return truth


def _write_texts(path: Path, texts: list[Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": texts}), path, row_group_size=3)
    elif path.suffix == ".arrow":
        table = pa.table({"text": texts})
        with pa.ipc.new_stream(str(path), table.schema) as sink:
            sink.write_table(table)
    elif path.suffix in {".csv", ".tsv"}:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerows([["text", "n"], *([text, n] for n, text in enumerate(texts))])
    elif path.suffix == ".txt":
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", newline="\n")
    else:
        rows = [json.dumps({"text": text}) for text in texts]
        whole = f"[{','.join(rows)}]" if path.suffix == ".json" else "\n".join(rows)
        data = whole.encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def _check_text(truth: Truth, stored: Stored, *, skip: bool) -> str | None:
    """Compare all tokens with those of the texts that are text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(train_tokenizer().to_str())
    bad = [text for text in truth.facts if not isinstance(text, str | None)]
    if bad and not skip:
        return f"{bad!r:.100} is not text, and was not refused"
    texts = [text for text in truth.facts if isinstance(text, str)]
    with suppress(UnicodeEncodeError, TypeError):
        expected = [token for text in texts for token in tokenizer.encode(text).ids]
        found = stored.steps["input_ids",].tolist()
        return None if found == expected else f"tokens {found!r:.200}, expected {expected!r:.200}"
    return None if skip else "a lone surrogate was not refused"


_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": "<|end|>",
    "pad_token": "<|end|>",
    "model_max_length": 1000,
    "clean_up_tokenization_spaces": False,
    "added_tokens_decoder": {
        "0": {"content": "<|end|>", "lstrip": False, "normalized": False, "rstrip": False,
              "single_word": False, "special": True},
    },
}  # fmt: skip


def _make_tokenizer(random: Random, folder: Path) -> Truth:
    """Texts or conversations, and the folder of a tokenizer of which a file is changed."""
    place = folder / "tok"
    place.mkdir()
    before = write_tokenizer(place).read_bytes()
    (place / "tokenizer_config.json").write_text(json.dumps(_CONFIG))
    (place / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    (place / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    texts = [random.choice(_TEXTS[:2] + _TEXTS[3:6]) for _ in range(random.randint(1, 9))]
    chat = random.random() < 0.4
    rows: list[Any] = [{"text": text} for text in texts]
    if chat:
        rows = [{"messages": [{"role": "user", "content": text}]} for text in texts]
        texts = [f"<|user|>{text}<|end|>" for text in texts]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    what = random.choice(("none", "config", "config", "file", "file", "template"))
    if what == "config":
        spoil_json_file(random, place / "tokenizer_config.json")
    elif what == "file":
        path = random.choice(sorted(place.iterdir()))
        if path.suffix == ".json" and random.random() < 0.7:
            spoil_json_file(random, path)
        else:
            _spoil(random, path)
    elif what == "template":
        (place / "chat_template.jinja").write_text(random.choice(_TEMPLATES))
    same = (place / "chat_template.jinja").read_bytes() == CHAT_TEMPLATE.encode() or not chat
    whole = (place / "tokenizer.json").read_bytes() == before
    return Truth(known=same and whole, changed=what != "none", facts=texts)


_TEMPLATES = (
    "", "{{", "{% for %}", "{{ messages[99] }}", "{{ 1 / 0 }}", "{{ raise_exception('\x1b[2J') }}",
    "{{ messages.__class__.__mro__ }}", "{{ ''.__class__.__base__.__subclasses__() }}",
    "{% include '/etc/passwd' %}", "{{ 'x' * 300000000 }}", "{{ messages | tojson }}\x9b",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ [1] * 10 ** 9 }}", "{{ 9 ** 9 ** 9 }}",
)  # fmt: skip


def _check_tokenizer(truth: Truth, stored: Stored, *, skip: bool) -> str | None:
    """Compare the tokens of each document, to all of which the same token may be appended."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(train_tokenizer().to_str())
    ids = stored.steps["input_ids",].tolist()
    ends = np.cumsum(stored.episodes["length",]).tolist()
    found = [ids[a:b] for a, b in pairwise([0, *ends])]
    expected = [tokenizer.encode(text).ids for text in truth.facts]
    appended = [[], [found[0][-1]], [0]] if found else [[]]
    if skip or any(found == [one + end for one in expected] for end in appended):
        return None
    return f"tokens {found!r:.200}, expected {expected!r:.200}"


SOURCE_KINDS = (
    source_kind("rlds", "openx", _make_rlds),
    source_kind("webdataset", "openx", _make_webdataset),
    source_kind("atari", "atari_dqn", _make_atari, _check_atari),
    source_kind("gendgrl", "gen_dgrl", _make_gendgrl),
    source_kind("vd4rl", "vd4rl", _make_vd4rl),
    source_kind("ogbench", "ogbench", _make_ogbench),
    source_kind("robomimic", "robomimic", _make_robomimic),
    source_kind("roboset", "roboset", _make_roboset),
    source_kind("openml", "openml", _make_openml, _check_openml),
    source_kind("text", "text", _make_text, _check_text, ("--tokenizer", "case/tokenizer.json")),
    source_kind(
        "tokenizer", "text", _make_tokenizer, _check_tokenizer, ("--tokenizer", "case/tok")
    ),
)
