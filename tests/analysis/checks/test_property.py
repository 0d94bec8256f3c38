"""Random valid datasets have no finding of severity error, and damaged ones no failing rule."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.analysis.checks.registry import select_rules
from offline_data.analysis.checks.run import run_checks
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.testing.toy import write_toy
from tests.analysis.checks.planted import Write, clean_batch
from tests.text.test_rules import WIDTH
from tests.text.test_rules import batch as text_batch

DTYPES = ["float32", "float64", "float16", "int64", "uint8", "bool", "complex64"]


@st.composite
def batches(draw: st.DrawFn) -> EpisodeBatch:
    """Return valid episodes with values that are not all zero."""
    lengths = np.array(draw(st.lists(st.integers(1, 40), min_size=1, max_size=6)), np.int64)
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    rows, count = int(lengths.sum()), len(lengths)

    def column(length: int) -> Any:
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        shape = draw(st.sampled_from([(), (1,), (3,), (2, 2), (9, 9, 3)]))
        values = rng.normal(5, 2, (length, *shape))
        return (values > 4 if dtype == bool else np.abs(values) + 1).astype(dtype)

    terminated = np.zeros((rows, 1), bool)
    truncated = np.zeros((rows, 1), bool)
    last = np.cumsum(lengths) - 1
    ended = rng.integers(0, 2, count).astype(bool)
    terminated[last, 0], truncated[last, 0] = ended, ~ended
    steps: dict[Any, Any] = {
        ("action",): column(rows),
        REWARD: rng.normal(size=(rows, 1)).astype(np.float32),
    }
    steps |= {TERMINATED: terminated, TRUNCATED: truncated}
    names = draw(st.sets(st.sampled_from(["observation", "state", "info"]), min_size=1))
    observations: dict[Any, Any] = {(name, "x"): column(rows + count) for name in sorted(names)}
    return EpisodeBatch(lengths, steps, observations, np.ones(count, bool))


@st.composite
def texts(draw: st.DrawFn) -> EpisodeBatch:
    """Return documents of tokens, of all forms."""
    form, pad = draw(st.sampled_from(["text", "prompt", "pairs"])), draw(st.booleans())
    document = st.lists(st.integers(0, 20), min_size=1, max_size=WIDTH)
    documents = draw(st.lists(document, min_size=2, max_size=8).filter(lambda n: len(n) % 2 == 0))
    prompts = draw(st.lists(st.integers(0, WIDTH), min_size=8, max_size=8))[: len(documents)]
    cut = draw(st.sets(st.integers(0, len(documents) - 1)))
    return text_batch(documents, form, pad=pad, prompts=prompts, cut=sorted(cut))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, database=None)
@given(batch=st.one_of(batches(), batches(), texts()), layout=st.sampled_from(["compact", "ted"]))
def test_random_datasets_have_no_error(
    tmp_path_factory: pytest.TempPathFactory, batch: EpisodeBatch, layout: Any
) -> None:
    folder = tmp_path_factory.mktemp("random") / "set"
    write_toy(folder, [batch], layout=layout, audit="none")
    for items in (1 << 19, 30):
        report = run_checks([folder], select_rules(), block_items=items)
        assert report.at_least("error") == ()
    shutil.rmtree(folder.parent)


@pytest.mark.slow
def test_damaged_datasets_make_no_rule_fail(write: Write, tmp_path: Path) -> None:
    space = {"type": "Box", "shape": [2], "dtype": "float32", "low": [-1, -1], "high": [1, 1]}
    whole = write(clean_batch(), spaces={"action": space}, about={"total_steps": 41})
    rules, rng = select_rules(["RL"]), random.Random(7)  # noqa: S311 -- repeatable
    found = 0
    for case in range(120):
        folder = tmp_path / f"damaged{case}"
        shutil.copytree(whole, folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        victim = files[0] if case % 2 else rng.choice(files)  # every other one the manifest
        victim = folder / "manifest.json" if case % 2 else victim
        data = bytearray(victim.read_bytes())
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        victim.write_bytes(data[: rng.choice([len(data), len(data), rng.randrange(len(data))])])
        report = run_checks([folder], rules)
        codes = {one.code for one in report.findings}
        assert "RL000" not in codes, (case, report.findings)
        found += bool({"RL001", "RL008"} & codes)
    assert found >= 110  # a byte may be replaced by itself
