"""The rules a `manifest.json` must satisfy: field types, counts, and leaves that lie in their files.

A dataset directory may come from a stranger. Everything that is computed from the manifest later
(addresses in memory maps, paths, sizes) is checked here, once, when the manifest is read.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from offline_data.episodes.fields import (
    DONE,
    RESERVED_ROOTS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Key,
    next_of,
)
from offline_data.store.layout import (
    DTYPES,
    EPISODE,
    EPISODES,
    FORMAT_VERSION,
    LAYOUTS,
    MANIFEST,
    OBSERVATIONS,
    STEPS,
    SUFFIX,
    TED,
    TEXT,
    TEXT_DTYPE,
    WORD,
)
from offline_data.strict_json import MAX_COUNT, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_DIMENSIONS = 31
"""Of a row of a leaf: numpy before version 2 has 32, and one of them is the rows."""

MAX_KEY_PARTS = 64
"""Of a nested key: each is a level of the TensorDict of a batch."""

_LENGTH = 2**31
"""Bound of each dimension of a row."""

_TEXTS = ("id", "source", "name", "revision")
_OPTIONAL_TEXTS = ("licence", "citation")
_OBJECTS = ("converter", "spaces", "environment", "about", "non_finite", "audit")

_FLAG = ("bool", (1,))
_OUTCOMES = {TERMINATED: _FLAG, TRUNCATED: _FLAG, EPISODE: ("int64", ())}
_REQUIRED: dict[str, dict[Key, tuple[str, tuple[int, ...]]]] = {
    STEPS: _OUTCOMES,
    TED: {
        **_OUTCOMES,
        DONE: _FLAG,
        ("done",): _FLAG,
        ("terminated",): _FLAG,
        ("truncated",): _FLAG,
    },
    OBSERVATIONS: {},
    EPISODES: {
        ("start",): ("int64", ()),
        ("length",): ("int64", ()),
        ("return",): ("float64", ()),
        ("terminated",): ("bool", ()),
        ("truncated",): ("bool", ()),
        ("final_observation",): ("bool", ()),
    },
}
"""Leaves that are computed with, and what they have to be."""


def check_manifest(value: Any) -> None:
    """Raise `ValueError`, saying which field, unless `value` is a manifest of a whole dataset.

    Args:
        value: What the file holds, as JSON values.
    """
    version = _object(value, "it").get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise ValueError(f"format_version is {shown(version)}, expected {FORMAT_VERSION}")
    for name in _TEXTS:
        _text(value.get(name), name)
    _text(value.get("created", ""), "created")
    if value.get("layout") not in LAYOUTS:
        raise ValueError(f"layout is {shown(value.get('layout'))}, expected one of {LAYOUTS}")
    _check_descriptions(value)
    _check_counts(_object(value.get("counts"), "counts"))
    sizes = _sizes(_object(value.get("digests"), "digests"))
    _check_tables(value, sizes)


def _check_descriptions(value: Mapping[str, Any]) -> None:
    """Check the fields that are only shown, as far as they are taken apart for that."""
    for name in _OPTIONAL_TEXTS:
        if value.get(name) is not None:
            _text(value[name], name)
    for name in _OBJECTS:
        _object(value.get(name, {}), name)
    for name in ("notes", "parents"):
        _texts(value.get(name, []), name)
    for i, key in enumerate(_list(value.get("two_copies", []), "two_copies")):
        _key(key, f"two_copies {i}")
    for i, leaf in enumerate(_list(value.get("dropped", []), "dropped")):
        if _object(leaf, f"dropped {i}").keys() != {"key", "reason"}:
            raise ValueError(f"dropped {i} has the fields {shown(sorted(leaf))}, not key, reason")
        _texts(list(leaf.values()), f"dropped {i}")
    for name, found in value.get("non_finite", {}).items():
        for kind, count in _object(found, f"non_finite {shown(name)}").items():
            _count(count, f"non_finite {shown(name)} {shown(kind)}")
    for i, file in enumerate(_list(value.get("files", []), "files")):
        _check_raw_file(_object(file, f"files {i}"), f"files {i}")
    converter = value.get("converter", {})
    _text(converter.get("version", ""), "converter version")
    options = _object(converter.get("options", {}), "converter options")
    for i, step in enumerate(_list(options.get("recipe", []), "recipe")):
        _text(_object(step, f"recipe {i}").get("step"), f"recipe {i} step")


def _check_raw_file(file: Mapping[str, Any], where: str) -> None:
    for name in ("path", "url", "sha256"):
        if file.get(name) is not None:
            _text(file[name], f"{where} {name}")
    if file.get("size") is not None:
        _count(file["size"], f"{where} size")
    _texts(file.get("failed", []), f"{where} failed")


def _check_counts(counts: Mapping[str, Any]) -> None:
    """Check that counts are possible: at least one episode, of at least one transition each."""
    for name, count in counts.items():
        _count(count, f"counts {shown(name)}")
    rows, episodes = counts.get("transitions"), counts.get("episodes")
    if rows is None or episodes is None or not 1 <= episodes <= rows:
        raise ValueError(f"counts are {shown(rows)} transitions in {shown(episodes)} episodes")
    unknown = counts.get("without_final_observation", 0)
    least = rows - unknown
    if unknown > episodes or not least <= counts.get("valid_transitions", rows) <= rows:
        raise ValueError("counts of transitions without a next observation do not add up")
    for name in ("terminated", "truncated"):
        if counts.get(name, 0) > rows:
            raise ValueError(f"counts: {counts[name]} of {rows} transitions are {name}")


def _sizes(digests: Mapping[str, Any]) -> dict[str, int]:
    """Return the size that the manifest states of every file."""
    sizes = {}
    for name, entry in digests.items():
        where = f"digests {shown(name)}"
        _inside(name, where)
        sha256 = _text(_object(entry, where).get("sha256"), f"{where} sha256")
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            raise ValueError(f"{where} sha256 is {shown(sha256)}, no SHA-256 in hex")
        sizes[name] = _count(entry.get("size"), f"{where} size")
    if MANIFEST in sizes:
        raise ValueError(f"digests have {MANIFEST} itself")
    return sizes


def _check_tables(value: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    schema = _object(value.get("schema"), "schema")
    rows, episodes = (value["counts"][name] for name in ("transitions", "episodes"))
    expected = (
        {TED: rows} if value["layout"] == TED else {STEPS: rows, OBSERVATIONS: rows + episodes}
    )
    expected[EPISODES] = episodes
    if schema.keys() != expected.keys():
        raise ValueError(f"schema has the tables {shown(sorted(schema))}, not {sorted(expected)}")
    leaves = {}
    for table, count in expected.items():
        spec = _object(schema[table], f"schema {table}")
        if _count(spec.get("rows"), f"schema {table} rows") != count:
            raise ValueError(f"schema {table} has {spec['rows']} rows, and by its counts {count}")
        leaves[table] = _check_table(table, count, _list(spec.get("leaves"), table), sizes)
    if any(leaf.get("text") for table in leaves.values() for leaf in table.values()):
        _size_of(TEXT, "text leaves", sizes)
    two_copies = {tuple(key) for key in value.get("two_copies", [])}
    _check_pairs(leaves, two_copies)


def _check_pairs(leaves: Mapping[str, Mapping[Key, Any]], two_copies: set[Key]) -> None:
    """Check what is the same before and after an action: stored once, or twice as the same type."""
    if TED not in leaves:
        observed = leaves[OBSERVATIONS].keys()
        if any(key[0] in RESERVED_ROOTS for key in observed):
            raise ValueError(f"{OBSERVATIONS} has a leaf that begins with a name of TED's own")
        twice = leaves[STEPS].keys() & {*observed, *map(next_of, observed)}
        if twice:
            raise ValueError(f"{shown('/'.join(min(twice)))} is in {STEPS} and in {OBSERVATIONS}")
        return
    for key, leaf in leaves[TED].items():
        after = leaves[TED].get(next_of(key))
        if key not in two_copies and key[0] != "next" and after is not None:
            differs = any(leaf.get(name) != after.get(name) for name in ("dtype", "shape", "text"))
            if differs:
                raise ValueError(f"{shown('/'.join(key))} has another type than what follows it")


def _check_table(
    table: str, rows: int, leaves: Iterable[Any], sizes: Mapping[str, int]
) -> dict[Key, Mapping[str, Any]]:
    """Check every leaf of a table; returns them by key."""
    by_key: dict[Key, Mapping[str, Any]] = {}
    ends: dict[str, list[tuple[int, int, int]]] = {}
    for leaf in leaves:
        key = _key(_object(leaf, f"a leaf of {table}").get("key"), f"the key of a leaf of {table}")
        where = f"leaf {shown('/'.join(key))} of {table}"
        if key in by_key:
            raise ValueError(f"{where} is there twice")
        by_key[key] = leaf
        begin, end, stride = _extent(leaf, where)
        ends.setdefault(_file(leaf, table, where), []).append((begin, end, stride))
    for file, extents in ends.items():
        _check_file(file, extents, rows, sizes)
    for key, (dtype, shape) in _REQUIRED[table].items():
        found = by_key.get(key, {})
        if found.get("dtype") != dtype or tuple(found.get("shape", ())) != shape:
            raise ValueError(f"{table} needs {'/'.join(key)}, {dtype} {list(shape)} a row")
    if EPISODE in _REQUIRED[table]:
        reward = by_key.get(REWARD, {})
        if (
            reward.get("shape") != [1]
            or reward.get("text")
            or reward["dtype"].startswith("complex")
        ):
            raise ValueError(f"{table} needs {'/'.join(REWARD)}, a number a row")
    return by_key


def _extent(leaf: Mapping[str, Any], where: str) -> tuple[int, int, int]:
    """Return where a leaf begins and ends in a row of its file, and the bytes of that row."""
    dtype, text = leaf.get("dtype"), leaf.get("text", False)
    size = DTYPES.get(dtype) if isinstance(dtype, str) else None
    if size is None:
        raise ValueError(f"{where} has dtype {shown(dtype)}, expected one of {', '.join(DTYPES)}")
    if type(text) is not bool or (text and dtype != TEXT_DTYPE):
        raise ValueError(f"{where} is text of dtype {dtype}, expected {TEXT_DTYPE}")
    shape = _list(leaf.get("shape"), f"{where} shape")
    if len(shape) > MAX_DIMENSIONS or any(_count(n, f"{where} shape") > _LENGTH for n in shape):
        raise ValueError(f"{where} has shape {shown(shape)}")
    begin = _count(leaf.get("offset"), f"{where} offset")
    stride = _count(leaf.get("stride"), f"{where} stride")
    end = begin + size * prod(shape)
    if end > stride:
        raise ValueError(f"{where} ends at byte {end} of rows of {stride} bytes")
    if begin % size or stride % min(size, WORD):
        raise ValueError(f"{where} lies at byte {begin} of {stride}: not at a multiple of {size}")
    # Dimensions beside one of length 0 are not bounded by the file.
    if prod(max(n, 1) for n in shape) > MAX_COUNT // 16:
        raise ValueError(f"{where} has shape {shown(shape)}")
    return begin, end, stride


def _file(leaf: Mapping[str, Any], table: str, where: str) -> str:
    name = _inside(leaf.get("file"), f"{where} file")
    if not (name.startswith(f"{table}/") and name.endswith(SUFFIX)):
        raise ValueError(f"{where} lies in {shown(name)}, expected {table}/….{SUFFIX[1:]}")
    return name


def _check_file(
    file: str, extents: list[tuple[int, int, int]], rows: int, sizes: Mapping[str, int]
) -> None:
    """Check that the leaves of a file lie side by side, and that their rows are all of it."""
    stride = extents[0][2]
    extents.sort()
    done = 0
    for begin, end, own in extents:
        if own != stride or (begin < done and end > begin):
            raise ValueError(f"leaves of {shown(file)} overlap, or have rows of {own} and {stride}")
        done = max(done, end)
    size = _size_of(file, f"{rows} rows of {stride} bytes", sizes)
    if size != rows * stride:
        raise ValueError(f"{shown(file)} has {size} bytes, and {rows} rows of {stride} bytes")


def _size_of(file: str, needed: str, sizes: Mapping[str, int]) -> int:
    if file not in sizes:
        raise ValueError(f"digests lack {shown(file)}, which has {needed}")
    return sizes[file]


def _inside(name: object, where: str) -> str:
    """Return a path that stays inside the directory, whichever system reads it."""
    parts = _text(name, where).split("/")
    bad = any(part in {"", ".", ".."} or len(part.encode()) > 255 for part in parts)
    if bad or any(c in str(name) for c in "\\\0\n"):
        raise ValueError(f"{where} is {shown(name)}, expected a path inside the directory")
    return str(name)


def _key(value: object, where: str) -> Key:
    parts = tuple(_texts(value, where))
    bad = any(part in {"", ".", ".."} or any(c in part for c in "/\\\0\n") for part in parts)
    if bad or not 1 <= len(parts) <= MAX_KEY_PARTS:
        raise ValueError(f"{where} is {shown(value)}, expected a list of names")
    return parts


def _count(value: object, where: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{where} is {shown(value)}, expected a count")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} is {shown(value)}, expected text")  # noqa: TRY004
    return value


def _texts(value: object, where: str) -> list[str]:
    return [_text(item, where) for item in _list(value, where)]


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is {shown(value)}, expected a list")  # noqa: TRY004
    return value


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {shown(value)}, expected an object")  # noqa: TRY004
    return value
