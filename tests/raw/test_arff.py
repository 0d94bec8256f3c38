"""ARFF: every kind of column, dense and sparse, quoted and plain; what is damaged is named by its line."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.errors import FormatError
from offline_data.formats.openml import arff
from offline_data.formats.openml.arff import Attribute, is_arff, open_arff
from tests.refusals import Refusals
from tests.toys.openml import toy_table

REFUSALS = Refusals.beside(__file__)
HEADER = """% a comment
@Relation 'a b'

@ATTRIBUTE width numeric
@attribute\t'the level' {low, 'mid dle' , "high"}
@attribute "rémark" String
@DATA
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data.arff"


def rows_of(path: Path, **options: Any) -> list[list[Any]]:
    """Read all rows as lists: numbers, words, texts, None."""
    table = open_arff(path)
    rows = []
    for block in table.blocks(**options):
        columns = [
            [None if code < 0 else column.categories[code] for code in values]
            if column.categories is not None
            else [None if str(value) == "nan" else value for value in values.tolist()]
            for column, values in zip(table.columns, block.columns, strict=bool(block.rows))
        ]
        rows += [list(row) for row in zip(*columns, strict=True)]
    return rows


def test_the_header(file: Path) -> None:
    file.write_text(HEADER + "1,low,x\n", encoding="utf-8")
    assert open_arff(file).columns == (
        Attribute("width", "numeric"),
        Attribute("the level", "nominal", ("low", "mid dle", "high")),
        Attribute("rémark", "text"),
    )
    assert is_arff(file)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("1,low,x\n2.5e1,high,y", [[1.0, "low", "x"], [25.0, "high", "y"]]),
        (" 1 ,\tlow , x y \n", [[1.0, "low", "x y"]]),
        ("?,?,?\n ? , ?,?\n1,low,x", [[None] * 3] * 2 + [[1.0, "low", "x"]]),
        ("\n% 1,low,x\n-.5,high,x\n\n", [[-0.5, "high", "x"]]),
        ("1,'mid dle','?'\n2,\"high\",?", [[1.0, "mid dle", "?"], [2.0, "high", None]]),
        ("'1', low ,'it\\'s, \\\"so\\\"\\n\\u00e9\\\\%'", [[1.0, "low", "it's, \"so\"\né\\%"]]),
        ("1,low,''\n2,low,", [[1.0, "low", ""], [2.0, "low", ""]]),
        ('1,low,"it\'s"\n2,low,it\'s', [[1.0, "low", "it's"], [2.0, "low", "it's"]]),
        ("{1 high, 2 'a, b'}\n{}\n{0 ?}", [[0.0, "high", "a, b"], [0.0, "low", ""], [None, "low", ""]]),
        ("{ 2   x ,0 3 }", [[3.0, "low", "x"]]),
        ("1,low,é_1\n1_0,low,x", FormatError),
        ("NaN,low,x\n", [[None, "low", "x"]]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("block", [7, 1 << 21])
def test_rows(file: Path, lines: str, expected: Any, end: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(arff, "BLOCK", block)
    file.write_bytes((HEADER + lines).replace("\n", end).encode())
    if expected is FormatError:
        with pytest.raises(FormatError, match="expected a number"):
            rows_of(file)
    else:
        assert rows_of(file) == expected


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("cells", [1, 40, 1 << 20])
def test_a_whole_table(
    file: Path, sparse: bool, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arff, "_CELLS", cells)
    toy = toy_table(200)
    file.write_bytes(toy.arff(sparse=sparse))
    expected = [list(row) for row in zip(*(values for _, _, values in toy.columns), strict=True)]
    assert rows_of(file) == expected
    packed = file.with_suffix(".arff.gz")
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert rows_of(packed) == expected


def test_a_mark_of_byte_order_and_other_encodings(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + (HEADER + "1,low,'é'\n").encode())
    assert rows_of(file) == [[1.0, "low", "é"]]
    file.write_bytes((HEADER + "1,low,x\n").encode() + b"2,low,\xe9\n")
    with pytest.raises(FormatError, match="is not UTF-8"):
        rows_of(file)


ROWS = [
    "1,low",
    "1,low,x,y",
    "1,'low",
    "1,low,'x",
    "1,Low,x",
    "one,low,x",
    "0x10,low,x",
    "1_0,low,x",
    "١,low,x",
    ",low,x",
    "{0 1",
    "{3 1}",
    "{0 1, 0 2}",
    "{zero 1}",
    "{0 1,}",
    "1,low,'\\ud800'",
    "1,low,x, {5}",
]


@REFUSALS.of("rows", ROWS)
def test_bad_rows_are_named_or_left_out(file: Path, name: str) -> None:
    file.write_text(HEADER + f"7,low,x\n\n{name}\n9,high,x\n", encoding="utf-8")
    REFUSALS.check("rows", name, lambda: rows_of(file), {file.parent: "FOLDER"})
    assert rows_of(file, skip_bad=True) == [[7.0, "low", "x"], [9.0, "high", "x"]]
    (skipped,) = [one for block in open_arff(file).blocks(skip_bad=True) for one in block.skipped]
    assert skipped.where == "data.arff, line 10"
    # without its folder, which a manifest does not name
    reason = f"FormatError: {skipped.reason} | --skip-bad-episodes leaves it out"
    assert reason == str(REFUSALS.known["rows"][name]).replace("FOLDER/", "")


ONE_NUMBER = b"@relation x\n@attribute a real\n@data\n1\n"
FILES = {
    "nothing": b"",
    "a web page": b"<!DOCTYPE html>",
    "a pointer": b"version https://git-lfs.github.com/spec/v1\n",
    "no data": b"@relation x\n@attribute a real\n",
    "no attributes": b"@relation x\n@data\n1\n",
    "an attribute twice": b"@relation x\n@attribute a real\n@attribute a real\n@data\n",
    "a word twice": b"@relation x\n@attribute a {y, x, x}\n@data\n",
    "words without an end": b"@relation x\n@attribute a {x, y\n@data\n",
    "an unknown type": b"@relation x\n@attribute a relational\n@data\n",
    "no type": b"@relation x\n@attribute a\n@data\n",
    "no name": b"@relation x\n@attribute {a} real\n@data\n",
    "rows in the header": b"@relation x\n1,2,3\n",
    "a NUL byte": ONE_NUMBER + b"\0\n",
    "UTF-16": ONE_NUMBER.decode().encode("utf-16"),
    "cut": gzip.compress(ONE_NUMBER, mtime=0)[:-9],
}


@REFUSALS.of("files", [*FILES, "missing", "a folder"])
def test_what_is_no_arff(file: Path, name: str) -> None:
    if name in FILES:
        file.write_bytes(FILES[name])
    path = file.parent if name == "a folder" else file
    REFUSALS.check("files", name, lambda: rows_of(path), {file.parent: "FOLDER"})


def test_memory_is_bounded_whatever_the_file_declares(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arff, "_HEADER", 1000)
    monkeypatch.setattr(arff, "BLOCK", 64)
    file.write_text("@relation x\n@attribute a {" + ",".join(map(str, range(900))) + "}\n@data\n")
    with pytest.raises(FormatError, match=r"header of .* more than 1000 B"):
        open_arff(file)
    monkeypatch.setattr(arff, "_LONGEST_LINE", 2000)
    file.write_text("@relation x\n@attribute a real\n@data\n" + "1" * 3000)
    with pytest.raises(FormatError, match="a line of more than"):
        rows_of(file)


def test_backtracking_takes_no_time(file: Path) -> None:
    odd = ["'" + "\\'" * 200_000, " " * 200_000 + "'x" + " " * 200_000, "'" + "a' " * 100_000]
    for cell in odd:
        file.write_text(HEADER + f"1,low,{cell}\n", encoding="utf-8")
        with pytest.raises(FormatError):
            rows_of(file)


def test_blocks_together_are_the_numbers(file: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=(5000, 3))
    text = "\n".join(",".join(map(repr, row)) for row in numbers.tolist())
    file.write_text(
        "@relation x\n" + "".join(f"@attribute {n} real\n" for n in "abc") + "@data\n" + text
    )
    blocks = [np.stack(block.columns, 1) for block in open_arff(file).blocks()]
    assert np.array_equal(np.concatenate(blocks), numbers)
    assert not math.isnan(float(numbers.sum()))
