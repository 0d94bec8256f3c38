from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.normalize import Normalize
from offline_data.preprocess.steps.registry import parse_step
from offline_data.store import statistics
from offline_data.store.statistics import Moments, item_moments
from offline_data.testing.pieces import episodes_of, toy_piece, with_leaves
from offline_data.testing.steps import StepContract, prepared


class TestContract(StepContract):
    @pytest.fixture(
        params=[
            "normalize",
            "normalize:action,observation.velocity,eps=0",
            "normalize:info.code,reward,std=false",
        ]
    )
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)


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


def test_the_repeated_row_matters_to_this_test() -> None:
    """The same episodes with the row known have other statistics."""
    one, two = (
        prepared(parse_step("normalize"), toy_piece([3, 1, 4], unknown_final=unknown))
        for unknown in ([1], [])
    )
    assert one != two


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


def test_the_repeated_row_is_normalized_all_the_same() -> None:
    piece = toy_piece([2], unknown_final=[0])
    found = prepared(parse_step("normalize"), piece).apply(piece)
    velocity = found.batch.observations["observation", "velocity"]
    assert velocity[2] == velocity[1] != velocity[0]


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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("normalize:eps=-1", "eps=-1"),
        ("normalize:eps=much", "eps=much"),
        ("normalize:eps=true", "eps=true"),
        ("normalize:eps=NaN", "eps=NaN"),
        ("normalize:std=2", "std=2"),
        ("normalize:epss=1", "no 'epss'; did you mean 'eps'"),
    ],
)
def test_arguments_that_cannot_be_meant(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        parse_step(text)
    assert "normalize:observation,eps=1e-3" in str(caught.value.hint)


def test_parameters_that_cannot_be_meant() -> None:
    with pytest.raises(UsageError, match=r"keys=\[\]"):
        Normalize(())
    with pytest.raises(UsageError, match="eps=inf; expected a finite number"):
        Normalize(eps=math.inf)
    with pytest.raises(UsageError, match="std=2"):
        Normalize(std=2)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("width", [1, 5, 100])
def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    values = np.random.default_rng(0).normal(1e4, 1, (1000, width))
    counted = np.arange(1000) % 7 != 3
    whole = item_moments(values, counted)
    monkeypatch.setattr(statistics, "BLOCK_ITEMS", 40 * width)
    found = item_moments(values, counted)
    np.testing.assert_allclose(found.mean, values[counted].mean(0), rtol=1e-14)
    np.testing.assert_allclose(found.std, values[counted].std(0), rtol=1e-12)
    np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-14)
    assert (found.count == whole.count).all()


def test_measures_merge_in_order_to_the_same_bytes() -> None:
    piece = toy_piece([5, 1, 9, 3])
    step = parse_step("normalize")
    assert isinstance(step, Normalize)
    measures = [step.measure(one) for one in episodes_of(piece)]
    one, two = (json.dumps(step.fitted(measures).state()) for _ in range(2))
    assert one == two
