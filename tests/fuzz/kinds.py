"""Families of hostile inputs: how a case is made of its seed, and what counts as right."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from offline_data.testing.toy import toy_batch, write_toy
from tests.fuzz.cases import (
    DONE_OR_REFUSED,
    MADE_OR_NOT,
    ROOT,
    VERIFY,
    generator,
    instead,
    loopback_only,
    one_thread,
    only_dataset,
    plan_of_case,
    refused,
    secret_hdf5,
    spoil_file,
)
from tests.fuzz.described_kinds import DESCRIBED_KINDS
from tests.fuzz.disk import Stored, read_dataset
from tests.fuzz.file_kinds import FILE_KINDS
from tests.fuzz.harness import PASSWORD, Kind, Plan, run_command
from tests.fuzz.hdf5_variants import D4RL, LEFT_OUT, LENGTH, MINARI, OTHERS, ROWS, SOUND
from tests.fuzz.hdf5_variants import SECRET as OTHER_NUMBER
from tests.fuzz.hdf5_variants import write_minari as write_hostile_minari
from tests.fuzz.hosted_kinds import HOSTED_KINDS
from tests.fuzz.http_variants import UNKNOWABLE, VARIANTS
from tests.fuzz.lerobot_kinds import LEROBOT_KINDS
from tests.fuzz.mutations import spoil_bytes, spoil_hdf5, spoil_json_file
from tests.fuzz.project_kinds import PROJECT_KINDS
from tests.fuzz.robot_kinds import ROBOT_KINDS
from tests.fuzz.source_kinds import SOURCE_KINDS
from tests.fuzz.staged_kinds import STAGED_KINDS
from tests.fuzz.state_kinds import STATE_KINDS
from tests.oracles import Transition
from tests.toys.d4rl import ToyD4RL, columns_of, write_d4rl_hdf5
from tests.toys.minari import STORAGES, box, discrete, toy_episode, write_minari

# ---- D4RL ------------------------------------------------------------------------------------


def _random_d4rl(random: Random, path: Path) -> None:
    """Write a legal D4RL file of a few episodes, in any storage and shape."""
    import h5py

    ends = ("terminal", "timeout", "both")
    count = random.randint(1, 5)
    episodes = [(random.randint(1, 9), random.choice(ends)) for _ in range(count)]
    if random.random() < 0.3:
        episodes[-1] = (episodes[-1][0], "none")
    toy = ToyD4RL(
        "door-human-v1",
        tuple(episodes),
        observation=random.choice(((5,), (1,), (3, 2))),
        action=random.choice(((2,), (1,))),
        next_observations=random.random() < 0.5,
        infos=(("qpos", (2,)),) if random.random() < 0.5 else (),
        flags=random.choice(("bool", "float32", "uint8")),
        as_columns=random.random() < 0.2,
        metadata=random.random() < 0.2,
    )
    rows = sum(length for length, _ in episodes)
    if random.random() < 0.2 and rows > 1:
        write_d4rl_hdf5(path, toy, pieces=tuple(range(1, rows)) if rows < 14 else (rows // 2,))
        return
    columns = columns_of(toy)
    if toy.next_observations and random.random() < 0.4:
        changed = [random.randrange(rows) for _ in range(random.randint(1, rows))]
        columns["next_observations"][changed] += 0.5
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            chunks = (random.randint(1, rows), *values.shape[1:]) if random.random() < 0.6 else None
            packed = "gzip" if chunks and random.random() < 0.8 else None
            file.create_dataset(name, data=values, chunks=chunks, compression=packed)


def _d4rl_plan(random: Random) -> Plan:
    layout = random.choice(("compact", "ted"))
    line = ("convert", "case/in.hdf5", "x", "--from", "d4rl", "--layout", layout)
    more = ("--keep-episodes",) if random.random() < 0.2 else ()
    commands = ((*line, *more, *ROOT), VERIFY)
    return Plan(commands, (DONE_OR_REFUSED, MADE_OR_NOT), facts={"keep": bool(more)})


def prepare_d4rl(seed: int, folder: Path) -> Plan:
    """A D4RL file with none to three structural changes."""
    random = generator("d4rl", seed)
    path = folder / "in.hdf5"
    _random_d4rl(random, path)
    secret = secret_hdf5(folder)
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        spoil_hdf5(random, path, secret)
    return _d4rl_plan(random)


def prepare_d4rl_bytes(seed: int, folder: Path) -> Plan:
    """A D4RL file with some bytes changed, most of them in the file's structure."""
    random = generator("d4rl-bytes", seed)
    path = folder / "in.hdf5"
    _random_d4rl(random, path)
    path.write_bytes(spoil_bytes(random, path.read_bytes(), head=2048))
    return _d4rl_plan(random)


