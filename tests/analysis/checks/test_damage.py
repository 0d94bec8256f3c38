"""Damaged directories and odd manifests: findings, never an exception, never a rule that fails."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from offline_data.analysis.checks.registry import select_rules
from offline_data.analysis.checks.run import RULE_FAILED, run_checks
from offline_data.episode import EpisodeBatch, Key
from offline_data.store.encoded import EncodedColumn
from offline_data.store.manifest import Manifest
from offline_data.store.writer import DatasetWriter
from offline_data.testing.toy import toy_batch
from tests.fuzz.manifest_variants import _store, variants
from tests.fuzz.mutations import spoil_bytes, spoil_json
from tests.pictures import PNG, pictures, written
from tests.slow import slow_but

RULES = ("RL00", "RL05", "RL06", "RL07")
LENGTHS = (4, 9, 4, 12)
SOURCES = (("minari", "D4RL/door/human-v2"), ("d4rl", "hopper-random-v2"), ("openx", "bridge"))
SPACE = {"type": "Dict", "subspaces": {"camera": {"type": "Box", "shape": [3, 12, 17]}}}
FIELDS = {
    "spaces": {"observation": SPACE},
    "environment": {"id": "Door-v1"},
    "about": {"ref_min_score": 0, "ref_max_score": 10, "x": [{"y": 1}]},
    "notes": ["Images are lossy JPEG in the source."],
    "converter": {"version": "0.1.0", "options": {"episodes": None, "recipe": [{"step": "split"}]}},
    "dropped": [{"key": "a/b", "reason": "It is odd."}],
    "skipped": [{"where": "here", "reason": "It is odd."}],
    "parents": ["d4rl:maze2d-umaze-v1@1"],
    "licence": "MIT",
}


def mixed_batch() -> EpisodeBatch:
    """Return episodes with vectors, text, encoded and raw images; episode 2 is a copy of 0."""
    batch = toy_batch(LENGTHS, text=True, images=True, unknown_final=[1])
    rows = sum(LENGTHS) + len(LENGTHS)
    frames = [written(one, "png") for one in pictures(rows)]
    camera: dict[Key, Any] = {("observation", "camera"): EncodedColumn.of(frames, PNG)}
    return replace(batch, observations={**batch.observations, **camera})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset with every kind of leaf."""
    folder = tmp_path_factory.mktemp("damage") / "whole"
    header = Manifest("local:x@1", "local", "x", "1", "compact", tables={}, counts={})
    with DatasetWriter(folder, header, audit="all") as writer:
        writer.append(mixed_batch())
        writer.finish()
    return folder


def check(*paths: Path) -> set[str]:
    """Return the codes that all rules find; fails if a rule failed."""
    report = run_checks(paths, select_rules(RULES), block_items=2000)
    failed = [one.message for one in report.findings if one.code == RULE_FAILED]
    assert not failed
    return {one.code for one in report.findings}


def test_nothing_is_wrong_before(whole: Path) -> None:
    # Frames of the toy are black or have one colour
    assert check(whole) == {"RL002", "RL003", "RL050", "RL051"}


@pytest.mark.parametrize("seed", slow_but(lambda seed: seed == 2, range(3)))
def test_hostile_directories(whole: Path, tmp_path: Path, seed: int) -> None:
    found = set()
    for number, (_name, spoil) in enumerate(islice(variants(np.random.default_rng(seed)), 20)):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        spoil(folder)
        found |= check(folder, *[whole][number % 4 :])
    assert "RL001" in found


@pytest.mark.parametrize("seed", slow_but(lambda seed: seed == 1, range(2)))
def test_spoiled_files(whole: Path, tmp_path: Path, seed: int) -> None:
    random = Random(seed)  # noqa: S311
    names = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.is_file())
    for number in range(20):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        file = folder / random.choice(names)
        before = file.read_bytes()
        data = spoil_bytes(random, before)
        if random.random() < 0.7:  # of the same size: what it says is read
            data = data[: len(before)].ljust(len(before), b"\0")
        file.write_bytes(data)
        assert bool({"RL001", "RL008"} & check(folder)) is (data != before), file


@pytest.mark.parametrize("seed", slow_but(lambda seed: seed == 1, range(3)))
def test_odd_manifests(whole: Path, tmp_path: Path, seed: int) -> None:
    random = Random(seed)  # noqa: S311
    manifest = json.loads((whole / "manifest.json").read_text())
    for number in range(20):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        source, name = random.choice(SOURCES)
        fields = {**manifest, "source": source, "name": name, **spoil_json(random, FIELDS)}
        _store(folder, fields)
        check(folder, *[whole][number % 4 :])
