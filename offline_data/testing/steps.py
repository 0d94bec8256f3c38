"""The contract of a step as tests: a step's own test is a subclass and a fixture.

Needs pytest. A subclass overrides `step`, and `chunk` if the toy episodes are not suitable:

```python
class TestClipContract(StepContract):
    @pytest.fixture(params=["clip:action,high=2", "clip:observation,low=-1,high=1"])
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)
```
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.episode import Key
from offline_data.pipeline.preprocess.steps.base import (
    MeasuredStep,
    Selection,
    Step,
    episode_columns,
)
from offline_data.store.chunk import EpisodeChunk
from offline_data.testing.chunks import (
    as_stored,
    assert_same_chunk,
    episodes_of,
    join_chunks,
    toy_chunk,
    transitions_of,
)


class StepContract:
    """Tests that every step passes; `step` must be overridden."""

    @pytest.fixture
    def step(self) -> Step:
        """Return the step as parsed or created, before it learnt anything."""
        raise NotImplementedError("a subclass of StepContract overrides the fixture `step`")

    @pytest.fixture
    def chunk(self) -> EpisodeChunk:
        """Return at least three whole episodes that the step can be applied to."""
        return toy_chunk([3, 1, 4, 2], first_episode=1, unknown_final=[3])

    @pytest.fixture
    def ready(self, step: Step, chunk: EpisodeChunk) -> Step:
        """Return the step after it was settled on single transitions, and fitted if it measures."""
        return prepare_step(step, chunk)

    def test_example_is_read(self, step: Step) -> None:
        """`example` starts with the name and can be parsed by the class itself."""
        example = getattr(step, "example", None)
        if example is not None:
            name, _, arguments = example.partition(":")
            assert name == step.name
            assert type(step).parse(arguments).name == step.name

    def test_is_a_value(self, step: Any) -> None:
        """It is a frozen dataclass, equal to its copy."""
        assert replace(step) == step
        assert is_dataclass(step)
        with pytest.raises(AttributeError):
            setattr(step, "anything", 1)  # noqa: B010

    def test_describes_itself_as_json(self, step: Any, ready: Step) -> None:
        """Only parameters, whatever was learnt; equal steps have equal descriptions."""
        described = step.describe()
        assert json.loads(json.dumps(described, allow_nan=False)) == described
        assert described["step"] == step.name
        assert replace(step).describe() == ready.describe() == described
        assert all(isinstance(note, str) and note for note in ready.notes())

    def test_pickling_keeps_it(self, step: Step, ready: Step, chunk: EpisodeChunk) -> None:
        """It can be pickled, before and after learning."""
        for one in (step, ready):
            again = pickle.loads(pickle.dumps(one))  # noqa: S301 -- our own bytes
            assert again == one
            assert (again.describe(), again.state()) == (one.describe(), one.state())
        assert_same_chunk(again.apply(chunk), ready.apply(chunk))

    def test_state_goes_through_json(self, step: Step, ready: Step, chunk: EpisodeChunk) -> None:
        """Learnt state survives a round trip through the manifest."""
        state = json.loads(json.dumps(ready.state()))
        again = step.with_state(state)
        assert again == ready
        assert again.state() == ready.state()
        assert_same_chunk(again.apply(chunk), ready.apply(chunk))

    def test_input_stays_as_it_was(self, ready: Step, chunk: EpisodeChunk) -> None:
        """The arrays of the input, which may be views of files, are not modified."""
        before = _bytes(chunk)
        result = ready.apply(chunk)
        assert _bytes(chunk) == before
        stored = as_stored(chunk)
        assert_same_chunk(ready.apply(stored), result)
        assert _bytes(stored) == before

    def test_same_input_same_result(self, ready: Step, chunk: EpisodeChunk) -> None:
        """Calls do not affect each other."""
        first = ready.apply(chunk)
        for one in episodes_of(chunk):
            ready.apply(one)
        assert_same_chunk(ready.apply(chunk), first)

    def test_other_episodes_do_not_matter(self, ready: Step, chunk: EpisodeChunk) -> None:
        """All at once, one by one, and in two parts."""
        whole, alone = ready.apply(chunk), episodes_of(chunk)
        assert_same_chunk(join_chunks([ready.apply(one) for one in alone]), whole)
        parts = [join_chunks(alone[:1]), join_chunks(alone[1:])]
        assert_same_chunk(join_chunks([ready.apply(part) for part in parts]), whole)

    def test_single_transitions_have_the_same_schema(
        self, ready: Step, chunk: EpisodeChunk
    ) -> None:
        """A schema inferred from single transitions is valid for whole episodes."""
        apart = transitions_of(chunk)
        assert schema(ready.apply(apart)) == schema(ready.apply(chunk))
        assert schema(ready.apply(episodes_of(apart)[0])) == schema(ready.apply(chunk))

    def test_episodes_stay_themselves(self, ready: Step, chunk: EpisodeChunk) -> None:
        """Columns of the episode table follow their episode; positions only with `keeps_rows`."""
        result = ready.apply(chunk)
        kept = [chunk.episodes.tolist().index(number) for number in result.episodes.tolist()]
        for key, column in chunk.batch.episodes.items():
            np.testing.assert_array_equal(result.batch.episodes[key], column[kept])
        if ready.keeps_rows:
            assert kept == list(range(len(chunk.episodes)))
            for what in ("episodes", "rows", "steps"):
                np.testing.assert_array_equal(getattr(result, what), getattr(chunk, what))
            for what in ("lengths", "final_observation"):
                one, two = (getattr(each.batch, what) for each in (result, chunk))
                np.testing.assert_array_equal(one, two)

    def test_what_is_measured(self, step: Step, chunk: EpisodeChunk) -> None:
        """Measuring does not modify the input, is picklable, and gives the same step twice."""
        if isinstance(step, MeasuredStep):
            before, stored = _bytes(chunk), as_stored(chunk)
            settled = step.settled(transitions_of(chunk))
            measures = [settled.measure(one) for one in episodes_of(stored)]
            assert _bytes(stored) == before
            again = pickle.loads(pickle.dumps(measures))  # noqa: S301 -- our own bytes
            assert settled.fitted(again) == settled.fitted(measures)

    def test_what_is_chosen(self, ready: Step, chunk: EpisodeChunk) -> None:
        """A choice is one flag per episode; measurements do not depend on grouping."""
        if isinstance(ready, Selection):
            assert ready.apply(chunk) is chunk
            whole = ready.measure(as_stored(chunk))
            parts = [ready.measure(one) for one in episodes_of(chunk)]
            assert set(whole) == set(parts[0])
            for key, column in whole.items():
                np.testing.assert_array_equal(column, np.concatenate([part[key] for part in parts]))
            np.testing.assert_array_equal(whole["number",], chunk.episodes)
            table = {**episode_columns(chunk), **whole}
            first, again = (ready.choose(table, chunk.words) for _ in range(2))
            assert (first.dtype, first.shape) == (np.dtype(bool), (len(chunk.episodes),))
            np.testing.assert_array_equal(first, again)


def prepare_step(step: Step, chunk: EpisodeChunk) -> Step:
    """Return the step ready to be applied: settled on single transitions, fitted on all episodes.

    Example:
        >>> from offline_data.pipeline.preprocess.steps.registry import parse_step
        >>> clip = parse_step("clip:action,high=2")
        >>> prepare_step(clip, toy_chunk([2])) == clip
        True
    """
    chunk = deepcopy(chunk)  # a faulty step may modify it
    settled = step.settled(transitions_of(chunk))
    if isinstance(settled, MeasuredStep):
        return settled.fitted([settled.measure(one) for one in episodes_of(chunk)])
    return settled


def schema(chunk: EpisodeChunk) -> dict[str, Any]:
    """Return the properties common to all chunks of a dataset: keys, dtypes, row shapes, words."""

    def of(columns: Mapping[Key, NDArray[Any]]) -> dict[Key, tuple[str, tuple[int, ...]]]:
        return {key: (column.dtype.str, column.shape[1:]) for key, column in columns.items()}

    batch = chunk.batch
    return {
        "steps": of(batch.steps),
        "observations": of(batch.observations),
        "episodes": of(batch.episodes),
        "words": {key: list(words) for key, words in chunk.words.items()},
    }


def _bytes(chunk: EpisodeChunk) -> dict[tuple[str, Key], bytes]:
    return {
        (table, key): column.tobytes()
        for table in ("steps", "observations", "episodes")
        for key, column in getattr(chunk.batch, table).items()
    }
