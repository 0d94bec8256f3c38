"""`resample`, `shift` and `trim` against loops over single rows, on episodes of any lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from offline_data.base.config import Settings
from offline_data.base.errors import StepError, UsageError
from offline_data.episode import Key
from offline_data.pipeline.preprocess.steps.registry import parse_step
from offline_data.pipeline.preprocess.steps.rows import Resample, Shift, Trim
from offline_data.store.chunk import EpisodeChunk, read_chunk, select_episodes
from offline_data.store.history import history_of
from offline_data.store.layout import MANIFEST
from offline_data.store.manifest import dump_manifest, read_manifest
from offline_data.store.reader import DatasetReader
from offline_data.store.verify import verify
from offline_data.testing.chunks import toy_chunk, with_leaves
from offline_data.testing.toy import write_toy
from tests.films import film_batch
from tests.pictures import encoded_batch
from tests.pipeline.preprocess.oracle import digests
from tests.pipeline.preprocess.runs import (
    Shuffled,
    Stopping,
    make,
    small_groups,
    write_plain,
    write_rich,
)
from tests.pipeline.preprocess.steps.test_refusals import with_rewards

Groups = list[list[list[int]]]
"""Rows of each new row of each episode, numbered within the episode."""

ENDS = {("next", "terminated"), ("next", "truncated")}


def by_rule(rule: str, rows: list[Any]) -> Any:
    if rule in {"hold", "last"}:
        return rows[0 if rule == "hold" else -1]
    if rule == "any":
        return np.any(rows, axis=0)
    total = sum(np.asarray(row, np.float64) for row in rows)
    return total if rule == "sum" else total / len(rows)


def expected(chunk: EpisodeChunk, groups: Groups, rules: dict[Key, str]) -> dict[str, Any]:
    """Work out the new columns row by row."""
    batch = chunk.batch
    out: dict[str, Any] = {"lengths": [len(rows) for rows in groups if rows]}
    kept = [e for e, rows in enumerate(groups) if rows]
    early = {e: groups[e][-1][-1] + 1 < batch.lengths[e] for e in kept}
    out["final"] = [bool(batch.final_observation[e]) or early[e] for e in kept]
    out["numbers"] = [int(chunk.episodes[e]) for e in kept]
    for key, column in batch.steps.items():
        values = []
        for e in kept:
            for number, group in enumerate(groups[e]):
                rows = [column[int(batch.starts[e]) + row] for row in group]
                default = (
                    "sum" if key == ("next", "reward") else "last" if key[0] == "next" else "hold"
                )
                rule = "any" if key in ENDS else rules.get(key, default)
                value = by_rule(rule, rows)
                if key == ("next", "truncated") and early[e] and number == len(groups[e]) - 1:
                    ended = any(
                        batch.steps["next", "terminated"][int(batch.starts[e]) + r, 0]
                        for r in group
                    )
                    value = np.array([bool(value[0]) or not ended])
                values.append(np.asarray(value).astype(column.dtype))
        out[f"steps {key}"] = values
    for key, column in batch.observations.items():
        values = []
        for e in kept:
            begin = int(batch.starts[e]) + e
            values += [column[begin + group[0]] for group in groups[e]]
            values.append(column[begin + groups[e][-1][-1] + 1])
        out[f"observations {key}"] = values
    return out


def found(chunk: EpisodeChunk) -> dict[str, Any]:
    batch = chunk.batch
    out: dict[str, Any] = {
        "lengths": batch.lengths.tolist(),
        "final": batch.final_observation.tolist(),
        "numbers": chunk.episodes.tolist(),
    }
    out |= {f"steps {key}": list(column) for key, column in batch.steps.items()}
    out |= {f"observations {key}": list(column) for key, column in batch.observations.items()}
    return out


def assert_equal(made: EpisodeChunk, wanted: dict[str, Any]) -> None:
    got = found(made)
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        assert len(got[name]) == len(values), name
        for one, other in zip(got[name], values, strict=True):
            assert np.asarray(one).dtype == np.asarray(other).dtype, name
            np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=name)
    batch = made.batch  # TED: flags end episodes only, and the next observation is the next row's
    ends = np.zeros(batch.transitions, bool)
    ends[batch.last_rows] = True
    for flag in ENDS:
        assert not batch.steps[flag][~ends, 0].any()
    follows = ~ends[:-1]
    np.testing.assert_array_equal(batch.next_rows[:-1][follows], batch.root_rows[1:][follows])


def rewarded(lengths: list[int], unknown: list[int] | None = None) -> EpisodeChunk:
    """Return toy episodes with leaves of their own under `next`, and one stored twice."""
    chunk = toy_chunk(lengths, unknown_final=unknown or [])
    rows = np.arange(sum(lengths))
    return with_leaves(
        chunk,
        steps={
            "next.cost": rows / 2.0,
            "next.flag": rows % 3 == 0,
            "twice": rows * 10,
            "next.twice": rows * 10 + 3,
        },
    )


LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=5)
RATES = st.sampled_from(
    [(30, 10), (30, 20), (50, 15), (10, 10), (29.97, 10), (7, 0.5), (33.333333, 10)]
)


def times(length: int, old: float, new: float) -> list[list[int]]:
    """Group rows by the newest of the new times at or before them."""
    ratio = Fraction(old).limit_denominator(3000) / Fraction(new).limit_denominator(3000)
    begins = [j * ratio for j in range(length) if int(j * ratio) < length]
    firsts = [int(begin) for begin in begins]
    return [list(range(a, b)) for a, b in zip(firsts, [*firsts[1:], length], strict=True)]


@tried(max_examples=50, deadline=None)
@given(LENGTHS, RATES, st.sampled_from(["hold", "last", "mean", "sum"]), st.booleans())
def test_resample(lengths: list[int], rates: tuple[float, float], rule: str, known: bool) -> None:
    chunk = rewarded(lengths, [] if known else [0])
    old, new = rates
    rules = {("action",): rule, ("next", "cost"): "sum"}
    step = Resample(new, (("action", rule), ("next.cost", "sum")), source_fps=old)
    groups = [times(length, old, new) for length in lengths]
    made = step.apply(chunk)
    assert_equal(made, expected(chunk, groups, rules))
    np.testing.assert_allclose(made.batch.returns, chunk.batch.returns, rtol=1e-6)


def trimmed(chunk: EpisodeChunk, step: Trim, quiet: list[list[bool]]) -> Groups:
    groups: Groups = []
    for length, still in zip(chunk.batch.lengths.tolist(), quiet, strict=True):
        rows = list(range(step.start, length - step.end))

        def run(rows: list[int], still: list[bool] = still) -> int:
            count = next((n for n, row in enumerate(rows) if not still[row]), len(rows))
            return count if count >= step.least else 0

        if step.idle is not None:
            rows = rows[run(rows) :]
            rows = rows[: len(rows) - run(rows[::-1])]
        made: list[list[int]] = []
        while rows:
            count = run(rows) if step.inside else 0
            if made and count:
                made[-1] += rows[:count]
                rows = rows[count:]
            else:
                made.append([rows[0]])
                rows = rows[1:]
        groups.append(made)
    return groups


@tried(max_examples=80, deadline=None)
@given(st.data(), LENGTHS, st.integers(0, 3), st.integers(0, 3), st.integers(1, 3))
def test_trim(data: st.DataObject, lengths: list[int], start: int, end: int, least: int) -> None:
    inside, idles = data.draw(st.booleans()), data.draw(st.booleans())
    of_state = data.draw(st.booleans())
    if not (start or end or idles):
        start = 1
    total = sum(lengths)
    still = data.draw(st.lists(st.booleans(), min_size=total, max_size=total))
    cuts = np.split(np.array(still), np.cumsum(lengths)[:-1])
    quiet = [part.tolist() for part in cuts]
    action = np.where(np.array(still)[:, None], [0.3, -0.4], [0.3, 0.41])  # norms 0.5 and 0.508
    moves = np.where(np.array(still), 0.5, 0.75)
    state = np.concatenate(
        [[0.0, *np.cumsum(part)] for part in np.split(moves, np.cumsum(lengths)[:-1])]
    )
    chunk = with_leaves(
        rewarded(lengths, data.draw(st.sampled_from([[], [0]]))),
        steps={"action": action},
        observations={"observation.state": state},
    )
    step = Trim(
        start, end, 0.5 if idles else None, "observation.state" if of_state else "action",
        least if idles else 1, inside and idles,
    )  # fmt: skip
    assert_equal(step.apply(chunk), expected(chunk, trimmed(chunk, step, quiet), {}))


@pytest.mark.parametrize(
    ("step", "lengths", "action", "left"),
    [
        (Trim(idle=0, inside=True), [5], [1.0, 0, 0, 1, 1], [3]),
        (Trim(idle=0, least=2, inside=True), [2, 2], [1.0, 0, 0, 1], [2, 2]),  # runs end, too
        (Trim(idle=1), [3], [0.0, np.nan, 0], [1]),  # NaN is not idle
    ],
)
def test_idle_rows(step: Trim, lengths: list[int], action: list[float], left: list[int]) -> None:
    chunk = with_leaves(toy_chunk(lengths), steps={"action": np.array(action)})
    made = step.apply(chunk).batch
    assert made.lengths.tolist() == left
    assert not step.inside or made.returns.tolist() == chunk.batch.returns.tolist()


@pytest.mark.parametrize(
    ("dtype", "rewards", "total"),
    [
        ("int8", [100, 20], 120),
        ("int64", [2**62, 2**62 - 1], 2**63 - 1),
        ("bool", [True, True], 2.0),
    ],
)
def test_sums_of_whole_rewards_are_exact(dtype: str, rewards: list[Any], total: Any) -> None:
    chunk = with_rewards(rewards, dtype)
    made = Resample(1, (("action", "hold"),), source_fps=2).apply(chunk)
    assert made.batch.steps["next", "reward"].tolist() == [[total]]


def test_the_rate_is_that_of_the_dataset(tmp_path: Path, settings: Settings) -> None:
    parent = write_plain(tmp_path / "toy")
    manifest = replace(read_manifest(parent), about={"fps": 20})
    (parent / MANIFEST).write_text(dump_manifest(manifest))
    stages = ["resample:10,action=sum", "resample:5,action=sum"]
    made = make(parent, stages, tmp_path / "out", settings)
    at_once = make(parent, stages[1:], tmp_path / "at once", settings)
    assert made.manifest.about["fps"] == 5
    one, other = (DatasetReader(stored.path) for stored in (made, at_once))
    for key in one.step_leaves:
        np.testing.assert_allclose(one.step(key).astype(float), other.step(key).astype(float))
    recipe = [
        {"step": "resample", "fps": fps, "rules": [["action", "sum"]], "source_fps": source_fps}
        for fps, source_fps in ((10, 20), (5, 10))
    ]
    assert made.manifest.converter["options"]["recipe"] == recipe
    assert [dict(step) for step in history_of(made.manifest)[-1].recipe] == recipe


def test_a_dataset_without_a_rate(tmp_path: Path, settings: Settings) -> None:
    parent = write_plain(tmp_path / "toy")
    with pytest.raises(
        StepError, match="needs the rate of the rows, which local:toy@1 does not state"
    ):
        make(parent, ["resample:10,action=sum"], tmp_path / "out", settings)
    with pytest.raises(UsageError, match="at most the 20 of the dataset"):
        make(parent, ["resample:30,action=sum,source_fps=20"], tmp_path / "out", settings)
    assert not (tmp_path / "out").exists()


STEPS = [
    "trim:start=1,end=1",
    "resample:1,source_fps=2,action=last",
]


def of_images(folder: Path) -> Path:
    write_toy(folder, [encoded_batch([4, 3])])
    return folder


def of_videos(folder: Path) -> Path:
    write_toy(folder, [film_batch(folder.parent)[0]])
    return folder


RICH = [3, 9, 4, 2, 7, 1, 5]
PARENTS: dict[str, Callable[[Path], Path]] = {
    "compact": lambda folder: write_rich(folder, RICH),
    "ted": lambda folder: write_rich(folder, RICH, layout="ted"),
    "images": of_images,
    "videos": of_videos,
}


def whole(folder: Path) -> EpisodeChunk:
    reader = DatasetReader(folder)
    return read_chunk(reader, select_episodes(reader))


@pytest.mark.parametrize("kind", PARENTS)
def test_a_dataset_of_many_tasks(
    kind: str, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = PARENTS[kind](tmp_path / "parent")
    chunk = whole(parent)
    for step in STEPS:
        chunk = parse_step(step).apply(chunk)
    small_groups(monkeypatch)
    made = make(parent, STEPS, tmp_path / "out", settings, executor=Shuffled()).path
    assert verify(made) == ()
    copy = whole(made).batch
    for table in ("steps", "observations", "episodes"):
        one, other = (getattr(batch, table) for batch in (copy, chunk.batch))
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_array_equal(np.asarray(one[key]), np.asarray(other[key]), str(key))
    for name in ("lengths", "final_observation"):
        np.testing.assert_array_equal(getattr(copy, name), getattr(chunk.batch, name))
    encodings = {leaf.encoding for leaf in DatasetReader(made).observation_leaves.values()}
    assert bool(encodings - {None}) == (kind in {"images", "videos"})


def test_a_run_that_was_killed_is_resumed(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = write_rich(tmp_path / "rich", RICH)
    small_groups(monkeypatch)
    make(parent, STEPS, tmp_path / "whole", settings, executor=Shuffled())
    with pytest.raises(KeyboardInterrupt):
        make(parent, STEPS, tmp_path / "out", settings, executor=Stopping(1))
    make(parent, STEPS, tmp_path / "out", settings, executor=Shuffled(), resume=True)
    found, wanted = digests(tmp_path / "out"), digests(tmp_path / "whole")
    del found["manifest.json"], wanted["manifest.json"]  # of other ids
    assert found == wanted


@pytest.mark.parametrize("by", [-3, -1, 1, 2])
@pytest.mark.parametrize("leaf", ["action", "next/reward", "observation"])
def test_shift(leaf: str, by: int) -> None:
    chunk = toy_chunk([3, 1, 6, 2], first_episode=1, unknown_final=[3])
    batch = chunk.batch
    made = Shift((leaf,), by=by).apply(chunk).batch
    seen, key = leaf == "observation", tuple(leaf.split("/"))
    velocity = batch.observations["observation", "velocity"]
    lengths, values, others, nexts = [], [], [], []
    for e, length in enumerate(batch.lengths.tolist()):
        start = int(batch.starts[e])
        known = length + int(seen and bool(batch.final_observation[e]))
        rows = [
            t
            for t in range(length)
            if t + by >= 0 and t + by + int(seen and by > 0) < (known if by > 0 else length + 1)
        ]
        lengths += [len(rows)] if rows else []
        for t in rows:
            others.append(velocity[start + e + t].item())
            if seen:
                values.append(velocity[start + e + t + by].item())
                nexts.append(velocity[start + e + t + by + 1].item())
            else:
                values.append(np.ravel(batch.steps[key][start + t + by])[0].item())
    assert made.lengths.tolist() == lengths
    new = made.observations["observation", "velocity"]
    if seen:
        assert new[made.root_rows].tolist() == values
        assert new[made.next_rows].tolist() == nexts
    else:
        assert made.steps[key].reshape(len(values), -1)[:, 0].tolist() == values
        assert new[made.root_rows].tolist() == others
