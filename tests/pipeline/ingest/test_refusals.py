"""What plans, shards, ranges and merged datasets may not be: the cases are the lines of `refusals.json`."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import offline_data
from offline_data.base.config import Settings
from offline_data.base.ids import parse_id
from offline_data.episode import EpisodeBatch
from offline_data.pipeline.ingest import Options, Stored, convert, plan_for_workers
from offline_data.pipeline.ingest.reading import chosen_parts
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.pipeline.preprocess.worker import run_share
from offline_data.testing.toy import ToyRaw, toy_batch
from tests.pipeline.ingest.test_shards import get
from tests.refusals import Refusals
from tests.toys.servers import FileServer
from tests.toys.sharded import served, write_toy_shards
from tests.toys.stored import write_stored

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))
NAME = "sharded-5x2"


def planned(settings: Settings, plan: Path, path: str, value: object) -> Any:
    """Work at a plan with another value somewhere."""
    whole: Any = json.loads(plan.read_text())
    *above, last = path.split(".")
    holder = whole
    for name in above:
        holder = holder[name]
    holder[last] = value
    plan.write_text(json.dumps(whole))
    return run_share(plan, 0, 1, settings)


def with_column(table: str, name: str, column: Any) -> EpisodeBatch:
    batch = toy_batch([len(column) - 1, 1] if table == "steps" else [1] * len(column))
    changed: Any = {table: {**getattr(batch, table), (name,): column}}
    return replace(batch, **changed)


def merged(
    settings: Settings, *batches: EpisodeBatch, name: str = "both", times: int = 1, **options: Any
) -> Stored:
    ids = [f"local:{letter}" for letter, _ in zip("abc", batches, strict=False)]
    for dataset, batch in zip(ids, batches, strict=True):
        write_stored(settings.root, f"{dataset}@1", batch)
    try:
        return offline_data.merge(*ids * times, name=name, settings=settings, **options)
    finally:
        assert not (settings.root / "local" / "both").exists()


NAMES: dict[str, Any] = {
    "np": np,
    **{
        call.__name__: call
        for call in (
            *(parse_id, Options, convert, plan_for_workers, chosen_parts, run_share, InProcess),
            *(ToyRaw, toy_batch, with_column, write_toy_shards),
        )
    },
}


@REFUSALS.cases
def test_refusals(
    kind: str, text: str, sharded: Settings, server: FileServer, tmp_path: Path
) -> None:
    folder, plan = tmp_path / "raw", tmp_path / "plan.json"
    names = {
        **NAMES,
        "settings": sharded,
        "folder": folder,
        "plan": plan,
        "planned": partial(planned, sharded, plan),
        "merged": partial(merged, sharded),
        "get": lambda name, executor=None, **options: get(
            name, sharded, server, executor, **options
        ),
    }
    if kind == "plans":
        server.files.update({**served(NAME), **served("sharded-3x2-unknown")})
        plan_for_workers(parse_id(f"shardtoy:{NAME}"), plan, sharded, Options())
    REFUSALS.check(
        kind,
        text,
        lambda: eval(text, names),  # noqa: S307
        {tmp_path: "FOLDER", server.url: "HOST"},
    )
    assert not [*sharded.root.glob("shardtoy/*/*")]
