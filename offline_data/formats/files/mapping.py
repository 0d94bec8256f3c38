"""Mappings: which arrays of a user's files become which leaves, and where episodes end.

```toml
rows = "steps"                  # a row of an array is a step; or "episodes": [E, T, …]
final_observation = "extra_row" # [T + 1] observations; "last_row", "next_array", "missing"
reward_of = "this_row"          # or "row_before"
ends.done = "done"

[leaves]
observation = "obs"
action = ["act_x", "act_y"]     # columns side by side
"next/reward" = "reward"
```
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping  # (`decode` reads annotations)
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from offline_data.base.config import read_toml
from offline_data.base.decode import Check, decode
from offline_data.base.errors import FormatError, UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.episode.fields import RESERVED_ROOTS, Autoreset, check_key, split_key

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from offline_data.episode import Key

Final: TypeAlias = Literal["missing", "last_row", "extra_row", "next_array"]
RowOf: TypeAlias = Literal["this_row", "row_before"]
FlagsOf: TypeAlias = Literal["this_row", "row_before", "episode"]
Ending: TypeAlias = Literal["terminated", "truncated"]

NUMBERINGS = ("episode", "lengths", "offsets", "cuts")
"""Fields of `Ends` that decide where episodes end."""

_MAX_BYTES = 1 << 20
_EXAMPLE = "`offline-data convert PATH --inspect --out map.toml` proposes a mapping"

Name: TypeAlias = Annotated[str, Check("the name of an array", lambda text: 0 < len(text) <= 1000)]
Leaf: TypeAlias = Annotated[str, Check("a feature, such as observation/state or next/reward", bool)]


def _is_pattern(text: str) -> bool:
    *parents, last = text.split("/")
    plain = all(part not in {"", ".", ".."} and "\0" not in part for part in (*parents, last))
    return plain and len(text) <= 1000 and 0 < last.count("*") < 4 and "*" not in "".join(parents)


Pattern: TypeAlias = Annotated[
    str, Check("a relative path with * in its last part, such as data/demo_* or *.npz", _is_pattern)
]


@pickled_by_name
@dataclass(frozen=True)
class Ends:
    """Arrays that say where and how episodes end; at most one of `episode`, `lengths`, `offsets` and `cuts`."""

    episode: Name | None = None
    """Number or name of the episode of each row."""
    lengths: Name | None = None
    """`[E]` rows of each episode, or a mask `[E, T]` of the rows that are not padding."""
    offsets: Name | None = None
    """`[E]` one past the last row of each episode."""
    cuts: Name | None = None
    """`[E − 1]` first row of each episode but the first, as `numpy.split` takes them."""
    done: Name | None = None
    """Flags of last rows, for any reason: they end episodes if none of the above does. With `episode`,
    episodes whose last row lacks the flag are truncated."""
    terminated: Name | None = None
    """Flags of rows after which nothing comes; without `done`, these and the next ones end episodes."""
    truncated: Name | None = None
    """Flags of rows at which a limit of time was reached."""
    flags_of: FlagsOf | None = None
    """Row whose action the flags belong to, if they have a row for each observation; or `episode`: they
    have one value for each episode, `[E]`, and do not say where it ends."""
    otherwise: Ending | None = None
    """End of episodes whose last row has neither flag."""

    def __post_init__(self) -> None:
        given = [name for name in NUMBERINGS if getattr(self, name)]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} both say where episodes end: give one of them")

    @property
    def arrays(self) -> dict[str, str]:
        """All arrays by field."""
        names = (*NUMBERINGS, "done", "terminated", "truncated")
        return {name: array for name in names if (array := getattr(self, name)) is not None}

    @property
    def flags(self) -> dict[str, str]:
        """The arrays of flags by field."""
        return {n: self.arrays[n] for n in ("done", "terminated", "truncated") if n in self.arrays}


@pickled_by_name
@dataclass(frozen=True)
class FileMapping:
    """A mapping; fields that are None and needed are requested, see `MappingQuestionError`."""

    leaves: Mapping[Leaf, Name | tuple[Name, ...]]
    """Array of each leaf, or columns that are put side by side."""
    rows: Literal["steps", "episodes"] | None = None
    """Whether a row of an array is a step, or an episode padded to the longest one."""
    each: Pattern | None = None
    """Parts of the data: groups, files of a folder, or with `_*` arrays whose names end in a number, as
    `obs_0` and `act_0`. Names of arrays are relative to a part."""
    parts: Literal["episodes", "table"] | None = None
    """Whether an episode begins with each part, and ends inside a part count; or the rows of all parts
    are one table. None: a part is an episode. Without `each`, the file is one part."""
    interleaved: bool = False
    """Whether rows of several episodes alternate: rows are ordered by the first appearance of their
    `ends.episode`. The arrays are then read whole."""
    autoreset: Autoreset | None = None
    """Mode of the vector environment that recorded the rows; see `episodes.autoreset`."""
    final_observation: Final | None = None
    """Place of the observation after the last action: nowhere, in the last row of an episode, in a row
    more than there are actions, or in the leaf `next/observation`."""
    reward_of: RowOf | None = None
    """Row whose action rewards, and all else below `next`, belong to; matters where there is a row for
    each observation."""
    action_of: RowOf = "this_row"
    """Row in whose state the action of a row was taken."""
    padding: Literal["zeros", "none"] | None = None
    """With rows of episodes and no other ends: whether trailing rows of zeros are padding."""
    ends: Ends = field(default_factory=Ends)
    episodes: Mapping[Leaf, Name] = field(default_factory=dict)
    """Array of values of episodes by name, `[E]`; of one episode, also a single value."""

    def __post_init__(self) -> None:
        for leaf in (*self.leaves, *self.episodes):
            try:
                check_key(split_key(leaf))
            except FormatError as error:
                raise UsageError(
                    error.message, hint="give it another name in the mapping"
                ) from error
        roots = {key[0] for key in self.keys}
        for root in ("action", "observation"):
            if root not in roots:
                raise UsageError(f"expected a feature {root!r} below [leaves]")
        above = {key[:end] for key in self.keys for end in range(1, len(key))} & self.keys.keys()
        if above:
            raise UsageError(f"{'/'.join(min(above))} is a feature, and has features below it")
        known = {"done", "terminated", "truncated"}
        for key in self.keys:
            if (key[0] in RESERVED_ROOTS - {"next"}) or (
                key[0] == "next" and (set(key[1:2]) & known)
            ):
                raise UsageError(f"{'/'.join(key)} cannot be a feature; flags are ends.{key[-1]}")
        if self.each is not None and self.rows == "episodes":
            raise UsageError("an episode has a group (each), or a row (rows): give one of them")
        if self.parts == "table" and self.each is None:
            raise UsageError(
                'parts = "table" needs each, the files or groups whose rows are joined'
            )
        if self.interleaved and self.ends.episode is None:
            raise UsageError(
                "interleaved needs ends.episode, the number of the episode of each row"
            )

    @property
    def keys(self) -> dict[Key, tuple[str, ...]]:
        """The names of arrays of each leaf."""
        found = ((split_key(leaf), names) for leaf, names in self.leaves.items())
        return {key: (names,) if isinstance(names, str) else names for key, names in found}

    def to_json(self) -> dict[str, Any]:
        """Return what is not the default, as manifests have it."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        found = {
            each.name: found[each.name] for each in fields(self) if found[each.name] != each.default
        }
        found["leaves"] = {k: v if isinstance(v, str) else list(v) for k, v in self.leaves.items()}
        found["ends"] = {
            name: value for name, value in vars(self.ends).items() if value is not None
        }
        return {name: value for name, value in found.items() if value != {}}

    @property
    def digest(self) -> str:
        """Eight hex digits that differ between mappings; part of the revision of the dataset."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:8]

    def with_answer(self, place: str, value: str) -> FileMapping:
        """Return the mapping with an answer to a `MappingQuestionError`."""
        change: dict[str, Any] = {place.removeprefix("ends."): value}
        if place.startswith("ends."):
            change = {"ends": replace(self.ends, **change)}
        return replace(self, **change)


class MappingQuestionError(UsageError):
    """A mapping lacks a line that the files do not tell.

    Attributes:
        place: Field of the mapping: `final_observation`.
        why: The question, as a sentence.
        choices: Meaning of each value.
        places: Fields of those values that belong to another one.
        likely: Value that is probably right, if any.
    """

    def __init__(
        self,
        place: str,
        why: str,
        choices: Mapping[str, str],
        places: Mapping[str, str] | None = None,
        likely: str | None = None,
    ) -> None:
        self.place, self.why, self.choices = place, why, choices
        self.places, self.likely = places or {}, likely
        lines = "\n".join(self.lines)
        super().__init__(f"{why}\nAdd one of these lines to the mapping, above [leaves]:\n{lines}")

    @property
    def name(self) -> str:
        """Name of the argument of `Inspection.answer`; that of `ends.otherwise` is `ends`."""
        return "ends" if self.place == "ends.otherwise" else self.place.rpartition(".")[2]

    @property
    def optional(self) -> bool:
        """Whether a mapping is complete without it."""
        return self.place == "autoreset"

    @property
    def several(self) -> bool:
        """Whether more than one of the choices can be the answer: arrays of one leaf."""
        return self.place.startswith("leaves.")

    @property
    def lines(self) -> list[str]:
        """The possible lines, with a comment each."""
        places = [self.places.get(value, self.place) for value in self.choices]
        starts = [f"{place} = " for place in places]
        width = max(len(one) + len(value) for one, value in zip(starts, self.choices, strict=True))
        return [
            f"{start + json.dumps(value):{width + 2}}  # {meaning}"
            for start, (value, meaning) in zip(starts, self.choices.items(), strict=True)
        ]

    def answered(self, mapping: FileMapping, value: str) -> FileMapping:
        """Return a mapping with the line of a choice."""
        return mapping.with_answer(self.places.get(value, self.place), value)

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the choices when pickled."""
        return type(self), (self.place, self.why, self.choices, self.places, self.likely)


