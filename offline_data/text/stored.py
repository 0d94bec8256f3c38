"""Rows of text to tokenize, and tokens kept as a dataset, for TorchRL's loaders."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.base.files import is_file
from offline_data.base.ids import DatasetId
from offline_data.base.json import read_json
from offline_data.base.progress import SILENT
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.formats.base import RawDataset, Shard, SourceInfo
from offline_data.formats.options import Options, TextOptions
from offline_data.formats.registry import get_source
from offline_data.pipeline.ingest.in_memory import convert_in_memory
from offline_data.pipeline.ingest.raw import fetch_files
from offline_data.raw.rows import read_rows
from offline_data.store.library import find
from offline_data.store.publish import dataset_lock


class TextRows:
    """Rows of files, one after the other, at most `most`; read anew in each iteration.

    `files`, called once, returns files with one of the suffixes of `readers.rows`.
    """

    def __init__(self, files: Callable[[], Sequence[Path]], most: int | None = None) -> None:
        self._find, self._most = files, most

    @cached_property
    def _files(self) -> tuple[Path, ...]:
        return tuple(self._find())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rows = (
            dict(zip(columns, row, strict=True))
            for file in self._files
            for columns in read_rows(file)
            for row in zip(*columns.values(), strict=True)
        )
        return islice(rows, self._most)


def published_rows(
    name: str, split: str, settings: Settings, most: int | None
) -> tuple[TextRows, str]:
    """Return the rows of a split of a dataset of the hub, and what names it.

    Iterating the rows fetches them; raises NotFoundError, OfflineError, NetworkError, AuthError.
    """

    def fetch_paths() -> list[Path]:
        source = get_source("hf")
        options = Options(text=TextOptions(split=split))
        release = source.with_options(source.resolve(name, None, settings), options)
        dataset = DatasetId("hf", name, None)
        folder = settings.downloads / "raw" / dataset.folder / release.revision
        return [folder / f.name for f in fetch_files(release.files, settings, folder, SILENT)]

    return TextRows(fetch_paths, most), f"hf:{name}"


def saved_rows(name: str, split: str, settings: Settings, most: int | None) -> tuple[TextRows, str]:
    """Return the rows of a split that `DatasetDict.save_to_disk` wrote, and their fingerprint.

    Raises `NotFoundError` without such a folder or split, `FormatError` for other content.
    """
    del settings
    folder = Path(name).expanduser()
    place = folder / split
    if not place.is_dir():
        there = (
            sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []
        )
        raise NotFoundError(
            f"{folder} has no split {split!r}; it has {', '.join(there) or 'none'}",
            hint="name a folder that DatasetDict.save_to_disk wrote",
        )
    state = read_json(place / "state.json")
    files = state.get("_data_files") if isinstance(state, dict) else None
    given = [one.get("filename") for one in files or [] if isinstance(one, dict)]
    names = [one for one in given if isinstance(one, str) and Path(one).name == one]
    if not names or len(names) < len(given):
        raise FormatError(f"{place / 'state.json'} lists no data files")
    paths = [place / one for one in names]
    facts = [state.get("_fingerprint"), [is_file(path) and path.stat().st_size for path in paths]]
    return TextRows(lambda: paths, most), json.dumps(facts)


def stored_tokens(
    name: str, batches: Callable[[], Iterator[dict[str, Any]]], settings: Settings
) -> Path:
    """Return the directory of `local:tokens/NAME`, in layout `ted`, writing it if needed.

    `name` differs for other tokens. `batches` yields columns `[n, …]` with `input_ids`; it is
    called if the dataset is not there, by one process at a time. Raises `NotFoundError` without a
    row.
    """
    target = DatasetId("local", f"tokens/{name}", None)
    entry = find(settings.root, target)
    if entry is not None:
        return entry.path
    # The lock of the conversion is taken and freed within it: with that alone, each of the ranks of
    # a training run that come here together would tokenize the rows, one after the other.
    with dataset_lock(settings.staging, f"{target.folder}/first", SILENT):
        entry = find(settings.root, target)
        if entry is not None:
            return entry.path
        raw, options = _TokenizedRows(batches()), Options(layout="ted", audit="none")
        return convert_in_memory(raw, target, settings, options, SILENT).path


class _TokenizedRows(RawDataset):
    """Arrays of tokens as one-step episodes."""

    own_thread = False

    def __init__(self, batches: Iterator[dict[str, Any]]) -> None:
        self._batches = batches
        self.info = SourceInfo()

    def shards(self) -> Sequence[Shard]:
        return (Shard("tokens"),)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        del shard
        for leaves in self._batches:
            count = len(leaves["input_ids"])
            ended = np.ones((count, 1), bool)
            results = {
                REWARD: np.zeros((count, 1), np.float32),
                TERMINATED: ended,
                TRUNCATED: ~ended,
            }
            steps = {(name,): column for name, column in leaves.items()} | results
            yield EpisodeBatch(np.ones(count, np.int64), steps, {}, ended[:, 0])