def check_d4rl(folder: Path, plan: Plan, codes: list[int | None]) -> str | None:
    """Compare every transition with the oracle's."""
    if codes[0] != 0:
        return None
    from tests.oracles import d4rl_transitions

    path = folder / "case" / "in.hdf5"
    truth = d4rl_transitions(path, keep_episodes=plan.facts["keep"])
    return compare_d4rl(truth, read_dataset(only_dataset(folder)))


def compare_d4rl(truth: Sequence[Transition], stored: Stored) -> str | None:
    """Name the first value on disk that is not the file's own, or None."""
    before, after = stored.before[("observation",)], stored.after[("observation",)]
    if len(before) != len(truth):
        return f"{len(before)} transitions, expected {len(truth)}"
    outcome = ("reward", "terminated", "truncated")
    columns = {
        "observation": before,
        "action": stored.steps[("action",)],
        "next_observation": after,
        **{name: stored.steps["next", name][:, 0] for name in outcome},
        "known": _known(stored),
    }
    for row, expected in enumerate(truth):
        for name, column in columns.items():
            value = getattr(expected, name)
            if value is not None and not _same(column[row], value):
                return f"row {row}: {name} is {column[row]!r}, expected {value!r}"
    return None


def _known(stored: Stored) -> Any:
    """Return for each transition whether its next observation is known."""
    start, length = stored.episodes[("start",)], stored.episodes[("length",)]
    known = np.ones(int(length.sum()), bool)
    known[start + length - 1] = stored.episodes[("final_observation",)]
    return known


def _converted(found: Any, expected: Any) -> bool:
    """Return True for the same numbers in the type that the first episode has them in."""
    numbers = found.dtype.kind in "biuf" and expected.dtype.kind in "biuf"
    return numbers and found.shape == expected.shape and found.tolist() == expected.tolist()


def _same(found: Any, expected: Any) -> bool:
    """Return True if two arrays have the same type and values, NaN being equal to NaN."""
    one, other = np.asarray(found), np.asarray(expected)
    if one.dtype.newbyteorder("=") != other.dtype.newbyteorder("=") or one.shape != other.shape:
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))


def prepare_hdf5(seed: int, folder: Path) -> Plan:
    """One of the HDF5 files that are hostile by design, to the D4RL or the Minari reader."""
    names = [("d4rl", name) for name in D4RL] + [("minari", name) for name in MINARI]
    Random("hdf5").shuffle(names)
    source, name = names[seed % len(names)]
    random = generator("hdf5", seed)
    if source == "d4rl":
        D4RL[name](folder / "in.hdf5")
    else:
        write_hostile_minari(folder / "in", name)
    path = "case/in.hdf5" if source == "d4rl" else "case/in"
    layout = random.choice(("compact", "ted"))
    line = ("convert", path, "x", "--from", source, "--layout", layout, *ROOT)
    done = frozenset({0} if (source, name) in SOUND | LEFT_OUT else {5})
    files = layout == "ted" and name == "many_names_of_one_dataset"  # one for each name
    codes = DONE_OR_REFUSED if files or (source, name) in OTHERS else done
    return Plan((line, VERIFY), (codes, MADE_OR_NOT), facts={"twice": name == "episode_twice"})


def check_hdf5(folder: Path, plan: Plan, codes: list[int | None]) -> str | None:
    """Count the rows of what was made; no number of the files beside is in it."""
    if codes[0] != 0:
        return None
    dataset = only_dataset(folder)
    rows = json.loads((dataset / "manifest.json").read_text())["counts"]["transitions"]
    if rows != ROWS + LENGTH * plan.facts["twice"]:
        return f"{rows} transitions, expected {ROWS}"
    number = np.float64(OTHER_NUMBER).tobytes()
    leaks = [
        path.name for path in dataset.rglob("*") if path.is_file() and number in path.read_bytes()
    ]
    return f"{leaks} has a number of another file" if leaks else None


