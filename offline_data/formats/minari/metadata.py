"""Metadata and spaces of Minari datasets, in every format that its versions have written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from offline_data.base.errors import FormatError
from offline_data.base.json import count_of, parse_json, read_json, shown
from offline_data.formats.base import SourceInfo
from offline_data.formats.catalogues.minari import MinariCatalog
from offline_data.raw.hdf5 import open_hdf5

FORMATS = ("hdf5", "arrow", "parquet")

_LEAF_SPACES = ("Box", "Discrete", "MultiBinary", "MultiDiscrete", "Text")
_SPACES = ("observation_space", "action_space")
_COUNTS = ("total_episodes", "total_steps", "total_timesteps")
_SPECS = ("env_spec", "eval_env_spec")
_FLATTENED = {"observations": "flatten_observation", "actions": "flatten_action"}

_NOTE_ROOT = "The metadata are those in the HDF5 file itself, as Minari wrote them until 0.4."
_NOTE_FLAT = "The recorder flattened the {what}; the rows are kept flat, unlike the space."
_NOTE_UNKNOWN = "The {what} space is not kept: a part of it is {kind}, which Minari does not have."
_NOTE_COMBINED = "A combination of other datasets, which `about.combined_datasets` names."


@dataclass(frozen=True)
class DeclaredLeaf:
    """A leaf as declared by its space."""

    shape: tuple[int, ...] | None  # of one row; None for an unknown kind of space
    dtype: str | None = None
    text: bool = False


Declared: TypeAlias = Mapping[str, Mapping[tuple[str, ...], DeclaredLeaf]]
"""Leaves declared by the spaces, by section (`observations`, `actions`) and names below it."""


@dataclass(frozen=True)
class Metadata:
    """Parsed metadata of a dataset: all fields, and the spaces of `observations` and `actions`.

    `where` is the file they were read from; `from_file`: attributes of the HDF5 file itself.
    """

    where: str
    data_format: str
    values: Mapping[str, Any]
    spaces: Mapping[str, Mapping[str, Any] | None]
    from_file: bool

    def declared_leaves(self) -> Declared:
        """Return the leaves that the spaces declare; none if the recorder flattened them."""
        return {
            section: {}
            if self._is_set(_FLATTENED[section])
            else space_leaves(space, f"{section} of {self.where}")
            for section, space in self.spaces.items()
        }

    @property
    def published_as(self) -> str | None:
        """The name that the dataset has at its publisher, as it says itself."""
        name = self.values.get("dataset_id")
        return name if isinstance(name, str) else None

    def info(self, name: str, notes: tuple[str, ...]) -> SourceInfo:
        """Return the metadata as fields of the manifest; `notes` are those of the catalogue."""
        environment, evaluation = (self._spec(field) for field in _SPECS)
        about = {k: v for k, v in self.values.items() if k not in {*_SPACES, *_COUNTS, *_SPECS}}
        if evaluation is not None:
            about["eval_env_spec"] = evaluation
        if environment is not None and not isinstance(environment, dict):
            about["env_spec"] = environment
        spaces = {
            s.removesuffix("s"): space for s, space in self.spaces.items() if space is not None
        }
        unknown = {what: kind for what, space in spaces.items() if (kind := _unknown_kind(space))}
        return SourceInfo(
            transitions=self._count("total_steps", "total_timesteps"),
            episodes=self._count("total_episodes"),
            spaces={what: space for what, space in spaces.items() if what not in unknown},
            environment=environment if isinstance(environment, dict) else {},
            about=about,
            licence="CC-BY-4.0" if name.startswith("D4RL/") else None,
            citation=MinariCatalog.citation,
            notes=(
                *notes,
                *self._notes(),
                *(_NOTE_UNKNOWN.format(what=what, kind=kind) for what, kind in unknown.items()),
            ),
        )

    def _spec(self, field: str) -> Any:
        value = self.values.get(field)
        if isinstance(value, str) and value.lstrip().startswith("{"):
            return parse_json(value, f"{field} of {self.where}")
        return value

    def _notes(self) -> Iterator[str]:
        if self.from_file and self.values:
            yield _NOTE_ROOT
        for section, field in _FLATTENED.items():
            if self._is_set(field):
                yield _NOTE_FLAT.format(what=section)
        if self.values.get("combined_datasets"):
            yield _NOTE_COMBINED

    def _is_set(self, field: str) -> bool:
        value = self.values.get(field)  # a number or text in attributes
        return isinstance(value, (str, int)) and value in {True, "true", "True", "1"}

    def _count(self, *names: str) -> int | None:
        name = next((name for name in names if self.values.get(name) is not None), None)
        if name is None:
            return None
        value = self.values[name]
        if self.from_file:  # attributes may also be text and floats
            text = isinstance(value, str) and value.isdecimal() and len(value) < 20
            value = int(value) if text or (type(value) is float and value.is_integer()) else value
        return count_of(value, f"{name} of {self.where}")


def read_metadata(file: Path, main_file: Path) -> Metadata:
    """Read `file`, else the attributes of `main_file` (until version 0.4); raises `FormatError`."""
    in_file = not os.path.lexists(file)
    where = str(main_file if in_file else file)
    values = _read_attributes(main_file) if in_file else read_object(file)
    stated = values.get("data_format")
    data_format = "hdf5" if stated is None else stated
    if not isinstance(data_format, str) or data_format not in FORMATS:
        raise FormatError(
            f"{where} says data_format is {shown(data_format)}; "
            f"expected one of {', '.join(FORMATS)}"
        )
    parsed = [_parse_space(values.get(name), f"{name} of {where}") for name in _SPACES]
    spaces = dict(zip(_FLATTENED, parsed, strict=True))
    return Metadata(where, data_format, values, spaces, from_file=in_file)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; bare `Infinity` and `NaN` become floats. Raises like `read_json`."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise FormatError(f"{path} holds a JSON {type(values).__name__}; expected an object")
    return values


def _read_attributes(path: Path) -> dict[str, Any]:
    with open_hdf5(path) as file:
        try:
            return {plain(name): plain(value) for name, value in file.attrs.items()}
        except (TypeError, ValueError, KeyError) as error:
            raise FormatError(f"{path} has attributes that cannot be read: {error}") from error


def plain(value: Any) -> Any:
    """Return an HDF5 attribute, or a container of them, as a JSON value; empty ones become None.

    Example:
        >>> import numpy as np
        >>> plain({"qpos": np.array([0.5, 1.0]), "name": b"pen", "n": np.int64(3)})
        {'qpos': [0.5, 1.0], 'name': 'pen', 'n': 3}
    """
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, str):  # h5py decodes invalid UTF-8 to lone surrogates
        return value.encode("utf-8", "replace").decode("utf-8")
    return value if isinstance(value, (int, float, bool)) else None


def _parse_space(value: object, where: str) -> Mapping[str, Any] | None:
    if value is None:
        return None
    space = parse_json(value, where) if isinstance(value, str) else value  # JSON text in JSON
    if not isinstance(space, dict) or not isinstance(space.get("type"), str):
        raise FormatError(f"{where} is not a space: it has no 'type'")
    return space


def _unknown_kind(space: object) -> str | None:
    """Return the type of a part of a space that is not one of Minari's, or None."""
    kind = space.get("type") if isinstance(space, dict) else space
    if kind in _LEAF_SPACES:
        return None
    parts = space.get("subspaces") if isinstance(space, dict) else None
    if kind == "Dict" and isinstance(parts, dict):
        parts = list(parts.values())
    elif kind != "Tuple" or not isinstance(parts, list):
        return shown(kind)
    return next(filter(None, map(_unknown_kind, parts)), None)


