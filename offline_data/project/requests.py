"""`datasets.toml`: the datasets that a project uses, by short names.

```toml
[datasets]
door = "minari:D4RL/door/human-v2"
frames = { id = "atari_dqn:Pong/1", checkpoints = "0:2", images = "raw" }
sums = { id = "hf:openai/gsm8k:main", text = { tokenizer = "gpt2", max_length = 512 } }
```

Options are those of `SAVED`; `text` has the fields of `TextOptions`; the path of a tokenizer is relative to the file.

The file may come from a stranger: every error names it and the key, and has no other effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_type_hints

from offline_data.base.config import read_toml
from offline_data.base.decode import Check, decode, matching
from offline_data.base.errors import UsageError
from offline_data.base.ids import DatasetId, parse_id
from offline_data.formats.options import SAVED, Options, TextOptions, parse_range

MAX_BYTES = 1 << 20  # bytes of the largest `datasets.toml` that is read

EXAMPLE = 'for example door = "minari:D4RL/door/human-v2" below [datasets]'


_RANGE = matching(" *[0-9]{0,18} *: *[0-9]{0,18} *", "text: A:B with at most 18 digits each")
Range: TypeAlias = Annotated[tuple[int | None, int | None], str, _RANGE, parse_range]
Id: TypeAlias = Annotated[DatasetId, str, Check("an id in quotes", bool), parse_id]
Name: TypeAlias = Annotated[
    str, matching("[A-Za-z0-9_-]{1,100}", "up to 100 letters, digits, - and _")
]


def options_fields(text: Any = TextOptions) -> list[tuple[str, Any, Any]]:
    """Return the fields of a table of options for `make_dataclass`; `text`: see `decode`."""
    kinds = get_type_hints(Options)
    written = {kinds["episodes"]: Range | None, kinds["text"]: text | None}
    return [
        (name, written.get(kinds[name], kinds[name]), field(default=getattr(Options, name)))
        for name in SAVED
    ]


def options_in(table: Any) -> Options:
    """Return the options of a table; raises `UsageError`."""
    return Options(**{name: getattr(table, name) for name in SAVED})


_RequestTable = make_dataclass("_RequestTable", [*options_fields(), ("id", Id)], kw_only=True)
_Asked: TypeAlias = tuple[DatasetId, Options]
_Request: TypeAlias = (
    Annotated[_Asked, Id, lambda given: (given, Options())]
    | Annotated[_Asked, _RequestTable, lambda table: (table.id, options_in(table))]
)


@dataclass(frozen=True)
class _RequestsFile:
    datasets: Mapping[Name, _Request]


@dataclass(frozen=True)
class DatasetRequest:
    """A dataset as `datasets.toml` asks for it."""

    name: str  # its short name in the project
    id: DatasetId  # with a revision if the project insists on one
    options: Options


def read_requests(file: Path) -> dict[str, DatasetRequest]:
    """Read `datasets.toml`: requests by short name, sorted.

    Raises:
        NotFoundError: There is no such file.
        UsageError: It is not TOML, or not of this form; the message names the key.
        AccessError: It cannot be read.
    """
    found: dict[str, DatasetRequest] = {}
    places: dict[tuple[str | None, ...], DatasetRequest] = {}
    asked = decode(
        _RequestsFile, read_toml(file, MAX_BYTES, EXAMPLE), str(file), toml=True
    ).datasets
    for name, (dataset, options) in sorted(asked.items()):
        one = DatasetRequest(name, dataset, options)
        text = options.text
        tokenizer = (text.tokenizer, text.tokenizer_revision) if text else ()
        other = places.setdefault((options.revision_of(f"{one.id}@"), *tokenizer), one)
        if other.options != options:
            raise UsageError(
                f"{file}: datasets.{name} is the dataset of datasets.{other.name} with other options, and one "
                "directory on this disk holds only one of both",
                hint="give both the same options, or use two projects with two roots",
            )
        found[name] = one
    return found
