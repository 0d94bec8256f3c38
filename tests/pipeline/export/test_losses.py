"""Losses are what the proof finds: every difference is listed, and every entry of the list is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError, UsageError
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import DONE, REWARD, TERMINATED, TRUNCATED, Key, join_key
from offline_data.formats.base import RawDataset, Shard
from offline_data.formats.writing.base import FINAL, TARGETS, Loss, get_target
from offline_data.formats.writing.plan import plan_export
from offline_data.pipeline.export import proof, run
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.toy import toy_batch, write_toy
from tests.pipeline.export.conftest import LENGTHS, discrete_batch, everything, flat_batch
from tests.pipeline.export.contract import FORMATS
from tests.slow import every, slow_but

ONE: dict[Key, Key] = {("observation", "state"): ("observation",)}
NAMES: dict[str, dict[Key, Key]] = {
    "d4rl": ONE,
    "d3rlpy": ONE,
    "ogbench": {**ONE, ("info", "q", "pos"): ("info", "q_pos")},
    "zarr": {("observation", "arm", "half"): ("observation", "arm_half")},
    "lerobot": {
        ("state",): ("environment", "state"),
        ("extra", "v1.0"): ("extra", "v1", "0"),
    },
}
"""Leaves that have another name in a format."""


def write(batch: EpisodeBatch, folder: Path, to: str, **options: Any) -> Callable[..., Any]:
    """Write a dataset; return its export, which takes further options."""
    write_toy(folder / "toy", [batch], dataset="local:toy@1")
    if not get_target(to).holds.nested and ("observation", "state") in batch.observations:
        options["observation"] = "observation/state"
    if to == "lerobot":
        options.setdefault("fps", 10)
    options |= {"to": to, "settings": Settings(folder / "root"), "progress": False}
    dest = folder / f"out-v0{get_target(to).suffix}"
    return lambda **more: offline_data.export(folder / "toy", dest, **options, **more)


def columns(reader: DatasetReader) -> dict[Key, Any]:
    """Return all leaves as rows of transitions, and columns of episodes below `episodes`."""
    rows = reader.transitions_at(np.arange(reader.transitions))
    batch = reader.episode_batch(0, reader.episode_count)
    facts = {("episodes", *key): column for key, column in batch.episodes.items()}
    found = {key: np.asarray(reader.as_text(key, column)) for key, column in rows.items()}
    return {**found, **facts}


def is_listed(key: Key, losses: tuple[Loss, ...]) -> bool:
    """Return True if losses have a leaf, or for what comes after its actions its root."""
    names = {loss.leaf for loss in losses}
    after = key[0] == "next" and (join_key(key[1:]) in names or (key[1] == "observation" and FINAL in names))  # fmt: skip
    return join_key(key) in names or after


@pytest.mark.parametrize("to", every(3, TARGETS))
def test_what_is_not_listed_comes_back(to: str, tmp_path: Path) -> None:
    export = write(everything(), tmp_path, to)
    planned = export(dry_run=True)
    done = export()
    assert done.losses == planned.losses
    source, root = FORMATS[to].source, tmp_path / "back"
    back = offline_data.convert(done.path, "back", source=source, root=root, progress=False)
    first, second = columns(open_reader(tmp_path / "toy")), columns(open_reader(back.path))
    checked = 0
    for key, values in first.items():
        if key == DONE or is_listed(key, done.losses):  # of both flags
            continue
        at = 1 if key[0] == "next" else 0
        renamed = NAMES.get(to, {}).get(key[at:], key[at:])
        found = second[key[:at] + renamed]
        assert [n for n in found.shape if n > 1] == [n for n in values.shape if n > 1], key
        np.testing.assert_array_equal(found.reshape(values.shape), values, str(key))
        checked += 1
    assert checked >= 7
    roots = {key for key in second if key[0] not in {"next", "episodes"}}
    known = {NAMES.get(to, {}).get(key, key) for key in first}
    made = {("timestamp",), ("task",), ("extra", "dones")}
    assert roots <= known | made


@pytest.mark.parametrize("to", slow_but(lambda to: to in {"parquet", "rlds", "zarr"}, TARGETS))
def test_a_difference_that_is_not_listed_fails(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = write(everything(), tmp_path, to)
    real = plan_export
    for loss in export(dry_run=True).losses:

        def plan(*arguments: Any, without: Loss = loss) -> Any:
            job, losses = real(*arguments)
            return job, tuple(one for one in losses if one != without)

        monkeypatch.setattr(run, "plan_export", plan)
        with pytest.raises(IntegrityError, match=f"'{loss.leaf}' differs in .* not in the list"):
            export()
        assert not list(tmp_path.glob("*out-v0*"))


class Changed(RawDataset):
    """What a reader returns, changed."""

    def __init__(self, raw: RawDataset, change: Callable[[EpisodeBatch], EpisodeBatch]) -> None:
        self._raw, self._change = raw, change

    def shards(self) -> Any:
        return self._raw.shards()

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        for batch in self._raw.read(shard):
            yield self._change(batch)


def other_value(batch: EpisodeBatch, table: str, key: Key, row: int) -> EpisodeBatch:
    column = np.array(getattr(batch, table)[key])
    column[row] = ~column[row] if column.dtype == bool else column[row] + 1
    change: Any = {table: {**getattr(batch, table), key: column}}
    return replace(batch, **change)


FAULTS: dict[str, tuple[Callable[[EpisodeBatch], EpisodeBatch], str]] = {
    "an action": (lambda b: other_value(b, "steps", ("action",), 0), "'action' differs in 1 "),
    "a reward": (lambda b: other_value(b, "steps", REWARD, -1), "'next/reward' differs in 1 "),
    "a flag": (lambda b: other_value(b, "steps", TERMINATED, -1), "'next/terminated' differs in "),
    "an observation": (lambda b: other_value(b, "observations", ("observation",), 0), "'observation' differs in 1 "),
    "a new leaf": (lambda b: replace(b, steps={**b.steps, ("extra", "new"): b.steps["action",]}), "'extra/new' that was not written"),
    "no reward": (lambda b: replace(b, steps={k: c for k, c in b.steps.items() if k != REWARD}), "'next/reward' was not read back"),
    "a dtype": (lambda b: replace(b, steps={**b.steps, ("action",): b.steps["action",].astype(np.int64)}), "expected float32"),
    "an episode": (lambda b: b.part(0, len(b.lengths) - 1), "came back of"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("to", "name"),
    slow_but(
        lambda to, name: ([*TARGETS].index(to) + [*FAULTS].index(name)) % 4 == 0, TARGETS, FAULTS
    ),
)
def test_faults_of_what_was_written(
    to: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, message = FAULTS[name]
    if to in {"zarr", "ogbench"} and "reward" in name:
        pytest.skip(f"{to} has no rewards")
    export, kind = write(flat_batch(), tmp_path, to), type(get_target(to))
    real: Any = kind.read

    def one_action(batch: EpisodeBatch) -> EpisodeBatch:
        """Name an observation as the table of faults does, and back."""
        (key,) = (key for key in batch.observations if key[0] == "observation")
        plain = replace(batch, observations={("observation",): batch.observations[key]})
        changed = change(plain)
        return replace(changed, observations={key: changed.observations["observation",]})

    monkeypatch.setattr(kind, "read", lambda *a: Changed(real(*a), one_action))
    with pytest.raises(IntegrityError, match=message):
        export()
    assert not list(tmp_path.glob("*out-v0*"))


def test_the_row_after_the_last_action_is_written(tmp_path: Path) -> None:
    """RLDS has it in the final step, LeRobot in columns `next.…`."""
    for to in ("rlds", "lerobot"):
        done = write(discrete_batch(), tmp_path / to, to)()
        assert {loss.leaf for loss in done.losses} <= {FINAL}
        back = offline_data.convert(
            done.path, "back", source=FORMATS[to].source, root=tmp_path, force=True, progress=False
        )
        found = columns(open_reader(back.path))["next", "info", "q", "pos"]
        expected = columns(open_reader(tmp_path / to / "toy"))["next", "info", "q", "pos"]
        np.testing.assert_array_equal(found.ravel(), expected)


def test_infos_without_a_row_after_the_last_action(tmp_path: Path) -> None:
    batch = flat_batch()
    infos: dict[Key, Any] = {("info", "qpos"): np.arange(batch.transitions)}
    done = write(replace(batch, steps={**batch.steps, **infos}), tmp_path, "ogbench")()
    (reason,) = (loss.reason for loss in done.losses if loss.leaf == "info/qpos")
    assert reason == "it has no row after the last action, where ogbench has one"


def test_rlds_without_rewards_comes_back_without(tmp_path: Path) -> None:
    done = write(flat_batch(rewards=False), tmp_path, "rlds")()
    back = offline_data.convert(done.path, "b", source="openx", root=tmp_path, progress=False)
    reader = open_reader(back.path)
    assert REWARD not in reader.step_leaves
    assert not any("no rewards" in note for note in reader.manifest.notes)


def test_integers_that_lerobot_cannot_load(tmp_path: Path) -> None:
    batch = toy_batch(LENGTHS)
    big = np.full(batch.transitions, 2**63, np.uint64)
    export = write(replace(batch, steps={**batch.steps, ("extra", "n"): big}), tmp_path, "lerobot")
    with pytest.raises(UsageError, match=r"extra/n has values of 2\*\*63 and more"):
        export()
    small = replace(batch, steps={**batch.steps, ("extra", "n"): big - np.uint64(1)})
    assert write(small, tmp_path / "small", "lerobot")().compared


def test_text_and_truncation_of_a_flag_are_counted(tmp_path: Path) -> None:
    losses = {loss.leaf: loss.rows for loss in write(everything(), tmp_path, "rlds")().losses}
    assert losses == {
        join_key(TERMINATED): 1,
        join_key(TRUNCATED): 1,
        "extra/word": 3,
        "next/info/said": 3,
        "info/word": 4,
        "episodes/name/v2.0": 1,
        "episodes/split": 1,
    }


def test_losses_are_counted_over_all_batches() -> None:
    losses = Loss("a", 3, "late"), Loss("b", 1, "cut"), Loss("b", 5, "odd"), Loss("c", 1, "never")
    tally = proof._Tally("toy", losses)
    for leaf, rows in (("a", 2), ("b", 2), ("b", 1)):
        tally.add(leaf, rows, 9)
    assert tally.occurring() == (Loss("a", 2, "late"), *losses[1:3])
    with pytest.raises(IntegrityError, match="'a' differs in 2 of 9 rows"):
        tally.add("a", 2, 9)


def test_images_may_differ_by_10_of_255_on_average() -> None:
    values = np.full((4, 2), 100, np.uint8)
    back = np.array([[110, 110], [100, 121], [80, 100], [89, 89]], np.uint8)
    assert proof._far_apart(back, values).tolist() == [1, 3]


@pytest.mark.parametrize("to", [to for to in TARGETS if get_target(to).holds.nested])
def test_a_single_named_integer(to: str, tmp_path: Path) -> None:
    """It is a group of one leaf, not a leaf: Minari's space was that of the integer."""
    batch = flat_batch()
    seen = np.arange(batch.transitions + len(LENGTHS))
    steps = {**batch.steps, ("action",): np.arange(batch.transitions)}
    export = write(replace(batch, steps=steps, observations={("observation", "n"): seen}), tmp_path, to)  # fmt: skip
    assert {"action", "observation/n"}.isdisjoint(loss.leaf for loss in export().losses)
