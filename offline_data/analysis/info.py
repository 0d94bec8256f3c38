"""Information on one dataset from its manifest or a catalogue, and what is shown of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.base.files import human_bytes
from offline_data.base.ids import looks_like_path, parse_id
from offline_data.base.plurals import plural
from offline_data.base.urls import redact
from offline_data.document.blocks import Block, Field, Fields, Table, fields_of, table
from offline_data.document.html import Document
from offline_data.document.values import format_nested, is_empty
from offline_data.episode.fields import REWARD, join_key
from offline_data.formats.options import Options, TextOptions, format_range, options_of
from offline_data.formats.search import CatalogDataset
from offline_data.store.history import history_of
from offline_data.store.layout import EPISODE
from offline_data.store.library import Entry, LocalDataset, locate
from offline_data.store.manifest import HistoryStep, dropped_lines
from offline_data.store.names import names_in
from offline_data.store.reader import DatasetReader
from offline_data.store.spaces import declared_spaces, observed_leaves

_MOST_FILES = 8  # files that are listed; `info --json` has all
_LONGEST = 60  # characters of a parameter's value
_LABELS = {  # labels of what sources state; others are their keys in words
    "author": "authors",
    "author_email": "contact",
    "code_permalink": "code",
    "codebase_version": "LeRobot version",
    "dataset_id": "id at the source",
    "dataset_size": "size at the source",
    "fps": "rate",
    "max_episode_steps": "steps of an episode",
    "minari_version": "Minari version",
    "robot_type": "robot",
}
_UNITS = {"fps": "{:,} Hz", "max_episode_steps": "at most {:,}", "dataset_size": "{:,} MB"}
_SHOWN = {"description", "features", "splits"}  # shown elsewhere, or about files
_INTERNAL = ("recipe", "fingerprint", "next_too")  # options shown elsewhere, or of identity
NO_REWARDS = "The source has no rewards: batches have no ('next', 'reward'), and the return of every episode is NaN."


@dataclass(frozen=True, repr=False)
class DatasetInfo(Document, LocalDataset):
    """A dataset on this disk, with all of its manifest; `info --json` has these fields."""

    schema: dict[str, dict[str, Any]]
    """Features that the source gave; see `schema_of`."""
    source: str
    name: str
    revision: str
    created: str
    """When it was written, ISO 8601."""
    counts: Mapping[str, int]
    """Steps (`transitions`), episodes, flags, and so on."""
    converter: Mapping[str, Any]
    """Program and options that made it."""
    spaces: Mapping[str, Any]
    """Observation and action spaces, in the source's own form."""
    values: Mapping[str, str]
    """Declarations of the source about the values of each feature of observations and actions, by key:
    `float32[2], -1 to 1`, or `float32[2], not declared`; `stats` has the range of the data."""
    environment: Mapping[str, Any]
    """Environment spec, in the source's own form."""
    about: Mapping[str, Any]
    """Everything else that the source says."""
    licence: str | None
    citation: str | None
    notes: Sequence[str]
    """Rules that were applied, and quirks, a sentence each."""
    dropped: Sequence[Mapping[str, Any]]
    """Features that could not be kept: `key` and `reason`."""
    skipped: Sequence[Mapping[str, Any]]
    """Skipped episodes: `where` and `reason`."""
    non_finite: Mapping[str, Mapping[str, int]]
    """NaN and infinite values by feature."""
    audit: Mapping[str, Any]
    """Rows that were read back and compared with the source."""
    replay: Mapping[str, Any] | None
    """Summary that `replay --save` recorded; see `store.manifest.ReplaySummary`."""
    files: Sequence[Mapping[str, Any]]
    """Raw files: path, url without passwords, size, sha256, and what of them was `compared` with
    what their source publishes (`size and sha256`; datasets of before do not say)."""
    parents: Sequence[str]
    """Ids of the datasets that it was made of."""
    history: Sequence[HistoryStep]
    """Steps from the sources to this dataset, the last of which made it."""
    marks: Mapping[str, int]
    """Episodes that are marked `good`, `bad`, `unsure`, or have a note (`notes`); empty: none."""

    def blocks(self) -> list[Block]:
        return [
            summary_fields(self),
            schema_table(self),
            source_fields(self),
            provenance_fields(self),
        ]


