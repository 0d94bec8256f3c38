"""Functions as steps pass what every step passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from offline_data.preprocess.spec import Calling, function_step
from offline_data.preprocess.steps.base import Step
from offline_data.testing.steps import StepContract


def concatenated(td: Any) -> Any:
    for root in (td, td["next"]):
        seen = root["observation"]
        root["obs"] = torch.cat([seen["position"], seen["velocity"].double().unsqueeze(-1)], -1)
    return td.exclude("observation", ("next", "observation"))


def doubled(td: Any) -> Any:
    td["observation", "position"].mul_(2)
    return td.set("info", td["info"].clone())


def noisy(td: Any) -> Any:
    return td.set("noise", torch.rand(*td.batch_size, 2)).exclude("mission")


def branching(td: Any) -> Any:
    return td.set("action", td["action"] * (2 if td["action"].max() > 2000 else 3))


def told_apart(td: Any) -> Any:
    return td.set(("next", "info", "code"), td["next", "info", "code"] + 1)


class TestFunctionsOfRows(StepContract):
    @pytest.fixture(
        params=[
            (concatenated, Calling()),
            (concatenated, Calling(vectorize=False)),
            (concatenated, Calling(batched=2)),
            (doubled, Calling(on="observations")),
            (doubled, Calling(on="observations", batched=3)),
            (noisy, Calling(seed=3)),
            (branching, Calling()),
        ]
    )
    def step(self, request: pytest.FixtureRequest) -> Step:
        return function_step(*request.param)


class TestFunctionsOfEpisodes(StepContract):
    @pytest.fixture(params=[concatenated, noisy, branching])
    def step(self, request: pytest.FixtureRequest) -> Step:
        return function_step(request.param, Calling(by="episode", seed=5))


class TestLeavesThatAreToldApart(StepContract):
    @pytest.fixture(params=[Calling(), Calling(batched=2), Calling(by="episode")])
    def step(self, request: pytest.FixtureRequest) -> Step:
        return function_step(told_apart, request.param)

    @pytest.fixture
    def ready(self, step: Any, piece: Any) -> Any:
        """Give the step as it is after it found out on whole episodes."""
        settled = step.settled(piece)
        if not settled.two_copies:
            settled = settled.with_state({**settled.state(), "two_copies": ["info/code"]})
        assert settled.two_copies == ("info/code",)
        return settled
