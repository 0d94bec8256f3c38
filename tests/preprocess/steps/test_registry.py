from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any, ClassVar

import pytest

from offline_data.errors import MissingDependencyError, NotFoundError, UsageError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps import registry
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.columns import Clip
from offline_data.preprocess.steps.registry import (
    parse_step,
    register_step,
    step_class,
    step_names,
)


@dataclass(frozen=True)
class Mine(Step):
    name: ClassVar[str] = "mine"

    times: int = 2

    def apply(self, piece: Piece) -> Piece:
        return piece


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def entry_points_are(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    points = EntryPoints(
        EntryPoint(name, value, registry.ENTRY_POINT_GROUP) for name, value in values.items()
    )

    def select(group: str, name: str | None = None) -> EntryPoints:
        return points.select(group=group) if name is None else points.select(group=group, name=name)

    monkeypatch.setattr(registry, "entry_points", select)


@pytest.mark.parametrize("name", sorted(registry._BUILT_IN))
def test_every_built_in_step_is_there(name: str) -> None:
    step = step_class(name)
    assert step.name == name
    assert issubclass(step, Step)
    example: str = getattr(step, "example", name)
    assert isinstance(parse_step(example), step)


def test_names_are_sorted_and_import_nothing() -> None:
    names = step_names()
    assert names == sorted(registry._BUILT_IN)
    code = (
        "import sys; from offline_data.preprocess.steps.registry import step_names; step_names();"
        "print([m for m in sys.modules if 'torch' in m or m.startswith('offline_data.preprocess.steps.') and not m.endswith('registry')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout.strip() == "[]"


def test_a_step_of_ones_own() -> None:
    with pytest.raises(NotFoundError):
        parse_step("mine:3")
    assert register_step(Mine) is Mine
    assert parse_step(" mine : 3 ") == Mine(3)
    assert parse_step("mine") == Mine()
    assert "mine" in step_names()
    assert register_step(Mine) is Mine


def test_a_class_defined_anew_replaces_the_old_one() -> None:
    def define() -> type[Step]:
        class Again(Step):
            name: ClassVar[str] = "again"

        return Again

    first, second = register_step(define()), register_step(define())
    assert first is not second
    assert step_class("again") is second


def test_names_that_are_taken() -> None:
    register_step(Mine)

    class Other(Mine):
        pass

    class Clipper(Step):
        name: ClassVar[str] = "clip"

    for step in (Other, Clipper):
        with pytest.raises(UsageError, match=f"There is a step called {step.name!r} already"):
            register_step(step)
    assert step_class("mine") is Mine
    assert step_class("clip") is Clip


@pytest.mark.parametrize("called", ["a b", "a:b", "a,b", "", "2x", None, 3])
def test_names_that_cannot_be(called: Any) -> None:
    class Odd(Step):
        name = called

    with pytest.raises(UsageError, match="its name must be a word") as caught:
        register_step(Odd)
    assert "class Odd" in str(caught.value.hint)


def test_a_step_without_a_name() -> None:
    class Nameless(Step):
        pass

    with pytest.raises(UsageError, match="called None"):
        register_step(Nameless)


def test_steps_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points_are(
        monkeypatch,
        theirs="offline_data.preprocess.steps.columns:Clip",
        broken="no_such_package.steps:Step",
        renamed="offline_data.preprocess.steps.columns:Clop",
    )
    assert {"theirs", "broken", "renamed", "clip"} <= set(step_names())
    assert step_class("theirs") is Clip
    with pytest.raises(MissingDependencyError, match=r"'broken' cannot be imported.*no_such_pack"):
        step_class("broken")
    with pytest.raises(MissingDependencyError, match=r"'renamed' cannot be imported.*Clop"):
        step_class("renamed")


def test_no_such_step() -> None:
    with pytest.raises(NotFoundError, match="No step is called 'klip'; there are cast, clip,") as c:
        parse_step("klip:action")
    assert c.value.hint == "did you mean 'clip'?"
    with pytest.raises(NotFoundError, match="No step is called ''") as c:
        parse_step("")
    assert c.value.hint == "a step is written NAME or NAME:ARGUMENTS"


def test_arguments_of_a_step() -> None:
    assert parse_step("clip:action,obs.position,low=-1,high=0.5") == Clip(
        ("action", "obs.position"), -1, 0.5
    )
    with pytest.raises(UsageError, match="Step 'clip' needs keys") as caught:
        parse_step("clip:low=1")
    assert caught.value.hint == "for example --step clip:action,low=-1,high=1"
