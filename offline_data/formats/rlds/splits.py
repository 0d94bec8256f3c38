"""Splits of a TFDS dataset, and slices of them such as `train[:100]` or `train[10%:20%]+val`.

The grammar and the rounding are those of TFDS: https://www.tensorflow.org/datasets/splits
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from offline_data.base.errors import FormatError, NotFoundError, UsageError
from offline_data.base.files import check_relative
from offline_data.base.json import shown
from offline_data.base.plurals import plural

_PART = re.compile(r"(?P<split>[\w-]+)(\[(?P<slice>[^\[\]]+)\])?")
_BOUND = re.compile(r"((?P<number>-?[\d_.]+)(?P<unit>%|shard)?)?")
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
FILE_FORMAT = "tfrecord"
TRAIN, ALL = "train", "all"
_HINT = "as in train, train[:100], train[10%:20%], train[:2shard] or train+val; see tensorflow.org/datasets/splits"


@dataclass(frozen=True)
class NamedSplit:
    """A split in `dataset_info.json`: its files, and the number of episodes in each."""

    name: str
    files: tuple[str, ...]
    lengths: tuple[int, ...]

    @property
    def episodes(self) -> int:
        return sum(self.lengths)


class SplitPiece(NamedTuple):
    """Consecutive records of one file."""

    split: str
    file: str
    first: int
    stop: int
    length: int  # of records in the file


def read_splits(info: Any, where: str) -> dict[str, NamedSplit]:
    """Parse the splits of `dataset_info.json`: `train` first, the others in the order of the file.

    Raises:
        FormatError: Not such a file, or its records are not in TFRecord files.
    """
    if not isinstance(info, dict) or not isinstance(info.get("splits"), list):
        raise FormatError(f"{where} has no list of splits: {shown(info)}")
    form = info.get("fileFormat", FILE_FORMAT)
    if form != FILE_FORMAT:
        raise FormatError(
            f"{where}: its records are in files of the format {shown(form)}; only {FILE_FORMAT} is read",
            hint="rewrite it with tfds.builder(…, file_format='tfrecord')",
        )
    splits = [_read_split(split, str(info.get("name")), where) for split in info["splits"]]
    splits.sort(key=lambda split: split.name != TRAIN)
    if not any(split.episodes for split in splits):
        raise FormatError(f"{where} says that the dataset has no episodes")
    return {split.name: split for split in splits}


def _read_split(split: Any, dataset: str, where: str) -> NamedSplit:
    name = split.get("name") if isinstance(split, dict) else None
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name):
        raise FormatError(f"{where} has a split without a name: {shown(split)}")
    lengths = split.get("shardLengths", [])
    try:
        counts = tuple(int(length) for length in lengths)
    except (TypeError, ValueError):
        counts = (-1,)
    if not all(0 <= count < 1 << 40 for count in counts):
        raise FormatError(f"{where}: shardLengths of split {name} are {shown(lengths)}")
    if not counts and str(split.get("numShards", 0)) != "0":
        raise FormatError(
            f"{where} does not say how many episodes the files of split {name} have (shardLengths)",
            hint="rewrite it with tfds.builder_from_directory and a current TFDS",
        )
    template = split.get("filepathTemplate") or _TEMPLATE
    files = []
    for number in range(len(counts)):
        words = {
            "DATASET": dataset,
            "SPLIT": name,
            "FILEFORMAT": FILE_FORMAT,
            "SHARD_INDEX": f"{number:05d}",
            "NUM_SHARDS": f"{len(counts):05d}",
            "SHARD_X_OF_Y": f"{number:05d}-of-{len(counts):05d}",
        }
        file = str(template)
        for word, value in words.items():
            file = file.replace(f"{{{word}}}", value)
        files.append(check_relative(file, f"A file of {where}"))
    return NamedSplit(name, tuple(files), counts)


def select(splits: Mapping[str, NamedSplit], text: str | None) -> list[SplitPiece]:
    """Return the records selected by a text, file by file; None or `all`: those of all splits.

    Files without episodes are left out.

    Raises:
        NotFoundError: No such split, or no episodes in a slice.
        UsageError: Invalid syntax, bounds beyond the split, or an episode selected twice.

    Example:
        >>> splits = {"train": NamedSplit("train", ("a", "b"), (3, 2))}
        >>> [piece[1:4] for piece in select(splits, "train[50%:]")]
        [('a', 2, 3), ('b', 0, 2)]
    """
    if text is None or text == ALL:
        ranges = [(split, 0, split.episodes) for split in splits.values()]
    else:
        ranges = [_range_of(splits, part.strip(), text) for part in text.split("+")]
    pieces = [piece for bounds in ranges for piece in _pieces(*bounds)]
    if not pieces:
        raise NotFoundError(f"NamedSplit {text!r} has no episodes")
    seen: dict[str, list[tuple[int, int]]] = {}
    for piece in pieces:
        before = seen.setdefault(piece.file, [])
        if any(first < piece.stop and piece.first < stop for first, stop in before):
            raise UsageError(f"NamedSplit {text!r} names episodes of {piece.file} twice")
        before.append((piece.first, piece.stop))
    return pieces


def _range_of(
    splits: Mapping[str, NamedSplit], part: str, text: str
) -> tuple[NamedSplit, int, int]:
    found = _PART.fullmatch(part)
    if found is None:
        raise UsageError(f"{text!r} is not a split", hint=_HINT)
    if found["split"] not in splits:
        raise NotFoundError(
            f"There is no split {found['split']!r}; there are {', '.join(splits)}", hint=_HINT
        )
    split = splits[found["split"]]
    if found["slice"] is None:
        return split, 0, split.episodes
    bounds = [_BOUND.fullmatch(bound) for bound in found["slice"].split(":")]
    if len(bounds) > 2 or None in bounds or not any(bound and bound[0] for bound in bounds):
        raise UsageError(f"{text!r} is not a slice of a split", hint=_HINT)
    unit = next((bound["unit"] for bound in bounds if bound and bound["unit"]), "")
    if len(bounds) == 1 and unit != "shard":
        raise UsageError(f"{text!r} has one bound, which only shards may have", hint=_HINT)
    if unit == "shard":
        ends = [0, *accumulate(split.lengths)]
        given = _numbers(bounds, text, 0, unit)
        first, stop = given if len(given) == 2 else (given[0], (given[0] or 0) + 1 or None)
        shards = range(len(split.lengths))[first:stop]
        return (split, ends[shards[0]], ends[shards[-1] + 1]) if shards else (split, 0, 0)
    total = split.episodes
    first, stop = _numbers(bounds, text, total, unit)
    first, stop = first or 0, total if stop is None else stop
    if max(abs(first), abs(stop)) > total:
        raise UsageError(
            f"{text!r} goes beyond the {plural(total, 'episode')} of {split.name}", hint=_HINT
        )
    return split, first + total * (first < 0), stop + total * (stop < 0)


def _numbers(
    bounds: Sequence[re.Match[str] | None], text: str, total: int, unit: str
) -> list[int | None]:
    """Return the bounds as integers, percentages rounded as in TFDS; None if missing."""
    try:
        return [
            None
            if bound is None or not bound[0]
            else round(float(bound["number"]) * total / 100)
            if unit == "%"
            else int(bound["number"])
            for bound in bounds
        ]
    except ValueError:
        raise UsageError(f"{text!r} has a bound that is not a number", hint=_HINT) from None


def _pieces(split: NamedSplit, first: int, stop: int) -> list[SplitPiece]:
    pieces, begin = [], 0
    for file, length in zip(split.files, split.lengths, strict=True):
        low, high = max(first - begin, 0), min(stop - begin, length)
        if low < high:
            pieces.append(SplitPiece(split.name, file, low, high, length))
        begin += length
    return pieces
