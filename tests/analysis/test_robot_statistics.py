"""Statistics that robot policies need, against numpy on all rows: quantiles, action chunks, openpi's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import offline_data
from offline_data.analysis.statistics import dataset_stats
from offline_data.base.errors import UsageError
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import Key
from offline_data.pipeline.preprocess import plan as planning
from offline_data.rows.derived import normalize
from offline_data.store.layout import LayoutName
from offline_data.store.quantiles import LEVELS, QUANTILES
from offline_data.store.reader import open_reader
from offline_data.testing.toy import write_toy
from offline_data_cli.main import main
from tests.slow import every_second

LENGTHS = [7, 1, 30, 12, 3]
Q = [QUANTILES.index(level) for level in LEVELS.values()]


def robot(lengths: list[int], dtype: str = "f4") -> EpisodeBatch:
    """Return episodes of an arm of three joints; the last, a gripper, never moves in `state`."""
    rng, rows = np.random.default_rng(5), sum(lengths)
    state = rng.normal(size=(rows + len(lengths), 3)).cumsum(axis=0).astype(dtype)
    state[:, 2] = 0.25
    action = rng.normal(size=(rows, 3)).astype(dtype)
    flags = np.zeros((rows, 1), bool)
    return EpisodeBatch(
        lengths=np.array(lengths),
        steps={
            ("action",): action,
            ("next", "reward"): np.zeros((rows, 1)),
            ("next", "terminated"): flags,
            ("next", "truncated"): flags,
        },
        observations={
            ("observation", "state"): state,
            ("observation", "torque"): np.zeros((len(state), 2), dtype),
        },
        final_observation=np.ones(len(lengths), bool),
    )


def oracle(
    batch: EpisodeBatch, chunk: int, relative: bool, absolute: tuple[int, ...] = ()
) -> NDArray[Any]:
    """Return all actions of all chunks, one by one."""
    rows = []
    action, state = batch.steps["action",], batch.observations["observation", "state"]
    begin = 0
    for number, length in enumerate(batch.lengths):
        for t in range(length - chunk + 1):
            for i in range(chunk):
                row = action[begin + t + i].copy()
                if relative:
                    origin = state[begin + number + t].copy()
                    origin[list(absolute)] = 0
                    row = row - origin
                rows.append(row)
        begin += length
    return np.array(rows)


def same(found: Any, values: NDArray[Any]) -> None:
    """Check figures against numpy on all values."""
    values = values.astype(np.float64)
    assert found.rank_error == 0
    assert found.count.tolist() == [len(values)] * values.shape[1]
    np.testing.assert_allclose(found.mean, values.mean(0), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found.std, values.std(0), rtol=1e-6)
    np.testing.assert_array_equal(found.min, values.min(0))
    np.testing.assert_array_equal(found.max, values.max(0))
    expected = np.quantile(values, list(LEVELS.values()), axis=0).T
    np.testing.assert_allclose(found.quantiles[:, Q], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("items", "layout"), every_second([1, 1 << 20], ["ted", "compact"]))
@pytest.mark.parametrize(
    ("chunk", "relative", "absolute"),
    [(1, True, ()), (4, False, ()), (4, True, ()), (4, True, (2,)), (30, True, (0, 1, 2))],
)
def test_actions_of_chunks(
    tmp_path: Path,
    layout: LayoutName,
    items: int,
    chunk: int,
    relative: bool,
    absolute: tuple[int, ...],
) -> None:
    batch = robot(LENGTHS)
    write_toy(tmp_path / "arm", [batch], layout=layout)
    found = dataset_stats(
        open_reader(tmp_path / "arm"),
        chunk=chunk,
        relative_to="observation/state" if relative else None,
        absolute=absolute,
        chunk_items=items,
    ).actions
    expected = oracle(batch, chunk, relative, absolute)
    assert found is not None
    assert found.rows == len(expected)
    same(found.features, expected)


def test_integers_are_subtracted_as_floats(tmp_path: Path) -> None:
    batch = robot(LENGTHS)
    small: dict[Key, Any] = {("action",): (100 * batch.steps["action",]).astype(np.int8)}
    low: dict[Key, Any] = {
        ("observation", "state"): (batch.observations["observation", "state"] * 30).astype("u1")
    }
    batch = EpisodeBatch(batch.lengths, {**batch.steps, **small}, low, batch.final_observation)
    write_toy(tmp_path / "arm", [batch])
    found = offline_data.stats(tmp_path / "arm", chunk=2, relative_to="observation.state").actions
    action = small["action",].astype(np.float64)
    wide = {**batch.steps, ("action",): action}
    state: dict[Key, Any] = {
        ("observation", "state"): low["observation", "state"].astype(np.float64)
    }
    whole = EpisodeBatch(batch.lengths, wide, state, batch.final_observation)
    assert found is not None
    same(found.features, oracle(whole, 2, relative=True))


def test_a_view_has_the_chunks_of_its_rows(tmp_path: Path) -> None:
    batch = robot(LENGTHS)
    write_toy(tmp_path / "arm", [batch])
    ds = offline_data.open_dataset(tmp_path / "arm")
    view = ds.filter("length > 10")
    found = view.describe(chunk=5, relative_to="observation/state").actions
    begin, rows = 8, 42
    part = EpisodeBatch(
        batch.lengths[2:4],
        {key: column[begin : begin + rows] for key, column in batch.steps.items()},
        {key: column[begin + 2 : begin + 4 + rows] for key, column in batch.observations.items()},
        batch.final_observation[2:4],
    )
    assert found is not None
    same(found.features, oracle(part, 5, relative=True))


def test_norm_stats_are_openpis(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    batch = robot(LENGTHS)
    write_toy(tmp_path / "arm", [batch])
    out = tmp_path / "norm_stats.json"
    line = ["stats", str(tmp_path / "arm"), "--openpi", str(out)]
    chunks = ["--chunk", "4", "--relative-to", "observation/state", "--absolute", "0"]
    assert main([*line, *chunks, "--quantiles"]) == 0
    shown = capsys.readouterr()
    assert f"{out} written" in shown.err
    assert "action - observation/state, chunks of 4[2]" in shown.out
    norm = json.loads(out.read_text())
    assert list(norm) == ["norm_stats"]
    assert list(norm["norm_stats"]) == ["state", "actions"]
    known = batch.observations["observation", "state"][batch.root_rows]
    for name, values in (
        ("state", known),
        ("actions", oracle(batch, 4, relative=True, absolute=(0,))),
    ):
        found, values = norm["norm_stats"][name], values.astype(np.float64)
        assert list(found) == ["mean", "std", "q01", "q99"]
        np.testing.assert_allclose(found["mean"], values.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["std"], values.std(0), rtol=1e-5, atol=1e-6)
        for level in (0.01, 0.99):
            expected = np.quantile(values, level, axis=0)
            np.testing.assert_allclose(found[f"q{level * 100:02.0f}"], expected, rtol=1e-5)
    assert main(line) == 2
    assert f"{out} exists" in capsys.readouterr().err
    assert main([*line, "--force", "--state", "observation/torque"]) == 0
    assert json.loads(out.read_text())["norm_stats"]["state"]["q99"] == [0, 0]
    assert main([*line[:2], "--state", "x"]) == 2
    assert "--state requires --openpi" in capsys.readouterr().err


def openpis(values: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """Normalize as `Normalize._normalize_quantile` in openpi's `transforms.py`."""
    q01, q99 = np.quantile(rows.astype(np.float64), [0.01, 0.99], axis=0)
    return np.asarray((values - q01) / (q99 - q01 + 1e-6) * 2.0 - 1.0)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_step_normalizes_as_openpi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    batch = robot([40] * 30)
    write_toy(tmp_path / "arm", [batch])
    monkeypatch.setattr(planning, "GROUP_BYTES", 2000)  # many groups of a few episodes
    ds = offline_data.open_dataset(tmp_path / "arm")
    ds.preprocess(
        ["normalize:action,observation.state,by=quantile"],
        dest=tmp_path / "made",
        num_workers=workers,
    )
    reader = open_reader(tmp_path / "made")
    state = batch.observations["observation", "state"]
    expected = openpis(state, state[batch.root_rows])
    found = np.asarray(reader.leaf("observations", ("observation", "state")))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert (found[:, 2] == -1).all()  # a constant
    actions = batch.steps["action",]
    np.testing.assert_allclose(
        np.asarray(reader.step(("action",)), "f4"), openpis(actions, actions), atol=2e-5
    )
    (step,) = reader.manifest.converter["options"]["recipe"]
    learnt = step["leaves"]["action"]
    assert (step["by"], step["eps"], learnt["rank_error"]) == ("quantile", 1e-6, 0)
    np.testing.assert_allclose(learnt["q99"], np.quantile(actions.astype("f8"), 0.99, axis=0))