# ---- Minari ----------------------------------------------------------------------------------

_SPACES: tuple[dict[str, Any], ...] = (
    {},
    {"observation": box(4, dtype="float64")},
    {"observation": {"type": "Dict", "subspaces": {"a": box(2), "b": box(3, dtype="float64")}}},
    {"observation": {"type": "Tuple", "subspaces": [box(2), discrete()]}},
    {"observation": {"type": "Text"}, "action": discrete()},
    {"action": discrete()},
)


def _random_minari(random: Random, folder: Path, storage: str) -> None:
    spaces = random.choice(_SPACES)
    infos = {"success": discrete(), "position": box(2)} if random.random() < 0.5 else None
    episodes = [
        toy_episode(number, random.randint(1, 7), **spaces, info=infos, seed=number + 7)
        for number in range(random.randint(1, 4))
    ]
    write_minari(folder, episodes, storage, **spaces)


def prepare_minari(seed: int, folder: Path) -> Plan:
    """A Minari folder with changed metadata, structure or bytes, in every storage."""
    random = generator("minari", seed)
    storage = random.choice(STORAGES)
    _random_minari(random, folder / "in", storage)
    files = sorted(p for p in (folder / "in").rglob("*") if p.is_file())
    secret = secret_hdf5(folder)
    for _ in range(random.choice((0, 1, 1, 2))):
        path = random.choice(files)
        if path.is_file() and random.random() < 0.07:
            instead(random, path)
        elif path.suffix == ".json" and path.is_file():
            spoil_json_file(random, path)
        elif path.suffix == ".hdf5" and path.is_file() and random.random() < 0.7:
            spoil_hdf5(random, path, secret)
        else:
            spoil_file(random, path)
    line = ("convert", "case/in", "x", "--from", "minari", *ROOT)
    return Plan((line, VERIFY), (DONE_OR_REFUSED, MADE_OR_NOT))


def check_minari(folder: Path, _plan: Plan, codes: list[int | None]) -> str | None:
    """Compare every episode with the oracle's."""
    if codes[0] != 0:
        return None
    from tests.oracles_minari import minari_episodes

    dataset = only_dataset(folder)
    manifest = json.loads((dataset / "manifest.json").read_text())
    dropped = {leaf["key"].replace("_index_", "") for leaf in manifest["dropped"]}
    truth = minari_episodes(folder / "case" / "in")
    return compare_minari(truth, read_dataset(dataset), dropped, " ".join(manifest["notes"]))


NO_FIRST = "has no row before the first action"
FIRST_LEFT = "that row is left out"
MISSING = "is missing; it is"

_SECTIONS = {
    "observations": ("observation",),
    "infos": ("info",),
    "actions": ("action",),
    "rewards": ("next", "reward"),
    "terminations": ("next", "terminated"),
    "truncations": ("next", "truncated"),
}


