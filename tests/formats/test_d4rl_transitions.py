"""What is sampled of a converted D4RL file is the file's, transition by transition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from numpy.typing import NDArray

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import AuditError, FormatError
from offline_data.base.progress import SilentProgress
from offline_data.formats.catalogues.d4rl import read_table
from offline_data.formats.d4rl.source import D4RL
from offline_data.formats.flat import next_column
from offline_data.pipeline.ingest import Options, Stored, convert
from offline_data.store.audit import Audit
from offline_data.store.reader import open_reader
from offline_data.testing.toy import assert_same_batch
from tests.oracles import Transition, d4rl_transitions
from tests.slow import every_second
from tests.toys.d4rl import TOYS, write_published

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch

Columns = dict[str, Any]
ROWS = 60


def write(path: Path, columns: Columns, **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file.create_dataset(name, data=values, **options)
    return path


def continuous(shape: tuple[int, ...] = (3,), dtype: str = "f4") -> Columns:
    """Six episodes of ten rows whose `next_observations` are those of the next row."""
    size = int(np.prod(shape))
    values = (np.arange((ROWS + 1) * size) + 1).reshape(ROWS + 1, *shape).astype(dtype)
    timeouts = np.arange(ROWS) % 10 == 9
    after = values[1:].copy()
    after[timeouts] = -values[1:][timeouts] if np.dtype(dtype).kind != "u" else 7
    return {
        "observations": values[:-1],
        "actions": np.arange(2.0 * ROWS).reshape(ROWS, 2),
        "rewards": np.arange(ROWS, dtype="f4") / 8,
        "terminals": np.arange(ROWS) == 29,
        "timeouts": timeouts & (np.arange(ROWS) != 29),
        "next_observations": after,
    }


def shuffled() -> Columns:
    """A replay buffer in random order: no row has to do with the one after it."""
    draw = np.random.default_rng(3)
    return {
        "observations": draw.normal(size=(1000, 4)),
        "actions": draw.normal(size=(1000, 2)),
        "rewards": draw.normal(size=1000),
        "terminals": draw.random(1000) < 0.1,
        "timeouts": draw.random(1000) < 0.1,
        "next_observations": draw.normal(size=(1000, 4)),
    }


def jumping(*rows: int, **more: Any) -> Columns:
    columns = continuous(**more)
    for row in rows:
        columns["next_observations"][row] += 100
    return columns


def terminated_inside() -> Columns:
    columns = jumping(34)
    columns["terminals"][34] = True
    return columns


def with_nan() -> Columns:
    columns = jumping(12)
    columns["observations"][5, 1] = columns["next_observations"][4, 1] = np.nan
    columns["next_observations"][14, 0] = np.nan
    return columns


def in_pieces() -> Columns:
    return {
        f"virtual/{number + 95}/{name}": values[5 * number : 5 * number + 5]
        for name, values in jumping(31).items()
        for number in range(12)
    }


CASES: dict[str, Callable[[], Columns]] = {
    "shuffled": shuffled,
    "one row": lambda: jumping(24),
    "next to an end": lambda: jumping(8, 10, 58),
    "every row": lambda: jumping(*range(ROWS)),
    "terminated": terminated_inside,
    "nan": with_nan,
    "nothing differs": continuous,
    "large images": lambda: jumping(24, 25, shape=(40, 40, 3), dtype="u1"),
    "numbers": lambda: jumping(24, shape=()),
    "int64": lambda: jumping(24, dtype="i8"),
    "without next": lambda: {k: v for k, v in continuous().items() if k[0] != "n"},
    "pieces": in_pieces,
}


def rows_of(result: Stored) -> Any:
    dataset = offline_data.open_dataset(result.path)
    return dataset[np.arange(len(dataset))]


def whole(path: Path) -> EpisodeBatch:
    dataset = D4RL().open(D4RL().release_of(path, "mine"), path)
    return dataset.read_part(dataset.parts(1 << 50)[0])


def same(found: Any, expected: list[Any]) -> None:
    wanted = np.stack([np.asarray(value) for value in expected])
    values: NDArray[Any] = np.asarray(found)
    assert values.dtype == wanted.dtype.newbyteorder("=")
    np.testing.assert_array_equal(values.reshape(wanted.shape), wanted)


def assert_transitions(result: Stored, expected: list[Transition]) -> None:
    """Compare every row, and which rows may be sampled as transitions."""
    rows = rows_of(result)
    assert len(rows) == len(expected)
    same(rows["observation"], [row.observation for row in expected])
    same(rows["action"], [row.action for row in expected])
    same(rows["next", "reward"], [row.reward for row in expected])
    same(rows["next", "terminated"], [row.terminated for row in expected])
    same(rows["next", "truncated"], [row.truncated for row in expected])
    known = [number for number, row in enumerate(expected) if row.known]
    if known:
        same(rows["next", "observation"][known], [expected[row].next_observation for row in known])
    unknown = [n for n, row in enumerate(expected) if not row.known and not row.terminated]
    assert open_reader(result.path).invalid_rows.tolist() == unknown


class Said(SilentProgress):
    """Keeps what the screen is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.mark.parametrize(("case", "keep"), every_second(CASES, [False, True]))
