"""OpenML: TorchRL's seven tables, and any other by number, as one-step episodes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NetworkError, NotFoundError
from offline_data.base.files import is_file
from offline_data.base.json import MAX_BYTES, read_whole, shown
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, check_key
from offline_data.fetch.client import get_document
from offline_data.formats.base import (
    CatalogSource,
    RawDataset,
    Release,
    RemoteFile,
    Shard,
    SourceInfo,
)
from offline_data.formats.catalogues.openml import (
    Encoding,
    OpenMLCatalog,
    OpenMLTable,
    describe_encoding,
    find_table,
    read_table,
)
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.folders import entries
from offline_data.formats.openml.arff import ArffFile, is_arff, open_arff
from offline_data.formats.openml.description import (
    API,
    DESCRIPTION,
    Description,
    parse_description,
    target_names,
)
from offline_data.formats.openml.encoding import Encoder, TableFile
from offline_data.formats.openml.parquet import ParquetTable, open_parquet

_ARFF, _PARQUET = (".arff", ".arff.gz"), (".pq", ".parquet")
_TABLES = (*_ARFF, *_PARQUET)


class OpenML(OpenMLCatalog, CatalogSource):
    """Tables of OpenML, and the user's ARFF or Parquet files.

    A row is a one-step episode: `X` and text columns (`text/NAME`) are known before the action, `y`
    is the label, the action is that label, and its reward is 1.
    """

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        found = find_table(name)
        if found is None:
            hint = "`offline-data list openml` lists TorchRL's; openml:61 is OpenML's number 61"
            raise self.not_found(name, read_table(), hint)
        url = f"{API}/{found.did}"

        def read(body: bytes, where: str) -> tuple[Description, bytes]:
            return parse_description(body, where), body

        try:
            description, body = get_document(url, settings, read)
        except NetworkError as error:
            if " 412 " not in error.message:  # OpenML's answer for an unknown number
                raise
            raise NotFoundError(
                f"OpenML has no dataset {found.did}",
                hint=f"https://www.openml.org/search?type=data&id={found.did} shows it in a browser",
            ) from error
        expected = f"{found.name} version {found.version}"
        actual = f"{description['name']} version {description['version']}"
        if found.name and actual.lower() != expected.lower():
            raise FormatError(
                f"{url} describes {shown(actual)}; expected {expected}",
                hint="please open an issue: the catalogue has another number",
            )
        file = description.data_file()
        number = description["file_id"] or hashlib.sha256(file.urls[0].encode()).hexdigest()[:12]
        present = f"file-{number}"
        if not re.fullmatch(r"file-[0-9a-z]+", present):
            raise FormatError(f"{url} has the file_id {shown(number)}; expected a number")
        if revision not in {None, present}:
            raise NotFoundError(
                f"openml:{name} is at revision {present}, not {revision}",
                hint=f"OpenML never changes a file: leave out @{revision}",
            )
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        about = RemoteFile(DESCRIPTION, (url,), len(body), digest)
        return Release(name, present, (about, file))

    def has_format(self, path: Path) -> bool:
        if path.is_file():
            return path.name.endswith(_ARFF) and is_arff(path)
        return bool(_read_description(path).fields) and _table_in(path) is not None

    def release_of(self, path: Path, name: str) -> Release:
        table = _table_in(path) if path.is_dir() else path
        if table is None:
            raise FormatError(
                f"{path} has no table, or several: expected one file {', '.join(_TABLES)}"
            )
        _open_table(table)
        about = path / DESCRIPTION
        files = [table, about] if path.is_dir() and about.is_file() else [table]
        return Release(name, fingerprint(path, files), local=path)

    def open(self, release: Release, raw: Path) -> OpenMLRows:
        path = _table_in(raw) if raw.is_dir() else raw
        if path is None:
            raise FormatError(f"{raw} has no table, or several")
        table, description = _open_table(path), _read_description(raw)
        found = None if release.local else find_table(release.name)
        return OpenMLRows(table, found or OpenMLTable(""), description, release)


class OpenMLRows(RawDataset):
    """The encoded rows of a table; see `Encoder`."""

    def __init__(
        self, table: TableFile, chosen: OpenMLTable, description: Description, release: Release
    ) -> None:
        names = [column.name for column in table.columns]
        try:
            default = target_names(description["default_target_attribute"], names)
            targets = target_names(chosen.target, names) or default
        except FormatError as error:
            raise FormatError(f"{table.path}: {error.message}") from error
        guessed = not description.fields
        if guessed:
            targets = [next((name for name in names if name.lower() == "class"), names[-1])]
        unused = [name for name in names if name in {*description.ignored, *default} - {*targets}]
        dropped = [*_unusable_texts(table, chosen.encoding, {*targets, *unused})]
        left_out = {*targets, *unused, *(item.key for item in dropped)}
        self._encoder = encoder = Encoder(
            table,
            targets,
            [name for name in names if name not in left_out],
            chosen.encoding,
            chosen.missing,
            skip_bad=release.options.skip_bad_episodes,
        )
        encoding = chosen.encoding
        about: dict[str, Any] = {"encoding": encoding}
        if description.fields:
            about["openml"] = description.about
        about["X"] = [one.describe(encoding) for one in encoder.inputs]
        about["y"] = [one.describe("raw") for one in encoder.targets]
        status = description["status"]
        warned = f"OpenML says that this dataset is {status}." if status != "active" else ""
        self.info = SourceInfo(
            transitions=encoder.rows,
            episodes=encoder.rows,
            about=about,
            licence=description["licence"] or None,
            citation=description["citation"] or (OpenML.citation if description.fields else None),
            notes=(
                *describe_encoding(chosen),
                *_describe_contents(encoder, unused, guessed=guessed),
            ),
            warnings=(warned,) if status and warned else (),
            dropped=(*table.dropped, *dropped),
        )

    def shards(self) -> Sequence[Shard]:
        return (Shard("all rows", episodes=self._encoder.rows),)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:  # noqa: ARG002 - there is only one
        for rows, leaves, skipped in self._encoder.read():
            if not rows:
                yield EpisodeBatch.without_episodes(*skipped)
                continue
            label = leaves.get(("y",), np.zeros(rows, np.int64))
            yield EpisodeBatch(
                np.ones(rows, np.int64),
                {
                    **leaves,
                    ("action",): label,
                    REWARD: np.full((rows, 1), float(("y",) in leaves), np.float32),
                    TERMINATED: np.ones((rows, 1), bool),
                    TRUNCATED: np.zeros((rows, 1), bool),
                },
                {},
                np.zeros(rows, bool),
                skipped=skipped,
            )


def _unusable_texts(table: TableFile, encoding: Encoding, used: set[str]) -> Iterator[Dropped]:
    """Yield the text columns that do not become leaves."""
    for column in table.columns:
        if column.kind != "text" or column.name in used:
            continue
        if encoding != "raw":
            yield Dropped(
                column.name, "It is text, which has no number; the table as published has it."
            )
            continue
        try:
            check_key(("text", column.name))
        except FormatError as error:
            yield Dropped(column.name, f"{error.message}.")


def _describe_contents(encoder: Encoder, unused: Sequence[str], *, guessed: bool) -> Iterator[str]:
    """Return notes on the contents of a table."""
    if encoder.dropped:
        yield f"{plural(encoder.dropped, 'row has', 'rows have')} a missing value."
    if unused:
        yield f"Columns that are not used: {', '.join(map(shown, unused))}."
    if guessed:
        name = shown(encoder.targets[0].column.name)
        yield f"No description names the target; {name} was taken for it."
    elif not encoder.targets:
        yield "It has no target: there is no y, and actions and rewards are 0."


def _read_description(path: Path) -> Description:
    """Return the description next to a table, an empty one if there is none."""
    file = path / DESCRIPTION
    if not path.is_dir() or not file.is_file():
        return Description({})
    return parse_description(read_whole(file, MAX_BYTES), str(file))


def _table_in(folder: Path) -> Path | None:
    tables = (folder / one.name for one in entries(folder) if one.name.endswith(_TABLES))
    found = [table for table in tables if is_file(table)]
    return found[0] if len(found) == 1 else None


def _open_table(path: Path) -> ArffFile | ParquetTable:
    return open_parquet(path) if path.name.endswith(_PARQUET) else open_arff(path)