def compare_minari(
    truth: Iterator[dict[str, Any]], stored: Stored, dropped: set[str], notes: str
) -> str | None:
    """Name the first leaf on disk that is not the source's own, or None.

    Infos of an episode may have a row before the first action where those of the first episode have
    none, or the other way round: a note says what became of it.
    """
    starts, lengths = stored.episodes[("start",)], stored.episodes[("length",)]
    episodes = list(truth)
    if len(episodes) != len(starts):
        return f"{len(starts)} episodes, expected {len(episodes)}"
    for number, leaves in enumerate(episodes):
        rows = slice(int(starts[number]), int(starts[number] + lengths[number]))
        for name, expected in leaves.items():
            section, *rest = name.split("/")
            key = (*_SECTIONS[section], *rest)
            if expected is None:
                if name not in dropped:
                    return f"episode {number}: {name} is too large, and not named as dropped"
                continue
            if section == "infos" and (np.ndim(expected) == 0 or not len(expected)):
                if name not in dropped and MISSING not in notes:
                    return f"episode {number}: {name} has no rows, and no note says so"
                continue
            if expected.dtype.kind == "S":
                expected = np.char.decode(expected).astype(object)
            if section == "infos" and key not in stored.before:  # those of actions only
                key = ("next", *key)
            if key in stored.before:
                last = stored.after[key][rows][-1:]
                found = np.concatenate([stored.before[key][rows], last])
                if section == "infos" and len(expected) == len(found) - 1 and NO_FIRST in notes:
                    found = found[1:]
                elif not stored.episodes[("final_observation",)][number]:
                    found = found[: len(expected)]
            elif key in stored.steps:
                found = stored.steps[key][rows]
                if section == "infos" and len(expected) == len(found) + 1 and FIRST_LEFT in notes:
                    expected = expected[1:]
            elif name in dropped:
                continue
            else:
                return f"episode {number}: {name} is neither kept nor named as dropped"
            if key in {_SECTIONS["rewards"], _SECTIONS["terminations"], _SECTIONS["truncations"]}:
                found = found[:, 0]
            if section in {"terminations", "truncations"}:
                expected = expected.astype(bool)  # of any type in the file
            if key == _SECTIONS["truncations"]:  # an episode without an end flag is truncated
                found, expected = found[:-1], expected[:-1]
            if not _same(found, expected) and not (number and _converted(found, expected)):
                return f"episode {number}: {name} is {found!r}, expected {expected!r}"
    return None


# ---- HTTP ------------------------------------------------------------------------------------

_SET = "bullet-hopper-medium-v0"  # one whose size is not published
_HOST = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
_PATH = "/bullet/bullet-hopper_medium.hdf5"
_QUICK = {"connect": 2.0, "read": 0.3, "tries": 2, "first_wait": 0.001, "longest_wait": 0.002,
          "longest_retry_after": 0.01, "unsized": 1 << 20}  # fmt: skip
"""Limits of fetching in the place of those for real hosts."""


def prepare_http(seed: int, folder: Path) -> Plan:
    """A host whose first answers are hostile, then right: the second run ends with the file."""
    random = generator("http", seed)
    path = folder / "in.hdf5"
    _random_d4rl(random, path)
    cut = random.random() < 0.6
    # After a cut the client asks for a range: a wrong answer to that must come next to be met.
    ranged = [name for name in sorted(VARIANTS) if name.startswith("206")]
    names = ranged if cut and random.random() < 0.7 else sorted(VARIANTS)
    faults = [random.choice(names) for _ in range(random.randint(1, 3))]
    line = ("download", f"d4rl:{_SET}", *ROOT)
    unsure = not UNKNOWABLE.isdisjoint(faults)
    codes = (frozenset({0, 5, 6, 7}), frozenset({0, 5} if unsure else {0}))
    facts = {"faults": faults, "cut": cut, "unsure": unsure, "keep": False}
    return Plan((line, line), codes, publishes=False, facts=facts)