_OF_MANIFEST = [  # manifest fields that are shown unchanged, except for passwords in `files`
    field.name
    for field in fields(DatasetInfo)[7:]
    if field.name not in {"files", "values", "history", "marks"}  # `files` may have passwords
]


def dataset_info(text: str, settings: Settings) -> DatasetInfo | CatalogDataset:
    """Describe the dataset with an id or path, from this disk or else from a catalogue.

    Raises `NotFoundError` if it is in neither, `InvalidIdError`, and `NetworkError` if the remote
    of its source had to be queried and does not answer.
    """
    try:
        return entry_info(locate(text, settings), settings.root)
    except NotFoundError:
        if looks_like_path(text):
            raise
        from offline_data.formats.search import find_in_catalog

        found = find_in_catalog(parse_id(text), settings)
        if found is None:
            raise
        return found


def entry_info(entry: Entry, root: Path | None = None) -> DatasetInfo:
    """Describe a dataset on this disk from its manifest; for `root` see `history_of`."""
    manifest = entry.manifest
    reader = DatasetReader(entry.path, manifest)
    known: dict[str, Any] = {name: getattr(manifest, name) for name in _OF_MANIFEST}
    if REWARD not in reader.step_leaves:
        known["notes"] = [*manifest.notes, NO_REWARDS]
    return DatasetInfo(
        **vars(LocalDataset.of(entry)),
        schema=schema_of(reader),
        values=_declared_values(reader),
        # a manifest written elsewhere may contain full URLs
        files=[{name: _redact(value) for name, value in one.items()} for one in manifest.files],
        history=history_of(manifest, root),
        marks=reader.marks.counts(),
        **known,
    )


def compared_with_source(audit: Mapping[str, Any]) -> str:
    """Return how many rows of a dataset were compared with its source, as its manifest records.

    Example:
        >>> compared_with_source({"mode": 0.01, "rows": 118, "of": 6729})
        '118 of 6,729 rows (1.8 %)'
    """
    rows, of = audit.get("rows"), audit.get("of")
    if type(rows) is not int or type(of) is not int or not 0 <= rows <= of:
        return "not recorded"
    share = "all" if rows == of else f"{100 * rows / of:.2g} %" if rows else "none"
    return f"{rows:,} of {plural(of, 'row')} ({share})"


def replay_line(summary: Mapping[str, Any] | None, episodes: int) -> str | None:
    """Return the last recorded replay of a dataset of `episodes` as a line; None without one.

    Example:
        >>> counts = {"exact": 3, "diverging": 1}
        >>> stated = {"environment": "Hopper-v5", "gymnasium": "1.2.1", "date": "2026-01-31"}
        >>> line = replay_line({**stated, "counts": counts, "difference": 0.25}, 9)
        >>> line.split(" (")
        ['4 of 9 episodes in Hopper-v5: 3 exact, 1 diverging, difference up to 0.25', 'gymnasium 1.2.1, 2026-01-31)']
    """
    if summary is None:
        return None
    counts = ", ".join(f"{count:,} {name}" for name, count in summary["counts"].items())
    largest = summary["difference"]
    difference = "not finite" if largest is None else f"up to {largest:.3g}" if largest else "0"
    played = f"{sum(summary['counts'].values()):,} of {plural(episodes, 'episode')}"
    return (
        f"{played} in {summary['environment']}: {counts or 'none'}, difference {difference} "
        f"(gymnasium {summary['gymnasium']}, {summary['date']})"
    )


def _declared_values(reader: DatasetReader) -> dict[str, str]:
    try:
        declared = declared_spaces(reader)
    except FormatError:  # `check` names it
        return {}
    actions = {key: leaf for key, leaf in reader.step_leaves.items() if key[0] == "action"}
    return {
        join_key(key): str(declared.get(key) or f"{leaf.dtype}{list(leaf.shape)}, not declared")
        for key, leaf in sorted({**observed_leaves(reader), **actions}.items())
        if not leaf.text
    }


