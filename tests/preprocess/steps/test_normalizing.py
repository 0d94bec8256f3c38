"""Statistics of all data, exact whatever processes and chunks they are taken by."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offline_data
from offline_data.episodes import EpisodeBatch
from offline_data.errors import StepError
from offline_data.executors.base import Executor
from offline_data.executors.local import InProcess, LocalProcesses
from offline_data.preprocess import plan as planning
from offline_data.preprocess.steps.normalize import Normalize
from offline_data.preprocess.steps.registry import parse_step
from offline_data.store.reader import open_reader
from offline_data.store.statistics import Moments, item_moments
from offline_data.testing.pieces import episodes_of, toy_piece, with_leaves
from offline_data.testing.steps import prepared
from offline_data.testing.toy import write_toy


def mean_and_std(values: list[float]) -> tuple[float, float]:
    """Of the finite ones, each sum exact."""
    known = [value for value in values if math.isfinite(value)]
    mean = math.fsum(known) / len(known)
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in known) / len(known))


def known_values(piece: Any, key: tuple[str, ...]) -> list[Any]:
    """Rows of an observation leaf that the source has, picked one by one."""
    found, row = [], 0
    for length, final in zip(piece.batch.lengths, piece.batch.final_observation, strict=True):
        found += list(piece.batch.observations[key][row : row + length + bool(final)])
        row += int(length) + 1
    return found


def test_statistics_are_those_of_every_known_observation() -> None:
    piece = toy_piece([3, 1, 4], unknown_final=[1])
    step = prepared(parse_step("normalize"), piece)
    assert list(step.state()["leaves"]) == ["observation/position", "observation/velocity"]
    for leaf, found in step.state()["leaves"].items():
        rows = np.array(known_values(piece, tuple(leaf.split("/")))).reshape(10, -1)
        want = [mean_and_std(column.tolist()) for column in rows.T]
        np.testing.assert_allclose(np.ravel(found["mean"]), [m for m, _ in want], rtol=1e-14)
        np.testing.assert_allclose(np.ravel(found["std"]), [s for _, s in want], rtol=1e-14)
        assert found["not_finite"] == 0
    assert step.notes() == ()


@pytest.mark.parametrize("eps", [0, 1e-3, 0.5])
def test_values_row_by_row(eps: float) -> None:
    piece = toy_piece([2, 3])
    step = prepared(Normalize(("observation", "action"), eps=eps), piece)
    result = step.apply(piece)
    for table in ("observations", "steps"):
        for key, values in getattr(piece.batch, table).items():
            found = getattr(result.batch, table)[key]
            if key[0] not in {"observation", "action"}:
                assert found is values
                continue
            flat = values.reshape(len(values), -1).astype(float)
            for item, column in enumerate(flat.T):
                mean, std = mean_and_std(column.tolist())
                want = [(x - mean) / (std + eps) for x in column]
                at = found.reshape(len(values), -1)[:, item]
                np.testing.assert_allclose(at, want, rtol=1e-5, atol=1e-6)
            assert (found.dtype, found.shape) == (values.dtype, values.shape)


def test_float64_is_not_rounded_to_float32() -> None:
    values = 1e6 + np.arange(1, 5)[:, None] * 1e-6
    piece = with_leaves(toy_piece([3]), observations={"observation.fine": values})
    step = prepared(Normalize(("observation.fine",), eps=0), piece)
    found: Any = step.apply(piece).batch.observations["observation", "fine"][:, 0]
    np.testing.assert_allclose(found, np.array([-3, -1, 1, 3]) / math.sqrt(5), rtol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "becomes"),
    [("f2", "f2"), ("f4", "f4"), ("f8", "f8"), ("u1", "f4"), ("i4", "f4"), ("i8", "f4")],
)
def test_types(dtype: str, becomes: str) -> None:
    values = np.array([[3], [7], [20], [50]], dtype)
    piece = with_leaves(toy_piece([3]), observations={"observation.x": values})
    step = prepared(parse_step("normalize:observation.x,eps=0"), piece)
    found: Any = step.apply(piece).batch.observations["observation", "x"]
    mean, std = mean_and_std([3, 7, 20, 50])
    assert found.dtype == np.dtype(becomes)
    want = [(x - mean) / std for x in (3, 7, 20, 50)]
    np.testing.assert_allclose(found[:, 0], want, rtol=1e-3 if dtype == "f2" else 1e-6)


def test_large_whole_numbers_keep_their_difference() -> None:
    values = np.array([2**30, 2**30 + 1, 2**30 + 2, 2**30 + 3], np.int32)
    piece = with_leaves(toy_piece([3]), observations={"observation.x": values})
    step = prepared(parse_step("normalize:observation.x,eps=0"), piece)
    found: Any = step.apply(piece).batch.observations["observation", "x"]
    np.testing.assert_allclose(found, np.array([-3, -1, 1, 3]) / math.sqrt(5), rtol=1e-6)


def test_a_parent_takes_floats_and_a_leaf_is_taken_as_it_is() -> None:
    piece = with_leaves(
        toy_piece([3]), observations={"observation.count": np.array([3, 5, 8, 9], np.int64)}
    )
    parent = prepared(parse_step("normalize:observation"), piece)
    assert "observation/count" not in parent.state()["leaves"]
    count = piece.batch.observations["observation", "count"]
    assert parent.apply(piece).batch.observations["observation", "count"] is count
    both = prepared(parse_step("normalize:observation,observation.count"), piece)
    assert "observation/count" in both.state()["leaves"]
    root = prepared(parse_step("normalize:info"), piece)  # it has one leaf, of whole numbers
    assert list(root.state()["leaves"]) == ["info/code"]


def test_without_the_standard_deviation() -> None:
    piece = toy_piece([2])
    step = prepared(parse_step("normalize:reward,std=false"), piece)
    found: Any = step.apply(piece).batch.steps["next", "reward"]
    np.testing.assert_allclose(found[:, 0], [-0.0625, 0.0625])


def test_a_number_that_never_changes_becomes_zero() -> None:
    values = np.full((4, 1), 7.5, np.float32)
    piece = with_leaves(toy_piece([3]), observations={"observation.x": values})
    step = prepared(parse_step("normalize:observation.x"), piece)
    assert step.apply(piece).batch.observations["observation", "x"].tolist() == [[0]] * 4
    with pytest.raises(StepError, match=r"'observation/x' has 1 of 1 numbers .* never change"):
        prepared(parse_step("normalize:observation.x,eps=0"), piece)


def test_nan_and_infinite_values_do_not_count_and_stay() -> None:
    values = np.array([[1.5, np.nan], [np.inf, 4.0], [2.5, -np.inf], [9.0, 5.5]])
    piece = with_leaves(toy_piece([3]), observations={"observation.x": values})
    step = prepared(parse_step("normalize:observation.x,eps=0"), piece)
    found: Any = step.apply(piece).batch.observations["observation", "x"]
    for item in range(2):
        mean, std = mean_and_std(values[:, item].tolist())
        for row in range(4):
            if math.isfinite(values[row, item]):
                assert found[row, item] == pytest.approx((values[row, item] - mean) / std)
            else:
                assert str(found[row, item]) == str(values[row, item])
    (note,) = step.notes()
    assert note == (
        "normalize: 3 values of 'observation/x' are NaN or infinite; they are not in its "
        "statistics and stay as they are"
    )


def test_floats_go_through_json_exactly() -> None:
    piece = toy_piece([3, 4, 2])
    step = prepared(parse_step("normalize:observation,action"), piece)
    again = parse_step("normalize:observation,action").with_state(
        json.loads(json.dumps(step.state(), allow_nan=False))
    )
    assert again == step
    for key, values in step.apply(piece).batch.observations.items():
        assert again.apply(piece).batch.observations[key].tobytes() == values.tobytes()


def test_names_of_leaves_with_dots_go_through_the_state() -> None:
    piece = toy_piece([2])
    odd: Any = {("observation", "a.b"): piece.batch.observations["observation", "velocity"]}
    piece = piece.having(observations=odd)
    step = prepared(parse_step("normalize"), piece)
    assert step.apply(piece).batch.observations["observation", "a.b"].tolist() != [1.5, 2.5, 3.5]


def test_the_derived_leaf_takes_the_statistics_and_gives_the_same() -> None:
    import torch

    from offline_data.buffers.derived import normalize

    piece = toy_piece([3, 5])
    step = prepared(parse_step("normalize:observation.velocity,action"), piece)
    leaves = step.state()["leaves"]
    derived = normalize(
        list(leaves), {key: (one["mean"], one["std"]) for key, one in leaves.items()}
    )
    found = step.apply(piece).batch
    for key, before, after in (
        ("action", piece.batch.steps["action",], found.steps["action",]),
        (
            "observation/velocity",
            piece.batch.observations["observation", "velocity"],
            found.observations["observation", "velocity"],
        ),
    ):
        assert derived.normalized(key, torch.tensor(before)).numpy().tobytes() == after.tobytes()


def test_leaves_that_cannot_be_meant() -> None:
    piece = toy_piece([2])
    with pytest.raises(StepError, match=r"'observation\.positon'") as caught:
        parse_step("normalize:observation.positon").settled(piece)
    assert "observation/position" in str(caught.value.hint)
    with pytest.raises(StepError, match="mission is text"):
        parse_step("normalize:mission").settled(piece)
    with pytest.raises(StepError, match="next/terminated is bool"):
        parse_step("normalize:terminated").settled(piece)
    whole = with_leaves(piece, observations={"info.more": np.arange(1, 4)})
    with pytest.raises(StepError, match="info/code is int64, info/more is int64"):
        parse_step("normalize:info").settled(whole)


def test_values_without_statistics() -> None:
    piece = toy_piece([2])
    with pytest.raises(StepError, match="Step 'normalize' has measured nothing yet"):
        parse_step("normalize").apply(piece)
    with pytest.raises(StepError, match="no episode to take statistics of"):
        Normalize().fitted([])
    values = np.array([[np.nan, 1.0], [np.inf, 2.0], [np.nan, 3.0]])
    empty = with_leaves(piece, observations={"observation.x": values})
    with pytest.raises(StepError, match=r"'observation/x' has 1 of 2 numbers .* finite"):
        prepared(parse_step("normalize"), empty)
    huge = with_leaves(piece, observations={"observation.x": np.array([1e308, -1e308, 1e308])})
    with pytest.raises(StepError, match="too large"):
        prepared(parse_step("normalize"), huge)


def test_a_result_that_is_too_large() -> None:
    values = np.array([1, 2, 3, 60000], np.float16)
    piece = with_leaves(toy_piece([1, 1]), observations={"observation.x": values})
    step = Normalize(("observation.x",)).with_state(
        {"leaves": {"observation/x": {"mean": 0.0, "std": 0.5, "not_finite": 0}}}
    )
    told = r"the observation after row 1 \(episode 1, step 0\) gives what float16 cannot hold"
    with pytest.raises(StepError, match=told):
        step.apply(piece)


def test_a_leaf_that_has_gone_since() -> None:
    piece = toy_piece([2])
    step = prepared(parse_step("normalize:action"), piece)
    without = {key: c for key, c in piece.batch.steps.items() if key != ("action",)}
    with pytest.raises(StepError, match="statistics of 'action', which is not there"):
        step.apply(piece.having(steps={**without, ("action", "arm"): np.ones((2, 1))}))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    shape=st.sampled_from([(), (1,), (3,), (2, 2), (70,), (0,)]),
    dtype=st.sampled_from(["f4", "f8", "u1", "i8"]),
    seed=st.integers(0, 2**32),
    holes=st.booleans(),
)
def test_moments_are_exact_sums(
    sizes: list[int], shape: tuple[int, ...], dtype: str, seed: int, holes: bool
) -> None:
    draw = np.random.default_rng(seed)
    values = (100 + 20 * draw.standard_normal((sum(sizes), *shape))).clip(0, 255).astype(dtype)
    if holes and values.dtype.kind == "f":
        values[draw.random(values.shape) < 0.2] = draw.choice([np.nan, np.inf, -np.inf])
    counted = draw.random(len(values)) < 0.8
    found = Moments(np.zeros(shape, int), np.zeros(shape), np.zeros(shape))
    for begin, size in zip(np.cumsum(sizes) - sizes, sizes, strict=True):
        part = slice(begin, begin + size)
        found = found.merge(item_moments(values[part], counted[part]))
    for item in np.ndindex(*shape):
        place = (slice(None), *item)
        known = [x for x in values[counted][place].tolist() if math.isfinite(x)]
        assert found.count[item] == len(known)
        if known:
            mean, std = mean_and_std(known)
            assert found.mean[item] == pytest.approx(mean, rel=1e-13)
            assert found.std[item] == pytest.approx(std, rel=1e-9, abs=1e-9)
    assert found.not_finite == int((~np.isfinite(values[counted])).sum())


def test_measures_merge_in_order_to_the_same_bytes() -> None:
    piece = toy_piece([5, 1, 9, 3])
    step = parse_step("normalize")
    assert isinstance(step, Normalize)
    measures = [step.measure(one) for one in episodes_of(piece)]
    one, two = (json.dumps(step.fitted(measures).state()) for _ in range(2))
    assert one == two


LENGTHS = [5, 1, 9, 3, 7, 2, 8, 4, 6, 11, 1, 10, 3, 12, 5, 2, 9, 4]


UNKNOWN = (3, 9)


GAMMA = 0.9


STEPS = [
    "normalize:observation,action",
    "normalize_return:scale=100",
    f"return_to_go:gamma={GAMMA}",
    "filter:return > percentile(return, 25)",
]


class Backwards:
    """Runs the last task first, in this process, and counts how many there are."""

    shards = False
    name = "backwards"

    def __init__(self) -> None:
        self.counts: list[int] = []

    def run(self, job: Any, tasks: Sequence[Any], progress: Any) -> Iterator[tuple[int, Any]]:
        self.counts.append(len(tasks))
        found = list(InProcess().run(job, list(tasks)[::-1], progress))
        return ((len(tasks) - 1 - number, answer) for number, answer in found)


def episodes() -> EpisodeBatch:
    """Make episodes whose sums in float64 depend on the order in which they are taken."""
    rows, ends = sum(LENGTHS), np.cumsum(LENGTHS) - 1
    v = np.arange(1, rows + len(LENGTHS) + 1)
    last = np.isin(np.arange(rows), ends)[:, None]
    observation = np.stack([np.sin(v) * 10.0 ** (v % 7), np.sqrt(v)], axis=1)
    for episode in UNKNOWN:
        row = ends[episode] + episode + 1
        observation[row] = observation[row - 1]
    return EpisodeBatch(
        np.array(LENGTHS),
        {
            ("action",): np.cos(np.arange(1, rows + 1)).astype(np.float32),
            ("next", "reward"): np.exp(np.sin(np.arange(1, rows + 1)))[:, None],
            ("next", "terminated"): last,
            ("next", "truncated"): np.zeros_like(last),
        },
        {("observation",): observation},
        ~np.isin(np.arange(len(LENGTHS)), UNKNOWN),
    )


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(planning, "GROUP_BYTES", 500)  # about twelve rows: many groups
    write_toy(tmp_path / "toy", [episodes()])
    return tmp_path / "toy"


def made(parent: Path, dest: Path, engine: Executor, chunksize: int) -> tuple[Any, Any]:
    """Return what the steps learnt, and a digest of every file but the manifest."""
    offline_data.open_dataset(parent).preprocess(
        STEPS, dest=dest, engine=engine, chunksize=chunksize
    )
    files = sorted(path for path in dest.rglob("*") if path.is_file())
    digests = {
        str(path.relative_to(dest)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name != "manifest.json"
    }
    return open_reader(dest).manifest.converter["options"]["recipe"], digests


def test_bytes_do_not_depend_on_processes_or_chunks(parent: Path, tmp_path: Path) -> None:
    first = made(parent, tmp_path / "first", InProcess(), 10_000)
    assert {"steps", "observations", "episodes"} <= {name.partition("/")[0] for name in first[1]}
    backwards = Backwards()
    runs: list[tuple[Executor, int]] = [
        (backwards, 1),
        (backwards, 29),
        (InProcess(), 13),
        (LocalProcesses(2), 17),
        (LocalProcesses(3), 31),
    ]
    for number, (engine, chunksize) in enumerate(runs):
        assert made(parent, tmp_path / str(number), engine, chunksize) == first, number
    assert min(backwards.counts) > 2
    assert len(set(backwards.counts)) > 1


def test_what_was_measured_is_right(parent: Path, tmp_path: Path) -> None:
    recipe, _ = made(parent, tmp_path / "made", Backwards(), 7)
    batch = episodes()
    stops = np.cumsum(batch.lengths)
    known = [
        batch.observations["observation",][row]
        for e, (stop, length) in enumerate(zip(stops, batch.lengths, strict=True))
        for row in range(stop - length + e, stop + e + (e not in UNKNOWN))
    ]
    for column, values in enumerate(zip(*known, strict=True)):
        mean = math.fsum(values) / len(values)
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
        learnt = recipe[0]["leaves"]["observation"]
        assert learnt["mean"][column] == pytest.approx(mean, rel=1e-12)
        assert learnt["std"][column] == pytest.approx(spread, rel=1e-12)
    reward = batch.steps["next", "reward"][:, 0]
    returns = [math.fsum(reward[b - n : b]) for b, n in zip(stops, batch.lengths, strict=True)]
    assert recipe[1]["minimum"] == pytest.approx(min(returns), rel=1e-12)
    assert recipe[1]["maximum"] == pytest.approx(max(returns), rel=1e-12)
    factor = 100 / (max(returns) - min(returns))
    kept = [e for e, one in enumerate(returns) if one > np.percentile(returns, 25)]
    reader = open_reader(tmp_path / "made")
    assert reader.lengths.tolist() == [LENGTHS[e] for e in kept]
    to_go = iter(reader.step(("return_to_go",))[:, 0])
    for e in kept:
        for row in range(stops[e] - LENGTHS[e], stops[e]):
            rest = reward[row : stops[e]]
            want = math.fsum(factor * one * GAMMA**ahead for ahead, one in enumerate(rest))
            assert next(to_go) == pytest.approx(want, rel=1e-9)
    assert next(to_go, None) is None


@pytest.mark.parametrize(
    ("step", "passes"),
    [
        ("split:a,a=0.5", 1),
        ("subsample:every=3", 1),
        ("filter:length > 4", 1),
        ("filter:length > 4 and return > 1", 2),
        ("dedupe", 2),
    ],
)
def test_data_are_read_once_where_tables_are_enough(
    parent: Path, tmp_path: Path, step: str, passes: int
) -> None:
    backwards = Backwards()
    offline_data.open_dataset(parent).preprocess(
        ["cast:observation=float32", step], dest=tmp_path / "made", engine=backwards
    )
    assert len(backwards.counts) == passes
    offline_data.open_dataset(parent).preprocess([step], dest=tmp_path / "alone")
    assert (
        open_reader(tmp_path / "made").lengths.tolist()
        == open_reader(tmp_path / "alone").lengths.tolist()
    )
