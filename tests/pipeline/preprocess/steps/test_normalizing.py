"""Statistics of all data, exact whatever processes and chunks they are taken by."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import offline_data
from offline_data.episode import EpisodeBatch
from offline_data.pipeline.jobs.executors import Executor, InProcess
from offline_data.pipeline.preprocess import plan as planning
from offline_data.pipeline.preprocess.steps.normalize import Normalize
from offline_data.pipeline.preprocess.steps.registry import parse_step
from offline_data.rows.derived import normalize
from offline_data.store.reader import open_reader
from offline_data.store.statistics import Moments, item_moments
from offline_data.testing.chunks import toy_chunk, with_leaves
from offline_data.testing.steps import prepare_step
from offline_data.testing.toy import write_toy
from tests.pipeline.preprocess.oracle import digests
from tests.pipeline.preprocess.runs import Shuffled
from tests.pipeline.preprocess.steps.test_refusals import seen


def mean_and_std(values: Any) -> tuple[float, float]:
    """Of the finite ones, each sum exact."""
    known = [float(value) for value in values if math.isfinite(value)]
    mean = math.fsum(known) / len(known)
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in known) / len(known))


def normalized(values: Any, text: str = "normalize:observation.x,eps=0") -> Any:
    """Return what the step makes of `observation.x`, and the step."""
    chunk = seen(values)
    step = prepare_step(parse_step(text), chunk)
    return step.apply(chunk).batch.observations["observation", "x"], step


@pytest.mark.parametrize("eps", [0, 1e-3, 0.5])
def test_values_row_by_row(eps: float) -> None:
    chunk = toy_chunk([3, 1, 4], unknown_final=[1])
    step = prepare_step(Normalize(("observation", "action"), eps=eps), chunk)
    before, after = chunk.batch, step.apply(chunk).batch
    leaves = {**before.observations, **before.steps}
    found = {**after.observations, **after.steps}
    named = {key for key in leaves if key[0] in {"observation", "action"}}
    assert set(step.state()["leaves"]) == {*map("/".join, named)}
    for key, values in leaves.items():
        if key not in named:
            assert found[key] is values
            continue
        assert (found[key].dtype, found[key].shape) == (values.dtype, values.shape)
        known = values[before.root_rows] if key in before.observations else values
        for item in np.ndindex(*values.shape[1:]):
            place = (slice(None), *item)
            mean, std = mean_and_std(known[place])
            want = [(float(x) - mean) / (std + eps) for x in values[place]]
            np.testing.assert_allclose(found[key][place], want, rtol=1e-5, atol=1e-6)


NAN, INF = math.nan, math.inf
ODD = np.array([[1.5, NAN], [INF, 4.0], [2.5, -INF], [9.0, 5.5], [NAN, 9.0]])
OPTIONS = {"": 1e-3, ",eps=0": 0, ",std=false": 1e-3, ",by=quantile": 1e-6, ",by=quantile,eps=0.7": 0.7}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    "values",
    [
        np.array([[3], [7], [20], [50]], "f2"),
        np.array([3, 7, 20, 50], "f2"),
        np.array([3, 7, 20, 50], "u1"),
        np.array([3, 7, 20, 50], "i8"),
        1e6 + np.arange(1, 5)[:, None] * 1e-6,  # not rounded to float32
        2**30 + np.arange(4, dtype=np.int32),  # nor these
        np.random.default_rng(0).normal(7, 30, (90, 2, 3)).astype("f4"),
        ODD,
        ODD.astype("f4"),
    ],
    ids=lambda values: f"{values.dtype} {[*values.shape]}",
)
def test_values_and_types(values: Any, options: str) -> None:
    """Every bit, with the operations in their order: with float32, quantiles differ from a batch's."""
    found, step = normalized(values, f"normalize:observation.x{options}")
    told, eps = step.state()["leaves"]["observation/x"], OPTIONS[options]
    finite = np.where(np.isfinite(values), values, NAN)[:-1].astype("f8")
    wide = np.result_type(values.dtype, "f4").type
    if "quantile" in options:
        first, second = np.array(told["q01"]), np.array(told["q99"])
        known, shift = np.nanquantile(finite, [0.01, 0.99], axis=0), 1
        divisor = ((second - first + eps) / 2).astype(wide)
        assert told["rank_error"] == 0
    else:
        first, second = np.array(told["mean"]), np.array(told["std"])
        known, shift = np.array([np.nanmean(finite, 0), np.nanstd(finite, 0)]), 0
        divisor = wide(1) if "std" in options else second.astype(wide) + wide(eps)
    np.testing.assert_allclose([first, second], known, rtol=1e-9)
    becomes = values.dtype if values.dtype.kind == "f" else np.dtype("f4")
    want = ((values.astype(wide) - first.astype(wide)) / divisor - wide(shift)).astype(becomes)
    assert (found.dtype, found.shape) == (becomes, values.shape)
    np.testing.assert_array_equal(found, want)
    missing = 3 if values.shape == ODD.shape else 0
    assert told["not_finite"] == missing
    said = f"normalize: 'observation/x' has {missing} values that are NaN or infinite; "
    assert [note.startswith(said) for note in step.notes()] == [True] * bool(missing)