def read_mapping(given: str | os.PathLike[str] | Mapping[str, Any] | FileMapping) -> FileMapping:
    """Return a mapping: that of a TOML file, or of a dictionary of the same content.

    Raises:
        UsageError: It is not TOML, or has a wrong field, which the message names.
        NotFoundError, AccessError: There is no such file, or it cannot be read.
    """
    from offline_data.base.config import user_path

    if isinstance(given, FileMapping):
        return given
    if isinstance(given, Mapping):
        return decode(FileMapping, dict(given), "The mapping", toml=True)
    file: Path = user_path(given, "the mapping")
    return decode(FileMapping, read_toml(file, _MAX_BYTES, _EXAMPLE), str(file), toml=True)


def dump_toml(mapping: FileMapping) -> str:
    """Return a mapping as TOML."""
    lines = [
        f"{each.name} = {_quote(getattr(mapping, each.name))}"
        for each in fields(mapping)
        if each.name not in {"leaves", "ends", "episodes"}
        and getattr(mapping, each.name) != each.default
    ]
    ends = asdict(mapping.ends).items()
    lines += [f"ends.{name} = {_quote(value)}" for name, value in ends if value is not None]
    for table in ("leaves", "episodes"):
        if given := getattr(mapping, table):
            lines += ["", f"[{table}]"]
            lines += [f"{_key(leaf)} = {_quote(names)}" for leaf, names in given.items()]
    return "\n".join(lines) + "\n"


def _key(leaf: str) -> str:
    return leaf if leaf.isidentifier() and leaf.isascii() else _quote(leaf)


def _quote(value: object) -> str:
    # JSON's text is TOML's but for DEL, which TOML wants escaped
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
