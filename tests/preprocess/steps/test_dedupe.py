from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.errors import UsageError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.episodes import DIGEST, Dedupe
from offline_data.preprocess.steps.registry import parse_step
from offline_data.store.reader import open_reader
from offline_data.testing.pieces import as_stored, episodes_of, joined, toy_piece, with_leaves
from offline_data.testing.steps import StepContract
from offline_data.testing.toy import toy_batch, write_toy


class TestContract(StepContract):
    @pytest.fixture
    def step(self) -> Step:
        return parse_step("dedupe")


def digests(piece: Piece) -> list[tuple[int, ...]]:
    found = Dedupe().measure(piece)[DIGEST]
    assert (found.dtype, found.shape) == (np.dtype("u8"), (len(piece.episodes), 2))
    return [tuple(row) for row in found.tolist()]


def kept(piece: Piece) -> Any:
    return Dedupe().choose(Dedupe().measure(piece), {}).tolist()


def repeated(*numbers: int) -> Piece:
    """Episodes of a toy piece in any order, each as often as it is named."""
    alone = episodes_of(toy_piece([3, 1, 3, 2]))
    return joined([alone[number] for number in numbers])


@pytest.mark.parametrize(
    ("numbers", "want"),
    [
        ((0, 1, 2, 3), [True, True, True, True]),
        ((0, 0), [True, False]),
        ((3, 1, 3, 0, 1, 3, 2), [True, True, False, True, False, False, True]),
        ((2,), [True]),
    ],
)
def test_the_first_of_each_stays(numbers: tuple[int, ...], want: list[bool]) -> None:
    assert kept(repeated(*numbers)) == want
    assert kept(as_stored(repeated(*numbers))) == want


def test_the_first_stays_among_many() -> None:
    draw = np.random.default_rng(0)
    column = draw.integers(0, 30, (1000, 2)).astype(np.uint64)
    seen: set[tuple[int, ...]] = set()
    want = []
    for row in map(tuple, column.tolist()):
        want.append(row not in seen)
        seen.add(row)
    assert Dedupe().choose({DIGEST: column}, {}).tolist() == want


def test_columns_of_the_episode_table_do_not_count() -> None:
    piece = repeated(1, 1)
    other = replace(piece.batch, episodes={("seed",): np.array([4, 5])})
    assert kept(replace(piece, batch=other)) == [True, False]


STEPS = [("action",), ("mission",), ("next", "reward"), ("next", "truncated")]
OBSERVATIONS = [("observation", "position"), ("observation", "velocity"), ("info", "code")]


def changed(piece: Piece, table: str, key: tuple[str, ...], row: int) -> Piece:
    """Flip the last bit of one item."""
    columns = dict(getattr(piece.batch, table))
    values = columns[key].copy()
    values.reshape(len(values), -1).view(np.uint8)[row, 0] ^= 1
    return piece.having(**{table: {**columns, key: values}})


@pytest.mark.parametrize("key", STEPS)
@pytest.mark.parametrize("row", [3, 4, 5])
def test_one_bit_of_a_step_counts(key: tuple[str, ...], row: int) -> None:
    piece = repeated(0, 0)
    assert kept(changed(piece, "steps", key, row)) == [True, True]


@pytest.mark.parametrize("key", OBSERVATIONS)
@pytest.mark.parametrize("row", [0, 3, 4, 7])
def test_one_bit_of_an_observation_counts(key: tuple[str, ...], row: int) -> None:
    piece = repeated(0, 0)
    assert kept(changed(piece, "observations", key, row)) == [True, True]


def test_whether_the_last_observation_is_known_counts() -> None:
    piece = repeated(0, 0)
    unknown = replace(piece.batch, final_observation=np.array([True, False]))
    assert kept(replace(piece, batch=unknown)) == [True, True]


def test_it_is_bytes_that_count() -> None:
    def with_values(values: list[float]) -> Piece:
        return with_leaves(repeated(1, 1), steps={"x": np.array(values, np.float32)})

    assert kept(with_values([0.0, -0.0])) == [True, True]
    assert kept(with_values([np.nan, np.nan])) == [True, False]
    assert kept(with_values([np.nan, -np.nan])) == [True, True]


def test_neither_a_seam_nor_the_type_is_lost() -> None:
    """Bytes in the same order with another cut, key or type are another content."""
    piece = repeated(1)
    pair = np.array([[1, 2]], np.int16)
    variants: list[dict[str, Any]] = [
        {"a": pair},
        {"b": pair},
        {"a": pair.view(np.uint16)},
        {"a": pair.view(np.int32)},
        {"a": pair[:, None]},
        {"a": pair[:, :1], "b": pair[:, 1:]},
        {"a": pair, "empty": np.zeros((1, 0), np.int16)},
    ]
    found = [digests(with_leaves(piece, steps=steps))[0] for steps in variants]
    assert len(set(found)) == len(variants)


def test_leaves_without_numbers_and_no_observations_at_all() -> None:
    piece = with_leaves(repeated(0, 1, 0), steps={"empty": np.zeros((7, 0, 3))})
    assert kept(piece) == [True, True, False]
    assert kept(piece.having(observations={})) == [True, True, False]


def test_digests_are_the_same_on_every_machine() -> None:
    """A table of an interrupted run is taken up again by another version of this package."""
    import hashlib

    piece = repeated(1)
    batch = piece.batch
    schema = [
        [(key, table[key].dtype.str, table[key].shape[1:]) for key in sorted(table)]
        for table in (batch.steps, batch.observations)
    ]
    content = repr(schema).encode()
    for table in (batch.steps, batch.observations):
        rows = len(next(iter(table.values())))
        for row in range(rows):
            content += b"".join(table[key][row].tobytes() for key in sorted(table))
    want = hashlib.blake2b(content + b"\1", digest_size=16).digest()
    assert np.array(digests(piece), "<u8").tobytes() == want


def test_it_looks_at_data_and_takes_no_arguments() -> None:
    assert Dedupe.needs_data
    assert parse_step("dedupe").describe() == {"step": "dedupe"}
    with pytest.raises(UsageError, match="'dedupe'"):
        parse_step("dedupe:action")
    with pytest.raises(UsageError, match="has no 'keys'"):
        parse_step("dedupe:keys=action")


def test_after_a_function_that_leaves_episodes_out(tmp_path: Path) -> None:
    batches = [toy_batch([3, 2]), toy_batch([3, 2, 4])]
    write_toy(tmp_path / "toy", batches)

    def without_short(episode: Any) -> Any:
        return episode if len(episode) > 2 else None

    offline_data.open_dataset(tmp_path / "toy").preprocess(
        [without_short, "dedupe"], by="episode", dest=tmp_path / "made"
    )
    made = open_reader(tmp_path / "made")
    assert made.lengths.tolist() == [3, 4]
    assert made.episodes[("id",)].tolist() == [0, 2]
    assert made.step(("action",))[:, 0].tolist() == [-1001, -1002, -1003, *range(-3001, -3005, -1)]