@pytest.mark.parametrize(
    ("options", "value"), [("", 0), ("by=quantile", -1), ("eps=0,std=false", 0)]
)
def test_values_without_a_spread(options: str, value: int) -> None:
    same = np.full((4, 1), 7.5, np.float32)
    assert (normalized(same, f"normalize:observation.x,{options}")[0] == value).all()


def test_a_parent_takes_floats_and_a_leaf_is_taken_as_it_is() -> None:
    count = np.array([3, 5, 8, 9], np.int64)
    chunk = with_leaves(toy_chunk([3]), observations={"observation.count": count})
    parent = prepare_step(parse_step("normalize:observation"), chunk)
    assert parent.apply(chunk).batch.observations["observation", "count"] is count
    both = prepare_step(parse_step("normalize:observation,observation.count"), chunk)
    assert set(both.state()["leaves"]) == {*parent.state()["leaves"], "observation/count"}
    root = prepare_step(parse_step("normalize:info"), chunk)  # it has one leaf, of whole numbers
    assert list(root.state()["leaves"]) == ["info/code"]


def test_next_is_scaled_by_its_root_unless_its_shape_is_another() -> None:
    steps: dict[str, Any] = {"seen.x": np.array([1.0, 3, 5]), "next.seen.x": np.array([3.0, 5, 9])}
    chunk = with_leaves(toy_chunk([3]), steps=steps)
    found = prepare_step(parse_step("normalize:seen,std=false"), chunk).apply(chunk).batch.steps
    assert found["seen", "x"].tolist() == [-2, 0, 2]
    assert found["next", "seen", "x"].tolist() == [0, 2, 6]
    steps |= {"seen.x": np.arange(6.0).reshape(3, 2), "next.seen.x": np.arange(3.0)[:, None]}
    chunk = with_leaves(toy_chunk([3]), steps=steps)
    own = prepare_step(parse_step("normalize:next.seen,eps=0"), chunk).apply(chunk).batch.steps
    assert own["seen", "x"].tolist() == steps["seen.x"].tolist()
    assert own["next", "seen", "x"][:, 0] == pytest.approx([-(1.5**0.5), 0, 1.5**0.5])


def test_statistics_go_through_json_exactly() -> None:
    chunk = toy_chunk([3, 4, 2])
    odd: Any = {("observation", "a.b"): chunk.batch.observations["observation", "velocity"]}
    chunk = chunk.having(observations={**chunk.batch.observations, **odd})
    step = prepare_step(parse_step("normalize:observation,action"), chunk)
    again = parse_step("normalize:observation,action").with_state(
        json.loads(json.dumps(step.state(), allow_nan=False))
    )
    assert again == step
    for key, values in step.apply(chunk).batch.observations.items():
        assert again.apply(chunk).batch.observations[key].tobytes() == values.tobytes()
        assert (values is chunk.batch.observations[key]) == (key[0] == "info")


