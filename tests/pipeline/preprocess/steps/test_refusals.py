"""What steps and expressions refuse, with message and hint: the cases are the lines of `refusals.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from offline_data.pipeline.preprocess.steps.base import Step
from offline_data.pipeline.preprocess.steps.expressions import HINT, Expression
from offline_data.pipeline.preprocess.steps.leaves import matching, numbers
from offline_data.pipeline.preprocess.steps.registry import (
    parse_step,
    register_step,
    step_class,
    step_names,
)
from offline_data.store.chunk import EpisodeChunk
from offline_data.testing.chunks import toy_chunk, with_leaves
from offline_data.testing.steps import prepare_step
from tests.pipeline.preprocess.steps.test_reading_steps import Every, Nothing, Theirs, Two
from tests.refusals import Refusals

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))


def of_numbers() -> EpisodeChunk:
    """Make leaves of types whose values, or rows, do not go with what is asked of them."""
    values = {
        "int64": np.array([2**53 + 1, 70000]),
        "uint64": np.array([1, 2], np.uint64),
        "uint8": np.array([1, 2], np.uint8),
        "half": np.array([0.5, 65504], np.float16),
        "single": np.array([1, 2], np.float32),
        "huge": np.array([1, 1e300]),
        "imaginary": np.array([1, 1 + 1j]),
        "half imaginary": np.array([1, 0.5 + 0j]),
        "huge imaginary": np.array([1, 1e300 + 0j]),
        "pair": np.ones((2, 2)),
        "flat": np.ones((2, 3, 4)),
        "low": np.ones((2, 2, 4)),
        "next.shaped": np.ones((2, 1), np.float32),
        "next.wide": np.ones((2, 3)),
    }
    goal = {"observation.goal": np.array([1, 0, 1], np.int32)}
    chunk = with_leaves(toy_chunk([2], first_episode=3), steps=values)
    return with_leaves(chunk, observations=goal, words={"observation.goal": ["a", "b"]})


def images() -> EpisodeChunk:
    """Make images, and what is nearly one."""
    shapes = {
        "colour": (10, 11, 3),
        "alpha": (8, 9, 4),
        "stacked": (4, 8, 9),
        "two": (8, 9, 2),
        "plain": (8, 9),
        "small": (7, 7, 3),
        "unclear": (9, 8, 8),
        "chw": (3, 9, 8),
        "void": (0, 9),
    }
    named: dict[str, Any] = {name: np.ones((3, *shape), np.uint8) for name, shape in shapes.items()}
    named["int32"] = np.ones((3, 8, 9, 3), np.int32)
    named["flag"] = np.ones((3, 8, 9), bool)
    named["float"] = np.ones((3, 8, 9, 3), np.float32)
    words = {"words": np.ones((3, 8, 8), np.int32)}
    return with_leaves(toy_chunk([2]), observations=named | words, words={"words": ["one", "two"]})


COLUMNS: dict[str, Any] = {
    "return": np.array([3.5, -7.0, math.nan]),
    "length": np.array([10, 25, 3]),
    "terminated": np.array([True, False, True]),
    "id": np.array(["a", "b", None], object),
}


def make(text: str) -> None:
    """Construct a step: `crop {"height": null}`."""
    name, _, fields = text.partition(" ")
    values = {"nan": math.nan, "inf": math.inf, "[]": (), "10**400": 10**400}
    given = json.loads(fields).items()
    step_class(name)(**{key: values.get(str(value), value) for key, value in given})


def applied(chunk: EpisodeChunk) -> Callable[[str], object]:
    return lambda text: parse_step(text).settled(chunk).apply(chunk)


def with_rewards(values: Any, dtype: str, lengths: list[int] | None = None) -> EpisodeChunk:
    column = np.array(values, dtype)[:, None]
    return with_leaves(toy_chunk(lengths or [len(values)]), steps={"next.reward": column})


def seen(values: Any) -> EpisodeChunk:
    return with_leaves(toy_chunk([len(values) - 1]), observations={"observation.x": values})


def choose(text: str, table: Any, words: Any = None) -> None:
    step: Any = parse_step(text)
    step.choose(table, words or {})


def others(text: str) -> None:
    """Parse a step of another package."""
    name, _, arguments = text.partition(":")
    {step.name: step for step in (Every, Two, Theirs, Nothing)}[name].parse(arguments)


NAMED = (
    choose,
    matching,
    numbers,
    parse_step,
    register_step,
    seen,
    step_class,
    toy_chunk,
    with_leaves,
)
CALLS: dict[str, Any] = {
    **{one.__name__: one for one in (*NAMED, with_rewards, Step)},
    "np": np,
    "nan": math.nan,
    "inf": math.inf,
    "apply": lambda text, chunk: parse_step(text).apply(chunk),
    "fit": lambda text, chunk: prepare_step(parse_step(text), chunk).apply(chunk),
    "NORMALIZED": parse_step("normalize:observation.x").with_state(
        {"leaves": {"observation/x": {"mean": 0.0, "std": 0.5, "not_finite": 0}}}
    ),
}

KINDS: dict[str, Callable[[str], object]] = {
    "arguments": parse_step,
    "fields": make,
    "others": others,
    "toy": applied(toy_chunk([2])),
    "numbers": applied(of_numbers()),
    "images": applied(images()),
    "calls": lambda text: eval(text, CALLS),  # noqa: S307 - of the table
    "expressions": lambda text: Expression(text).evaluate(COLUMNS, 3),
}


@REFUSALS.cases
def test_refusals(kind: str, text: str) -> None:
    REFUSALS.check(
        kind, text, lambda: KINDS[kind](text), {HINT: "HINT", ", ".join(step_names()): "STEPS"}
    )
