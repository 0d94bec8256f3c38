"""`info`: everything known of one dataset, here or in a catalogue."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from offline_data.disk import human_bytes
from offline_data_cli.call import Call
from offline_data_cli.cells import nested
from offline_data_cli.options import Dataset
from offline_data_cli.recipes import recipe_lines
from offline_data_cli.result import Column, Field, Fields, Result, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offline_data.reports.catalog import CatalogDataset
    from offline_data.reports.info import DatasetInfo

_SCHEMA = (Column("LEAF"), Column("TYPE"), Column("SHAPE"), Column("ROWS"))
_MOST_FILES = 8


def info(call: Call, dataset: Dataset) -> Result:
    """Show schema, counts, provenance and licence of a dataset."""
    from offline_data.reports.info import DatasetInfo, dataset_info

    found = dataset_info(dataset, call.settings)
    return info_result(found) if isinstance(found, DatasetInfo) else _remote(found)


def info_result(found: "DatasetInfo") -> Result:
    """Lay out what is known of a dataset on this disk."""
    return Result(
        data={**vars(found), "remote": False},
        blocks=(_summary(found), _schema(found), _provenance(found)),
        ids=(found.id,),
    )


def _summary(found: "DatasetInfo") -> Fields:
    counts = found.counts
    return Fields(
        (
            Field("id", found.id),
            Field("path", found.path),
            Field("layout", found.layout),
            Field("transitions", found.transitions, "count"),
            Field("valid transitions", counts.get("valid_transitions"), "count"),
            Field("episodes", found.episodes, "count"),
            Field("size", found.bytes, "bytes"),
        )
    )


def _schema(found: "DatasetInfo") -> Table:
    rows = tuple(
        (
            key,
            "text" if leaf.text else leaf.dtype,
            str(list(leaf.shape)),
            "steps" if leaf.rows == "steps" else "steps + 1 an episode",
        )
        for key, leaf in found.schema.items()
    )
    return Table(_SCHEMA, rows)


def _provenance(found: "DatasetInfo") -> Fields:
    return Fields(
        (
            Field("revision", found.revision),
            Field("created", found.created),
            Field("converter", _compact(_without_recipe(found.converter))),
            Field("made from", found.parents),
            Field("made by", recipe_lines(found.converter.get("options", {}).get("recipe", ()))),
            Field("files", _files(found.files)),
            Field("passed over", _failed(found.files)),
            *(Field(f"{name} space", _compact(space)) for name, space in found.spaces.items()),
            Field("environment", _compact(found.environment)),
            *(Field(name, _compact(value)) for name, value in found.about.items()),
            Field("licence", found.licence),
            Field("citation", found.citation),
            Field("audit", _compact(found.audit)),
            Field("not finite", [f"{key}: {_compact(n)}" for key, n in found.non_finite.items()]),
            Field("dropped", [f"{leaf['key']}: {leaf['reason']}" for leaf in found.dropped]),
            Field("notes", found.notes),
        )
    )


def _without_recipe(converter: "Mapping[str, Any]") -> dict[str, Any]:
    """Leave out what has lines of its own."""
    options = {k: v for k, v in converter.get("options", {}).items() if k != "recipe"}
    return {**converter, **({"options": options} if options else {})}


def _files(files: "Sequence[Mapping[str, Any]]") -> list[str]:
    more = len(files) - _MOST_FILES
    shown = [_file(file) for file in files[:_MOST_FILES]]
    return [*shown, f"… and {more} more (all in --json)"] if more > 0 else shown


def _failed(files: "Sequence[Mapping[str, Any]]") -> list[str]:
    """Name each place that did not give what it should once, whatever the number of files."""
    return list(dict.fromkeys(reason for file in files for reason in file.get("failed", ())))


def _file(file: "Mapping[str, Any]") -> str:
    return f"{file.get('path')}, {human_bytes(file.get('size') or 0)}, from {file.get('url') or 'this disk'}"


def _compact(value: Any) -> str | None:
    """Write nested values on a line; nothing for nothing."""
    return None if value is None or value in ({}, [], ()) else nested(value)


def _remote(found: "CatalogDataset") -> Result:
    fields = Fields(
        (
            Field("id", found.id),
            Field("here", "another revision is on this disk" if found.here else "no"),
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
        notes=(f"to get it: {found.command}",),
    )