def test_every_transition_is_that_of_the_file(
    tmp_path: Path, settings: Settings, case: str, keep: bool
) -> None:
    path = write(tmp_path / "mine.hdf5", CASES[case]())
    expected = d4rl_transitions(path, keep_episodes=keep)
    first = convert(path, "a", settings, Options(audit="all", keep_episodes=keep))
    assert_transitions(first, expected)


@pytest.mark.parametrize(("case", "keep"), [("one row", False), ("large images", True)])
def test_layouts_keep_every_transition(
    tmp_path: Path, settings: Settings, case: str, keep: bool
) -> None:
    path = write(tmp_path / "mine.hdf5", CASES[case]())
    expected = d4rl_transitions(path, keep_episodes=keep)
    first = convert(path, "a", settings, Options(keep_episodes=keep))
    second = convert(first.path, "b", settings, Options(audit="all", layout="ted"))
    assert_transitions(second, expected)
    third = convert(second.path, "c", settings, Options(audit="all", layout="compact"))
    assert_transitions(third, expected)
    assert third.manifest.two_copies == first.manifest.two_copies == second.manifest.two_copies
    assert first.manifest.tables == third.manifest.tables


JUMPS = "In 2 of 54 rows inside episodes, next_observations is not the next row's observation: "


def test_a_kept_episode_is_whole_and_holds_both(tmp_path: Path, settings: Settings) -> None:
    path = write(tmp_path / "mine.hdf5", jumping(24, 55))
    told = Said()
    result = convert(path, "mine", settings, Options(keep_episodes=True), told)
    assert open_reader(result.path).lengths.tolist() == [10] * 6
    assert result.manifest.two_copies == (("observation",),)
    assert result.manifest.converter["options"]["keep_episodes"] is True
    assert told.notes == [JUMPS + "the episodes are kept, and both are stored."]
    assert told.notes[0] in result.manifest.notes
    assert "Every next observation is that of next_observations." in result.manifest.notes
    assert result.manifest.counts["valid_transitions"] == ROWS


def test_a_cut_is_counted_said_and_marked_truncated(tmp_path: Path, settings: Settings) -> None:
    told = Said()
    convert(write(tmp_path / "other.hdf5", continuous()), "other", settings, Options(), told)
    assert told.notes == []
    path = write(tmp_path / "mine.hdf5", jumping(24, 55))
    result = convert(path, "mine", settings, Options(), told)
    reader = open_reader(result.path)
    assert reader.lengths.tolist() == [10, 10, 5, 5, 10, 10, 6, 4]
    truncated = np.flatnonzero(reader.step(("next", "truncated")))
    assert truncated.tolist() == [9, 19, 24, 39, 49, 55, 59]
    assert result.manifest.two_copies == ()
    cut = "episodes end there, as truncated (--keep-episodes keeps them whole)."
    assert told.notes == [JUMPS + cut]
    assert told.notes[0] in result.manifest.notes


def test_keeping_episodes_converts_again_what_was_cut(tmp_path: Path, settings: Settings) -> None:
    path = write(tmp_path / "mine.hdf5", jumping(24))
    kept = Options(keep_episodes=True)
    assert convert(path, "mine", settings, Options()).manifest.counts["episodes"] == 7
    again = convert(path, "mine", settings, kept)
    assert not again.existed
    assert again.manifest.counts["episodes"] == 6
    assert convert(path, "mine", settings, kept).existed
    assert convert(path, "mine", settings, Options()).existed
    other = convert(path, "mine", settings, Options(layout="ted", force=True))
    assert other.manifest.counts["episodes"] == 7