def test_the_derived_leaf_normalizes_as_openpi(tmp_path: Path) -> None:
    batch = robot([40] * 5)
    write_toy(tmp_path / "arm", [batch])
    scale = normalize([("observation", "state"), "action"], by="quantile")
    ds = offline_data.open_dataset(tmp_path / "arm", batch_size=8, derived=scale)
    state = np.delete(batch.observations["observation", "state"], np.arange(40, 205, 41), axis=0)
    row = ds.sample()
    plain = offline_data.open_dataset(tmp_path / "arm")[row["index"].flatten()]
    np.testing.assert_allclose(
        row["observation", "state"],
        openpis(plain["observation", "state"].numpy(), state),
        atol=2e-5,
    )
    assert (row["observation", "state"][:, 2] == -1).all()
    found = scale.statistics["observation/state"]
    np.testing.assert_allclose(list(found), np.quantile(state.astype("f8"), [0.01, 0.99], axis=0))
    for values in (plain["observation", "state"], state[:4]):
        back = scale.denormalized(
            "observation.state", scale.normalized("observation.state", values)
        )
        np.testing.assert_allclose(back, values, atol=1e-5)
    other = normalize([("observation", "state"), "action"], by="quantile")
    other.load_state_dict(scale.state_dict())
    assert other.statistics == scale.statistics
    given = normalize([("observation", "state"), "action"], scale.statistics, by="quantile")
    assert given.statistics == scale.statistics
    with pytest.raises(UsageError, match=r"expected \(mean, std\)"):
        normalize([("observation", "state"), "action"], scale.statistics)