def run_http(folder: Path, number: int, line: tuple[str, ...]) -> int:
    """Run a command beside a server that is hostile to the first one."""
    from offline_data.fetch.retry import FetchLimits
    from tests.toys.servers import Fault, FileServer

    given = {field.name: _QUICK.get(field.name, field.default) for field in fields(FetchLimits)}
    FetchLimits.__init__.__defaults__ = tuple(given.values())
    plan = plan_of_case(folder)
    content = (folder / "case" / "in.hdf5").read_bytes()
    with FileServer({_PATH: content}) as server:
        if number == 0:
            cut = [Fault(cut_after=len(content) // 2)] if plan.facts["cut"] else []
            faults = [Fault(wire=VARIANTS[name]) for name in plan.facts["faults"]]
            server.script(_PATH, *cut, *faults)
        address = server.url.replace("http://", f"http://user:{PASSWORD}@")
        os.environ["OFFLINE_DATA_MIRRORS"] = f"{_HOST}={address}"
        with loopback_only():
            return run_command(folder, number, line)


def check_http(folder: Path, plan: Plan, codes: list[int | None]) -> str | None:
    """Compare what the second run left, if it did."""
    from tests.oracles import d4rl_transitions

    if codes[1] != 0 or plan.facts["unsure"]:
        return None
    truth = d4rl_transitions(folder / "case" / "in.hdf5")
    return compare_d4rl(truth, read_dataset(only_dataset(folder)))


# ---- archives --------------------------------------------------------------------------------


def prepare_archive(seed: int, folder: Path) -> Plan:
    """A zip, tar, compressed file, `.npy`, `.npz` or pickle with some bytes changed."""
    random = generator("archive", seed)
    kind = random.choice(("zip", "tar", "tar.gz", "tar.xz", "gz", "npy", "npz", "pickle"))
    tree = {f"{n}/x{n}": random.randbytes(random.choice((0, 7, 600))) for n in range(3)}
    array = np.arange(24, dtype=random.choice(("f4", "i8", "u1", "f2"))).reshape(4, 6)
    hostile = kind in _HOSTILE and random.random() < 0.4
    if hostile:
        (folder / "in").write_bytes(_HOSTILE[kind](random))
        return Plan(((kind,),), (frozenset({5}),), publishes=False, facts={"kind": kind})
    content = _archive_of(kind, tree, array, random)
    spoiled = random.random() < 0.9
    data = spoil_bytes(random, content, head=600) if spoiled else content
    (folder / "in").write_bytes(data)
    hexed = {name: value.hex() for name, value in tree.items()}
    facts = {"kind": kind, "spoiled": spoiled, "tree": hexed, "array": array.tolist()}
    codes = frozenset({0, 5} if spoiled else {0})
    return Plan(((kind,),), (codes,), publishes=False, facts=facts)


def _archive_of(kind: str, tree: dict[str, bytes], array: Any, random: Random) -> bytes:
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w", random.choice((0, 8))) as new:
            for name, content in tree.items():
                new.writestr(name, content)
    elif kind.startswith("tar"):
        mode = {"tar": "w", "tar.gz": "w:gz", "tar.xz": "w:xz"}[kind]
        form = random.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))
        with tarfile.open(fileobj=out, mode=mode, format=form) as archive:  # type: ignore[call-overload]
            for name, content in tree.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    elif kind == "gz":
        return gzip.compress(b"".join(tree.values()))
    elif kind == "npy":
        np.save(out, array)
    elif kind == "npz":
        np.savez_compressed(out, a=array, b=array)
    else:
        values = {"steps": [{"a": array, "r": np.float32(1.5)}, (1, "x", b"y")], "tree": tree}
        return pickle.dumps(values, random.randrange(6))
    return out.getvalue()


_OUTSIDE = ("../x", "/x", "a/../../x", "..", "a/..")


def _hostile_tar(random: Random) -> bytes:
    """A tar with a member that leads out, is not a file, is there twice, or is too large."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("a/x")
        kind = random.choice(("name", "link", "hard", "fifo", "device", "twice", "large"))
        if kind == "name":
            info.name = random.choice(_OUTSIDE)
        elif kind in {"link", "hard"}:
            info.type = tarfile.SYMTYPE if kind == "link" else tarfile.LNKTYPE
            info.linkname = random.choice(("/etc/passwd", "../../secret.txt", "a/x", "."))
        elif kind == "fifo":
            info.type = tarfile.FIFOTYPE
        elif kind == "device":
            info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, 1, 5
        elif kind == "large":
            info.size = (1 << 20) + 1
        archive.addfile(info, io.BytesIO(bytes(info.size)))
        if kind == "twice":
            archive.addfile(info, io.BytesIO())
    return out.getvalue()


def _hostile_zip(random: Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", 8) as archive:
        kind = random.choice(("name", "link", "bomb"))
        info = zipfile.ZipInfo("a/x")
        if kind == "link":
            info.external_attr = 0o120777 << 16
        elif kind == "name":
            info.filename = random.choice(_OUTSIDE)
        archive.writestr(info, bytes(3 << 20 if kind == "bomb" else 3), 8)
    return out.getvalue()


class Call:
    """Pickled as a call of a function that no reader may call."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def __reduce__(self) -> Any:
        calls = (
            (os.system, ("touch case/root/made",)),
            (eval, ("open('case/root/made', 'w')",)),
            (Path.touch, (Path("case/root/made"),)),
            (exec, ("import os; os.mkdir('case/root/made')",)),
            (np.load, ("in",)),
        )
        return self.random.choice(calls)


