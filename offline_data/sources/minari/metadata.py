"""What a Minari dataset says of itself, in every form that its versions have written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offline_data.errors import FormatError
from offline_data.readers.hdf5 import open_hdf5
from offline_data.sources.base import SourceInfo
from offline_data.sources.minari.spaces import parse_space
from offline_data.strict_json import count_of, parse_json, read_json, shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offline_data.sources.minari.folder import DataFolder

FORMATS = ("hdf5", "arrow", "parquet")

CITATION = (
    "Younis, O. G., Perez-Vicente, R., Balis, J. U., Dudley, W., Davey, A., Terry, J. K. (2024). "
    "Minari. Zenodo. https://doi.org/10.5281/zenodo.13767625"
)

_SPACES = ("observation_space", "action_space")
_COUNTS = ("total_episodes", "total_steps", "total_timesteps")
_SPECS = ("env_spec", "eval_env_spec")

_NOTE_ROOT = "The metadata are those in the HDF5 file itself, as Minari wrote them until 0.4."
_NOTE_FLAT = "The recorder flattened the {what}; the rows are kept flat, unlike the space."
_NOTE_COMBINED = "A combination of other datasets, which `about.combined_datasets` names."


@dataclass(frozen=True)
class Metadata:
    """Metadata of one dataset, parsed."""

    where: str
    """The file they were read from."""
    data_format: str
    """One of `FORMATS`."""
    values: Mapping[str, Any]
    """All fields as the source has them; JSON values."""
    observation_space: Mapping[str, Any] | None
    """As the source gives it; None where it gives none."""
    action_space: Mapping[str, Any] | None
    """As the source gives it; None where it gives none."""
    from_file: bool = False
    """Whether they are attributes of the HDF5 file rather than a file of their own."""

    @property
    def steps(self) -> int | None:
        """Number of transitions, where stated."""
        return self._count("total_steps", "total_timesteps")

    @property
    def episodes(self) -> int | None:
        """Number of episodes, where stated."""
        return self._count("total_episodes")

    def flag(self, name: str) -> bool:
        """Whether a field is set, as a boolean or, in attributes, as a number or text."""
        value = self.values.get(name)
        return value in {True, "true", "True", "1"} if isinstance(value, (str, int)) else False

    def _count(self, *names: str) -> int | None:
        name = next((name for name in names if self.values.get(name) is not None), None)
        if name is None:
            return None
        value = self.values[name]
        if self.from_file:  # attributes were written as text and floats, too
            text = isinstance(value, str) and value.isdecimal() and len(value) < 20
            value = int(value) if text or (type(value) is float and value.is_integer()) else value
        return count_of(value, f"{name} of {self.where}")


def read_metadata(data: DataFolder) -> Metadata:
    """Read the metadata of a dataset: its file, or the attributes of its HDF5 file.

    Raises:
        FormatError: The file is damaged, or names a storage this package does not know.
        AccessError: It may not be read.
    """
    in_file = not os.path.lexists(data.metadata)
    where = str(data.main_file if in_file else data.metadata)
    values = _root_attributes(data.main_file) if in_file else read_object(data.metadata)
    stated = values.get("data_format")
    data_format = "hdf5" if stated is None else stated
    if not isinstance(data_format, str) or data_format not in FORMATS:
        raise FormatError(
            f"{where} says data_format is {shown(data_format)}; "
            f"expected one of {', '.join(FORMATS)}"
        )
    observation, action = (parse_space(values.get(n), f"{n} of {where}") for n in _SPACES)
    return Metadata(where, data_format, values, observation, action, from_file=in_file)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; bare `Infinity` and `NaN` become floats.

    Raises:
        FormatError: It is no JSON object, or refused by `read_json`.
        AccessError: It cannot be read.
    """
    values = read_json(path)
    if not isinstance(values, dict):
        raise FormatError(f"{path} holds a JSON {type(values).__name__}; expected an object")
    return values


def _root_attributes(path: Path) -> dict[str, Any]:
    with open_hdf5(path) as file:
        try:
            return {plain(name): plain(value) for name, value in file.attrs.items()}
        except (TypeError, ValueError, KeyError) as error:
            raise FormatError(f"{path} has attributes that cannot be read: {error}") from error


def plain(value: Any) -> Any:
    """Return an HDF5 attribute, or a container of such, as a JSON value.

    Arrays become lists, bytes become text, what is empty becomes None.

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
    if isinstance(value, str):  # h5py turns bytes that are not UTF-8 into halves of surrogates
        return value.encode("utf-8", "replace").decode("utf-8")
    return value if isinstance(value, (int, float, bool)) else None


def source_info(metadata: Metadata, name: str, notes: tuple[str, ...]) -> SourceInfo:
    """Sort the metadata into what the manifest keeps.

    Args:
        metadata: The metadata.
        name: The source's own name of the dataset.
        notes: What the catalogue says of it.
    """
    spaces = {"observation": metadata.observation_space, "action": metadata.action_space}
    specs = {
        field: _spec(metadata.values.get(field), f"{field} of {metadata.where}") for field in _SPECS
    }
    about = {k: v for k, v in metadata.values.items() if k not in {*_SPACES, *_COUNTS, *_SPECS}}
    if specs["eval_env_spec"] is not None:
        about["eval_env_spec"] = specs["eval_env_spec"]
    environment = specs["env_spec"]
    if environment is not None and not isinstance(environment, dict):
        about["env_spec"] = environment
    return SourceInfo(
        transitions=metadata.steps,
        episodes=metadata.episodes,
        spaces={what: space for what, space in spaces.items() if space is not None},
        environment=environment if isinstance(environment, dict) else {},
        about=about,
        licence="CC-BY-4.0" if name.startswith("D4RL/") else None,
        citation=CITATION,
        notes=(*notes, *_notes(metadata)),
    )


def _spec(value: Any, where: str) -> Any:
    """Parse the spec of an environment, an object as JSON text; anything else is left as it is."""
    is_object = isinstance(value, str) and value.lstrip().startswith("{")
    return parse_json(value, where) if is_object else value


def _notes(metadata: Metadata) -> tuple[str, ...]:
    notes = [_NOTE_ROOT] if metadata.from_file and metadata.values else []
    for field, what in (("flatten_observation", "observations"), ("flatten_action", "actions")):
        if metadata.flag(field):
            notes.append(_NOTE_FLAT.format(what=what))
    if metadata.values.get("combined_datasets"):
        notes.append(_NOTE_COMBINED)
    return tuple(notes)
