"""`manifest.json`: the description of a dataset directory; its presence means "done".

A dataset directory may come from a stranger: all values that are later used as addresses in memory
maps, paths or sizes are checked here, once, when the manifest is read.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

from offline_data.base.decode import Check, Count, Sha256, decode, matching
from offline_data.base.errors import FormatError, ManifestError, NewerFormatError, NotFoundError
from offline_data.base.json import MAX_COUNT, as_unicode, parse_json, read_whole, shown
from offline_data.base.pickles import pickled_by_name
from offline_data.episode.fields import (
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
from offline_data.store.layout import (
    BYTES,
    DTYPES,
    EPISODE,
    EPISODES,
    FORMAT_VERSION,
    FRAME_BYTES,
    FRAMES,
    MANIFEST,
    OBSERVATIONS,
    ROOT_FLAGS,
    STEPS,
    SUFFIX,
    TED,
    TEXT,
    TEXT_DTYPE,
    VIDEO,
    WORD,
    FileKey,
    Inside,
    LayoutName,
    LeafSpec,
    TableSpec,
    fits_encoding,
    video_name,
)

MAX_BYTES = 64 << 20
"""Bytes of the largest manifest that is read: it has about 300 for each raw file."""
MAX_DIMENSIONS = 31
"""Dimensions of a row of a feature: numpy before version 2 has 32, including that of rows."""
NEXT_TOO = "next_too"
"""Option of datasets whose steps change `next` features with their root features, also where both
are stored apart. Earlier versions did not, and do not record it."""
_LENGTH = 2**31  # bound of each dimension of a row

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
"""Features that are used in computations, and their required dtypes and shapes."""


class _ManifestVersion(TypedDict):
    format_version: Annotated[int, Check(f"1 to {FORMAT_VERSION}", lambda version: version >= 1)]


class _Step(TypedDict):
    step: str


class _ConverterOptions(TypedDict, total=False):
    recipe: list[_Step]


class _Converter(TypedDict, total=False):
    version: str
    reading: Count
    options: _ConverterOptions


class _RawFile(TypedDict, total=False):
    path: str | None
    url: str | None
    sha256: str | None
    compared: str | None
    size: Count | None
    failed: list[str]


class _Digest(TypedDict):
    size: Count
    sha256: Sha256


Outcome: TypeAlias = Literal["exact", "rounding", "diverging", "different", "failed"]
"""Result of playing an episode in its environment; see `reports.replay`."""

_Difference: TypeAlias = Annotated[
    float, Check("a number, 0 or more", lambda x: 0 <= x <= sys.float_info.max)
]


class ReplaySummary(TypedDict):
    """The last replay of a dataset that was recorded."""

    environment: Annotated[str, matching(r"[\w:./-]{1,200}", "the id of an environment")]
    gymnasium: Annotated[str, matching(r"[\w.+!-]{1,40}", "a version")]
    date: Annotated[str, matching(r"\d{4}-\d\d-\d\d", "a date, YYYY-MM-DD")]
    tolerance: _Difference
    counts: Mapping[Outcome, Count]
    """Episodes by outcome."""
    difference: _Difference | None
    """Largest difference; None if it is not finite."""


def _reasons(*names: str) -> Check:
    expected = f"an object of {' and '.join(names)}"
    return Check(expected, lambda entry: entry.keys() == {*names})


@pickled_by_name
@dataclass(frozen=True)
class HistoryStep:
    """One step from a source to a dataset; see `store.history`."""

    action: str
    """`download`, `convert`, `record`, `preprocess`, `merge`, `copy`, `rename` or `view`; `unknown` for a dataset that is
    not on this disk and whose own manifest was not read."""
    id: str
    """Dataset that the step made, with its revision."""
    parents: tuple[str, ...] = ()
    """Ids of the datasets that it read."""
    created: str = ""
    """UTC time, ISO 8601."""
    version: str = ""
    """Version of this package."""
    recipe: tuple[Annotated[Mapping[str, Any], _Step], ...] = ()
    """Parameters of the steps of `preprocess`, in order."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Other options of the action."""
    sha256: str | None = None
    """Digest of the manifest of the dataset, which has those of all its files."""