_HOSTILE: dict[str, Callable[[Random], bytes]] = {
    "tar": _hostile_tar,
    "tar.gz": lambda random: gzip.compress(_hostile_tar(random)),
    "zip": _hostile_zip,
    "pickle": lambda random: pickle.dumps({"a": [Call(random)]}, random.randrange(6)),
}


def run_archive(folder: Path, _number: int, line: tuple[str, ...]) -> int:
    """Read the file as a source would; exit codes as those of a command."""
    from offline_data.base.errors import IntegrityError
    from offline_data.raw.archive import open_members
    from offline_data.raw.npy import open_npz, read_npy
    from offline_data.raw.restricted_pickle import loads

    path, (kind,) = folder / "case" / "in", line
    data = path.read_bytes()
    try:
        if kind == "npy":
            value: Any = read_npy(io.BytesIO(data), size=len(data), where="in").tolist()
        elif kind == "npz":
            with open_npz(path, budget=1 << 20) as arrays:
                value = {name: arrays[name].tolist() for name in arrays}
        elif kind == "pickle":
            value = str(type(loads(data, where="in")))
        else:
            value = {m.name: m.stream.read().hex() for m in open_members(path, budget=1 << 20)}
    except IntegrityError as error:
        return refused(error)
    (folder / "case" / "root").mkdir(exist_ok=True)
    (folder / "case" / "root" / "value.json").write_text(json.dumps(value))
    return 0


def check_archive(folder: Path, plan: Plan, codes: list[int | None]) -> str | None:
    """Compare contents where a checksum covers them, and bounds where none does."""
    made = sorted(p.name for p in (folder / "case" / "root").glob("*"))
    if codes[0] != 0:
        return f"left {made}" if made else None
    value = json.loads((folder / "case" / "root" / "value.json").read_text())
    kind, facts = plan.facts["kind"], plan.facts
    if not facts["spoiled"]:
        right: Any = {"npy": facts["array"], "npz": {"a": facts["array"], "b": facts["array"]}}
        right |= {"gz": {"in": "".join(facts["tree"].values())}, "pickle": "<class 'dict'>"}
        expected = right.get(kind, facts["tree"])
        return None if value == expected else f"{kind} gave {value!r:.200}"
    if kind in {"zip", "tar.gz", "tar.xz"}:
        odd = [v for v in value.values() if v not in facts["tree"].values()]
        return f"{kind} gave other contents: {odd!r:.200}" if odd else None
    return None


# ---- settings and plans ----------------------------------------------------------------------

_TOML = (
    "true", "-1", "0", "3", "1e400", "nan", "''", "'x'", "'~'", "'~nobody/x'", "[]", "[[1]]", "{}", "{a = 1}",
    "'/dev/null'", "'/dev/null/x'", "'a\\u0000b'", '"\\u0000"', "1979-05-27", f"'/{'x' * 300}'", f"{'9' * 5000}",
    "[" * 3000, "'case/root'", f"['http://u:{PASSWORD}@h/', 3]", f"'http://u:{PASSWORD}@h'", f"'/u:{PASSWORD}@h/'",
    f"'http://u:{PASSWORD}@[::1/'", f"'ftp://u:{PASSWORD}@h/'", f"{{u = 'http://u:{PASSWORD}@h'}}",
    "'hf://datasets/x/'", "'file:///dev/'", "'file://host/x/'",
)  # fmt: skip
_KEYS = (
    "root", "offline", "workers", "mirrors", "rooot", "mirrors.'http://a/'", "mirrors.'a'",
    "'mirrors'.\"\"", f"mirrors.'http://u:{PASSWORD}@a/'", f"mirrors.'u:{PASSWORD}@a'",
)  # fmt: skip
_MIRRORS = (
    "", "=", ";;=;", "http://a/", "http://a/=", f"http://a/=http://u:{PASSWORD}@h/",
    f"http://u:{PASSWORD}@a/=http://b/", f"http://a/=http://u:{PASSWORD}@h:99999/",
    f"a=u:{PASSWORD}@h", f"http://a/=http://u:{PASSWORD}@[h/", f"http://u:{PASSWORD}@h",
    f"http://a/=ftp://u:{PASSWORD}@h/", "http://a/=/dev/zero", "http://a/=/dev/", "http://a/=\udcff",
)  # fmt: skip
_PROXIES = (
    "foo://", "http://", f"http://u:{PASSWORD}@h:0", f"u:{PASSWORD}@h", "http://[::1", "\udcff",
)  # fmt: skip


