"""Every format: what is written, another reader finds; the format's own source finds it, and knows it as its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import UsageError
from offline_data.episode.fields import REWARD
from offline_data.formats.registry import source_accepting
from offline_data.formats.writing.base import TARGETS, get_target
from offline_data.pipeline.ingest import Options, convert
from offline_data.store.reader import open_reader
from tests.pipeline.export.conftest import BATCHES, LENGTHS
from tests.pipeline.export.contract import FORMATS
from tests.remedy import assert_none
from tests.slow import slow_but

NAMES = ("flat", "without final", "without rewards", "discrete")
"""Batches with one observation."""
LIKE = {("action",): "action", REWARD: "reward", ("observation",): "observation"}


def test_every_format_has_a_line() -> None:
    assert_none(
        {*TARGETS} - {*FORMATS}, "add a line to FORMATS in tests/pipeline/export/contract.py"
    )


@pytest.mark.parametrize(
    ("to", "name"),
    slow_but(lambda to, name: name == "flat" or TARGETS.index(to) % 3 == NAMES.index(name) - 1, TARGETS, NAMES),
)  # fmt: skip
def test_others_and_its_own_source_read_the_same(
    to: str, name: str, stored: Callable[[str], Path], settings: Settings, tmp_path: Path
) -> None:
    form, batch = FORMATS[to], BATCHES[name]()
    dest = tmp_path / f"out-v0{get_target(to).suffix}"
    options: dict[str, Any] = {"fps": 10} if to == "lerobot" else {}
    try:
        done = offline_data.export(stored(name), dest, to=to, settings=settings, progress=False, **options)  # fmt: skip
    except UsageError as error:
        assert "needs rewards" in str(error)  # noqa: PT017 - others are raised below
        assert (name, get_target(to).holds.rewards) == ("without rewards", "required")
        return
    lost = {loss.leaf for loss in done.losses}
    columns: dict[Any, Any] = {**batch.steps, **batch.observations}
    kept = {LIKE[key]: columns[key] for key in LIKE if key in columns and "/".join(key) not in lost}
    assert "action" in kept
    episodes = list(form.read(dest))
    assert len(episodes) == len(LENGTHS)
    for number, (episode, length) in enumerate(zip(episodes, LENGTHS, strict=True)):
        first = sum(LENGTHS[:number])
        for key, values in kept.items():
            begin = first + number * (key == "observation")
            rows, found = values[begin : begin + length], np.asarray(episode[key][:length])
            np.testing.assert_array_equal(found.reshape(rows.shape), rows, f"{key} of {number}")
            if key == "observation" and "next" in episode and batch.final_observation[number]:
                after = values[begin + 1 : begin + 1 + length]
                np.testing.assert_array_equal(episode["next"], after)
    assert source_accepting(dest).name == form.source
    back = open_reader(convert(dest, "back", settings, Options(), source=form.source).path)
    assert back.lengths.tolist() == list(LENGTHS)
    np.testing.assert_array_equal(back.step(("action",)).reshape(-1), np.ravel(columns["action",]))
