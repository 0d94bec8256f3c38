"""Results of an inspection of files: the arrays, and the mapping that is proposed for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.base.pickles import pickled_by_name

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.formats.files.mapping import FileMapping, MappingQuestionError


@pickled_by_name
@dataclass(frozen=True)
class FoundArray:
    """An array of the files."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    least: float | None
    """Smallest of the first values, see `complete`; None: it has none, or is text."""
    most: float | None
    complete: bool
    """Whether the range is that of all values, not only of the first `SAMPLED` bytes."""
    looks_like: str
    """Its meaning by its name, or the reason why it cannot be read; empty: not known."""


@dataclass(frozen=True)
class Proposal:
    """Arrays of files, and the mapping that is proposed for them."""

    path: Path
    source: str | None
    """Source that reads the files without a mapping."""
    episodes: tuple[str, ...]
    """Groups or files that are the parts of the data; empty: none. `arrays` are those of the first."""
    arrays: tuple[FoundArray, ...]
    mapping: FileMapping
    """The proposal, without what only the user knows; `NAME` stands for an array that was not recognised."""
    questions: tuple[MappingQuestionError, ...]
    """Lines that it lacks."""
    toml: str
    """The mapping as a file to edit, with the arrays and questions as comments."""