def prepare_settings(seed: int, folder: Path) -> Plan:
    """A config file and variables of any content, or something that is not a file."""
    random = generator("settings", seed)
    path = folder / "config.toml"
    lines = [f"{random.choice(_KEYS)} = {random.choice(_TOML)}" for _ in range(random.randrange(4))]
    path.write_text("\n".join(lines))
    if random.random() < 0.2:
        instead(random, path)
    elif random.random() < 0.2:
        path.write_bytes(spoil_bytes(random, path.read_bytes()))
    write_toy(folder / "root" / "local" / "x" / "r", [toy_batch([3, 1])])
    given = {
        "OFFLINE_DATA_MIRRORS": random.choice(_MIRRORS),
        "OFFLINE_DATA_WORKERS": random.choice(("", "0", "-1", "x", "9" * 5000, "1.5", "\u0663")),
        "OFFLINE_DATA_OFFLINE": random.choice(("", "0", "1", "maybe")),
        "OFFLINE_DATA_HOME": random.choice(
            ("", "~nobody/x", "x" * 300, "/dev/null", "/dev/full/x")
        ),
        "HTTP_PROXY": random.choice(_PROXIES),
    }
    chosen = random.sample(sorted(given), random.randrange(3))
    looks = (
        ("list",), ("env",), ("env", "--json"), ("sources",), ("info", "local:x"), ("cache", "dir"),
        ("download", f"d4rl:{_SET}"), ("list", "--remote", "d4rl"), ("verify", "local:x"),
    )  # fmt: skip
    commands = [(*line, *ROOT) for line in random.sample(looks, 2)]
    facts = {"environ": {name: given[name] for name in chosen}}
    return Plan(tuple(commands), publishes=False, facts=facts)


def run_settings(folder: Path, number: int, line: tuple[str, ...]) -> int:
    """Run a command under the settings of the case."""
    os.environ |= {
        "OFFLINE_DATA_CONFIG": "case/config.toml",
        **plan_of_case(folder).facts["environ"],
    }
    with loopback_only():
        return run_command(folder, number, line)


# ---- buffers and what is derived from rows ---------------------------------------------------


def prepare_calls(seed: int, _folder: Path) -> Plan:
    """Nothing but the seed: the calls are made by the driver."""
    return Plan(((str(seed),),), (frozenset({0}),), publishes=False)


def prepare_any_view(seed: int, _folder: Path) -> Plan:
    """The same, for a view that may be refused."""
    return Plan(((str(seed),),), (frozenset({0, 5}),), publishes=False)


def run_buffer(_folder: Path, _number: int, line: tuple[str, ...]) -> int:
    """Do random operations on a growing buffer, beside a list of dicts."""
    from tests.fuzz import buffer_ops

    one_thread()
    buffer_ops.run(int(line[0]))
    return 0