def test_the_derived_leaf_takes_the_statistics_and_gives_the_same() -> None:
    chunk = toy_chunk([3, 5])
    step = prepare_step(parse_step("normalize:observation.velocity,action"), chunk)
    leaves = step.state()["leaves"]
    statistics = {key: (one["mean"], one["std"]) for key, one in leaves.items()}
    derived, found = normalize(list(leaves), statistics), step.apply(chunk).batch
    for table, key in (("steps", ("action",)), ("observations", ("observation", "velocity"))):
        before, after = (getattr(batch, table)[key] for batch in (chunk.batch, found))
        again = derived.normalized("/".join(key), torch.tensor(before))
        assert again.numpy().tobytes() == after.tobytes()


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    shape=st.sampled_from([(), (3,), (2, 2), (0,)]),
    dtype=st.sampled_from(["f4", "f8", "u1", "i8"]),
    seed=st.integers(0, 2**32),
)
def test_moments_are_exact_sums(
    sizes: list[int], shape: tuple[int, ...], dtype: str, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    values = (100 + 20 * draw.standard_normal((sum(sizes), *shape))).clip(0, 255).astype(dtype)
    if seed % 2 and values.dtype.kind == "f":
        values[draw.random(values.shape) < 0.2] = draw.choice([np.nan, np.inf, -np.inf])
    counted = draw.random(len(values)) < 0.8
    found = Moments(np.zeros(shape, int), np.zeros(shape), np.zeros(shape))
    for begin, size in zip(np.cumsum(sizes) - sizes, sizes, strict=True):
        part = slice(begin, begin + size)
        found = found.merge(item_moments(values[part], counted[part]))
    for item in np.ndindex(*shape):
        place = (slice(None), *item)
        column = values[counted][place]
        assert found.count[item] == np.isfinite(column).sum()
        if found.count[item]:
            mean, std = mean_and_std(column)
            assert found.mean[item] == pytest.approx(mean, rel=1e-13)
            assert found.std[item] == pytest.approx(std, rel=1e-9, abs=1e-9)
    assert found.not_finite == int((~np.isfinite(values[counted])).sum())


LENGTHS = [5, 1, 9, 3, 7, 2, 8, 4, 6, 11, 1, 10, 3, 12, 5, 2, 9, 4]
UNKNOWN = (3, 9)
GAMMA = 0.9
STEPS = [
    "normalize:observation,action",
    "normalize_return:scale=100",
    f"return_to_go:gamma={GAMMA}",
    "filter:return > percentile(return, 25)",
]


class Counting(Shuffled):
    """Counts the tasks of each pass over the data."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def run(self, job: Any, tasks: Sequence[Any], progress: Any) -> Iterator[tuple[int, Any]]:
        self.counts.append(len(tasks))
        return super().run(job, tasks, progress)


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
    found = digests(dest)
    del found["manifest.json"]
    return open_reader(dest).manifest.converter["options"]["recipe"], found


def test_bytes_do_not_depend_on_order_or_chunks(parent: Path, tmp_path: Path) -> None:
    first = made(parent, tmp_path / "first", InProcess(), 10_000)
    assert {"steps", "observations", "episodes"} <= {name.partition("/")[0] for name in first[1]}
    engine = Counting()
    for chunksize in (1, 29):
        assert made(parent, tmp_path / str(chunksize), engine, chunksize) == first, chunksize
    assert min(engine.counts) > 2
    assert len(set(engine.counts)) > 1


@pytest.mark.parametrize(
    ("step", "passes"),
    [("filter:length > 4", 1), ("filter:length > 4 and return > 1", 2), ("dedupe", 2)],
)
def test_data_are_read_once_where_tables_are_enough(
    parent: Path, tmp_path: Path, step: str, passes: int
) -> None:
    dataset, engine = offline_data.open_dataset(parent), Counting()
    dataset.preprocess(["cast:observation=float32", step], dest=tmp_path / "made", engine=engine)
    assert len(engine.counts) == passes
    dataset.preprocess([step], dest=tmp_path / "alone")
    one, other = (open_reader(tmp_path / name).lengths.tolist() for name in ("made", "alone"))
    assert one == other


def test_quantiles_of_many_chunks_are_within_the_stated_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("offline_data.pipeline.preprocess.steps.normalize._SKETCH", 64)
    rng = np.random.default_rng(1)
    parts = [rng.standard_cauchy((n, 2)).astype("f4") for n in (301, 20, 2, 2000, 700)]
    chunks = [seen(values) for values in parts]
    step: Any = parse_step("normalize:observation.x,by=quantile")
    measures = [step.measure(chunk) for chunk in chunks]
    fitted = step.fitted(measures)
    learnt = fitted.state()["leaves"]["observation/x"]
    rows = np.sort(np.concatenate(parts), axis=0)
    error = round(learnt["rank_error"] * len(rows))
    assert 0 < error < len(rows) / 20
    for level, name in ((0.01, "q01"), (0.99, "q99")):
        rank = level * (len(rows) - 1)
        low = rows[max(int(rank) - error, 0)]
        high = rows[min(int(np.ceil(rank)) + error, len(rows) - 1)]
        assert (low <= learnt[name]).all()
        assert (learnt[name] <= high).all()
    for cut in range(1, len(parts)):  # wherever those so far are condensed
        again = step.fitted([*step.condense(measures[:cut]), *measures[cut:]])
        assert again.state() == fitted.state()
    q01, q99 = (np.array(learnt[name], "f4") for name in ("q01", "q99"))
    found = fitted.apply(chunks[0]).batch.observations["observation", "x"]
    np.testing.assert_allclose(found, 2 * (parts[0] - q01) / (q99 - q01 + 1e-6) - 1, rtol=1e-4)