def _redact(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [redact(str(item)) for item in value]
    return redact(value) if isinstance(value, str) else value


def schema_of(reader: DatasetReader) -> dict[str, dict[str, Any]]:
    """Return the features of the source, whatever the layout, sorted by key.

    Each has `dtype` and `shape` (of codes if it is `text`, of decoded images if it has an
    `encoding`) and `rows`: one per transition (`steps`), or one more per episode (`observations`).
    """
    tables = {"observations": reader.observation_leaves, "steps": reader.step_leaves}
    leaves: dict[str, dict[str, Any]] = {}
    for rows, found in tables.items():
        for key, leaf in found.items():
            about = {"dtype": leaf.dtype, "shape": leaf.shape, "rows": rows, "text": leaf.text}
            leaves[join_key(key)] = about | ({"encoding": leaf.encoding} if leaf.encoding else {})
    leaves.pop(join_key(EPISODE), None)
    return dict(sorted(leaves.items()))


def summary_fields(info: DatasetInfo) -> Fields:
    """Return the description of a dataset, where it is, and its counts."""
    return fields_of(
        info,
        "id path layout steps=transitions:count transitions=counts.valid_transitions:count "
        "episodes:count terminated=counts.terminated:count truncated=counts.truncated:count "
        "marks size=bytes:bytes description",
        marks=", ".join(
            plural(count, "note") if name == "notes" else f"{count:,} {name}"
            for name, count in info.marks.items()
        )
        or None,
        description=_stated("description", info.about.get("description")),
    )


def schema_table(info: DatasetInfo) -> Table:
    """Return a row for each feature, with the names of its dimensions if the source gives them."""
    names = names_in(info.about, {key: leaf["shape"] for key, leaf in info.schema.items()})

    def describe_type(leaf: Mapping[str, Any]) -> str:
        encoding = f" ({leaf['encoding']})" if "encoding" in leaf else ""
        return "text" if leaf["text"] else leaf["dtype"] + encoding

    def declared(leaf: Mapping[str, Any]) -> str:
        found = info.values.get(leaf["leaf"], "")
        return "" if found.endswith("not declared") else found

    return table(
        "feature=leaf:code type shape rows_per_episode=rows declared:clip names=features:clip",
        [{**leaf, "leaf": key} for key, leaf in info.schema.items()],
        type=describe_type,
        shape=lambda leaf: str(list(leaf["shape"])),
        rows=lambda leaf: "steps" if leaf["rows"] == "steps" else "steps + 1",
        declared=declared,
        features=lambda leaf: ", ".join(names.get(leaf["leaf"], ())),
    )


def source_fields(info: DatasetInfo) -> Fields:
    """Return licence, citation, and what else the source states."""
    return Fields(
        Field("licence", info.licence or "not stated"),
        Field("citation", info.citation or "not stated", "verbatim"),
        *(
            Field(label_of(key), _stated(key, value))
            for key, value in info.about.items()
            if key not in _SHOWN
        ),
        Field("environment", _lines(info.environment)),
        Field("notes", info.notes),
    )


def provenance_fields(info: DatasetInfo) -> Fields:
    """Return how a dataset was made, of which files, and what was compared or left out."""
    made_by, options = info.converter, info.converter.get("options", {})
    adapter = f"({made_by['adapter']})" if "adapter" in made_by else None
    failed = dict.fromkeys(reason for file in info.files for reason in file.get("failed", ()))
    files = [_describe_file(file) for file in info.files[:_MOST_FILES]]
    if len(info.files) > _MOST_FILES:
        files.append(f"… and {len(info.files) - _MOST_FILES:,} more (all in --json)")
    return Fields(
        Field("revision", info.revision, "code"),
        Field("created", format_time(info.created)),
        Field(
            "converter",
            " ".join(filter(None, (made_by.get("name"), made_by.get("version"), adapter))),
        ),
        Field("options", list_options(options)),
        Field("made from", info.parents),
        Field("made by", recipe_lines(options.get("recipe", ()))),
        Field("files", files),
        Field("failed hosts", list(failed)),
        Field("compared with source", compared_with_source(info.audit)),
        Field("replayed", replay_line(info.replay, info.episodes)),
        Field("not finite", [f"{key}: {format_nested(n)}" for key, n in info.non_finite.items()]),
        Field("dropped", dropped_lines(info.dropped)),
        Field("skipped", [f"{part['where']}: {part['reason']}" for part in info.skipped]),
    )


def history_blocks(steps: Iterable[HistoryStep]) -> list[Fields]:
    """Return the steps from the source to a dataset, one after the other."""
    return [
        Fields(
            Field("made from", step.parents),
            Field("steps", recipe_lines(step.recipe)),
            Field("options", list_options(step.options)),
            Field("version", step.version),
            Field("created", format_time(step.created)),
            Field("manifest", step.sha256, "code"),
            title=f"{number}. {step.action} {step.id}",
        )
        for number, step in enumerate(steps, 1)
    ]


def recipe_lines(recipe: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each step: its parameters, or how its function was called."""
    lines = []
    for step in recipe:
        name = str(step["step"])
        if name == "fn" and ("run" in step or "by" in step):
            lines.append(f"{step.get('name', 'function')}: {how_run(step)}")
            continue
        shown = [
            f"{key}={text}"
            for key, value in step.items()
            if key not in {"step", "error"} and value is not False and not is_empty(value)
            if len(text := format_nested(value)) <= _LONGEST
        ]
        if error := step.get("error"):
            shown.append(f"errors up to {error['max']} of 255, {error['mean']:.3g} on average")
        lines.append(f"{name}: {', '.join(shown)}" if shown else name)
    return lines


def how_run(step: Mapping[str, Any]) -> str:
    """Return how a function of a recipe was called."""
    if step.get("by") == "episode":
        return "episode by episode"
    if step["run"] == "vectorised":
        left = step.get("by_rows")
        apart = (
            f", except {plural(left['rows'], 'row')}, run row by row: {left['why']}" if left else ""
        )
        return f"vectorised{apart}"
    if step["run"] == "blocks":
        return f"blocks of {plural(step['batched'], 'row')}"
    if not step["vectorize"]:
        return "row by row, as requested"
    return f"row by row, {step['why']}; use --batched N to pass blocks of rows"


def list_options(recorded: Mapping[str, Any]) -> list[str]:
    """Return recorded options that are not the defaults, a line each, as the command line has them."""
    text = recorded.get("text")
    others = {k: v for k, v in recorded.items() if k not in _INTERNAL and k != "text"}
    lines = []
    for kind, given in ((Options, others), (TextOptions, text or {})):
        known = options_of(kind)
        for name, value in given.items():
            usual = is_empty(value) or value in (False, "auto", getattr(kind, name, None))
            if usual or (kind is TextOptions and name not in known):
                continue
            flag = (known[name].flag if name in known else None) or f"--{name.replace('_', '-')}"
            if name in {"episodes", "checkpoints"}:
                value = format_range(tuple(value))
            shown = "" if value is True else format_nested(value)
            lines.append(f"{flag} {shown if len(shown) <= _LONGEST else '… (in --json)'}".rstrip())
    return lines


def format_time(iso: str) -> str:
    """Format an ISO 8601 time in seconds: `2026-11-28 13:10:41 UTC`."""
    return re.sub(r"^([\d-]{10})T([\d:]{8})(\.\d+)?\+00:00$", r"\1 \2 UTC", iso)


def label_of(key: object) -> str:
    """Return the label of what a source states.

    Example:
        >>> label_of("fps"), label_of("action_repeat")
        ('rate', 'action repeat')
    """
    return _LABELS.get(str(key)) or re.sub(r"[_\s]+", " ", str(key)).strip()


def _describe_file(file: Mapping[str, Any]) -> str:
    host = f", from {file['url']}" if file.get("url") else ""
    compared = f"; compared: {file['compared']}" if file.get("compared") else ""
    digest = f"; SHA-256 {file['sha256']}" if file.get("sha256") else ""
    return f"{file.get('path')}, {human_bytes(file.get('size') or 0)}{host}{compared}{digest}"


def _stated(key: str, value: Any) -> str | list[str] | None:
    """Format what a source states: names on one line, several things on a line each."""
    if isinstance(value, Mapping):
        return _lines(value)
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return ", ".join(value) or None
    if key in _UNITS and isinstance(value, (int, float)):
        return _UNITS[key].format(value)
    return None if is_empty(value) else format_nested(value)


def _lines(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each value that is not empty."""
    shown = ((label_of(key), _stated(key, value)) for key, value in values.items())
    return [
        f"{label}: {'; '.join(text) if isinstance(text, list) else text}"
        for label, text in shown
        if text
    ]