def run_derived(folder: Path, _number: int, line: tuple[str, ...]) -> int:
    """Compare what is derived from a random dataset, or a view of it, with the oracle."""
    from offline_data.buffers.dataset import Dataset
    from offline_data.rows.derived import action_chunk, frame_stack, n_step, return_to_go
    from tests import oracles_derived as oracle

    one_thread()
    random = generator("derived", int(line[0]))
    lengths = [random.randint(1, 9) for _ in range(random.randint(1, 6))]
    unknown = [e for e in range(len(lengths)) if random.random() < 0.3]
    layout: Any = random.choice(("compact", "ted"))
    dataset = folder / "case" / "root" / "local" / "x" / "r"
    write_toy(dataset, [toy_batch(lengths, unknown_final=unknown)], layout=layout)
    n, k, gamma = random.randint(1, 5), random.randint(1, 4), random.choice((0.0, 0.5, 0.99, 1.0))
    pad: Any = random.choice(("repeat", "zero"))
    key = ("observation", "state")
    plain: Any = Dataset(dataset, 4)
    first = random.randrange(len(plain))
    part = slice(first, random.randint(first + 1, len(plain)))
    rows = range(len(plain))[part]

    def derived(*leaves: Any) -> Any:
        return Dataset(dataset, 4, derived=list(leaves)).subset(part)[:]

    starts = set(np.cumsum([0, *lengths]).tolist())
    cuts = [place for place, row in enumerate(rows) if place == 0 or row in starts]
    bounds = list(zip(cuts, [*cuts[1:], len(rows)], strict=True))
    last = {int(stop) - 1 for e, stop in enumerate(np.cumsum(lengths)) if e in unknown}
    known = [rows[stop - 1] not in last for _, stop in bounds]
    truth = plain.subset(part)[:]
    reward, state = truth["next", "reward"].numpy(), truth[key].numpy()
    ended, over = (truth["next", flag].numpy() for flag in ("terminated", "truncated"))
    want = oracle.n_step(reward, ended, over, bounds, known, n=n, gamma=gamma)
    got = derived(n_step(n, gamma))
    assert got["steps_to_next_obs"].tolist() == want.steps.tolist()
    np.testing.assert_allclose(got["next", "reward"][:, 0], want.reward, rtol=1e-6)
    after = truth["next", "observation", "state"].numpy()
    np.testing.assert_array_equal(got["next", "observation", "state"], after[want.end])
    got = derived(frame_stack(k, [key], pad=pad))
    np.testing.assert_array_equal(got[key], oracle.frame_stack(state, bounds, k=k, pad=pad))
    stack = oracle.next_frame_stack(state, after, bounds, k=k, pad=pad)
    np.testing.assert_array_equal(got["next", "observation", "state"], stack)
    got = derived(action_chunk(k, pad=pad))
    chunk, mask = oracle.action_chunk(truth["action"].numpy(), bounds, k=k, pad=pad)
    np.testing.assert_array_equal(got["action"], chunk)
    np.testing.assert_array_equal(got["chunk_mask"], mask)
    to_go = oracle.return_to_go(reward, bounds, gamma=gamma)
    got = derived(return_to_go(gamma))
    np.testing.assert_allclose(got["return_to_go"], to_go.astype(np.float32), rtol=1e-5)
    return 0


def run_view(folder: Path, _number: int, line: tuple[str, ...]) -> int:
    """Open a saved view that was changed: the rows it was made of, or an error."""
    from offline_data.base.errors import OfflineDataError
    from offline_data.buffers.dataset import Dataset

    one_thread()
    random = generator("view", int(line[0]))
    root = folder / "case" / "root"
    dataset, file = root / "local" / "x" / "r", root / "v.npz"
    write_toy(dataset, [toy_batch([3, 1, 4, 2])])
    plain: Any = Dataset(dataset, 4)
    view = plain.subset(random.choice((slice(2, 9), [7, 1, 3], slice(3, 8))))
    view.save(file)
    truth = view[:]
    if random.random() < 0.8:
        file.write_bytes(spoil_bytes(random, file.read_bytes(), head=300))
    elif random.random() < 0.5:
        instead(random, file)
    try:
        found = plain.saved_view(file)[:]
    except OfflineDataError as error:
        return refused(error)
    assert (found == truth).all(), (found, truth)
    return 0


KINDS = {
    kind.name: kind
    for kind in (
        Kind("d4rl", prepare_d4rl, check_d4rl),
        Kind("d4rl-bytes", prepare_d4rl_bytes, check_d4rl),
        Kind("hdf5", prepare_hdf5, check_hdf5),
        Kind("minari", prepare_minari, check_minari),
        Kind("http", prepare_http, check_http, run_http),
        Kind("settings", prepare_settings, run=run_settings),
        Kind("archive", prepare_archive, check_archive, run_archive, batch=20),
        Kind("buffer", prepare_calls, run=run_buffer, batch=20),
        Kind("derived", prepare_calls, run=run_derived, batch=20),
        Kind("view", prepare_any_view, run=run_view, batch=20),
        *DESCRIBED_KINDS,
        *PROJECT_KINDS,
        *HOSTED_KINDS,
        *STAGED_KINDS,
        *STATE_KINDS,
        *SOURCE_KINDS,
        *LEROBOT_KINDS,
        *ROBOT_KINDS,
        *FILE_KINDS,
    )
}
