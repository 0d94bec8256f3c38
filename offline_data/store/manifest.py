"""`manifest.json`: the description of a dataset directory; its presence means "done".

A dataset directory may come from a stranger: all values that are later used as addresses in memory
maps, paths or sizes are checked here, once, when the manifest is read.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from offline_data.episodes.fields import (
    DONE,
    RESERVED_ROOTS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Dropped,
    Key,
    Skipped,
    next_of,
)
from offline_data.errors import FormatError, ManifestError, NewerFormatError, NotFoundError
from offline_data.store.layout import (
    BYTES,
    DTYPES,
    EPISODE,
    EPISODES,
    FORMAT_VERSION,
    LAYOUTS,
    MANIFEST,
    OBSERVATIONS,
    ROOT_FLAGS,
    STEPS,
    SUFFIX,
    TED,
    TEXT,
    TEXT_DTYPE,
    WORD,
    LayoutName,
    LeafSpec,
    TableSpec,
    fits_encoding,
)
from offline_data.strict_json import MAX_COUNT, as_unicode, parse_json, read_whole, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MAX_BYTES = 64 << 20
"""Bytes of the largest manifest that is read: it has about 300 for each raw file."""
MAX_DIMENSIONS = 31
"""Dimensions of a row of a leaf: numpy before version 2 has 32, including that of rows."""
MAX_KEY_PARTS = 64
"""Parts of a nested key, each of which is a level of a batch's TensorDict."""
_LENGTH = 2**31
"""Bound of each dimension of a row."""

_FLAG = ("bool", (1,))
_OUTCOMES = {TERMINATED: _FLAG, TRUNCATED: _FLAG, EPISODE: ("int64", ())}
_REQUIRED: dict[str, dict[Key, tuple[str, tuple[int, ...]]]] = {
    STEPS: _OUTCOMES,
    TED: {**_OUTCOMES, **dict.fromkeys((DONE, *ROOT_FLAGS), _FLAG)},
    OBSERVATIONS: {},
    EPISODES: {
        **dict.fromkeys((("start",), ("length",)), ("int64", ())),
        ("return",): ("float64", ()),
        **dict.fromkeys((("terminated",), ("truncated",), ("final_observation",)), ("bool", ())),
    },
}
"""Leaves that are used in computations, and their required dtypes and shapes."""


@dataclass(frozen=True)
class Manifest:
    """A dataset's manifest; every field is JSON but `tables`.

    Unknown fields of the file are kept in `extra` and written back.
    """

    id: str
    """`source:name@revision`."""
    source: str
    """Name of the adapter that read it."""
    name: str
    """The source's own name of the dataset."""
    revision: str
    layout: LayoutName
    tables: Mapping[str, TableSpec]
    """`steps`, `observations` and `episodes`, or `ted` and `episodes`."""
    counts: Mapping[str, int]
    """`transitions`, `episodes`, `valid_transitions` (those with a known next observation or
    terminated), `terminated` and `truncated` (rows), `without_final_observation` (episodes)."""
    created: str = ""
    """UTC time of publication, ISO 8601."""
    converter: Mapping[str, Any] = field(default_factory=dict)
    """`name`, `version`, `options`."""
    files: tuple[Mapping[str, Any], ...] = ()
    """Raw files it was made from: `path`, `url`, `size`, `sha256`."""
    spaces: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Like `spaces`, as the source gives it."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Description, author, requirements, reference scores, …"""
    licence: str | None = None
    """SPDX name or the source's words."""
    citation: str | None = None
    notes: tuple[str, ...] = ()
    """Quirks, and rules that were applied."""
    dropped: tuple[Mapping[str, str], ...] = ()
    """Leaves that were not kept: `key`, `reason`."""
    skipped: tuple[Mapping[str, str], ...] = ()
    """Episodes that could not be read and were left out: `where`, `reason`."""
    non_finite: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Leaves with NaN or infinity, kept as they are: `{leaf: {"nan": n, "inf": n}}`."""
    audit: Mapping[str, Any] = field(default_factory=dict)
    """Rows that were read back and compared: `mode`, `rows`, `episodes`, `differences` (0)."""
    digests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`{relative path: {"size": …, "sha256": …}}` of every other file here."""
    parents: tuple[str, ...] = ()
    """Ids of the datasets it was made from."""
    two_copies: tuple[Key, ...] = ()
    """Root leaves whose `next` value differs from the following root value, so that both are stored
    for every transition, in either layout."""
    sha256: str | None = field(default=None, compare=False)
    """Digest of the manifest file, stated in itself; None in those of older versions."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields this version does not know."""

    @property
    def dropped_leaves(self) -> tuple[Dropped, ...]:
        """`dropped` as values."""
        return tuple(Dropped(**leaf) for leaf in self.dropped)

    @property
    def skipped_episodes(self) -> tuple[Skipped, ...]:
        """`skipped` as values."""
        return tuple(Skipped(**entry) for entry in self.skipped)

    @property
    def bytes(self) -> int:
        """Bytes of all files the manifest lists."""
        return sum(int(entry["size"]) for entry in self.digests.values())

    def to_json(self) -> dict[str, Any]:
        """Return the form on disk but `sha256`; `schema` holds the tables."""
        known = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        schema = {name: table.to_json() for name, table in self.tables.items()}
        encoded = any(leaf.encoding for table in self.tables.values() for leaf in table.leaves)
        version = FORMAT_VERSION if encoded else 1
        return {"format_version": version, **known, "schema": schema, **self.extra}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        """Read the form on disk; raises `KeyError`, `TypeError` where it is not one."""
        known = {name: value[name] for name in _PLAIN_FIELDS if name in value}
        for name in ("files", "notes", "dropped", "skipped", "parents"):
            known[name] = tuple(known.get(name, ()))
        known["two_copies"] = tuple(tuple(key) for key in known.get("two_copies", ()))
        tables = {name: TableSpec.from_json(table) for name, table in value["schema"].items()}
        extra = {k: v for k, v in value.items() if k not in {*_PLAIN_FIELDS, *_DERIVED}}
        return cls(**known, tables=tables, sha256=value.get("sha256"), extra=extra)


