"""The audit sees what it is there to see: lost, shifted and swapped values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.analysis.info import compared_with_source
from offline_data.base.errors import AuditError
from offline_data.episode import Key
from offline_data.store import audit, tables
from offline_data.store import audit as auditing
from offline_data.store.audit import Audit, equal_rows, has_bits
from offline_data.store.layout import LAYOUTS, MANIFEST, LayoutName
from offline_data.store.tables import LayoutWriter
from offline_data.testing.toy import toy_batch, write_toy


def broken(monkeypatch: pytest.MonkeyPatch, table: str, key: Key, kind: str) -> None:
    """Make the writer lose, shift or swap one leaf."""
    whole = LayoutWriter._append_encoded

    def encoded(self: LayoutWriter, name: str, *args: Any) -> Any:
        rows = whole(self, name, *args)
        if name in {table, "ted"} and key in rows:
            good = rows[key](slice(None))
            bad = {
                "zeros": np.zeros_like(good),
                "shift": np.roll(good, 1, axis=0),
                "one": np.concatenate([good[:-1], good[-1:] + 1]),
                "middle": np.concatenate([good[:17], good[17:18] + 1, good[18:]]),
            }[kind]
            rows[key] = bad.__getitem__
        return rows

    monkeypatch.setattr(LayoutWriter, "_append_encoded", encoded)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("kind", "share"),
    [("zeros", 0.01), ("shift", 0.01), ("one", 0.01), ("one", "auto"), ("middle", "auto")],
)
@pytest.mark.parametrize(
    ("table", "key"),
    [
        *(("observations", key) for key in (("observation", "state"), ("info", "code"))),
        *(("steps", key) for key in (("action",), ("next", "reward"))),
    ],
)
def test_a_wrong_value_on_disk_refuses_to_publish(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    layout: LayoutName,
    kind: str,
    share: Any,
    table: str,
    key: Key,
) -> None:
    broken(monkeypatch, table, key, kind)
    with pytest.raises(AuditError, match="/".join(key)):
        write_toy(tmp_path / "d", [toy_batch([30, 20, 1])], layout=layout, audit=share)
    assert not (tmp_path / "d" / MANIFEST).exists()


@pytest.mark.parametrize("more", [{}, {"text": True}, {"images": True}, {"layout": "ted"}])
def test_rows_are_gathered_where_their_bits_cannot_be_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: dict[str, Any]
) -> None:
    gathered: list[int] = []
    check = audit._check_rows

    def counted(*args: Any) -> None:
        gathered.append(len(args[2]))
        check(*args)

    monkeypatch.setattr(audit, "_check_rows", counted)
    layout, text = more.get("layout", "compact"), more.get("text", False)
    made = toy_batch([300, 200], text=text, images=more.get("images", False))
    manifest = write_toy(tmp_path / "d", [made], layout=layout, audit="all")
    assert manifest.audit["rows"] == 500
    assert (sum(gathered) < 20) == (layout == "compact" and not text)


def test_a_wrong_episode_table_refuses_to_publish(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever is audited: the table is small."""

    def encoded(table: str, column: Any, values: Any, words: Any) -> Any:
        return tables.encode_column(table, column, values + (column.key == ("length",)), words)

    monkeypatch.setattr("offline_data.store.writer.encode_column", encoded)
    with pytest.raises(AuditError, match="episode column 'length'"):
        write_toy(tmp_path / "d", [toy_batch([30, 20, 1])], audit="none")
    assert not (tmp_path / "d" / MANIFEST).exists()


def test_without_audit_the_same_fault_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken(monkeypatch, "steps", ("action",), "shift")
    manifest = write_toy(tmp_path / "d", [toy_batch([3])], audit="none")
    assert manifest.audit["rows"] == 0


def test_any_fraction_looks_at_ends_and_flags() -> None:
    batch = toy_batch([50, 1, 80])
    terminated = batch.steps["next", "terminated"].copy()
    terminated[20] = True
    flagged = replace(batch, steps={**batch.steps, ("next", "terminated"): terminated})
    chosen = set(Audit(0.001).choose(flagged).tolist())
    assert {0, 20, 49, 50, 51, 130} <= chosen
    assert len(chosen) <= 8
    assert len(Audit("all").choose(flagged)) == 131


def test_the_manifest_states_what_was_looked_at(tmp_path: Path) -> None:
    manifest = write_toy(tmp_path / "d", [toy_batch([100, 100])], audit=0.5)
    rows = manifest.audit["rows"]
    assert 50 < rows < 110
    whole = {"mode": 0.5, "rows": rows, "of": 200, "episodes": 2, "differences": 0}
    assert manifest.audit == whole


