"""`Recipe`: a sequence of steps with what they learnt, and how it is built from user input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from offline_data.base.errors import StepError, UsageError
from offline_data.base.plurals import plural
from offline_data.episode.fields import Key, join_key
from offline_data.pipeline.jobs.processes.place import report_place
from offline_data.pipeline.preprocess.identity import describe_function, is_own, unknown_note
from offline_data.pipeline.preprocess.job import RunOptions, Stage
from offline_data.pipeline.preprocess.steps.base import Revision, Step
from offline_data.pipeline.preprocess.steps.leaves import column
from offline_data.pipeline.preprocess.steps.registry import parse_step
from offline_data.store.chunk import EpisodeChunk, episode_words
from offline_data.store.reader import DatasetReader

_SEED_STRIDE = 1_000_003
"""Difference of the seeds of two functions of a recipe, which must not draw the same numbers."""


@dataclass(frozen=True)
class Recipe:
    """Steps, each applied to the output of the one before."""

    steps: tuple[Step, ...]
    """In order; at least one to make a dataset."""

    @property
    def keeps_rows(self) -> bool:
        """Whether every episode is kept, with its length."""
        return all(step.keeps_rows for step in self.steps)

    @property
    def per_row(self) -> bool:
        """Whether Python is called for every row."""
        return any(step.per_row for step in self.steps)

    @property
    def in_blocks(self) -> bool:
        """Whether functions run on blocks: the last bits may depend on how rows are grouped."""
        return any(getattr(step, "run", "rows") != "rows" for step in self.steps)

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        """Apply all steps; raises what `Step.apply` raises.

        Also a `StepError` if a text leaf has codes outside its vocabulary, or lengths have changed
        although all steps keep them, and `Revision` if a step must be revised.
        """
        given = chunk
        for number, step in enumerate(self.steps):
            before = chunk.by_rows
            report_place(describe_place(step, chunk))
            try:
                chunk = step.apply(chunk)
            except Revision as found:
                raise Revision(found.state, found.reason, number) from found
            except MemoryError as error:
                raise StepError(
                    f"Memory is short for step {step.name!r} on "
                    f"{plural(len(chunk.episodes), 'episode')} of "
                    f"{plural(chunk.batch.transitions, 'transition')}",
                    hint="fewer workers, or smaller blocks (batched=), take less",
                ) from error
            if chunk.by_rows != before:
                found_here = ((rows, why, number) for rows, why, _ in chunk.by_rows[len(before) :])
                chunk = replace(chunk, by_rows=(*before, *found_here))
        if self.keeps_rows and not np.array_equal(chunk.batch.lengths, given.batch.lengths):
            raise StepError(
                f"A step changed lengths of episodes {given.episodes[0]} to {given.episodes[-1]}, "
                "and all steps say that they do not",
                hint="a step that changes lengths has `keeps_rows = False`",
            )
        for key, words in chunk.words.items():
            codes = column(chunk, key)
            if codes.size and not -1 <= codes.min() <= codes.max() < len(words):
                row = int(np.nonzero((codes < -1) | (codes >= len(words)))[0][0])
                place = chunk.place(row, observed=key in chunk.batch.observations)
                raise StepError(
                    f"The recipe gives {join_key(key)!r} at {place} the code "
                    f"{codes[row].tolist()}, which is out of range: this leaf is text, with codes from "
                    f"-1 (missing) to {len(words) - 1}",
                    hint="store numbers under another name, or as another type than int32",
                )
        return chunk

    def bind(self, reader: DatasetReader) -> Recipe:
        """Return the recipe for a dataset; raises what `Step.bind` raises."""
        steps: list[Step] = []
        for step in self.steps:
            steps.append(step.bind(reader, steps))
        return Recipe(tuple(steps))

    def episode_words(self, reader: DatasetReader) -> Mapping[Key, Sequence[str]]:
        """Return the vocabularies of text columns of the new episode table."""
        words = episode_words(reader)
        for step in self.steps:
            words = step.episode_words(words)
        return words

    def then(self, step: Step) -> Recipe:
        """Return the recipe with one more step."""
        return Recipe((*self.steps, step))

    def revise(self, found: Revision) -> Recipe:
        """Return the recipe with one step revised; raises `StepError` if it rejects the state."""
        steps = list(self.steps)
        step = steps[found.number].with_state(found.state)
        if step.state() != found.state:  # it would ask for the same revision forever
            raise StepError(f"Step {step.name!r} does not take the state that it gives itself")
        steps[found.number] = step
        return Recipe(tuple(steps))

    def describe(self) -> list[dict[str, Any]]:
        """Return the parameters of all steps as JSON values."""
        return [step.describe() for step in self.steps]

    @cached_property
    def code(self) -> list[dict[str, Any]]:
        """Classes of steps that are the user's own, as `describe_function` has them."""
        own = (type(step) for step in self.steps if is_own(type(step).__module__))
        return [describe_function(kind) for kind in own]

    @property
    def unknown(self) -> str:
        """Why its result is neither reused nor resumed; empty if all functions have a digest."""
        found = (one for one in (*self.describe(), *self.code) if one.get("unknown"))
        return next((unknown_note(one) for one in found), "")

    def states(self) -> list[dict[str, Any]]:
        """Return what the steps learnt, as JSON values."""
        return [step.state() for step in self.steps]

    def with_states(self, states: Sequence[dict[str, Any]]) -> Recipe:
        """Return the recipe with the states that `states` returned."""
        pairs = zip(self.steps, states, strict=True)
        return replace(self, steps=tuple(step.with_state(state) for step, state in pairs))

    def notes(self) -> tuple[str, ...]:
        """Return the steps' notes for the manifest."""
        return tuple(note for step in self.steps for note in step.notes())


