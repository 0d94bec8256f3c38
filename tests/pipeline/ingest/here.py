"""Conversions in this process instead of a child: a hundred times faster, for tests of all else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import Self

from offline_data.pipeline.ingest import stream
from offline_data.pipeline.ingest.conversion import Conversion
from offline_data.pipeline.ingest.shards import ShardedRun
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.pipeline.jobs.processes.protocol import loads
from offline_data.text import tokenizer


class Here:
    """Stands for a `ConversionProcess`."""

    def __init__(self, path: Path) -> None:
        self.path, self._conversion = path, Conversion(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conversion, name)

    @contextmanager
    def writing(self, job: Any, workers: int, folder: Path, shard: Any = None) -> Iterator[Any]:
        self._conversion.begin(job, workers, folder, shard)
        build = self._conversion._build
        assert build is not None
        with build:
            yield build

    def reading(self, shards: Any, skip: int = 0) -> Iterator[Any]:
        self._conversion.read(shards, skip)
        while (piece := self._conversion.piece()) is not None:
            yield piece

    def kill(self) -> None:
        pass


class AskHere:
    """Stands for a `Child`."""

    def __init__(self, function: bytes, *, quiet: bool) -> None:
        assert quiet
        self.ask = loads(function)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def convert_here(patch: pytest.MonkeyPatch) -> None:
    """Start no process for a conversion in this process, nor to load a tokenizer."""
    patch.setattr(tokenizer, "Child", AskHere)
    patch.setattr(stream, "ConversionProcess", Here)
    for name in (
        "resolve",
        "download",
        "inspection",
        "shards",
    ):  # the package has functions of these names
        patch.setattr(
            sys.modules[f"offline_data.pipeline.ingest.{name}"], "ConversionProcess", Here
        )


@pytest.fixture
def processes() -> None:
    """Convert in processes of their own, as users do: what a test asks for that is about them."""


@pytest.fixture(autouse=True)
def conversions_start_no_process(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Convert in this process, shards too, unless a test asks for `processes`."""
    if "processes" not in request.fixturenames:
        convert_here(monkeypatch)
        monkeypatch.setattr(ShardedRun, "_local", lambda *_: InProcess())