@pickled_by_name
@dataclass(frozen=True)
class Manifest:
    """A dataset's manifest; every field is JSON but `tables` and `history`.

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
    tables: Mapping[str, TableSpec] = field(metadata={"key": "schema"})
    """`steps`, `observations` and `episodes`, or `ted` and `episodes`."""
    counts: Mapping[str, Count]
    """`transitions` (steps), `episodes`, `valid_transitions` (those with a known next observation or
    terminated), `terminated` and `truncated` (rows), `without_final_observation` (episodes)."""
    created: str = ""
    """UTC time of publication, ISO 8601."""
    converter: Annotated[Mapping[str, Any], _Converter] = field(default_factory=dict)
    """`name`, `version`, `options`, and `reading`, see `sources.corrections`."""
    files: tuple[Annotated[Mapping[str, Any], _RawFile], ...] = ()
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
    dropped: tuple[Annotated[Mapping[str, str], _reasons("key", "reason")], ...] = ()
    """Features that were not kept: `key`, `reason`."""
    skipped: tuple[Annotated[Mapping[str, str], _reasons("where", "reason")], ...] = ()
    """Episodes that could not be read and were left out: `where`, `reason`."""
    non_finite: Mapping[str, Mapping[str, Count]] = field(default_factory=dict)
    """Features with NaN or infinity, kept as they are: `{leaf: {"nan": n, "inf": n}}`."""
    audit: Mapping[str, Any] = field(default_factory=dict)
    """Rows that were read back and compared: `mode`, `rows`, `episodes`, `differences` (0)."""
    digests: Mapping[Inside, Annotated[Mapping[str, Any], _Digest]] = field(default_factory=dict)
    """`{relative path: {"size": …, "sha256": …}}` of every other file here."""
    parents: tuple[str, ...] = ()
    """Ids of the datasets it was made from."""
    history: tuple[HistoryStep, ...] = ()
    """Steps from the sources to this dataset, the last of which made it; empty for datasets made from
    no other one. `store.history` also reads those of older versions."""
    replay: Annotated[Mapping[str, Any], ReplaySummary] | None = None
    """Result of `replay --save`; absent in the file if there is none."""
    two_copies: tuple[FileKey, ...] = ()
    """Root features whose `next` value differs from the following root value, so that both are
    stored for every step, in either layout."""
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
        known["history"] = [vars(step) for step in self.history]
        for name in ("history", "replay"):
            if not known[name]:
                del known[name]
        schema = {name: table.to_json() for name, table in self.tables.items()}
        encodings = {leaf.encoding for table in self.tables.values() for leaf in table.leaves}
        version = 3 if VIDEO in encodings else 1 if encodings == {None} else 2
        return {"format_version": version, **known, "schema": schema, **self.extra}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> Manifest:
        """Read the form on disk; raises `FormatError`, which begins with `where`, for another one."""
        known = {n: value[n] for n in (*_PLAIN_FIELDS, "schema", "sha256") if n in value}
        known["extra"] = {n: value[n] for n in value if n not in _KNOWN}
        return decode(cls, known, where, lenient=True)


_DERIVED = ("format_version", "schema", "sha256")
_PLAIN_FIELDS = tuple(
    n for n in Manifest.__dataclass_fields__ if n not in {"tables", "sha256", "extra"}
)
_KNOWN = {*_PLAIN_FIELDS, *_DERIVED}
_ZEROS = "0" * 64
_LAST_FIELD = re.compile(rb'": "([^"]{64})"\n}\n\Z')


def dump_manifest(manifest: Manifest) -> str:
    """Write a manifest as the text of its file, its own digest included, ending in a newline."""
    value = {**manifest.to_json(), "sha256": _ZEROS}
    text = as_unicode(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=True)) + "\n"
    before, _, after = text.rpartition(_ZEROS)
    return before + hashlib.sha256(text.encode()).hexdigest() + after


def identity_of(manifest: Manifest) -> str:
    """Return a SHA-256 that is equal for the same dataset in either layout.

    It covers the id with revision, the counts, and the digests of the episode table.
    """
    digests = manifest.digests.items()
    files = {name: file["sha256"] for name, file in digests if name.startswith(f"{EPISODES}/")}
    content = [manifest.id, dict(manifest.counts), files]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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

    Raises `NotFoundError`, `AccessError`, and what `parse_manifest` raises.
    """
    try:
        data = read_whole(folder / MANIFEST, MAX_BYTES)
    except NotFoundError:
        raise NotFoundError(
            f"{folder} is not a dataset directory: it has no {MANIFEST}",
            hint="`offline-data list` shows the datasets on this disk; "
            "`offline-data convert PATH NAME` makes one of your own files",
        ) from None
    except FormatError as error:
        raise ManifestError(error.message, hint=_how_to_replace(folder)) from error
    return parse_manifest(data, str(folder), _how_to_replace(folder))


def parse_manifest(data: bytes, place: str, hint: str) -> Manifest:
    """Read the bytes of a manifest, which a stranger may have written.

    Raises `NewerFormatError`, and `ManifestError` with `hint` if it is damaged or breaks a rule of
    `check_manifest`; both name `place`, the folder or address that it is from.
    """
    path = f"{place}/{MANIFEST}"
    where = f"{path} is damaged"
    try:
        value = parse_json(data, path)
        version = value.get("format_version") if isinstance(value, dict) else None
        if type(version) is int and version > FORMAT_VERSION:
            raise _newer(place, version, value)
        decode(_ManifestVersion, value, where, "manifest", lenient=True)
        manifest = Manifest.from_json(value, where)
        check_manifest(manifest)
    except (FormatError, ValueError) as error:
        raise ManifestError(
            error.message if isinstance(error, FormatError) else f"{where}: {error}", hint=hint
        ) from error
    return manifest