_DERIVED = ("format_version", "schema", "sha256")
_PLAIN_FIELDS = tuple(
    n for n in Manifest.__dataclass_fields__ if n not in {"tables", "sha256", "extra"}
)
_ZEROS = "0" * 64
_LAST_FIELD = re.compile(rb'": "([^"]{64})"\n}\n\Z')


def dump_manifest(manifest: Manifest) -> str:
    """Write a manifest as the text of its file, its own digest included, ending in a newline."""
    value = {**manifest.to_json(), "sha256": _ZEROS}
    text = as_unicode(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=True)) + "\n"
    before, _, after = text.rpartition(_ZEROS)
    return before + hashlib.sha256(text.encode()).hexdigest() + after


def check_digest(folder: Path, manifest: Manifest) -> str | None:
    """Compare a manifest's file with the digest in it; return what is wrong as half a sentence.

    The digest is the sha256 of the file with its own 64 digits as zeros. It is the last field,
    whatever its name, since a bit of the name can flip, too. None: it matches, or there is none.
    """
    data = read_whole(folder / MANIFEST, MAX_BYTES)
    last = _LAST_FIELD.search(data)
    stated = last[1] if last else str(manifest.sha256).encode()
    if last is None and manifest.sha256 is None:
        return None
    before, found, after = data.rpartition(stated)
    digest = hashlib.sha256(before + _ZEROS.encode() + after).hexdigest()
    if found and digest.encode() == stated:
        return None
    return f"was changed since it was written: its digest is {digest[:12]}…, not what it states"


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a dataset directory.

    Raises `NotFoundError`, `NewerFormatError`, `ManifestError` if it is damaged or breaks a rule
    of `check_manifest`, and `AccessError`.
    """
    path = folder / MANIFEST
    try:
        data = read_whole(path, MAX_BYTES)
        value = parse_json(data, str(path))
        version = value.get("format_version") if isinstance(value, dict) else None
        if type(version) is int and version > FORMAT_VERSION:
            raise _newer(folder, version, value)
        check_manifest(value)
    except NotFoundError:
        raise NotFoundError(
            f"{folder} is not a dataset directory: it has no {MANIFEST}",
            hint="`offline-data list` shows the datasets on this disk",
        ) from None
    except (FormatError, ValueError) as error:
        raise ManifestError(
            error.message if isinstance(error, FormatError) else f"{path} is damaged: {error}",
            hint=_how_to_replace(folder),
        ) from error
    return Manifest.from_json(value)


def _how_to_replace(folder: Path) -> str:
    """Return the hint for a damaged manifest; the folders of a root say what the dataset is."""
    if "local" in folder.absolute().parts[-3:-2]:
        name = shlex.quote(folder.absolute().parts[-2])
        return f"make the dataset again: `offline-data convert PATH {name} --force`"
    return "download the dataset again: `offline-data download ID --force`"


def _newer(folder: Path, version: int, value: Mapping[str, Any]) -> NewerFormatError:
    converter = value.get("converter")
    stated = converter.get("version") if isinstance(converter, dict) else None
    writer = stated if re.fullmatch(r"[\w.+!-]{1,40}", str(stated)) else "unknown"
    return NewerFormatError(
        f"{folder} has format version {version}, written by offline-data {writer}; "
        f"this version reads up to {FORMAT_VERSION}",
        hint=f"pip install 'offline-data>={writer}'",
    )


def check_manifest(value: Any) -> None:
    """Raise `ValueError`, saying which field, unless `value` is a manifest of a whole dataset."""
    version = _object(value, "it").get("format_version")
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise ValueError(f"format_version is {shown(version)}, expected 1 to {FORMAT_VERSION}")
    for name in ("id", "source", "name", "revision"):
        _text(value.get(name), name)
    _text(value.get("created", ""), "created")
    if value.get("layout") not in LAYOUTS:
        raise ValueError(f"layout is {shown(value.get('layout'))}, expected one of {LAYOUTS}")
    _check_descriptions(value)
    _check_counts(_object(value.get("counts"), "counts"))
    sizes = _sizes(_object(value.get("digests"), "digests"))
    _check_tables(value, sizes)


def _check_descriptions(value: Mapping[str, Any]) -> None:
    """Check the fields that are only shown, as far as showing them relies on their form."""
    for name in ("licence", "citation"):
        _optional_text(value, name, name)
    for name in ("converter", "spaces", "environment", "about", "non_finite", "audit"):
        _object(value.get(name, {}), name)
    for name in ("notes", "parents"):
        _texts(value.get(name, []), name)
    for i, key in enumerate(_list(value.get("two_copies", []), "two_copies")):
        _key(key, f"two_copies {i}")
    for name, fields in (("dropped", ("key", "reason")), ("skipped", ("where", "reason"))):
        for i, entry in enumerate(_list(value.get(name, []), name)):
            if _object(entry, f"{name} {i}").keys() != set(fields):
                found = f"{shown(sorted(entry))}, not {', '.join(fields)}"
                raise ValueError(f"{name} {i} has the fields {found}")
            _texts(list(entry.values()), f"{name} {i}")
    for name, found in value.get("non_finite", {}).items():
        for kind, count in _object(found, f"non_finite {shown(name)}").items():
            _count(count, f"non_finite {shown(name)} {shown(kind)}")
    for i, file in enumerate(_list(value.get("files", []), "files")):
        where = f"files {i}"
        for name in ("path", "url", "sha256", "compared"):
            _optional_text(_object(file, where), name, f"{where} {name}")
        if file.get("size") is not None:
            _count(file["size"], f"{where} size")
        _texts(file.get("failed", []), f"{where} failed")
    converter = value.get("converter", {})
    _text(converter.get("version", ""), "converter version")
    options = _object(converter.get("options", {}), "converter options")
    for i, step in enumerate(_list(options.get("recipe", []), "recipe")):
        _text(_object(step, f"recipe {i}").get("step"), f"recipe {i} step")


def _check_counts(counts: Mapping[str, Any]) -> None:
    """Check that counts are consistent: at least one episode, each of at least one transition."""
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
    compact = {STEPS: rows, OBSERVATIONS: rows + episodes}
    expected = {**({TED: rows} if value["layout"] == TED else compact), EPISODES: episodes}
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
    _check_pairs(leaves, {tuple(key) for key in value.get("two_copies", [])})


def _check_pairs(leaves: Mapping[str, Mapping[Key, Any]], two_copies: set[Key]) -> None:
    """Check leaves with a root and a `next`: stored once, or twice with the same dtype and shape."""
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
        if key in two_copies or key[0] == "next" or after is None:
            continue
        if any(leaf.get(name) != after.get(name) for name in ("dtype", "shape", "text")):
            raise ValueError(f"{shown('/'.join(key))} has another type than what follows it")


def _check_table(
    table: str, rows: int, leaves: Iterable[Any], sizes: Mapping[str, int]
) -> dict[Key, Mapping[str, Any]]:
    """Check every leaf of a table; returns them by key."""
    by_key: dict[Key, Mapping[str, Any]] = {}
    extents: dict[str, list[tuple[int, int, int]]] = {}
    for leaf in leaves:
        key = _key(_object(leaf, f"a leaf of {table}").get("key"), f"the key of a leaf of {table}")
        where = f"leaf {shown('/'.join(key))} of {table}"
        if key in by_key:
            raise ValueError(f"{where} is there twice")
        by_key[key] = leaf
        if leaf.get("encoding") is not None:
            _check_encoded(leaf, f"{table}/{'/'.join(key)}{BYTES}", rows, sizes, where)
            continue
        extent = _extent(leaf, where)
        name = _inside(leaf.get("file"), f"{where} file")
        if not (name.startswith(f"{table}/") and name.endswith(SUFFIX)):
            raise ValueError(f"{where} lies in {shown(name)}, expected {table}/….{SUFFIX[1:]}")
        extents.setdefault(name, []).append(extent)
    for file, places in extents.items():
        _check_file(file, places, rows, sizes)
    for key, (dtype, shape) in _REQUIRED[table].items():
        found = by_key.get(key, {})
        if found.get("dtype") != dtype or tuple(found.get("shape", ())) != shape:
            raise ValueError(f"{table} needs {'/'.join(key)}, {dtype} {list(shape)} a row")
    if EPISODE in _REQUIRED[table] and REWARD in by_key:
        reward = by_key[REWARD]
        real = not reward.get("text") and not str(reward.get("dtype")).startswith("complex")
        if reward.get("shape") != [1] or not real:
            raise ValueError(f"{table} has {'/'.join(REWARD)}, expected a number a row")
    return by_key


def _extent(leaf: Mapping[str, Any], where: str) -> tuple[int, int, int]:
    """Return the begin and end of a leaf in a row of its file, and the bytes of that row."""
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


def _check_encoded(
    leaf: Mapping[str, Any], file: str, rows: int, sizes: Mapping[str, int], where: str
) -> None:
    """Check a leaf of encoded images; its offsets are checked when they are read."""
    encoding, dtype = (_text(leaf.get(name), f"{where} {name}") for name in ("encoding", "dtype"))
    shape = [_count(n, f"{where} shape") for n in _list(leaf.get("shape"), f"{where} shape")]
    known = fits_encoding(encoding, dtype, tuple(shape))
    if not known or file.split("/")[0] not in {STEPS, OBSERVATIONS}:
        raise ValueError(
            f"{where} cannot be {shown(encoding)} images of {shown(dtype)} {shown(shape)}"
        )
    for name, value in {"file": file, "offset": 0, "stride": 0, "text": False}.items():
        found = leaf.get(name, False if name == "text" else None)
        if type(found) is not type(value) or found != value:
            raise ValueError(f"{where} {name} is {shown(found)}; encoded, it is {shown(value)}")
    offsets = LeafSpec.from_json(leaf).offsets
    size = _size_of(offsets, f"{rows + 1} offsets", sizes)
    if size != 8 * (rows + 1) or _size_of(file, f"{rows} images", sizes) < rows:
        raise ValueError(f"{shown(file)} and {shown(offsets)} are too short for {rows} rows")


def _check_file(
    file: str, extents: list[tuple[int, int, int]], rows: int, sizes: Mapping[str, int]
) -> None:
    """Check that the leaves of a file do not overlap, and that their rows make up all of it."""
    stride, done = extents[0][2], 0
    for begin, end, own in sorted(extents):
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
    """Return a path that stays inside the directory on every operating system."""
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


def _optional_text(value: Mapping[str, Any], name: str, where: str) -> None:
    if value.get(name) is not None:
        _text(value[name], where)


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


def dropped_lines(dropped: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return leaves that were not kept as lines, one for each reason.

    Example:
        >>> dropped_lines({"key": key, "reason": "It has no rows."} for key in "abc")
        ['3 leaves (a, b, …): Each has no rows.']
    """
    by_reason: dict[str, list[str]] = {}
    for leaf in dropped:
        by_reason.setdefault(leaf["reason"], []).append(leaf["key"])
    return [_dropped_line(keys, reason) for reason, keys in by_reason.items()]


def _dropped_line(keys: list[str], reason: str) -> str:
    if len(keys) == 1:
        return f"{keys[0]}: {reason}"
    some = [*keys[:2], "…"] if len(keys) > 2 else keys
    each = "Each " + reason.removeprefix("It ") if reason.startswith("It ") else reason
    return f"{len(keys)} leaves ({', '.join(some)}): {each}"
