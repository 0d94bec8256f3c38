"""Hostile manifests, plans and recipes; those that say the same in another form give the same data."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from offline_data.testing.toy import toy_batch, write_toy
from tests.fuzz.cases import (
    MADE_OR_NOT,
    ROOT,
    VERIFY,
    generator,
    plan_of_case,
    run_quietly,
    spoil_file,
)
from tests.fuzz.disk import Stored, read_dataset
from tests.fuzz.harness import EXIT_CODES, Kind, Plan
from tests.fuzz.manifest_variants import store_manifest, variants
from tests.fuzz.mutations import NASTY, spoil_bytes, spoil_json_file


def rewritten(random: Random, value: Any, unknown: Any = ()) -> str:
    """Return JSON of the same values: other white space, order of keys, escapes, unknown keys.

    Args:
        random: The generator.
        value: A JSON value.
        unknown: Objects in it that get a key which no version knows; changed in place.
    """
    for held in unknown:
        if random.random() < 0.5:
            new = [one for one in NASTY if _is_plain(one)]
            held[random.choice(("x-future", "ünï", "zz", "_"))] = random.choice(new)
    value = _ordered(random, value, shuffle=random.random() < 0.7)
    ascii_only, indent = random.random() < 0.5, random.choice((None, 0, 1, 7, "\t"))
    separators = random.choice((None, (",", ":"), (" ,\r\n ", "\t: ")))
    return json.dumps(value, indent=indent, separators=separators, ensure_ascii=ascii_only)


def _is_plain(value: Any) -> bool:
    """Return True for what strict JSON can say: no NaN, no surrogate, not too deep."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        return bool(text.encode()) and len(text) < 150
    except ValueError:
        return False


def _ordered(random: Random, value: Any, *, shuffle: bool) -> Any:
    """Return a copy whose objects have their keys in another order; the digest of a file is last."""
    if isinstance(value, list):
        return [_ordered(random, one, shuffle=shuffle) for one in value]
    if not isinstance(value, dict):
        return value
    keys = random.sample(list(value), len(value)) if shuffle else list(value)
    keys.sort(key="sha256".__eq__)
    return {key: _ordered(random, value[key], shuffle=shuffle) for key in keys}


def differ(found: Stored, expected: Stored) -> str | None:
    """Name the first leaf of two datasets that is not the same, or None."""
    for part in Stored._fields:
        here, there = getattr(found, part), getattr(expected, part)
        if here.keys() != there.keys():
            return f"{part} has {sorted(here)}, expected {sorted(there)}"
        for key, values in here.items():
            want = there[key]
            if values.dtype != want.dtype or not np.array_equal(values, want):
                return f"{part} {'/'.join(key)} is {values!r:.200}, expected {want!r:.200}"
    return None


# ---- manifests -------------------------------------------------------------------------------


def prepare_manifest(seed: int, folder: Path) -> Plan:
    """A dataset directory of which one or two files lie, or whose manifest has another form."""
    random = generator("manifest", seed)
    layout: Any = random.choice(("compact", "ted"))
    dataset = folder / "root" / "local" / "x" / "r"
    batches = [toy_batch([3, 1, 4], text=True, images=random.random() < 0.3, unknown_final=(1,))]
    write_toy(dataset, batches, layout=layout)
    shutil.copytree(dataset, folder.parent / "truth")
    whole = _bytes_of(dataset)
    how = random.choice(("designed", "designed", "spoiled", "spoiled", "rewritten"))
    if how == "designed":
        _, mutate = next(variants(np.random.default_rng(seed)))
        with suppress(OSError):  # files of a terabyte are over this process's limit
            mutate(dataset)
    elif how == "rewritten":
        path = dataset / "manifest.json"
        value = json.loads(path.read_text())
        tables = value["schema"].values()
        objects = [value, *tables, *(leaf for table in tables for leaf in table["leaves"])]
        value["sha256"] = "0" * 64
        store_manifest(dataset, rewritten(random, value, objects))
    for _ in range(random.choice((1, 1, 2)) if how == "spoiled" else 0):
        files = sorted(p for p in dataset.rglob("*") if p.is_file())
        path = random.choice([dataset / "manifest.json", dataset / "manifest.json", *files])
        if path.suffix == ".json":
            spoil_json_file(random, path)
        else:
            spoil_file(random, path)
    changed = how == "spoiled" and _bytes_of(dataset) != whole
    found = frozenset({3, 5}) if changed else frozenset({0})
    at = str(dataset.relative_to(folder.parent))
    looks = (
        ("head", at, "-n", "3", "--json"), ("info", at), ("list",), ("stats", at),
        ("sample", at, "--batch", "8"), ("convert", at, "again"),
    )  # fmt: skip
    commands = (("verify", at), *(looks if how == "rewritten" else random.sample(looks, 2)))
    codes = [frozenset({0, 3, 4, 5}) if how == "designed" else found]  # a true digest may lie
    if how == "rewritten":
        codes *= len(commands)
    lines = tuple((*line, *ROOT) for line in commands)
    return Plan(lines, tuple(codes), publishes=False)


