"""Recipes and datasets of shards keep the contract of jobs, in every way to run them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from offline_data.testing.toy import toy_batch, write_toy
from tests.pipeline.jobs.cases import JobCase, OneShardCase, RecipeCase, ShardCase
from tests.pipeline.jobs.contract import ExecutorContract, JobContract, PlanContract, Whole
from tests.toys.servers import FileServer
from tests.toys.sharded import install, served


@pytest.fixture(params=[RecipeCase, ShardCase], ids=["recipe", "shards"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobCase]:
    """Return a job of either kind."""
    kind: type[JobCase] = request.param
    if kind is RecipeCase:
        write_toy(tmp_path / "toy", [toy_batch([4] * 8)])
        yield kind(tmp_path / "case", str(tmp_path / "toy"))
        return
    install(tmp_path / "plugin")
    with FileServer(served(ShardCase.name)) as server:
        yield kind(tmp_path / "case", server.url)


class TestHere(ExecutorContract):
    @pytest.fixture
    def case(self, made: JobCase) -> JobCase:
        return made


@pytest.mark.slow
class TestAnywhere(ExecutorContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> JobCase:
        write_toy(tmp_path / "toy", [toy_batch([4] * 8)])
        return RecipeCase(tmp_path / "case", str(tmp_path / "toy"), "anywhere")


class TestOneShard(JobContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> Iterator[JobCase]:
        install(tmp_path / "plugin")
        with FileServer(served(OneShardCase.name)) as server:
            yield OneShardCase(tmp_path / "case", server.url)


class TestRanks(PlanContract):
    @pytest.fixture
    def case(self, made: JobCase) -> JobCase:
        return replace(made, way="ranks")

    @pytest.mark.slow  # by default, those of `TestHere` fail
    def test_operations_that_fail(self, case: JobCase, whole: Whole) -> None:
        super().test_operations_that_fail(case, whole)

    @pytest.mark.slow
    def test_damage_is_never_taken_for_data(self, case: JobCase, whole: Whole) -> None:
        super().test_damage_is_never_taken_for_data(case, whole)
