"""One RLDS dataset: each TFRecord file is a shard, each record an episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data.base.errors import FormatError
from offline_data.base.json import read_json, read_whole
from offline_data.base.plurals import plural
from offline_data.episode.joining import join_episodes
from offline_data.formats.base import RawDataset, Release, Shard, SourceInfo
from offline_data.formats.catalogues.openx import OpenXCatalog, read_table
from offline_data.formats.rlds.episodes import read_episode
from offline_data.formats.rlds.features import Feature, read_features
from offline_data.formats.rlds.leaves import read_leaves
from offline_data.formats.rlds.splits import ALL, SplitPiece, read_splits, select
from offline_data.raw.tfrecord import Record, read_records

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch

INFO, FEATURES = "dataset_info.json", "features.json"
LABELS = ".labels.txt"
_LABEL_BYTES = 1 << 20


class RldsDataset(RawDataset):
    """The records of a split (None: of all), file by file; see `select`.

    `folder` has `dataset_info.json`, `features.json`, and TFRecord files when they are read. Raises
    `FormatError` for another folder, `NotFoundError` and `UsageError` for splits.
    """

    def __init__(self, folder: Path, split: str | None, release: Release) -> None:
        self._folder = folder
        self._skip_bad = release.options.skip_bad_episodes
        about, tree = read_json(folder / INFO), read_json(folder / FEATURES)
        splits = read_splits(about, str(folder / INFO))
        pieces = select(splits, split)
        self._features, dropped = read_features(tree, str(folder / FEATURES))
        self._leaves = read_leaves(folder, self._features)
        self._pieces = {_name_of(piece): piece for piece in pieces}
        name = release.name.partition("/")[0]
        known = read_table().get(name) if release.local is None else None
        several = tuple(dict.fromkeys(piece.split for piece in pieces))
        joined: tuple[str, ...] = ()
        if split in {None, ALL} and len(several) > 1:
            alone = f"; openx:{name}/{several[0]} is only one of them" if known else ""
            note = (
                f"It has the splits {' and '.join(several)}, in this order: `split` in the episode "
                f"table tells which{alone}."
            )
            joined = (note,)
        terms = about.get("redistributionInfo")
        licence = terms.get("license") if isinstance(terms, dict) else None
        self.info = SourceInfo(
            episodes=sum(piece.stop - piece.first for piece in pieces),
            spaces=_spaces(self._features),
            about={
                "name": about.get("name"),
                "version": about.get("version"),
                "description": _unless_todo(about.get("description")),
                "splits": {split.name: split.episodes for split in splits.values()},
                "labels": self._labels(),
            },
            licence=str(licence) if licence else OpenXCatalog.licence if known else None,
            citation=_unless_todo(about.get("citation"))
            or (OpenXCatalog.citation if known else None),
            notes=(*(known.notes if known else ()), *self._notes(), *(joined if split else ())),
            warnings=() if split else joined,
            dropped=tuple(dropped),
        )

    def shards(self) -> Sequence[Shard]:
        return [
            Shard(name, (piece.file,), episodes=piece.stop - piece.first)
            for name, piece in self._pieces.items()
        ]

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        piece = self._pieces[shard.name]
        return join_episodes(self._readings(piece), skip_bad=self._skip_bad)

    def _readings(self, piece: SplitPiece) -> Iterator[tuple[str, Callable[[], EpisodeBatch]]]:
        path = self._folder / piece.file
        whole = piece.stop == piece.length
        number = piece.first - 1
        for record in read_records(path, first=piece.first, stop=None if whole else piece.stop):
            number = record.number
            if number < piece.stop:
                yield (
                    f"{path}, record {number}",
                    partial(self._episode, record, piece.split),
                )
        if number + 1 != piece.stop:
            raise FormatError(
                f"{path} has {plural(number + 1, 'record')}; {INFO} says {piece.length}",
                hint="fetch or copy the whole dataset again",
            )

    def _episode(self, record: Record, split: str) -> EpisodeBatch:
        if self._leaves is None:
            return read_episode(record.data, self._features, split)
        observed = self._leaves.observation_keys
        return self._leaves.restore(read_episode(record.data, self._features, split, observed))

    def _labels(self) -> dict[str, list[str]]:
        """Return the names of class labels, if their files exist."""
        found = {}
        for feature in self._features:
            path = self._folder / f"{'-'.join(feature.path)}{LABELS}"
            if feature.label and path.is_file():
                found[feature.name] = (
                    read_whole(path, _LABEL_BYTES).decode(errors="replace").split("\n")
                )
                if not found[feature.name][-1]:
                    found[feature.name].pop()
        return found

    def _notes(self) -> list[str]:
        narrowed = [f.name for f in self._features if f.dtype == "float64" and f.encoding == "none"]
        texts = [f.name for f in self._features if f.varies]
        notes = []
        if narrowed:
            notes.append(
                f"TFRecord files have float32 of what is float64 in {FEATURES}: {', '.join(narrowed)}."
            )
        if texts:
            notes.append(f"Rows of these vary in shape, and are JSON texts: {', '.join(texts)}.")
        return notes


def _unless_todo(text: object) -> str | None:
    """Return a text of `dataset_info.json`, or None if it is missing or TFDS's placeholder."""
    return text.strip() or None if isinstance(text, str) and "TODO" not in text else None


def _name_of(piece: SplitPiece) -> str:
    whole = (piece.first, piece.stop) == (0, piece.length)
    return piece.file if whole else f"{piece.file}[{piece.first}:{piece.stop}]"


def _spaces(features: Sequence[Feature]) -> dict[str, Any]:
    """Return observations and actions, as `{"observation": {name: "float32 [7]"}, …}`."""
    spaces: dict[str, Any] = {}
    for feature in features:
        root, *below = feature.path[1:] if feature.in_steps else [""]
        if root in {"observation", "action"}:
            shape = [-1 if size is None else size for size in (*feature.inner, *feature.shape)]
            what = f"{feature.dtype if feature.kind == 'tensor' else feature.kind} {shape}"
            if below:
                spaces.setdefault(root, {})["/".join(below)] = what
            else:
                spaces[root] = what
    return spaces