def space_leaves(
    space: Mapping[str, Any] | None, where: str
) -> dict[tuple[str, ...], DeclaredLeaf]:
    """Return the leaves that a Gymnasium space declares, in Minari's format, by their names.

    Parts of a `Tuple` are named `"0"`, `"1"`, …; a name with `/` is several parts. Without a space
    there are none. Raises `FormatError` if a part is missing or of the wrong type.

    Example:
        >>> pose = {"type": "Box", "shape": [2], "dtype": "float32"}
        >>> both = {"type": "Tuple", "subspaces": [pose, {"type": "Discrete", "n": 3}]}
        >>> found = space_leaves({"type": "Dict", "subspaces": {"a": both}}, "here")
        >>> {name: leaf.shape for name, leaf in found.items()}
        {('a', '0'): (2,), ('a', '1'): ()}
    """
    if space is None:
        return {}
    try:
        return dict(_leaves(space, ()))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, FormatError) as error:
        what = "" if isinstance(error, FormatError) else f"{type(error).__name__} "
        raise FormatError(f"{where} is not a space that can be read: {what}{error}") from error


def _leaves(
    space: Mapping[str, Any], names: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], DeclaredLeaf]]:
    kind = space["type"]
    if kind == "Dict":
        for name, part in space["subspaces"].items():
            yield from _leaves(part, (*names, *name.split("/")))
    elif kind == "Tuple":
        for number, part in enumerate(space["subspaces"]):
            yield from _leaves(part, (*names, str(number)))
    else:
        dtype = space.get("dtype")
        if not isinstance(dtype, (str, type(None))):
            raise TypeError(f"a dtype is {shown(dtype)}")
        yield names, DeclaredLeaf(_shape(kind, space), dtype, kind == "Text")


def _shape(kind: str, space: Mapping[str, Any]) -> tuple[int, ...] | None:
    if kind in {"Discrete", "Text"}:
        return ()
    if kind == "MultiDiscrete":
        return _nested_shape(space["nvec"])
    if kind == "Box":
        lengths = space["shape"]
    elif kind == "MultiBinary":
        lengths = space["n"] if isinstance(space["n"], list) else [space["n"]]
    else:
        return None
    return tuple(count_of(length, "a length in its shape") for length in lengths)


def _nested_shape(value: Any) -> tuple[int, ...]:
    return (len(value), *_nested_shape(value[0])) if isinstance(value, list) else ()
