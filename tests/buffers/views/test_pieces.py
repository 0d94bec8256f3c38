from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from offline_data.buffers.samplers import Runs
from offline_data.buffers.views import (
    Pieces,
    RowList,
    RowMap,
    of_runs,
    smallest,
)

lengths = st.lists(st.integers(1, 6), min_size=1, max_size=8)


def runs_of(sizes: list[int]) -> Runs:
    counts = torch.tensor(sizes)
    final = torch.tensor([i % 2 == 0 for i in range(len(sizes))])
    return Runs(counts.cumsum(0) - counts, counts, final)


def listed(rows: RowMap) -> list[int]:
    found: list[int] = rows.at(torch.arange(rows.count)).tolist()
    return found


def naive_pieces(rows: list[int], runs: Runs) -> list[list[int]]:
    """Cut rows, one by one, where the next does not follow or begins a run."""
    pieces: list[list[int]] = []
    for row in rows:
        if pieces and row == pieces[-1][-1] + 1 and row not in runs.starts.tolist():
            pieces[-1].append(row)
        else:
            pieces.append([row])
    return pieces


def as_lists(pieces: Pieces) -> list[list[int]]:
    return [
        list(range(first, first + length))
        for first, length in zip(pieces.first.tolist(), pieces.lengths.tolist(), strict=True)
    ]


@given(lengths, st.data())
def test_rows_in_any_order_are_cut_and_kept(sizes: list[int], data: st.DataObject) -> None:
    runs = runs_of(sizes)
    rows = data.draw(st.lists(st.integers(0, sum(sizes) - 1), max_size=30))
    given_rows = RowList(torch.tensor(rows, dtype=torch.int64))
    pieces = given_rows.cut(runs)
    assert as_lists(pieces) == naive_pieces(rows, runs)
    assert listed(pieces) == listed(smallest(given_rows, runs)) == rows
    left_out = sorted(data.draw(st.sets(st.integers(0, sum(sizes) - 1))))
    expected = [number for number, row in enumerate(rows) if row in left_out]
    for form in (pieces, given_rows):
        assert form.left_out(torch.tensor(left_out, dtype=torch.int64)).tolist() == expected


@given(lengths, st.data())
def test_runs_are_taken_in_the_order_asked_for(sizes: list[int], data: st.DataObject) -> None:
    runs = runs_of(sizes)
    rows = data.draw(st.permutations(range(sum(sizes))))
    some = RowList(torch.tensor(rows[: data.draw(st.integers(0, len(rows)))], dtype=torch.int64))
    wanted = data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=10))
    run_of = [run for run, size in enumerate(sizes) for _ in range(size)]
    expected = [row for run in wanted for row in listed(some) if run_of[row] == run]
    assert listed(of_runs(some, runs, torch.tensor(wanted, dtype=torch.int64))) == expected


@given(lengths, st.data())
def test_a_range_of_a_view(sizes: list[int], data: st.DataObject) -> None:
    runs = runs_of(sizes)
    everything = Pieces(runs.starts, runs.lengths)
    rows = of_runs(everything, runs, torch.arange(len(sizes) - 1, -1, -1))
    start, stop = sorted(data.draw(st.lists(st.integers(0, rows.count), min_size=2, max_size=2)))
    for form in (rows, rows.cut(runs), RowList(torch.tensor(listed(rows)))):
        assert listed(form.between(start, stop)) == listed(rows)[start:stop]


def test_the_smaller_form_is_kept() -> None:
    runs = runs_of([1000] * 10)
    whole = Pieces(runs.starts, runs.lengths)
    assert isinstance(of_runs(whole, runs, torch.arange(0, 10, 2)), Pieces)
    assert isinstance(smallest(RowList(torch.arange(10_000)), runs), Pieces)
    assert isinstance(smallest(RowList(torch.arange(0, 10_000, 2)), runs), RowList)
