"""Descriptions of files and folders that no source accepts, with the next step where there is one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from offline_data.base.errors import AccessError, FormatError
from offline_data.base.files import defect_of, describe_head, read_head
from offline_data.base.plurals import plural
from offline_data.formats.folders import MOST_ALIKE, entries, files_below
from offline_data.raw.arrays import open_arrays
from offline_data.raw.hdf5 import is_hdf5

if TYPE_CHECKING:
    from offline_data.formats.base import Source

_LISTED = 8  # maximum number of names in a message

_KINDS = {".csv": "CSV", ".csv.gz": "CSV", ".tsv": "TSV", ".tsv.gz": "TSV"} | {
    ".parquet": "Parquet", ".arrow": "Arrow", ".pt": "a .pt file", ".pth": "a .pt file",
}  # fmt: skip
"""Kinds of files by their suffix, apart from HDF5 and npz."""

_NO_ARRAYS = ("it has no arrays", "the program that wrote it recorded nothing")


def describe_unknown(path: Path, sources: Iterable[Source]) -> tuple[str, str | None]:
    """Describe a file or folder in a sentence that begins with `it`, and say what to do if that is known.

    Raises `FormatError` for a damaged file, `AccessError` for one that cannot be read.
    """
    if path.is_dir():
        return _describe_folder(path)
    head = read_head(path)
    suffix = next((one for one in _KINDS if path.name.lower().endswith(one)), "")
    kind = "HDF5" if is_hdf5(path) else _KINDS.get(suffix, "npz" if head.startswith(b"PK") else "")
    if not kind or (kind != "HDF5" and defect_of(head)):
        return defect_of(head) or (describe_head(head), None)
    with open_arrays(path) as arrays:
        names = list(arrays.columns)
    if not names:
        return _NO_ARRAYS
    listed = ", ".join(names[:_LISTED]) + ", …" * (len(names) > _LISTED)
    near = _describe_nearest(kind, names, sources) or "no known format has these arrays"
    return f"it is {kind} with {listed}; {near}", None


def _describe_nearest(kind: str, names: Collection[str], sources: Iterable[Source]) -> str | None:
    """Return how a file differs from the format with most of its arrays; None: from all in many."""
    found = []
    for source in sources:
        form = source.arrays.get(kind)
        if form is None:
            continue
        lacking = [name for name in form.required if name not in names]
        foreign = sorted(form.never.intersection(names))
        if (lacking or foreign) and 2 * len(lacking) <= len(form.required):
            share = (len(lacking) + len(foreign)) / len(form.required)
            found.append((share, len(lacking), source, lacking, foreign))
    if not found:
        return None
    _, _, source, lacking, foreign = min(found, key=lambda one: one[:2])
    title = source.title.partition(":")[0]
    but = "has no " + " or ".join(lacking) if lacking else "has " + " and ".join(foreign)
    return f"nearly {title}, but {but}"


def _describe_folder(path: Path) -> tuple[str, str | None]:
    """Say what is wrong with the files of a folder; what to do is known if something is with all of them."""
    files: list[Path] = []
    faults: dict[str, list[tuple[str, str, str]]] = {}
    with suppress(AccessError):
        for file in islice(files_below(path), MOST_ALIKE):
            files.append(file)
            if fault := _fault_of(file):
                kind = fault[0].partition(":")[0]
                faults.setdefault(kind, []).append((str(file.relative_to(path)), *fault))
    said = "it is a folder without files of a known format"
    often = sorted(faults.values(), key=len, reverse=True)
    for some in often:
        name, sentence, _ = some[0]
        said += f"; {name}" + f" (and {len(some) - 1} more)" * (len(some) > 1) + f": {sentence}"
    count = len(entries(path))
    if count > MOST_ALIKE:
        said += f"; of its {plural(count, 'name')}, the first {MOST_ALIKE} with each suffix were examined"
    return said, often[0][0][2] if often and sum(map(len, often)) == len(files) else None


def _fault_of(path: Path) -> tuple[str, str] | None:
    head = read_head(path)
    if (fault := defect_of(head)) or not (head.startswith(b"PK") or is_hdf5(path)):
        return fault
    try:
        with open_arrays(path) as arrays:
            return None if arrays.columns else _NO_ARRAYS
    except FormatError as error:
        return error.message.replace(str(path), "it"), error.shell_hint or "fetch it again"