@pytest.mark.parametrize("family", sorted(TOYS))
def test_every_family(tmp_path: Path, settings: Settings, family: str) -> None:
    toy = TOYS[family]
    path = write_published(tmp_path, toy)
    rule = read_table()[toy.dataset].rule
    expected = d4rl_transitions(path, rule.marks, rule.horizon)
    assert_transitions(convert(path, "mine", settings, Options()), expected)
    batch = whole(path)
    assert batch.final_observation.tolist() == [toy.next_observations] * len(toy.lengths)
    codes = 1000.0 * batch.episode_of + np.arange(batch.transitions) + 1
    codes -= batch.starts[batch.episode_of]
    for name, _ in toy.infos:  # which stand beside their observation
        key = ("info", *name.split("/"))
        values = batch.steps[key].reshape(batch.transitions, -1)
        assert (values == codes[:, None] + 0.5).all()
    assert ("demo" in {key[-1] for key in batch.steps}) == toy.demonstrations


def test_pieces_are_in_the_order_of_their_numbers(tmp_path: Path, settings: Settings) -> None:
    lengths = np.arange(12) % 7 + 1
    code = np.arange(lengths.sum()) + 1.0
    columns: Columns = {}
    for number, rows in enumerate(np.split(code, np.cumsum(lengths)[:-1])):
        columns[f"virtual/{number}/observations"] = rows[:, None]
        columns[f"virtual/{number}/actions"] = -rows[:, None]
        columns[f"virtual/{number}/rewards"] = rows
        columns[f"virtual/{number}/terminals"] = np.zeros(len(rows), bool)
        columns[f"virtual/{number}/timeouts"] = rows % 10 == 0
    path = write(tmp_path / "mine.hdf5", columns)
    result = convert(path, "mine", settings, Options(audit="all"))
    np.testing.assert_array_equal(np.ravel(rows_of(result)["observation"]), code)
    assert_transitions(result, d4rl_transitions(path))


def test_two_pieces_that_are_compressed(tmp_path: Path, settings: Settings) -> None:
    columns = {
        f"virtual/{number}/{name}": values
        for name, both in jumping(31).items()
        for number, values in enumerate(np.split(both, 2))
    }
    path = write(tmp_path / "mine.hdf5", columns, compression="gzip")
    result = convert(path, "mine", settings, Options(audit="all"))
    assert_transitions(result, d4rl_transitions(path))


LARGE = 2**62 + 1


@pytest.mark.parametrize(("one", "other"), [("i8", "f8"), ("i8", "u8"), ("u8", "f4"), ("i4", "f4")])
def test_types_that_no_type_holds_are_refused_or_exact(
    tmp_path: Path, settings: Settings, one: str, other: str
) -> None:
    columns = continuous()
    columns["observations"] = columns["observations"].astype(one)
    columns["next_observations"] = columns["next_observations"].clip(0).astype(other)
    if one == "i8":
        columns["observations"][3] = LARGE
    path = write(tmp_path / "mine.hdf5", columns)
    if one == "i4":
        rows = rows_of(convert(path, "mine", settings, Options(audit="all")))
        assert np.asarray(rows["observation"]).dtype == np.float64
        np.testing.assert_array_equal(rows["observation"], columns["observations"])
        np.testing.assert_array_equal(rows["next", "observation"], columns["next_observations"])
        return
    names = f"{np.dtype(one)} and 'next_observations' {np.dtype(other)}"
    with pytest.raises(FormatError, match=f"'observations' has dtype {names}: no dtype holds"):
        convert(path, "mine", settings, Options())


def test_the_audit_compares_whole_numbers_as_such(tmp_path: Path, settings: Settings) -> None:
    """A table that holds whole numbers as float64 is found, although numpy calls them equal."""
    columns = continuous(dtype="i8")
    columns["observations"][3] = LARGE
    columns["next_observations"][2] = LARGE
    path = write(tmp_path / "mine.hdf5", columns)
    exact = convert(path, "mine", settings, Options(audit="all"))
    rounded = {**columns, **{name: columns[name].astype("f8") for name in columns if "obs" in name}}
    wrong = convert(write(tmp_path / "other.hdf5", rounded), "other", settings, Options())
    batch = open_reader(exact.path).episode_batch(0, 6)
    with pytest.raises(AuditError, match="'observation' differs"):
        Audit("all").check(batch, open_reader(wrong.path), 0, 0)