def describe_place(step: Step, chunk: EpisodeChunk) -> str:
    """Describe a step on some rows, for a message."""
    first, stop = chunk.rows.min(initial=0), (chunk.rows + chunk.batch.lengths).max(initial=1)
    return f"{step_label(step)} on rows {first} to {stop - 1}"


def step_label(step: Step) -> str:
    """Return the name of a function, or of another step, for a message."""
    name = getattr(step, "about", {}).get("name")
    return f"the function {name}" if name else f"step {step.name!r}"


def function_in(stage: str) -> str | None:
    """Return the reference of a function in the text of a stage; None: it is another step.

    Example:
        >>> function_in("fn:scale.py:scale"), function_in("clip:action,low=-1")
        ('scale.py:scale', None)
    """
    name, _, rest = stage.partition(":")
    return rest.strip() if name.strip() == "fn" else None


def recipe_of(stages: Iterable[Stage], options: RunOptions | None = None) -> Recipe:
    """Build a recipe whose functions are called as `options` say.

    Raises:
        UsageError: There is no stage, or an invalid one.
        NotFoundError: No step of that name.

    Example:
        >>> recipe_of(["clip:action,low=-1", "clip:action,high=1"]).describe()[1]["high"]
        1
    """
    given = options or RunOptions()
    steps: list[Step] = []
    for number, stage in enumerate(stages):
        fn: Any = stage
        if isinstance(stage, str):
            function = function_in(stage)
            if function is None:
                steps.append(parse_step(stage))
                continue
            from offline_data.pipeline.preprocess.functions.reference import load_function

            fn = load_function(function)
        if isinstance(fn, Step):
            steps.append(fn)
        elif callable(fn):
            import offline_data.rows  # noqa: F401 # an error of ours without torch
            from offline_data.pipeline.preprocess.functions.episodes import EpisodeStep
            from offline_data.pipeline.preprocess.functions.step import FunctionStep

            seed = given.seed + number * _SEED_STRIDE
            if given.by == "episode":
                steps.append(EpisodeStep(fn, seed=seed))
            else:
                on, batched, vectorize = given.on, given.batched, given.vectorize
                made = FunctionStep(fn, seed=seed, on=on, batched=batched, vectorize=vectorize)
                steps.append(made)
        else:
            raise UsageError(f"{stage!r} is neither a function nor a step")
    if not steps:
        raise UsageError(
            "Nothing to do",
            hint="give a function or steps: --fn FILE.py:NAME, --step cast:obs=float32",
        )
    return Recipe(tuple(steps))