def _bytes_of(dataset: Path) -> dict[str, bytes]:
    files = (p for p in dataset.rglob("*") if p.is_file())
    return {str(p.relative_to(dataset)): p.read_bytes() for p in files}


_DESCRIBE = ("layout", "counts", "schema", "digests")
"""Fields of a manifest that say which values a dataset has; digests, of which bytes."""


def check_manifest(folder: Path, plan: Plan, codes: list[int | None]) -> str | None:
    """Compare what was shown and copied with the dataset, where the manifest describes the same."""
    dataset, whole = folder / "case/root/local/x/r", folder / "truth"
    if not _describes_the_same(dataset, whole):
        return None
    truth = read_dataset(whole)
    for number, (line, code) in enumerate(zip(plan.commands, codes, strict=True)):
        if code == 0 and line[0] == "convert":
            (made,) = (folder / "case/root/local/again").glob("*/manifest.json")
            if problem := differ(read_dataset(made.parent), truth):
                return f"{' '.join(line)}: {problem}"
        elif code == 0 and line[0] == "head":
            rows = json.loads((folder / f"run{number}" / "out").read_text())
            found = [row["values"]["observation/state"] for row in rows]
            if found != truth.before["observation", "state"][:3].tolist():
                return f"{' '.join(line)} shows {found}"
    return None


def _describes_the_same(dataset: Path, whole: Path) -> bool:
    """Return True if a changed dataset directory has the data files and the schema of the whole one."""
    try:
        here, there = (json.loads(_plain_bytes(d / "manifest.json")) for d in (dataset, whole))
        if any(here[name] != there[name] for name in _DESCRIBE):
            return False
        files = [name for name in there["digests"] if not name.endswith("meta.json")]
        return all(_plain_bytes(dataset / f) == _plain_bytes(whole / f) for f in files)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError):
        return False


def _plain_bytes(path: Path) -> bytes:
    """Read a plain file; to open a FIFO would hang."""
    if not path.is_file():
        raise FileNotFoundError(path)
    return path.read_bytes()


# ---- plans and recipes -----------------------------------------------------------------------


def prepare_plan(seed: int, folder: Path) -> Plan:
    """The plan that machines share, changed before a worker reads it, or while one has worked."""
    random = generator("plan", seed)
    write_toy(folder / "root" / "local" / "x" / "r", [toy_batch([3, 1, 4])])
    file = "case/root/plan.json"
    make = ("preprocess", "local:x", "--step", "clip:action,low=-2001.5,high=1", "--out", "y",
            "--chunk-rows", "3", "--plan-only", "--plan", file)  # fmt: skip
    share = ("worker", "--plan", file, "--rank", "0", "--world", "1")
    how = random.choice(("none", "rewritten", "rewritten", *("spoiled",) * 5))
    codes = (frozenset({0}), EXIT_CODES if how == "spoiled" else frozenset({0}), frozenset({0}))
    lines = ((*make, *ROOT), (*share, *ROOT), VERIFY)
    return Plan(lines, codes, publishes=False, facts={"how": how, "seed": seed})


def run_plan(folder: Path, number: int, line: tuple[str, ...]) -> int:
    """Plan; then run the share of a plan that has been changed."""
    facts = plan_of_case(folder).facts
    file, random = folder / "case/root/plan.json", generator("plan-file", facts["seed"])
    if number == 1 and facts["how"] == "spoiled":
        spoil_json_file(random, file)
    elif number == 1 and facts["how"] == "rewritten":
        value = json.loads(file.read_text())
        file.write_text(rewritten(random, value, [value, *value["stages"]]), encoding="utf-8")
    return run_quietly(folder, number, line)


def check_plan(folder: Path, plan: Plan, codes: list[int | None]) -> str | None:
    """Compare the dataset that a plan made, whatever it said, with the one that was asked for."""
    made = [p for p in (folder / "case").rglob("manifest.json") if not _is_input(p)]
    if not made:
        right = codes[1] != 0 or plan.facts["how"] == "spoiled"
        return None if right else "the plan made no dataset"
    truth = read_dataset(folder / "case/root/local/x/r")
    truth.steps["action",] = np.clip(truth.steps["action",], np.float32(-2001.5), np.float32(1))
    return differ(read_dataset(made[0].parent), truth)