def test_all_of_the_first_bytes_and_a_share_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` counts bytes alone: neither the batches nor the machine change what is compared."""
    batches = [toy_batch([1000], first_episode=e) for e in range(4)]
    whole = write_toy(tmp_path / "whole", batches, audit="auto").audit
    assert whole == {"mode": "auto", "rows": 4000, "of": 4000, "episodes": 4, "differences": 0}
    monkeypatch.setattr(audit, "AUDITED_WHOLE", batches[0].nbytes * 3 // 2)
    assert write_toy(tmp_path / "bits", batches, audit="auto").audit == whole
    part = write_toy(tmp_path / "part", batches, layout="ted", audit="auto").audit
    assert 1500 <= part["rows"] <= 1540
    one = write_toy(tmp_path / "one", [toy_batch([1000] * 4)], layout="ted", audit="auto").audit
    assert 1500 <= one["rows"] <= 1550
    shard = audit.Audit("auto", part=0.5)
    assert 750 <= len(shard.choose(batches[0])) <= 765
    none = write_toy(tmp_path / "none", batches, audit="none").audit
    assert (none["rows"], none["of"]) == (0, 4000)


@pytest.mark.parametrize(
    ("audit", "said"),
    [
        ({"mode": "auto", "rows": 6729, "of": 6729}, "6,729 of 6,729 rows (all)"),
        ({"mode": 0.01, "rows": 118, "of": 6729}, "118 of 6,729 rows (1.8 %)"),
        ({"mode": "none", "rows": 0, "of": 5}, "0 of 5 rows (none)"),
        *(({"rows": rows, "of": of}, "not recorded") for rows, of in (("x", 3), (5, 3), (True, 1))),
        *(({}, "not recorded"), ({"rows": 3}, "not recorded")),
    ],
)
def test_what_was_compared_is_said(audit: dict[str, Any], said: str) -> None:
    assert compared_with_source(audit) == said


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_nan_equals_nan_only(dtype: str) -> None:
    nan = np.nan
    wanted = np.array([[1, nan], [nan, 2], [3, 4], [nan, nan]], dtype)
    found = np.array([[1, nan], [5, 2], [3, nan], [nan, nan]], dtype)
    assert equal_rows(wanted, found).tolist() == [True, False, False, True]
    assert equal_rows(wanted, wanted.copy()).all()


ROWS: dict[str, tuple[str, tuple[int, ...]]] = {
    **{f"{n} bytes": ("u1", (n,)) for n in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 29)},
    "bool": ("?", ()),
    "int64": ("i8", ()),
    "float16": ("f2", (3,)),
    "float64": ("f8", (2, 3)),
    "no values": ("f4", (0,)),
}


@pytest.fixture(params=["compiled", "numpy"])
def comparison(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(auditing, "_compiled", None)
    elif auditing._compiled is None:
        pytest.skip("not built: no C compiler")


@pytest.mark.usefixtures("comparison")
@pytest.mark.parametrize("name", ROWS)
def test_every_bit_of_every_row_is_compared(name: str) -> None:
    dtype, shape = np.dtype(ROWS[name][0]), ROWS[name][1]
    rng = np.random.default_rng(len(name))
    packed = np.dtype([("before", "u1", 3), ("leaf", dtype, shape), ("after", "u1")])
    for rows in (0, 1, 5, 1200):
        file = np.frombuffer(bytearray(rng.bytes(rows * packed.itemsize)), packed)
        if dtype.kind == "b":
            file["leaf"] = rng.random((rows, *shape)) < 0.5
        column = file["leaf"].copy()
        by_columns = np.asfortranarray(column)
        for given in (column, by_columns, np.repeat(column, 2, axis=0)[::2]):
            assert has_bits(file["leaf"], given)
            assert has_bits(given, file["leaf"])
        for _ in range(20 if column.size else 0):
            other = column.copy()
            raw = other.reshape(-1).view("u1")
            raw[rng.integers(len(raw))] ^= 1 if dtype.kind == "b" else 1 << rng.integers(8)
            assert not has_bits(file["leaf"], other)
            assert not has_bits(other, column)


@pytest.mark.usefixtures("comparison")
def test_zeros_of_two_signs_differ_and_nan_does_not() -> None:
    values = np.array([0.0, np.nan, 1.0])
    assert has_bits(values, values.copy())
    assert not has_bits(values, np.array([-0.0, np.nan, 1.0]))
