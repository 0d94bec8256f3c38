"""Hostile variants of a dataset directory: manifest, `text.json`, `meta.json`, data files, links.

Each variant changes a valid dataset directory in place. Those that change what the manifest says of
files keep its digests true where that is possible, so that only what is wrong can be what is found.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Mutate: TypeAlias = Callable[[Path], None]

MANIFEST = "manifest.json"
_DTYPES = (
    "object", "O", "O8", "|O", "V8", "V1", "S8", "U2", "<M8[ns]", "m8", ">f4", ">i8", "float128",
    "longdouble", "f4,f4", "(2,)f4", "i4,O", "str", "bogus", "", "object_", "void", "bytes",
    "complex256", "intp", "int32 ", "INT32", "torch.float32", "datetime64[ns]", "structured",
)  # fmt: skip
_NUMBERS: tuple[Any, ...] = (
    -1, 0, 1, 7, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63), 1.5, 1e308,
    float("nan"), float("inf"), True, None, "3", [], {}, [3],
)  # fmt: skip
_PATHS = (
    "../../../etc/passwd", "/etc/passwd", "..", ".", "", "steps/../../x.memmap", "steps//x.memmap",
    "steps/rows.memmap\0", "..\\x", "C:\\x", "steps", MANIFEST, "steps/./rows.memmap", "~/x",
    "/dev/zero", "/dev/stdin", "/proc/self/mem", "text.json", "a" * 300, "steps/" + "a/" * 2000,
    "steps/\n.memmap", "steps/rows.memmap/x",
)  # fmt: skip
_WORDS: tuple[Any, ...] = (None, 3, -1, [], {}, "", "x", True, [None], {"a": None}, 1e400, "\0")


def variants(rng: np.random.Generator) -> Iterator[tuple[str, Mutate]]:
    """Yield hostile changes without end: each a name and what does it to a dataset directory.

    The same generator state gives the same variants.
    """
    shares = {_bytes: 2, _json_node: 4, _leaf_field: 5, _counts: 2, _files: 2, _rows: 4, _text: 2,
              _special: 2, _depth: 1, _meta: 1}  # fmt: skip
    kinds, weights = list(shares), np.array([*shares.values()], float)
    while True:
        kind = kinds[rng.choice(len(kinds), p=weights / weights.sum())]
        yield kind(rng)


def _pick(rng: np.random.Generator, options: Any) -> Any:
    return options[int(rng.integers(len(options)))]


def _load(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return value


def _store(folder: Path, value: Any) -> None:
    """Write a manifest, its own digest right: sha256 of the file with the digest as zeros."""
    zeros = "0" * 64
    if isinstance(value, dict) and "sha256" in value:
        value = {**{k: v for k, v in value.items() if k != "sha256"}, "sha256": zeros}
    store_manifest(folder, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def store_manifest(folder: Path, text: str) -> None:
    """Write a manifest whose last 64 zeros become its digest."""
    zeros = "0" * 64
    before, found, behind = text.rpartition(zeros)
    data = text.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(data).hexdigest()
    text = before + digest + behind if found else text
    (folder / MANIFEST).write_bytes(text.encode("utf-8", "surrogatepass"))


def _restate(folder: Path) -> None:
    """Make the digests of the manifest those of the files as they are."""
    value = _load(folder)
    for name in value["digests"]:
        if (folder / name).is_file():
            data, sha256 = (folder / name).read_bytes(), hashlib.sha256()
            sha256.update(data)
            value["digests"][name] = {"size": len(data), "sha256": sha256.hexdigest()}
    _store(folder, value)


def _nodes(
    value: dict[str, Any] | list[Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value below this one."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, below in items:
        yield (*path, key)
        if isinstance(below, dict | list):
            yield from _nodes(below, (*path, key))


def _bytes(rng: np.random.Generator) -> tuple[str, Mutate]:
    """Flip, cut, repeat or insert bytes of a file of text."""
    how = _pick(rng, ("flip", "cut", "insert", "empty", "repeat", "bom", "utf16"))
    which = _pick(rng, (MANIFEST, MANIFEST, "text.json", "steps/meta.json"))
    at, byte = float(rng.random()), int(rng.integers(256))

    def mutate(folder: Path) -> None:
        path = folder / which if (folder / which).exists() else folder / MANIFEST
        data = bytearray(path.read_bytes())
        place = int(at * len(data))
        if how == "flip":
            data[place] ^= 1 << (byte % 8)
        elif how == "cut":
            del data[place:]
        elif how == "insert":
            data[place:place] = bytes([byte]) * (1 + byte % 9)
        elif how == "empty":
            data.clear()
        elif how == "repeat":
            data *= 2
        elif how == "bom":
            data[:0] = b"\xef\xbb\xbf"
        else:
            data = bytearray(data.decode().encode("utf-16"))
        path.write_bytes(data)

    return f"bytes-{how}-{which}", mutate


def _json_node(rng: np.random.Generator) -> tuple[str, Mutate]:
    """Give any value of the manifest another type, or take it away, or give it twice."""
    new = _pick(rng, (*_WORDS, *_NUMBERS))
    how, at = _pick(rng, ("set", "set", "set", "delete", "rename")), float(rng.random())

    def mutate(folder: Path) -> None:
        value = _load(folder)
        paths = list(_nodes(value))
        path = paths[int(at * len(paths))]
        holder: Any = value
        for key in path[:-1]:
            holder = holder[key]
        if how == "set":
            holder[path[-1]] = new
        elif how == "delete" or isinstance(holder, list):
            del holder[path[-1]]
        else:
            holder[f"{path[-1]}\x1b[31m"] = holder.pop(path[-1])
        _store(folder, value)

    return f"node-{how}-{str(new)[:20]}", mutate


def _leaf_field(rng: np.random.Generator) -> tuple[str, Mutate]:
    """Let a leaf of the schema lie about its type, shape, file or place."""
    field = _pick(rng, ("dtype", "shape", "file", "offset", "stride", "key", "text", "rows"))
    table, leaf = float(rng.random()), float(rng.random())
    number = _pick(rng, _NUMBERS)
    new: Any = {
        "dtype": _pick(rng, _DTYPES),
        "shape": _pick(
            rng, ([number], [number, 3], [2**31] * 31, [1] * 70, [0, 2**62], [], number)
        ),
        "file": _pick(rng, _PATHS),
        "key": _pick(rng, ([], ["../x"], ["a/b"], [""], ["\0"], ["x"] * 500, "x", [3], ["next"])),
        "text": _pick(rng, (True, 1, "yes")),
    }.get(field, number)
    smuggle = bool(rng.integers(2))

    def mutate(folder: Path) -> None:
        value = _load(folder)
        spec = list(value["schema"].values())[int(table * len(value["schema"]))]
        if field == "rows":
            spec["rows"] = new
        else:
            one = spec["leaves"][int(leaf * len(spec["leaves"]))]
            if field == "file" and smuggle:  # listed, so that only the name can be what is wrong
                size = Path(new).stat().st_size if new == "/etc/passwd" else spec["rows"]
                value["digests"][str(new)] = {"size": size, "sha256": "0" * 64}
            one[field] = new
        _store(folder, value)

    return f"leaf-{field}-{str(new)[:24]!r}", mutate


def _counts(rng: np.random.Generator) -> tuple[str, Mutate]:
    """Counts that cannot be, alone or with rows that agree with them."""
    name = _pick(rng, ("transitions", "episodes", "valid_transitions", "terminated", "truncated"))
    number, agree = _pick(rng, _NUMBERS), bool(rng.integers(2))

    def mutate(folder: Path) -> None:
        value = _load(folder)
        value["counts"][name] = number
        if agree and type(number) is int:
            rows, episodes = value["counts"]["transitions"], value["counts"]["episodes"]
            for table, spec in value["schema"].items():
                spec["rows"] = {"episodes": episodes, "observations": rows + episodes}.get(
                    table, rows
                )
                for leaf in spec["leaves"]:
                    value["digests"][leaf["file"]]["size"] = spec["rows"] * leaf["stride"]
        _store(folder, value)

    return f"counts-{name}-{str(number)[:12]}-{agree}", mutate


def _files(rng: np.random.Generator) -> tuple[str, Mutate]:
    """Data files that are longer, shorter, gone or sparse, with digests that are true or not."""
    how = _pick(rng, ("append", "cut", "gone", "sparse", "name", "size", "sha256", "case"))
    at, restate, path = float(rng.random()), bool(rng.integers(2)), _pick(rng, _PATHS)
    number = _pick(rng, _NUMBERS)

    def mutate(folder: Path) -> None:
        value = _load(folder)
        names = sorted(value["digests"])
        name = names[int(at * len(names))]
        file = folder / name
        if how == "append":
            file.write_bytes(file.read_bytes() + b"\xff" * 4096)
        elif how == "cut":
            os.truncate(file, file.stat().st_size // 2)
        elif how == "gone":
            file.unlink()
        elif how == "sparse":
            os.truncate(file, 1 << 40)
        elif how == "name":
            value["digests"][path] = value["digests"].pop(name)
        elif how == "size":
            value["digests"][name]["size"] = number
        elif how == "sha256":
            value["digests"][name]["sha256"] = number
        else:
            value["digests"][name.upper()] = value["digests"].pop(name)
        _store(folder, value)
        if restate and how in {"append", "cut"}:
            _restate(folder)

    return f"files-{how}-{restate}", mutate


def _rows(rng: np.random.Generator) -> tuple[str, Mutate]:
    """Rows that lie: episode numbers, starts, lengths, flags, codes, or any bytes of data."""
    table, key = _pick(
        rng,
        (
            ("steps", ["episode"]), ("episodes", ["start"]), ("episodes", ["length"]),
            (None, None), ("episodes", ["final_observation"]), ("episodes", ["terminated"]),
        ),
    )  # fmt: skip
    number = int(_pick(rng, (-1, -2, -(2**63), 2**63 - 1, 2**40, 2**62, 0, 1, 3)))
    at, every, restate = float(rng.random()), bool(rng.integers(4) == 0), bool(rng.integers(4))

    def mutate(folder: Path) -> None:
        schema = _load(folder)["schema"]
        name = table if table in schema else "ted" if table == "steps" else "episodes"
        leaves = schema[name]["leaves"]
        leaf = next((one for one in leaves if one["key"] == key), leaves[int(at * len(leaves))])
        path = folder / leaf["file"]
        rows = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, leaf["stride"]).copy()
        size = np.dtype(leaf["dtype"]).itemsize
        value = np.array([number], np.int64).view(np.uint8)[: min(size, 8)]
        which = slice(None) if every else int(at * len(rows))
        rows[which, leaf["offset"] : leaf["offset"] + len(value)] = value
        path.write_bytes(rows.tobytes())
        if restate:
            _restate(folder)

    return f"rows-{'-'.join(key or ['any'])}-{number}-{every}-{restate}", mutate


def _text(rng: np.random.Generator) -> tuple[str, Mutate]:
    """A vocabulary of another form, or without words that codes stand for."""
    new: Any = _pick(
        rng,
        (
            [], {}, None, [None], [[]], 3, "words", [{"table": "steps"}],
            [{"table": [], "key": {}, "words": 3}],
            [{"table": "observations", "key": ["observation", "mission"], "words": []}],
            [{"table": "observations", "key": ["observation", "mission"], "words": [1, None]}],
            [{"table": "observations", "key": "observation", "words": "abc"}],
            [{"table": "observations", "key": ["observation", "mission"], "words": ["\x1b[2J"] * 9}],
        ),
    )  # fmt: skip

    def mutate(folder: Path) -> None:
        (folder / "text.json").write_text(json.dumps(new))
        value = _load(folder)
        value["digests"].setdefault("text.json", {})
        _store(folder, value)
        _restate(folder)

    return f"text-{str(new)[:40]}", mutate


def _special(rng: np.random.Generator) -> tuple[str, Mutate]:
    """Something else where a plain file is expected: FIFO, device, folder, link, no rights."""
    what = _pick(
        rng,
        (
            "fifo", "folder", "zero", "random", "loop", "outside", "dangling", "locked", "socket",
            "linked-folder", "self",
        ),
    )  # fmt: skip
    at = float(rng.random())

    def mutate(folder: Path) -> None:
        names = [MANIFEST, MANIFEST, *sorted(_load(folder)["digests"])]
        file = folder / names[int(at * len(names))]
        if what == "linked-folder":
            inner = folder / "episodes"
            aside = folder.parent / f"{folder.name}-outside"
            shutil.move(inner, aside)
            inner.symlink_to(aside)
            return
        data = file.read_bytes()
        if what == "locked":
            file.chmod(0)
            return
        file.unlink()
        if what == "fifo":
            os.mkfifo(file)
        elif what == "folder":
            file.mkdir()
        elif what == "socket":
            _socket(file)
        elif what == "outside":
            aside = folder.parent / f"{folder.name}-outside-file"
            aside.write_bytes(data)
            file.symlink_to(aside)
        else:
            target = {"zero": "/dev/zero", "random": "/dev/urandom", "loop": file.name}
            file.symlink_to(target.get(what, "/proc/self/mem" if what == "self" else "nowhere"))

    return f"special-{what}", mutate


def _socket(file: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as one:
        here = Path.cwd()
        os.chdir(file.parent)  # names of sockets have 108 bytes at most
        try:
            one.bind(file.name)
        finally:
            os.chdir(here)


def _depth(rng: np.random.Generator) -> tuple[str, Mutate]:
    """JSON that is deep, wide, long, has keys twice, or numbers of a million digits."""
    how = _pick(rng, ("deep", "twice", "digits", "surrogate", "wide", "long", "infinity"))
    which = _pick(rng, (MANIFEST, MANIFEST, "text.json"))

    def mutate(folder: Path) -> None:
        value = _load(folder)
        value["about"] = "@@"
        text = json.dumps(value)
        new = {
            "deep": "[" * 100_000 + "]" * 100_000,
            "twice": '{"a": 1, "a": 2}',
            "digits": "9" * 1_000_000,
            "surrogate": r'"\ud800"',
            "wide": "[" + "0," * 200_000 + "0]",
            "long": '"' + "x" * 3_000_000 + '"',
            "infinity": "1e999",
        }[how]
        (folder / which).write_text(text.replace('"@@"', new) if which == MANIFEST else new)

    return f"depth-{how}-{which}", mutate


def _meta(rng: np.random.Generator) -> tuple[str, Mutate]:
    """A `meta.json` that would have tensordict load something else, and files beside it."""
    new: Any = _pick(
        rng,
        (
            {"_type": "<class 'os.system'>"},
            {"x": {"type": "NonTensorData", "is_nested": False}},
            {"_type": "<class 'tensordict.tensorclass.NonTensorData'>", "_pickle": "other.pickle"},
            [],
        ),
    )

    def mutate(folder: Path) -> None:
        table = "ted" if (folder / "ted").is_dir() else "steps"
        (folder / table / "meta.json").write_text(json.dumps(new))
        marker = folder.parent / "executed"
        code = f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode()
        for name in ("other.pickle", "x.pkl", "non_tensor.pickle"):
            (folder / table / name).write_bytes(code)
        _restate(folder)

    return f"meta-{str(new)[:30]}", mutate