def _is_input(manifest: Path) -> bool:
    return manifest.parts[-3:-1] == ("x", "r") or ".staging" in manifest.parts


_WORDS = (
    "", ",", "=", ":", "action", "observation", "observation.state", "next.reward", "nowhere", "low=-1", "high=1",
    "high=nan", "low=1e400", "dtype=object", "=3", "a=b=c", "height=0", "height=-3,width=9999999999", "64", "84",
    "\udcff", "é", "a→b", "return > 1", "return >", "().__class__", "__import__('os')", "length ** 9 ** 9",
    "1/0 > return", "x" * 400, "[" * 300, "eps=0", "gamma=2", "scale=inf", "format=hwc", "mode=area", "n=1",
)  # fmt: skip


_STATE = ("observation", "state")


def _clipped(data: Stored) -> None:
    data.steps["action",] = np.clip(data.steps["action",], np.float32(-2001.5), np.float32(-1002))


def _cast(data: Stored) -> None:
    for rows in (data.before, data.after):
        rows[_STATE] = rows[_STATE].astype(np.float64)


def _renamed(data: Stored) -> None:
    for rows in (data.before, data.after):
        rows["info", "number"] = rows.pop(("info", "code"))


def _scaled(data: Stored) -> None:
    data.steps["next", "reward"] *= 0.5


def _shifted(data: Stored) -> None:
    data.steps["next", "reward"] -= 3


_SOUND = (
    ("clip", ("action",), ("low=-2001.5", "high=-1002"), _clipped),
    ("clip", (), ("low=-2001.5", "keys=action", "high=-1.002e3"), _clipped),
    ("cast", (), ("observation.state=float64",), _cast),
    ("cast", (), ("observation/state=float64",), _cast),
    ("rename", (), ("info.code=info.number",), _renamed),
    ("reward_scale", ("0.5",), (), _scaled),
    ("reward_scale", (), ("scale=5e-1",), _scaled),
    ("reward_shift", ("-3",), (), _shifted),
)
"""Steps: name, arguments in this order, arguments in any order, what the step does in numpy."""


def prepare_recipe(seed: int, folder: Path) -> Plan:
    """A recipe of steps with any arguments, or of sound ones written in another form."""
    from offline_data.pipeline.preprocess.steps.registry import step_names

    random = generator("recipe", seed)
    batch = toy_batch([3, 1, 4], text=random.random() < 0.3, images=random.random() < 0.5)
    write_toy(folder / "root" / "local" / "x" / "r", [batch])
    steps: list[str] = []
    sound: list[int] = []
    if random.random() < 0.4:
        chosen = random.sample(range(len(_SOUND)), random.randint(1, 4))
        names = [_SOUND[number][0] for number in chosen]
        sound = [n for place, n in enumerate(chosen) if names.index(_SOUND[n][0]) == place]
    for number in sound:
        name, first, others, _ = _SOUND[number]
        words = [*first, *random.sample(others, len(others))]
        text = f"{_space(random)},{_space(random)}".join(words)
        steps += ["--step", f"{name}{_space(random)}:{_space(random)}{text}{_space(random)}"]
    for _ in range(0 if sound else random.choice((1, 1, 2))):
        words = random.choices(_WORDS, k=random.randrange(4))
        steps += ["--step", ":".join([random.choice(step_names()), ",".join(words)])]
    line = ("preprocess", "local:x", *steps, "--out", "y", *ROOT)
    looked = ("verify", "local:y", *ROOT)
    codes = (frozenset({0}),) * 2 if sound else (EXIT_CODES, MADE_OR_NOT)
    return Plan((line, looked), codes, publishes=False, facts={"sound": sound})


def _space(random: Random) -> str:
    return random.choice(("", "", " ", "  ", "\t", "\n"))


def check_recipe(folder: Path, plan: Plan, _codes: list[int | None]) -> str | None:
    """Compare the dataset that sound steps made with what they do in numpy."""
    if not plan.facts["sound"]:
        return None
    expected = read_dataset(folder / "case/root/local/x/r")
    for number in plan.facts["sound"]:
        _SOUND[number][3](expected)
    (made,) = (folder / "case/root/local/y").glob("*/manifest.json")
    found = read_dataset(made.parent)
    for data in (found, expected):  # the sum of the rewards
        data.episodes.pop(("return",))
    return differ(found, expected)