def _how_to_replace(folder: Path) -> str:
    if "local" in folder.absolute().parts[-3:-2]:
        name = shlex.quote(folder.absolute().parts[-2])
        return f"make the dataset again: `offline-data convert PATH {name} --force`"
    return "download the dataset again: `offline-data download ID --force`"


def _newer(place: str, version: int, value: Mapping[str, Any]) -> NewerFormatError:
    converter = value.get("converter")
    stated = converter.get("version") if isinstance(converter, dict) else None
    known = isinstance(stated, str) and re.fullmatch(r"[\w.+!-]{1,40}", stated)
    return NewerFormatError(
        f"{place} has format version {version}"
        f"{f', written by offline-data {stated}' if known else ''}; "
        f"this version reads up to {FORMAT_VERSION}",
        hint=f"pip install 'offline-data>={stated}'" if known else "pip install -U offline-data",
    )


def check_manifest(manifest: Manifest) -> None:
    """Raise `ValueError`, saying which field, unless it describes a whole dataset."""
    _check_counts(manifest.counts)
    sizes = {name: int(entry["size"]) for name, entry in manifest.digests.items()}
    if MANIFEST in sizes:
        raise ValueError(f"digests have {MANIFEST} itself")
    _check_tables(manifest, sizes)


def _check_counts(counts: Mapping[str, int]) -> None:
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


def _check_tables(manifest: Manifest, sizes: Mapping[str, int]) -> None:
    tables, counts = manifest.tables, manifest.counts
    rows, episodes = counts["transitions"], counts["episodes"]
    compact = {STEPS: rows, OBSERVATIONS: rows + episodes}
    expected: dict[str, int] = {
        **({TED: rows} if manifest.layout == TED else compact),
        EPISODES: episodes,
    }
    if tables.keys() != expected.keys():
        raise ValueError(f"schema has the tables {shown(sorted(tables))}, not {sorted(expected)}")
    leaves = {}
    for name, count in expected.items():
        if tables[name].rows != count:
            raise ValueError(
                f"schema {name} has {tables[name].rows} rows, and by its counts {count}"
            )
        leaves[name] = _check_table(name, tables[name], sizes)
    if any(leaf.text for table in leaves.values() for leaf in table.values()):
        _size_of(TEXT, "text features", sizes)
    _check_pairs(leaves, set(manifest.two_copies))


def _check_pairs(leaves: Mapping[str, Mapping[Key, LeafSpec]], two_copies: set[Key]) -> None:
    """Check features at root and `next`: stored once, or twice with the same dtype and shape."""
    if TED not in leaves:
        observed = leaves[OBSERVATIONS].keys()
        if any(key[0] in RESERVED_ROOTS for key in observed):
            raise ValueError(f"{OBSERVATIONS} has a feature that begins with a name of TED's own")
        twice = leaves[STEPS].keys() & {*observed, *map(next_of, observed)}
        if twice:
            raise ValueError(f"{shown('/'.join(min(twice)))} is in {STEPS} and in {OBSERVATIONS}")
        return
    for key, leaf in leaves[TED].items():
        after = leaves[TED].get(next_of(key))
        if key in two_copies or key[0] == "next" or after is None:
            continue
        if (leaf.dtype, leaf.shape, leaf.text) != (after.dtype, after.shape, after.text):
            raise ValueError(f"{shown('/'.join(key))} has another type than what follows it")


def _check_table(table: str, spec: TableSpec, sizes: Mapping[str, int]) -> dict[Key, LeafSpec]:
    by_key: dict[Key, LeafSpec] = {}
    extents: dict[str, list[tuple[int, int, int]]] = {}
    for leaf in spec.leaves:
        where = f"feature {shown('/'.join(leaf.key))} of {table}"
        if leaf.key in by_key:
            raise ValueError(f"{where} is there twice")
        by_key[leaf.key] = leaf
        if leaf.encoding is not None:
            suffix = FRAMES if leaf.encoding == VIDEO else BYTES
            _check_encoded(leaf, f"{table}/{'/'.join(leaf.key)}{suffix}", spec.rows, sizes, where)
            continue
        _check_leaf(leaf, where)
        if not (leaf.file.startswith(f"{table}/") and leaf.file.endswith(SUFFIX)):
            raise ValueError(f"{where} lies in {shown(leaf.file)}, expected {table}/….{SUFFIX[1:]}")
        end = leaf.offset + leaf.nbytes
        extents.setdefault(leaf.file, []).append((leaf.offset, end, leaf.stride))
    for file, places in extents.items():
        _check_file(file, places, spec.rows, sizes)
    for key, (dtype, shape) in _REQUIRED[table].items():
        found = by_key.get(key)
        if found is None or (found.dtype, found.shape) != (dtype, shape):
            raise ValueError(f"{table} needs {'/'.join(key)}, {dtype} {list(shape)} a row")
    reward = by_key.get(REWARD) if EPISODE in _REQUIRED[table] else None
    if reward and (reward.text or reward.dtype.startswith("complex") or reward.shape != (1,)):
        raise ValueError(f"{table} has {'/'.join(REWARD)}, expected a number a row")
    return by_key


