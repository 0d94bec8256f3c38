"""What the cells of a table become: the same in own files and in those of `label`."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import OfflineDataError
from offline_data.store.reader import open_reader
from tests.pipeline.preprocess.runs import make
from tests.slow import every

MAPPING = {
    "leaves": {"observation": "obs", "action": "act", "extra/k": "k"},
    "ends": {"episode": "episode", "otherwise": "truncated"},
    "final_observation": "missing",
}
COLUMNS = ("episode", "obs", "act", "k")

WHOLE, MIXED = "9007199254740993", "9223372036854775808"
TEXTS: dict[str, tuple[list[str], Any]] = {
    "text": (["pick", "None", "pick"], ["pick", "None", "pick"]),
    "leading zeros": (["007", "12", "0"], ["007", "12", "0"]),
    "leading zeros, one empty": (["007", "", "12"], ["007", "", "12"]),
    "zeros after a sign": (["-07", "1", "2"], ["-07", "1", "2"]),
    "underscores": (["1_000", "2", "3"], ["1_000", "2", "3"]),
    "decimals of one width": (["001.5", "010.0", "-02.5"], [1.5, 10.0, -2.5]),
    "zero": (["0", "-0", "10"], [0, 0, 10]),
    "zeros after the point": (["0.07", "0", "1"], [0.07, 0.0, 1.0]),
    "integers": (["-9223372036854775808", WHOLE, "9223372036854775807"], [-(2**63), 2**53 + 1, 2**63 - 1]),
    "beyond int64": (["1", MIXED, "2"], "'k' .*has 9223372036854775808, an integer beyond int64"),
    "beyond int64, all": (["-9223372036854775809"] * 3, "has -9223372036854775809, an integer beyond int64"),
    "beyond float64": (["1", "9" * 400, "2"], "'k' .*has 9{40}…, an integer beyond int64"),
    "beyond all": (["1", "9" * 5000, "0.5"], "'k' .*has 9{40}…, an integer beyond int64"),
    "beyond int64 among text": (["1", MIXED, "x"], ["1", MIXED, "x"]),
    "large beside floats": ([WHOLE, "0.5", "1"], "has 9007199254740993 among other numbers, which float64"),
    "large beside an empty cell": ([WHOLE, "", "1"], "has 9007199254740993 among other numbers, which float64"),
    "large and even beside floats": (["9007199254740992", "0.5", "1"], [2.0**53, 0.5, 1.0]),
    "large floats": (["1e20", "100000000000000000000", "1"], [1e20, 1e20, 1.0]),
    "empty": (["1", "", "3"], [1.0, np.nan, 3.0]),
    "bools": (["true", "False", "true"], [True, False, True]),
}  # fmt: skip
ARROW: dict[str, tuple[Any, Any]] = {
    "text": (pa.array(["pick", None, "None"]), ["pick", None, "None"]),
    "words": (pa.array(["pick", None, "pick"]).dictionary_encode(), ["pick", None, "pick"]),
    "large text": (pa.array([None, None, "007"], pa.large_string()), [None, None, "007"]),
    "nothing but nulls": (pa.array([None] * 3, pa.string()), [None] * 3),
    "uint64": (pa.array([2**64 - 1, 0, 1], pa.uint64()), np.array([2**64 - 1, 0, 1], np.uint64)),
    "integers": (pa.array([1, None, 3]), "'k' has rows without a value"),
    "bools": (pa.array([True, None, False]), "'k' has rows without a value"),
    "floats": (pa.array([1.0, None, 3.0]), [1.0, np.nan, 3.0]),
}


def write(path: Path, cells: Any) -> Path:
    columns = {"episode": range(3), "obs": [0.5, 1.5, 2.5], "act": [0.25, 1.25, 2.25], "k": cells}
    if path.suffix == ".parquet":
        pq.write_table(pa.table({**columns, "episode": pa.array(range(3))}), path)
        return path
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if ".tsv" in path.name else ",")
        writer.writerows([COLUMNS, *zip(*columns.values(), strict=True)])
    return path


def own(path: Path, root: Path) -> Any:
    stored = offline_data.convert(path, "own", mapping=MAPPING, root=root, progress=False)
    reader = open_reader(stored.path)
    key = ("extra", "k")
    return np.array(reader.as_text(key, np.asarray(reader.step(key))))


def label(path: Path, root: Path) -> Any:
    episode = {"observations": np.zeros((2, 1)), "actions": np.ones((1, 1)), "rewards": [1.0], "terminations": True}  # fmt: skip
    parent = offline_data.convert([episode] * 3, "parent", root=root, progress=False)
    made = make(parent.path, [f"label:{path},k"], root / "made", Settings(root=root))
    reader = open_reader(made.path)
    return np.array(reader.as_text(("k",), np.asarray(reader.episodes["k",]), "episodes"))


def expect(read: Any, path: Path, root: Path, wanted: Any) -> None:
    if isinstance(wanted, str):
        with pytest.raises(OfflineDataError, match=wanted):
            read(path, root)
        return
    found = read(path, root)
    if isinstance(wanted[0], str | None):
        assert found.tolist() == wanted
    else:
        assert found.dtype == np.array(wanted).dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("name", "suffix", "read"), every(4, TEXTS, ["csv", "tsv", "csv.gz"], [own, label])
)
def test_cells_of_text(name: str, suffix: str, read: Any, tmp_path: Path) -> None:
    cells, wanted = TEXTS[name]
    expect(read, write(tmp_path / f"x.{suffix}", cells), tmp_path / "root", wanted)


@pytest.mark.parametrize("read", [own, label])
@pytest.mark.parametrize("name", ARROW)
def test_rows_without_a_value(name: str, read: Any, tmp_path: Path) -> None:
    cells, wanted = ARROW[name]
    expect(read, write(tmp_path / "x.parquet", cells), tmp_path / "root", wanted)


@pytest.mark.parametrize(("first", "last"), [("12", "007"), ("12", MIXED), (WHOLE, "0.5")])
def test_cells_after_a_thousand_others(first: str, last: str, tmp_path: Path) -> None:
    """The dtype is that of all cells, and what was read before counts, too."""
    path = tmp_path / "x.csv"
    lines = [f"{e},{e},1.5,{last if e == 1500 else first}" for e in range(1501)]
    path.write_text("\n".join([",".join(COLUMNS), *lines]))
    if last == "007":
        assert own(path, tmp_path / "root").tolist() == ["12"] * 1500 + ["007"]
        return
    with pytest.raises(OfflineDataError, match=r"beyond int64|which float64 does not hold"):
        own(path, tmp_path / "root")


def test_padded_numbers_of_episodes(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("episode,k\n002,c\n000,a\n001,b\n")
    assert label(path, tmp_path / "root").tolist() == ["a", "b", "c"]
