"""`info`: everything known about one dataset, on this disk or in a catalogue."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from offline_data.disk import human_bytes
from offline_data_cli.context import Context
from offline_data_cli.options import Dataset
from offline_data_cli.recipes import recipe_lines
from offline_data_cli.render import nested
from offline_data_cli.result import Column, Field, Fields, Result, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offline_data.reports.catalog import CatalogDataset
    from offline_data.reports.info import DatasetInfo

_SCHEMA = (Column("LEAF"), Column("TYPE"), Column("SHAPE"), Column("ROWS PER EPISODE"))
_MOST_FILES = 8
"""Files that people see; `--json` has them all."""


def info(context: Context, dataset: Dataset) -> Result:
    """Show schema, counts, provenance and licence of a dataset."""
    from offline_data.reports.info import DatasetInfo, dataset_info

    found = dataset_info(dataset, context.settings)
    return info_result(found) if isinstance(found, DatasetInfo) else _remote(found)


def info_result(found: "DatasetInfo") -> Result:
    """Lay out a dataset on this disk."""
    summary = Fields(
        (
            Field("id", found.id),
            Field("path", found.path),
            Field("layout", found.layout),
            Field("transitions", found.transitions, "count"),
            Field("valid transitions", found.counts.get("valid_transitions"), "count"),
            Field("episodes", found.episodes, "count"),
            Field("size", found.bytes, "bytes"),
        )
    )
    schema = tuple(
        (
            key,
            "text" if leaf.text else leaf.dtype,
            str(list(leaf.shape)),
            "steps" if leaf.rows == "steps" else "steps + 1",
        )
        for key, leaf in found.schema.items()
    )
    return Result(
        data={**vars(found), "remote": False},
        blocks=(summary, Table(_SCHEMA, schema), _provenance(found)),
        ids=(found.id,),
    )


def _provenance(found: "DatasetInfo") -> Fields:
    options = found.converter.get("options", {})
    plain = {k: v for k, v in options.items() if k != "recipe"}  # the recipe has its own lines
    converter = {k: v for k, v in found.converter.items() if k != "options"}
    converter |= {"options": plain} if plain else {}
    files = [_file(file) for file in found.files[:_MOST_FILES]]
    if len(found.files) > _MOST_FILES:
        files.append(f"… and {len(found.files) - _MOST_FILES} more (all in --json)")
    failed = dict.fromkeys(reason for file in found.files for reason in file.get("failed", ()))
    return Fields(
        (
            Field("revision", found.revision),
            Field("created", found.created),
            Field("converter", _compact(converter)),
            Field("made from", found.parents),
            Field("made by", recipe_lines(options.get("recipe", ()))),
            Field("files", files),
            Field("failed hosts", list(failed)),
            *(Field(f"{name} space", _compact(space)) for name, space in found.spaces.items()),
            Field("environment", _compact(found.environment)),
            *(Field(name, _about(value)) for name, value in found.about.items()),
            Field("licence", found.licence),
            Field("citation", found.citation),
            Field("audit", _compact(found.audit)),
            Field("not finite", [f"{key}: {_compact(n)}" for key, n in found.non_finite.items()]),
            Field("dropped", [f"{leaf['key']}: {leaf['reason']}" for leaf in found.dropped]),
            Field("notes", found.notes),
        )
    )


def _file(file: "Mapping[str, Any]") -> str:
    origin = file.get("url") or "this disk"
    return f"{file.get('path')}, {human_bytes(file.get('size') or 0)}, from {origin}"


def _about(value: Any) -> str | None:
    """Write a list of names (authors, algorithms) as people do."""
    names = isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
    return ", ".join(value) or None if names else _compact(value)


def _compact(value: Any) -> str | None:
    """Write nested values on one line; None if there are none."""
    return None if value is None or value in ({}, [], ()) else nested(value)


def _remote(found: "CatalogDataset") -> Result:
    fields = Fields(
        (
            Field("id", found.id),
            Field("on this disk", "another revision" if found.here else "no"),
            Field("summary", found.summary),
            Field("transitions", found.transitions, "count"),
            Field("episodes", found.episodes, "count"),
            Field("download", found.bytes, "bytes"),
            Field("notes", found.notes),
        )
    )
    return Result(
        data={**asdict(found), "remote": True, "command": found.command},
        blocks=(fields,),
        ids=(found.id,),
        notes=(f"to download it: {found.command}",),
    )