def _check_leaf(leaf: LeafSpec, where: str) -> None:
    shape, size = list(leaf.shape), DTYPES[leaf.dtype]
    if leaf.text and leaf.dtype != TEXT_DTYPE:
        raise ValueError(f"{where} is text of dtype {leaf.dtype}, expected {TEXT_DTYPE}")
    # Dimensions next to one of length 0 are not bounded by the file.
    large = prod(max(n, 1) for n in shape) > MAX_COUNT // 16
    if large or len(shape) > MAX_DIMENSIONS or any(n > _LENGTH for n in shape):
        raise ValueError(f"{where} has shape {shown(shape)}")
    end = leaf.offset + leaf.nbytes
    if end > leaf.stride:
        raise ValueError(f"{where} ends at byte {end} of rows of {leaf.stride} bytes")
    if leaf.offset % size or leaf.stride % min(size, WORD):
        place = f"byte {leaf.offset} of {leaf.stride}"
        raise ValueError(f"{where} lies at {place}: not at a multiple of {size}")


def _check_encoded(
    leaf: LeafSpec, file: str, rows: int, sizes: Mapping[str, int], where: str
) -> None:
    known = fits_encoding(str(leaf.encoding), leaf.dtype, leaf.shape)
    if not known or file.split("/")[0] not in {STEPS, OBSERVATIONS}:
        images = f"{shown(leaf.encoding)} images of {leaf.dtype} {shown(list(leaf.shape))}"
        raise ValueError(f"{where} cannot be {images}")
    for name, value in {"file": file, "offset": 0, "stride": 0, "text": False}.items():
        found = getattr(leaf, name)
        if found != value:
            raise ValueError(f"{where} {name} is {shown(found)}; encoded, it is {shown(value)}")
    if leaf.encoding == VIDEO:
        _check_videos(leaf, rows, sizes)
        return
    size = _size_of(leaf.offsets, f"{rows + 1} offsets", sizes)
    if size != 8 * (rows + 1) or _size_of(file, f"{rows} images", sizes) < rows:
        raise ValueError(f"{shown(file)} and {shown(leaf.offsets)} are too short for {rows} rows")


def _check_videos(leaf: LeafSpec, rows: int, sizes: Mapping[str, int]) -> None:
    if _size_of(leaf.file, f"{rows} frames", sizes) != FRAME_BYTES * rows:
        raise ValueError(f"{shown(leaf.file)} is not the frames of {rows} rows")
    folder = video_name(leaf, 0).rpartition("/")[0]
    files = sum(name.startswith(f"{folder}/") for name in sizes)
    for number in range(max(1, -(-files // 2))):
        _size_of(video_name(leaf, number), "frames", sizes)
        times = video_name(leaf, number, times=True)
        size = _size_of(times, "times", sizes)
        if size % 16 or not size:
            raise ValueError(f"{shown(times)} has {size} bytes: not times of frames")


def _check_file(
    file: str, extents: list[tuple[int, int, int]], rows: int, sizes: Mapping[str, int]
) -> None:
    stride, done = extents[0][2], 0
    for begin, end, own in sorted(extents):
        if own != stride or (begin < done and end > begin):
            sizes_of_rows = f"rows of {own} and {stride} bytes"
            raise ValueError(f"features of {shown(file)} overlap, or have {sizes_of_rows}")
        done = max(done, end)
    size = _size_of(file, f"{rows} rows of {stride} bytes", sizes)
    if size != rows * stride:
        raise ValueError(f"{shown(file)} has {size} bytes, and {rows} rows of {stride} bytes")


def _size_of(file: str, needed: str, sizes: Mapping[str, int]) -> int:
    if file not in sizes:
        raise ValueError(f"digests lack {shown(file)}, which has {needed}")
    return sizes[file]


def dropped_lines(dropped: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return features that were not kept as lines, one for each reason.

    Example:
        >>> dropped_lines({"key": key, "reason": "It has no rows."} for key in "abc")
        ['3 features (a, b, …): Each has no rows.']
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
    return f"{len(keys)} features ({', '.join(some)}): {each}"
