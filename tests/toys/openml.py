"""Toy tables of OpenML: JSON description, ARFF or Parquet file, and their values.

A numeric value is `100·(column + 1) + row + 0.5`, so it identifies its position; words and missing
values depend only on row and column.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_data.formats.openml.description import API, DESCRIPTION

HOST = "https://www.openml.org"
"""URL of OpenML; a mirror in `Settings` redirects it to a test server."""


@dataclass(frozen=True)
class ToyTable:
    """A table by columns: name, declared words of a nominal one, and the values of its rows.

    A column is numeric if `words` is None, text if it is empty; None is a missing value.
    """

    columns: tuple[tuple[str, tuple[str, ...] | None, tuple[Any, ...]], ...]
    did: str = "61"
    name: str = "toy"
    version: str = "1"
    target: str = "class"
    ignored: str = ""
    row_id: str = ""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.columns[0][2])

    def values(self, name: str) -> tuple[Any, ...]:
        """Return the values of a column."""
        return next(values for column, _, values in self.columns if column == name)

    def arff(self, *, sparse: bool = False) -> bytes:
        """Return it as ARFF."""
        lines = ["% made for a test", f"@RELATION {_quoted(self.name)}", ""]
        for name, words, _ in self.columns:
            kind = "REAL" if words is None else "STRING"
            lines.append(
                f"@ATTRIBUTE {_quoted(name)} "
                + ("{" + ", ".join(map(_quoted, words)) + "}" if words else kind)
            )
        lines += ["", "@DATA", "% the rows"]
        for row in range(self.rows):
            cells = [_cell(values[row]) for _, _, values in self.columns]
            left_out = [
                "0.0" if words is None else _quoted(words[0]) if words else "''"
                for _, words, _ in self.columns
            ]
            pairs = enumerate(zip(cells, left_out, strict=True))
            told = ", ".join(f"{place} {cell}" for place, (cell, zero) in pairs if cell != zero)
            lines.append(f"{{{told}}}" if sparse else ",".join(cells))
        return ("\n".join(lines) + "\n").encode()

    def parquet(self, path: Path) -> Path:
        """Write it as Parquet, in row groups of three rows; returns `path`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrays = {}
        for name, words, values in self.columns:
            kind = pa.float64() if words is None else pa.string()
            array = pa.array(values, kind)
            arrays[name] = array.dictionary_encode() if words else array
        pq.write_table(pa.table(arrays), path, row_group_size=3)
        return path

    def description(self, content: bytes, **more: str) -> bytes:
        """Return OpenML's description of it; empty fields are lists, as in OpenML."""
        fields: dict[str, Any] = {
            "id": self.did,
            "name": self.name,
            "version": self.version,
            "format": "ARFF",
            "licence": "Public",
            "url": f"{HOST}/data/v1/download/{self.did}00/{self.name}.arff",
            "file_id": f"{self.did}00",
            "default_target_attribute": self.target,
            "ignore_attribute": self.ignored,
            "row_id_attribute": self.row_id,
            "status": "active",
            "md5_checksum": hashlib.md5(content, usedforsecurity=False).hexdigest(),
            **more,
        }
        filled = {name: value or [] for name, value in fields.items()}
        return json.dumps({"data_set_description": filled}).encode()

    def served(self, content: bytes | None = None, **more: str) -> dict[str, bytes]:
        """Return description and file by their paths at OpenML."""
        data = self.arff() if content is None else content
        about = f"{API}/{self.did}".removeprefix(HOST)
        file = f"/data/v1/download/{self.did}00/{self.name}.arff"
        return {about: self.description(data, **more), file: data}

    def write(self, folder: Path, *, sparse: bool = False) -> Path:
        """Write description and ARFF as downloaded; returns the folder."""
        folder.mkdir(parents=True)
        content = self.arff(sparse=sparse)
        (folder / DESCRIPTION).write_bytes(self.description(content))
        (folder / "data.arff").write_bytes(content)
        return folder


def toy_numbers(column: int, rows: int) -> tuple[float, ...]:
    """Return the values of a numeric column."""
    return tuple(100.0 * (column + 1) + row + 0.5 for row in range(rows))


def toy_words(words: tuple[str, ...], rows: int, missing: int | None = None) -> tuple[Any, ...]:
    """Return the words in rotation; every `missing`-th value is missing."""
    return tuple(
        None if missing and row % missing == missing - 1 else words[row * 7 % len(words)]
        for row in range(rows)
    )


def toy_table(rows: int = 23, **more: Any) -> ToyTable:
    """Return a table of every kind of column, with missing values."""
    odd = ("it's", "b, c", '"?"', "?", "tab\tand\nline", "é %")
    levels = ("low", "middle", "high")
    return ToyTable(
        (
            ("row id", None, tuple(float(row) for row in range(rows))),
            ("width", None, toy_numbers(1, rows)),
            ("level", levels, toy_words(levels, rows, missing=5)),
            ("remark", (), toy_words(odd, rows, missing=4)),
            ("odd, name", odd, toy_words(odd, rows)),
            ("height", None, (*toy_numbers(5, rows)[:-1], None)),
            ("class", ("yes", "no"), toy_words(("yes", "no"), rows)),
        ),
        **{"row_id": "row id", **more},
    )


def toy_of_torchrl(name: str, rows: int = 24) -> ToyTable:
    """Return a small table like the one behind TorchRL's name."""
    from offline_data.formats.catalogues.openml import read_table

    found = read_table()[name]
    facts = {"did": found.did, "name": found.name, "version": found.version}
    if found.name == "adult":
        jobs, sexes = ("Sales", "Armed-Forces", "Craft"), ("Male", "Female", "Other")
        return ToyTable(
            (
                ("age", ("4", "0", "2"), toy_words(("4", "0", "2"), rows)),
                ("workclass", ("Private", "Gov"), toy_words(("Private", "Gov"), rows, missing=6)),
                ("fnlwgt", None, toy_numbers(2, rows)),
                ("occupation", jobs, toy_words(jobs, rows, missing=8)),
                ("sex", sexes, toy_words(sexes[:2], rows)),
                ("class", (">50K", "<=50K"), toy_words((">50K", "<=50K"), rows, missing=7)),
            ),
            **facts,
        )
    if found.name == "mushroom":
        shapes, roots = ("x", "b", "s", "f"), ("e", "c", "b")
        return ToyTable(
            (
                ("cap-shape", shapes, toy_words(shapes, rows)),
                ("stalk-root", roots, toy_words(roots, rows, missing=5)),
                ("veil-type", ("u", "p"), toy_words(("p",), rows)),
                ("class", ("p", "e"), toy_words(("p", "e"), rows)),
            ),
            **facts,
        )
    labels = ("2", "1", "7")
    soils = ("0", "1")
    return ToyTable(
        (
            ("elevation", None, toy_numbers(0, rows)),
            ("slope", None, tuple(value**2 for value in toy_numbers(1, rows))),
            ("soil", soils, toy_words(soils, rows)),
            ("class", labels, toy_words(labels, rows)),
        ),
        **facts,
    )


def _quoted(text: str) -> str:
    plain = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{plain}'"


def _cell(value: Any) -> str:
    if value is None:
        return "?"
    return repr(value) if isinstance(value, float) else _quoted(value)