# ---- files of labels -------------------------------------------------------------------------

_CELLS = (
    "", "0", "2", "-1", "1.5", "1e308", "9" * 400, "9" * 20, "nan", "true", "a\0b", '"', '""', "'", "é", "\ufeff",
    "=1+1", "x" * 70_000, "\r", "0x10", "1_000", " 1",
)  # fmt: skip
_LABELS = (
    "episode", "step", "success", "task", "return", "length", "id", "next.reward", "observation", "a/b", "", "..",
    "observation.state", "next.terminated", "action", "terminated", "\x1b[31m", "a.b", "a.b.c", "mask.train",
)  # fmt: skip


def prepare_label(seed: int, folder: Path) -> Plan:
    """Labels of all episodes or rows of a dataset, in a file of odd columns, cells or bytes."""
    random = generator("label", seed)
    lengths = (3, 1, 4)
    write_toy(folder / "root" / "local" / "x" / "r", [toy_batch(lengths, text=True)])
    per_row = random.random() < 0.5
    places = [
        (e, row) for e, length in enumerate(lengths) for row in range(length if per_row else 1)
    ]
    episode, step = np.array(places).T
    count = len(places)
    columns: dict[str, Any] = {"episode": episode, **({"step": step} if per_row else {})}
    columns["advantage"] = np.arange(count) * 0.5
    odd = (
        np.arange(count), np.arange(count) % 2 == 0, np.array(["é"] * count), np.ones((count, 2)),
        np.array([None] * count, object), np.full(count, 2**63, np.uint64), np.full(count, np.nan),
        np.zeros(count, "M8[ns]"), np.zeros(count, "c16"), np.zeros((count, 0)), np.zeros(0),
        np.array(["x"] * count, "S9"), np.zeros(count, [("a", "f4")]), episode + 2**40, episode - 1,
    )  # fmt: skip
    how = random.choice(("none", "columns", "columns", "columns", "bytes", "cells"))
    for _ in range(random.choice((1, 1, 2)) if how == "columns" else 0):
        columns[random.choice(_LABELS)] = random.choice(odd)
    suffix = "csv" if how == "cells" else random.choice(("csv", "npz", "parquet", "h5"))
    path = folder / f"in.{suffix}"
    _write_labels(path, columns, random.choice(_CELLS) if how == "cells" else None, random)
    if how == "bytes":
        path.write_bytes(spoil_bytes(random, path.read_bytes(), head=512))
    by = random.choice(("", "", ",by=id", ",by=length", ",by=return")) if how == "columns" else ""
    line = ("preprocess", "local:x", "--step", f"label:case/in.{suffix}{by}", "--out", "y", *ROOT)
    codes = frozenset({0}) if how == "none" else EXIT_CODES
    return Plan((line, ("verify", "local:y", *ROOT)), (codes, MADE_OR_NOT), publishes=False)


def _write_labels(path: Path, columns: Any, cell: str | None, random: Random) -> None:
    import h5py
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix == ".npz":
        np.savez(
            path, **{name.replace("/", "_") or "_": column for name, column in columns.items()}
        )
    elif path.suffix == ".parquet":
        with suppress(pa.ArrowException):  # columns of several lengths, or odd types
            pq.write_table(
                pa.table(
                    {k: pa.array(list(c) if c.ndim < 2 else c.tolist()) for k, c in columns.items()}
                ),
                path,
            )
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            for name, column in columns.items():
                odd = column.dtype.kind in "UOM"
                plain = np.array([str(cell).encode() for cell in column]) if odd else column
                with suppress(ValueError):  # a name that is a group
                    file[name or "_"] = plain
    else:
        names = list(columns)
        lines = [[str(name) for name in names]]
        lines += [
            [
                str(c.reshape(len(c), -1)[at].tolist()) if at < len(c) else ""
                for c in columns.values()
            ]
            for at in range(len(columns["episode"]))
        ]
        lines = [[text.strip("[]") for text in line] for line in lines]
        if cell is not None:
            random.choice(lines)[random.randrange(len(names))] = cell
        path.write_text("\n".join(map(",".join, lines)), encoding="utf-8")


DESCRIBED_KINDS = (
    Kind("manifest", prepare_manifest, check_manifest),
    Kind("plan", prepare_plan, check_plan, run_plan),
    Kind("recipe", prepare_recipe, check_recipe, run_quietly),
    Kind("label", prepare_label, run=run_quietly),
)