def test_demonstration_numbers_that_disagree_are_noted(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["kitchen"])
    opened = D4RL().open(D4RL().release_of(path, "mine"), path)
    assert not [note for note in opened.info.notes if "disagree" in note]
    with h5py.File(path) as file:
        numbers = file["infos"][()]
    numbers[2] = 7
    note = "The demonstration's number (info/demo) and the episodes disagree in 2 rows."
    for values in (numbers, numbers[:, None]):
        with h5py.File(path, "r+") as file:
            del file["infos"]
            file["infos"] = values
        assert note in D4RL().open(D4RL().release_of(path, "mine"), path).info.notes


def test_a_second_copy_in_pieces_is_dropped_once_and_said(tmp_path: Path) -> None:
    toy = TOYS["carla"]
    path = write_published(tmp_path, toy)
    with h5py.File(path, "r+") as file:
        file["virtual/0/observations"] = file["observations"][:3]
    dataset = D4RL().open(D4RL().release_of(path, "mine"), path)
    assert [item.key for item in dataset.info.dropped] == ["virtual/0/observations"]
    assert dataset.info.transitions == sum(toy.lengths)


def test_many_final_observations_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "mine.hdf5", jumping(24))
    kept = whole(path)
    monkeypatch.setattr(next_column, "KEPT", 0)
    dataset = D4RL().open(D4RL().release_of(path, "mine"), path)
    assert dataset.after is not None
    assert dataset.after.final is None
    assert_same_batch(dataset.read_part(dataset.parts(1 << 50)[0]), kept)
    alone = dataset.read_part(dataset.parts(1)[1]).observations["observation",]
    np.testing.assert_array_equal(alone, kept.observations["observation",][11:22])


def test_columns_of_the_users_own_are_kept(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["adroit"])
    with h5py.File(path, "r+") as file:
        file["costs"] = np.arange(15, dtype=">i4")
        file["more/deep"] = np.arange(15, dtype="u1")
    batch = whole(path)
    assert batch.steps["extra", "costs"].tolist() == list(range(15))
    assert batch.steps["extra", "costs"].dtype == np.dtype("int32").newbyteorder("=")
    assert batch.steps["extra", "more", "deep"].dtype == np.uint8


@st.composite
def files(draw: st.DrawFn) -> Columns:
    """Draw the columns of a small file of any flags, cuts, jumps, shapes and dtypes."""
    rows = draw(st.integers(1, 40))
    seed = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    dtype = draw(st.sampled_from(["f4", ">f8", "u1", "i8", "f2", "?"]))
    values = seed.integers(0, 4, (rows + 1, *shape)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        values[seed.random(values.shape) < 0.2] = np.nan
    columns: Columns = {
        "observations": values[:-1],
        "actions": seed.integers(0, 9, (rows, *draw(st.sampled_from([(), (2,)])))),
        "rewards": seed.normal(size=(rows, 1) if draw(st.booleans()) else rows),
        "terminals": (seed.random(rows) < 0.2).astype(draw(st.sampled_from(["?", "f4", "u1"]))),
        "timeouts": seed.random(rows) < 0.2,
    }
    if draw(st.booleans()):
        after = values[1:].copy()
        wrong = seed.random(rows) < draw(st.sampled_from([0, 0.1, 1]))
        after[wrong] = seed.integers(0, 4, after.shape).astype(dtype)[wrong]
        columns["next_observations"] = after
    if draw(st.booleans()):
        del columns["timeouts"]
        columns["terminals"][seed.integers(rows)] = 1
    cuts = draw(st.lists(st.integers(0, rows), max_size=13).map(sorted))
    if not cuts:
        return columns
    return {
        f"virtual/{number}/{name}": piece
        for name, values in columns.items()
        for number, piece in enumerate(np.split(values, cuts))
    }


@pytest.mark.slow
@hypothesis.settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(columns=files(), keep=st.booleans(), layout=st.sampled_from(["compact", "ted"]))
def test_any_file(
    tmp_path: Path, settings: Settings, columns: Columns, keep: bool, layout: Any
) -> None:
    path = write(tmp_path / "mine.hdf5", columns)
    options = Options(layout=layout, keep_episodes=keep, audit="all", force=True)
    assert_transitions(
        convert(path, "mine", settings, options), d4rl_transitions(path, keep_episodes=keep)
    )
